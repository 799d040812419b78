"""Kineto traces (PyTorch's profiler, Chrome trace JSON): file → tables."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from stepscope.read import kineto_tables
from stepscope.read.kineto_columns import Events, join
from stepscope.read.kineto_decode import Decoder
from stepscope.read.kineto_document import Document
from stepscope.read.source import Progress, read_blocks
from stepscope.trace.losses import LossLedger


def read(path: Path, ledger: LossLedger, progress: Progress | None = None) -> dict[str, pl.DataFrame]:
    """Read one trace file.

    Returns:
        Tables of the schema, without parents, steps and links between spans; ``allocations`` has besides the column
        ``track``, and ``arrows`` are flows whose ends are given as places (track, ts).

    Raises:
        InputError: The file cannot be read, is no trace, or is damaged before its first event.
    """
    document = Document(path, ledger)
    events = read_events(document, progress)
    return kineto_tables.build(events, document.metadata, ledger)


def read_events(document: Document, progress: Progress | None = None) -> Events:
    """Read the columns of all events of a document; its metadata is complete afterwards."""
    decoder = Decoder(document.ledger)
    batches = []
    for chunk, last in document.chunks(read_blocks(document.path, document.ledger, progress)):
        if last:
            batch, tail = decoder.decode_last(chunk)
            document.read_tail(tail)
        else:
            batch = decoder.decode(chunk)
        batches.append(batch)
    return join(batches, decoder.interner, document.ledger)
