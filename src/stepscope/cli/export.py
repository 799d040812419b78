"""A run in a format of other tools: timelines, SQLite, CSV, JSON."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stepscope.cli import options


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb ``export``."""
    parser = subparsers.add_parser(
        "export", help="write a run as a timeline, a database or tables", description=__doc__
    )
    parser.add_argument("run", type=Path, help="directory that `stepscope run` or `stepscope import` made")
    parser.add_argument(
        "--to",
        required=True,
        metavar="FORMAT",
        help="pftrace (ui.perfetto.dev), trace (Chrome JSON), db (SQLite), csv, json, or all; several with commas",
    )
    parser.add_argument("-o", "--output", type=Path, help="directory for the files (default: results/ of each rank)")
    parser.add_argument("--pretty", action="store_true", help="indent JSON files")
    options.add_steps(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Write the files and print their paths, one a line, on standard output."""
    from stepscope.cli.files import write
    from stepscope.run import Run

    with options.reading_progress(quiet=False) as progress:
        run = Run(arguments.run, steps=arguments.steps, progress=progress)
        for rank in run.ranks:
            directory = arguments.output
            if directory is not None and len(run.ranks) > 1:
                directory /= rank.directory.path.name
            for path in write(rank, arguments.to, pretty=arguments.pretty, directory=directory):
                sys.stdout.write(f"{path}\n")
    return 0
