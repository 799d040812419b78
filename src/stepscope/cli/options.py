"""Options that several verbs share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.collect import options

if TYPE_CHECKING:
    from rich.console import Console

    from stepscope.run import Progress

DEFAULT_OUTPUT = options.DEFAULT_OUTPUT


def output_console() -> Console:
    """Return a console on standard output: colours on a terminal, plain text elsewhere and with NO_COLOR."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add ``--output`` to a verb that makes a run."""
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=DEFAULT_OUTPUT,
        metavar="DIR",
        help=f"where runs are made (default: ./{DEFAULT_OUTPUT})",
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the positional argument ``run`` to a verb that shows what was recorded."""
    parser.add_argument(
        "run",
        type=Path,
        nargs="?",
        default=DEFAULT_OUTPUT,
        help="run; directory of runs, of which the latest is taken; or capture of another tool, or directory of such "
        f"(default: the latest run in ./{DEFAULT_OUTPUT})",
    )


def add_steps(parser: argparse.ArgumentParser) -> None:
    """Add ``--steps`` to a verb that looks at a run."""
    parser.add_argument("--steps", type=_range, metavar="A-B", help="only steps A to B, both included")


def _range(text: str) -> tuple[int, int]:
    try:
        return options.step_range(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@contextmanager
def reading_progress(*, quiet: bool) -> Iterator[Progress | None]:
    """Show a bar on standard error while captures are read, if standard error is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich import progress
    from rich.console import Console

    columns = (progress.TextColumn("reading"), progress.BarColumn(), progress.DownloadColumn())
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
