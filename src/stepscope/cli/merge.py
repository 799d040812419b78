"""Make one job of the summaries of its ranks, which `stepscope reduce` or a recording wrote, and print what they say.

Nothing else is read where the summaries are fresh.
"""

from __future__ import annotations

import argparse
import os

from stepscope.cli import options

HELP = "make one job of the summaries of its ranks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``merge``."""
    options.add_run(parser)
    parser.add_argument("--format", help="files to write: csv, json, db, all or none (default: csv)")
    parser.add_argument("--pretty", action="store_true", help="indent JSON files")
    parser.add_argument("-q", "--quiet", action="store_true", help="write the files, print nothing")


def execute(arguments: argparse.Namespace) -> int:
    """Write the files of the job and print it."""
    # The tables of a job are small: threads of Polars would cost more than they do.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    from stepscope.cli.outputs import show
    from stepscope.report import registry
    from stepscope.report.job_files import job_answer, write_job
    from stepscope.run import Run

    run = Run(arguments.run)
    write_job(run, registry.select_of_job(arguments.format or "csv", pretty=arguments.pretty))
    if not arguments.quiet:
        show(run, job_answer(run))
    return 0
