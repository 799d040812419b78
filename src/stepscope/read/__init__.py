"""Files → tables: one reader per format, and the assembly of a rank's files on one time line."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import polars as pl

from stepscope.errors import UsageError
from stepscope.read import sniff
from stepscope.read.assemble.assemble import assemble
from stepscope.read.common.source import Progress, files_of
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import Frames

__all__ = ["READERS", "files_of", "read_capture", "read_files"]


#: Format → the module that reads it, with ``read(path, ledger, progress)``; none is imported before it is needed.
READERS: dict[str, str] = {
    "journal": "journal.journal_reader",
    "cupti": "cupti.cupti_reader",
    "recorder": "recorder.recorder_reader",
    "kineto": "kineto.kineto_reader",
    "mindspore": "mindspore.mindspore_reader",
    "ascend": "ascend.ascend_reader",
    "fluid": "paddle.fluid_profile",
    "paddle": "paddle.node_trees",
    "paddle_json": "paddle.paddle_chrome",
    "xplane": "xplane.xplane_reader",
    "pprof": "pprof",
}


def read_files(
    paths: Sequence[Path], *, rank: int | None = None, host: str | None = None, progress: Progress | None = None
) -> Frames:
    """Read every capture of one rank.

    Args:
        paths: The captures, of any known formats: files, and directories where one capture is several files. A
            directory above several captures of the rank stands for all of them.
        rank: Rank of the process; None takes what the files say, else 0.
        host: Host name; None takes what the files say.
        progress: Called with bytes read and bytes in total, over all files.

    Returns:
        Every table of the schema, on one time line.

    Raises:
        UsageError: No file is named.
        InputError: A file cannot be read, is no trace, or is damaged before its first event.
    """
    if not paths:
        message = "No file to read."
        raise UsageError(message, "Name at least one trace.")
    captures = [capture for path in paths for capture in sniff.captures(path)]
    sizes = [_size(capture) for capture in captures]
    ledgers = [LossLedger(path.name) for path in captures]
    parts = (
        read_capture(path, ledger, _shifted(progress, sum(sizes[:place]), sum(sizes)))
        for place, (path, ledger) in enumerate(zip(captures, ledgers, strict=True))
    )
    return assemble(parts, ledgers, rank=rank, host=host)


def read_capture(path: Path, ledger: LossLedger, progress: Progress | None = None) -> dict[str, pl.DataFrame]:
    """Read one capture, of any known format, into tables of its own.

    Raises:
        InputError: It cannot be read, is no trace, or is damaged before its first event.
    """
    reader = import_module(f"{__name__}.{READERS[sniff.format_of(path)]}")
    part: dict[str, pl.DataFrame] = reader.read(path, ledger, progress)
    return part


def _size(capture: Path) -> int:
    return sum(path.stat().st_size for path in files_of(capture) if path.is_file())


def _shifted(progress: Progress | None, done: int, total: int) -> Progress | None:
    """Return progress over all files for a reader that knows only its own."""
    return None if progress is None else lambda read, _: progress(done + read, total)
