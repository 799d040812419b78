"""The results of a run again, from its raw files: prints the summary and writes the result files."""

from __future__ import annotations

import argparse
from pathlib import Path

from stepscope.cli import options


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
    from stepscope.cli.files import show, write
    from stepscope.run import Run

    with options.reading_progress(quiet=arguments.quiet) as progress:
        run = Run(arguments.run, steps=arguments.steps, progress=progress)
        for rank in run.ranks:
            write(rank, arguments.format, pretty=arguments.pretty)
    if not arguments.quiet:
        show(run, quiet=False)
    return 0
