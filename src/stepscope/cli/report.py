"""Print the summary of a run and write its result files, from its raw files.

Of a capture that another tool wrote, or a directory of such, a run is made first, as `stepscope import` does.
"""

from __future__ import annotations

import argparse

from stepscope.cli import options

HELP = "print the summary of a run and write its results"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``report``."""
    options.add_run(parser)
    parser.add_argument(
        "--format",
        default="csv,json",
        help="files to write: csv, json, db, trace, pftrace, all or none (default: csv,json)",
    )
    parser.add_argument("--pretty", action="store_true", help="indent JSON files")
    parser.add_argument("-q", "--quiet", action="store_true", help="write the files, print nothing")
    options.add_steps(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Write the files of every rank and print its summary."""
    from stepscope.cli.import_ import opened
    from stepscope.cli.outputs import show, write_all

    with opened(arguments.run, steps=arguments.steps, quiet=arguments.quiet) as run:
        write_all(run, arguments.format, pretty=arguments.pretty)
    if not arguments.quiet:
        show(run, quiet=False)
    return 0
