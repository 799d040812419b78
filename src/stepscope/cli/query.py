"""Answer a question in SQL over the tables and results of a run, of all its ranks; without one, list what it can name.

One SELECT in DuckDB's dialect; `DESCRIBE spans` shows the columns of a table. A query reads this run and nothing else.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stepscope.cli import options

HELP = "answer a question in SQL over the tables and results of a run"
_FORMATS = ("table", "csv", "json", "parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``query``."""
    options.add_run(parser)
    parser.add_argument("sql", nargs="?", help="one SELECT; `-` reads it from standard input")
    parser.add_argument("--format", choices=_FORMATS, help="default: the ending of --output, else a table to read")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="file to write (default: standard output)")
    options.add_steps(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Print the rows, or write them to a file."""
    from stepscope.report.answers import print_answer, write_answer
    from stepscope.run import Run
    from stepscope.sql.query import query
    from stepscope.sql.views import known_views

    form = _format(arguments)
    path, sql = _asked(arguments)
    with options.reading_progress(quiet=False) as progress:
        run = Run(path, steps=arguments.steps, progress=progress)
        if sql is None:
            for name, row in known_views(run).items():
                sys.stdout.write(f"{name:<26} {row}\n")
            return 0
        rows = query(run, sys.stdin.read() if sql == "-" else sql)
    if form == "table":
        print_answer(rows, options.output_console())
    else:
        write_answer(rows, form, arguments.output)
    return 0


def _asked(arguments: argparse.Namespace) -> tuple[Path, str | None]:
    """Return the run and the query: one argument alone is the query, unless a run or a capture lies there."""
    only = str(arguments.run)
    if arguments.sql is None and arguments.run != options.DEFAULT_OUTPUT and (only == "-" or " " in only.strip()):
        return options.DEFAULT_OUTPUT, only
    return arguments.run, arguments.sql


def _format(arguments: argparse.Namespace) -> str:
    from stepscope.errors import UsageError

    ending = arguments.output.suffix.removeprefix(".") if arguments.output else "table"
    form = str(arguments.format or ending)
    if form not in _FORMATS or (form == "table" and arguments.output):
        message = f"{arguments.output} does not say in which format to write."
        raise UsageError(message, "Add --format csv, json or parquet.")
    return form
