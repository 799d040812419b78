"""Options that several verbs share."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from stepscope.run import Progress


DEFAULT_OUTPUT = Path("stepscope-runs")


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
    parser.add_argument("--steps", type=step_range, metavar="A-B", help="only steps A to B, both included")


def step_range(text: str) -> tuple[int, int]:
    """Parse ``3-5``, ``3:5`` or ``4`` into first and last step, both included."""
    match = re.fullmatch(r"(\d+)(?:[-:](\d+))?", text)
    if match is None:
        message = f"{text!r} is no range of steps; write 3-5 or 4"
        raise argparse.ArgumentTypeError(message)
    first = int(match[1])
    last = int(match[2] or match[1])
    if last < first:
        message = f"{text!r} ends before it begins; write {last}-{first}"
        raise argparse.ArgumentTypeError(message)
    return first, last


@contextmanager
def reading_progress(*, quiet: bool) -> Iterator[Progress | None]:
    """Show a bar on standard error while captures are read; nothing where that is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich import progress
    from rich.console import Console

    columns = (progress.TextColumn("reading"), progress.BarColumn(), progress.DownloadColumn())
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
