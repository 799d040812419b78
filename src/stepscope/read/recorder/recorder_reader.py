"""A file of the native recorder → tables: operators, ranges, Python calls and memory of all threads."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from stepscope.read.common.source import Progress, tell_all
from stepscope.read.recorder import recorder_tables
from stepscope.read.recorder.recorder_blocks import open_file
from stepscope.read.recorder.recorder_words import decode
from stepscope.trace.losses import LossLedger


def read(path: Path, ledger: LossLedger, progress: Progress | None = None) -> dict[str, pl.DataFrame]:
    """Read a file into the tables of one part.

    Args:
        path: File that the native recorder wrote; it may still be written to.
        ledger: Where losses are counted.
        progress: Called once, at the end.

    Raises:
        InputError: The file cannot be read, is none of these, or a newer stepscope wrote it.
    """
    content = open_file(path, ledger)
    operators, memory = decode(content, ledger)
    tables = recorder_tables.build(content, operators, memory, ledger)
    tell_all(path, progress)
    return tables
