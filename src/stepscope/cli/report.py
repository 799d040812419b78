"""The results of a run again, from its raw files: prints the summary and writes the result files.

Of a directory that the profiler of another tool wrote a run is made first, as ``stepscope import`` does.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import options

if TYPE_CHECKING:
    from stepscope.run import Run


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb ``report``."""
    parser = subparsers.add_parser(
        "report", help="print the summary of a run and write its results", description=__doc__
    )
    parser.add_argument("run", type=Path, help="directory that `stepscope run` or `stepscope import` made")
    parser.add_argument(
        "--format",
        default="csv,json",
        help="files to write: csv, json, db, trace, pftrace, all or none (default: csv,json)",
    )
    parser.add_argument("--pretty", action="store_true", help="indent JSON files")
    parser.add_argument("-q", "--quiet", action="store_true", help="write the files, print nothing")
    options.add_steps(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Write the files of every rank and print its summary."""
    from stepscope.cli.outputs import show, write

    with _opened(arguments) as run:
        for rank in run.ranks:
            write(rank, arguments.format, pretty=arguments.pretty)
    if not arguments.quiet:
        show(run, quiet=False)
    return 0


@contextmanager
def _opened(arguments: argparse.Namespace) -> Iterator[Run]:
    """Give the run; of captures of another tool one that is made of them, as nothing is written beside those."""
    from stepscope.cli.import_ import imported
    from stepscope.run import CaptureRun, Run

    with options.reading_progress(quiet=arguments.quiet) as progress:
        run = Run(arguments.run, steps=arguments.steps, progress=progress)
        if not any(isinstance(rank, CaptureRun) for rank in run.ranks):
            yield run
            return
    with imported([arguments.run], options.DEFAULT_OUTPUT, quiet=arguments.quiet) as made:
        yield Run(made.path, steps=arguments.steps)
