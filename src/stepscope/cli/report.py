"""Print the summary of a run and write its result files, from its raw files.

Of a job of several ranks, the summary is that of the job: one screen, and files in `cluster/` of the run. The files of
each rank are written for a job of up to eight ranks; for a larger one with --rank.

Of a capture that another tool wrote, or a directory of such, a run is made first, as `stepscope import` does.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import options

if TYPE_CHECKING:
    from stepscope.run import Run

#: What ``--html`` says without a file.
_BESIDE = Path()

HELP = "print the summary of a run and write its results"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``report``."""
    options.add_run(parser)
    parser.add_argument(
        "--format",
        help="files to write: csv, json, db, trace, pftrace, all or none (default: csv,json; of a job csv); or lines, "
        "sarif or github, as after --findings",
    )
    parser.add_argument("--pretty", action="store_true", help="indent JSON files")
    parser.add_argument(
        "--html",
        type=Path,
        nargs="?",
        const=_BESIDE,
        metavar="FILE",
        help="write one page with everything in it, to send or to keep (default: report.html among the results)",
    )
    parser.add_argument(
        "--metrics",
        type=Path,
        metavar="FILE",
        help="write the figures of the steps and the findings for Prometheus (.prom) or OpenTelemetry (.json); of a "
        "job, those of its first rank",
    )
    parser.add_argument(
        "--findings",
        nargs="?",
        const="text",
        metavar="text|lines|sarif|github",
        help="print all findings with their evidence instead; or as `file:line: message` for editors, as SARIF 2.1.0, "
        "or as annotations of GitHub's workflows",
    )
    options.add_fail_on(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="write the files, print nothing")
    options.add_steps(parser)
    options.add_rank(
        parser, "of a job of several ranks: print and write the results of rank N; or write those of every rank, too"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Write the files and print the summary; of a run that cannot be written to, only print it."""
    from stepscope.advise.finding import failing
    from stepscope.advise.rank_findings import rank_findings
    from stepscope.cli.import_ import opened
    from stepscope.cli.outputs import Wanted, keep_one, show, write_all
    from stepscope.errors import OutputError, UsageError
    from stepscope.report.annotations import ANNOTATIONS
    from stepscope.report.safe_text import printable
    from stepscope.report.terminal.finding_pages import render_findings

    _settle_findings(arguments)
    refused = answer = page = None
    unwritten: list[UsageError] = []
    with opened(arguments.run, steps=arguments.steps, quiet=arguments.quiet) as run:
        if isinstance(arguments.rank, int):
            keep_one(run, arguments.rank)
        try:
            wanted = Wanted(_formats(run, arguments), arguments.pretty, every_rank=arguments.rank == options.EVERY_RANK)
            answer = write_all(run, wanted).job
        except OutputError as error:
            read_only = not all(os.access(rank.directory.path, os.W_OK) for rank in run.ranks)
            if arguments.format or arguments.quiet:
                raise
            refused = error
            unwritten += [] if read_only else [error]
            if len(run.ranks) > 1:
                from stepscope.report.job_files import job_answer

                answer = job_answer(run)
        try:
            page = None if arguments.html is None else _write_page(run, arguments)
        except UsageError as error:  # a checkout without its browser side works in the terminal
            unwritten.append(error)
        findings = answer.findings if answer is not None else rank_findings(run.ranks[0])
        if arguments.metrics is not None:
            from stepscope.report.metrics import write_metrics

            try:
                write_metrics(arguments.metrics, run.ranks[0], findings)
            except UsageError as error:
                unwritten.append(error)
        step_ns = answer.summary.step_ns if answer is not None else run.ranks[0].summary.steps.mean_ns or None
    if arguments.findings == "text":
        render_findings(findings, step_ns, options.output_console())
    elif arguments.findings:
        sys.stdout.write(ANNOTATIONS[arguments.findings](findings))
    elif not arguments.quiet:
        show(run, answer, refused=refused)
    if page is not None:
        sys.stdout.write(f"{page}\n" if arguments.quiet else f" page         {page}\n")
    if unwritten:
        raise unwritten[0]
    failed = failing(findings, arguments.fail_on, step_ns)
    for finding in failed:
        sys.stderr.write(f"stepscope: {finding.cause}: {printable(finding.title)}\n")
    return options.FAILED if failed else 0


def _formats(run: Run, arguments: argparse.Namespace) -> str | None:
    """Return the formats that are asked for; beside the page of a large run none, for those take minutes."""
    from stepscope.report.page.file_timeline import is_large

    asked: str | None = arguments.format
    if arguments.html is None or asked is not None or len(run.ranks) > 1 or not is_large(run.ranks[0]):
        return asked
    sys.stderr.write("stepscope: a large run: --format csv,json writes the files of all results beside the page\n")
    return "none"


def _settle_findings(arguments: argparse.Namespace) -> None:
    """Take what follows ``--findings`` as the run, if it names no form of findings; ``--format`` may name one."""
    from stepscope.errors import UsageError
    from stepscope.report.annotations import ANNOTATIONS

    if arguments.findings not in (None, "text", *ANNOTATIONS):
        if arguments.run != Path(options.DEFAULT_OUTPUT):
            message = f"--findings {arguments.findings}: the form is unknown."
            raise UsageError(message, f"Say text, {', '.join(ANNOTATIONS)}, or nothing.")
        arguments.run, arguments.findings = Path(arguments.findings), "text"
    if arguments.format in ANNOTATIONS:
        arguments.findings, arguments.format = arguments.format, None


def _write_page(run: Run, arguments: argparse.Namespace) -> Path:
    from stepscope.cli.outputs import near
    from stepscope.report.job_files import job_directory
    from stepscope.report.page.content import Shown
    from stepscope.report.page.one_file import html
    from stepscope.report.whole_files import write_whole

    beside = run.ranks[0].results_directory if len(run.ranks) == 1 else job_directory(run)
    path: Path = beside / "report.html" if arguments.html == _BESIDE else arguments.html
    write_whole(path, html(Shown.of(run, arguments.rank if isinstance(arguments.rank, int) else None)))
    return near(path)
