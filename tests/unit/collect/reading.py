"""What a test looks at: the content of a journal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.read.journal.journal_reader import read
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import Frames


@dataclass(frozen=True)
class Read:
    """A journal as tables, with what was lost while recording (``counted``) and while reading (``lost``)."""

    frames: Frames
    counted: dict[str, int]
    lost: dict[str, int]

    @property
    def spans(self) -> list[dict[str, Any]]:
        """Spans in order of their start, each with its thread and its arguments."""
        tracks = self.frames["tracks"].select(track="id", thread="thread", thread_name="name")
        rows = self.frames["spans"].join(tracks, on="track").sort("id").to_dicts()
        for row in rows:
            arguments = self.frames["arguments"].filter(pl.col("span") == row["id"])
            row["args"] = {key: json.loads(value) for key, value in arguments.select("key", "value").iter_rows()}
        return rows

    @property
    def counters(self) -> list[dict[str, Any]]:
        """Samples in order of time, each with its lane."""
        tracks = self.frames["tracks"].select(track="id", lane="name")
        return self.frames["counters"].join(tracks, on="track").sort("ts").to_dicts()

    @property
    def metadata(self) -> dict[str, Any]:
        """Facts by key."""
        return {key: json.loads(value) for key, value in self.frames["metadata"].iter_rows()}


def read_journal(path: Path) -> Read:
    """Read a journal."""
    ledger = LossLedger("test")
    frames = read(path, ledger)
    counted = dict(frames["losses"].select("what", "count").iter_rows())
    return Read(frames, counted, {loss.what: loss.count for loss in ledger.rows()})


def descriptor(path: Path) -> int:
    """Return the number under which this process has a file open."""
    (number,) = (int(link.name) for link in Path("/proc/self/fd").iterdir() if link.resolve() == path.resolve())
    return number
