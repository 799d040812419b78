"""Files → tables: one reader per format, and the assembly of a rank's files on one time line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

from stepscope.errors import UsageError
from stepscope.read import sniff
from stepscope.read.assemble import assemble
from stepscope.read.source import Progress, files_of
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import Frames

__all__ = ["files_of", "read_files"]


def _read_journal(path: Path, ledger: LossLedger, progress: Progress | None) -> dict[str, pl.DataFrame]:
    from stepscope.read import frames

    part = frames.read(path, ledger)
    if progress is not None:
        size = path.stat().st_size
        progress(size, size)
    return part


def _read_kineto(path: Path, ledger: LossLedger, progress: Progress | None) -> dict[str, pl.DataFrame]:
    from stepscope.read import kineto

    return kineto.read(path, ledger, progress)


def _read_mindspore(path: Path, ledger: LossLedger, progress: Progress | None) -> dict[str, pl.DataFrame]:
    from stepscope.read import mindspore_cpu

    return mindspore_cpu.read(path, ledger, progress)


def _read_fluid(path: Path, ledger: LossLedger, progress: Progress | None) -> dict[str, pl.DataFrame]:
    from stepscope.read import fluid_profile

    return fluid_profile.read(path, ledger, progress)


def _read_paddle(path: Path, ledger: LossLedger, progress: Progress | None) -> dict[str, pl.DataFrame]:
    from stepscope.read import paddle_protobuf

    return paddle_protobuf.read(path, ledger, progress)


def _read_paddle_json(path: Path, ledger: LossLedger, progress: Progress | None) -> dict[str, pl.DataFrame]:
    from stepscope.read import paddle_json

    return paddle_json.read(path, ledger, progress)


def _read_cupti(path: Path, ledger: LossLedger, progress: Progress | None) -> dict[str, pl.DataFrame]:
    from stepscope.read import cupti

    part = cupti.read(path, ledger)
    if progress is not None:
        size = path.stat().st_size
        progress(size, size)
    return part


_READERS: dict[str, Callable[[Path, LossLedger, Progress | None], dict[str, pl.DataFrame]]] = {
    "journal": _read_journal,
    "cupti": _read_cupti,
    "kineto": _read_kineto,
    "mindspore": _read_mindspore,
    "fluid": _read_fluid,
    "paddle": _read_paddle,
    "paddle_json": _read_paddle_json,
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
    total = sum(map(_size, captures))
    parts, ledgers, done = [], [], 0
    for path in captures:
        ledger = LossLedger(path.name)
        parts.append(_READERS[sniff.format_of(path)](path, ledger, _shifted(progress, done, total)))
        ledgers.append(ledger)
        done += _size(path)
    return assemble(parts, ledgers, rank=rank, host=host)


def _size(capture: Path) -> int:
    return sum(path.stat().st_size for path in files_of(capture) if path.is_file())


def _shifted(progress: Progress | None, done: int, total: int) -> Progress | None:
    """Return progress over all files for a reader that knows only its own."""
    return None if progress is None else lambda read, _: progress(done + read, total)
