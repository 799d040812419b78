"""Options that several verbs share."""

from __future__ import annotations

import argparse
import re
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
#: What ``--rank`` says for all ranks.
EVERY_RANK = "all"


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


def add_rank(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--rank`` to a verb: a number, :data:`EVERY_RANK`, or None."""
    parser.add_argument("--rank", type=_rank, metavar="N|all", help=what)


def _rank(text: str) -> int | str:
    if text == EVERY_RANK or text.isdecimal():
        return text if text == EVERY_RANK else int(text)
    message = f"{text!r} is not a rank; write a number from 0, or {EVERY_RANK}"
    raise argparse.ArgumentTypeError(message)


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
        task = bar.add_task("reading", total=None, visible=False)  # until the size is known
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=total > 0)


#: Exit code of a command that was told to fail on a finding that there is.
FAILED = 3


def add_fail_on(parser: argparse.ArgumentParser) -> None:
    """Add ``--fail-on``."""
    parser.add_argument(
        "--fail-on",
        type=_condition,
        action="append",
        default=[],
        metavar="CONDITION",
        help="end with exit code 3 on a finding: any; one of a cause, such as data-loader-slow; "
        "one that saves a part of the step, such as gain:10%%. It can be repeated",
    )


def _condition(text: str) -> str:
    import difflib

    from stepscope.advise.finding import CAUSES
    from stepscope.extensions import extensions

    if re.fullmatch(r"any|gain:\d+(?:\.\d+)?%", text) or text in CAUSES:
        return text
    if re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", text) and extensions("stepscope.rules"):
        return text  # a rule of another package names its own causes
    near = difflib.get_close_matches(text, CAUSES, 1) or ["data-loader-slow"]
    message = f"{text!r} is not a condition; use any, a cause such as {near[0]}, or gain:10%"
    raise argparse.ArgumentTypeError(message)
