"""Write a run in a format of other tools: timelines, SQLite, CSV, JSON, or the directories of an Ascend profiler."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import options

if TYPE_CHECKING:
    from stepscope.run import Run

HELP = "write a run as a timeline, a database or tables"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``export``."""
    options.add_run(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--to",
        metavar="FORMAT",
        help="pftrace (ui.perfetto.dev), trace (Chrome JSON), speedscope, pprof, firefox (profiler.firefox.com), "
        "collapsed (flame graphs), memory_viz (pytorch.org/memory_viz), db (SQLite), csv, json, or all; several with "
        "commas",
    )
    what.add_argument(
        "--layout",
        metavar="LAYOUT",
        help="ascend: a directory for each rank as MindSpore's and torch_npu's profilers make it, for msprof-analyze "
        "and MindStudio Insight (ascend_ms, ascend_pt: one of the two, whatever recorded the run)",
    )
    parser.add_argument("--type", default="text", help="files of the layout: text, db, or text,db (default: text)")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        help="directory for the files (default: results/ of each rank, RUN/cluster, RUN/ascend)",
    )
    parser.add_argument("--pretty", action="store_true", help="indent JSON files")
    options.add_steps(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Write the files and print their paths (of a layout, the directories), one a line, on standard output."""
    from stepscope.cli.import_ import opened
    from stepscope.run import Run

    with ExitStack() as stack:
        if arguments.output is None:  # nothing is written beside captures: a run is made of them
            run = stack.enter_context(opened(arguments.run, steps=arguments.steps, quiet=False))
        else:
            progress = stack.enter_context(options.reading_progress(quiet=False))
            run = Run(arguments.run, steps=arguments.steps, progress=progress)
        for path in _layout(run, arguments) if arguments.layout else _formats(run, arguments):
            sys.stdout.write(f"{path}\n")
    return 0


def _formats(run: Run, arguments: argparse.Namespace) -> Iterator[Path]:
    from stepscope.cli.outputs import WITH_WAITS, write, write_with_waits
    from stepscope.report import registry

    chosen = registry.select(arguments.to, pretty=arguments.pretty)
    if len(run.ranks) > 1:
        from stepscope.report.job_files import job_directory, write_job
        from stepscope.report.protocol import TimelineFormat
        from stepscope.report.timeline.job_timeline import aligned

        of_job = registry.select_of_job(arguments.to, pretty=arguments.pretty)
        cluster = arguments.output and arguments.output / "cluster"
        yield from write_job(run, of_job, cluster)
        timelines = [output for output in chosen if isinstance(output, TimelineFormat)]
        for output in timelines:
            yield from output.write_ranks(aligned(run), cluster or job_directory(run))
        nested = [output for output in chosen if output.name in WITH_WAITS]
        yield from write_with_waits(run.ranks, run, nested, directory=arguments.output)
        chosen = [output for output in chosen if output not in [*timelines, *nested]]
    for rank in run.ranks:
        directory = arguments.output
        if directory is not None and len(run.ranks) > 1:
            directory /= rank.directory.path.name
        yield from write(rank, chosen, directory=directory)


def _layout(run: Run, arguments: argparse.Namespace) -> Iterator[Path]:
    """Write the ranks side by side into one directory, as tools expect them."""
    from stepscope.report import registry
    from stepscope.report.job_files import source_in_job
    from stepscope.report.protocol import Source

    layout = registry.layout(arguments.layout, arguments.type)
    first = run.ranks[0]
    directory = arguments.output or first.directory.path.parent / f"{layout.name}{first.selection}"
    for rank in run.ranks:
        alone = len(run.ranks) == 1
        source = Source(rank.shown, rank.results, rank.manifest) if alone else source_in_job(rank, run)
        yield from layout.write(source, directory)
        rank.release()
