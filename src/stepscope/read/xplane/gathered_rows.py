"""What is gathered from the planes of a file: spans, and what belongs to them by the number of their span."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import PartBuilder, TrackRow
from stepscope.read.xplane import xplane_events
from stepscope.read.xplane.batches import XplaneBatch, distinct
from stepscope.read.xplane.planes import Plane
from stepscope.read.xplane.xplane_events import XplaneStats


class GrowingColumn:
    """A column that grows in place: the system moves its pages, so that no second copy is in memory."""

    def __init__(self, kind: np.dtype[Any]) -> None:
        self._values: npt.NDArray[Any] = np.empty(0, kind)
        self._count = 0

    def add(self, values: npt.NDArray[Any]) -> None:
        """Append values."""
        end = self._count + len(values)
        if end > len(self._values):
            self._values.resize(end + end // 8, refcheck=False)
        self._values[self._count : end] = values
        self._count = end

    def taken(self) -> npt.NDArray[Any]:
        """Return the column, which is given up."""
        values, self._values = self._values, np.empty(0, self._values.dtype)
        values.resize(self._count, refcheck=False)
        return values


def _columns() -> dict[str, GrowingColumn]:
    kinds = {"track": "i4", "ts": "i8", "dur": "i8", "name": "i4", "kind": "u1", "operation": "i4"}
    return {name: GrowingColumn(np.dtype(kind)) for name, kind in kinds.items()}


@dataclass
class XplaneRows:
    """Tables of a part while it is read; times as in :class:`~stepscope.read.xplane.batches.XplaneBatch`.

    Attributes:
        part: Takes tracks, and tables that need no time.
        spans: Columns of the table ``spans``, with ``operation`` besides; names and kinds by their number.
        count: Number of spans so far.
        names: The names of the spans, of one plane after the other.
        correlations: Numbers of spans that have a correlation, and the correlations.
        pieces: Pieces of what becomes tables when the whole file is known, by name.
    """

    part: PartBuilder = field(default_factory=PartBuilder)
    spans: dict[str, GrowingColumn] = field(default_factory=_columns)
    count: int = 0
    names: list[pl.Series] = field(default_factory=list)
    correlations: list[tuple[Integers, Integers]] = field(default_factory=list)
    pieces: dict[str, list[pl.DataFrame]] = field(default_factory=dict)

    def track(self, track: TrackRow) -> int:
        """Return the number of a new track: each line of the file has its own."""
        tracks = self.part.tracks
        return tracks.number(track, len(tracks.rows))

    def add(
        self,
        batch: XplaneBatch,
        track: int,
        kind: npt.NDArray[np.uint8],
        *,
        correlation: pl.Series,
        operation: Integers,
    ) -> int:
        """Add the spans of a batch; return the number of the first."""
        first = self.count
        columns: dict[str, npt.NDArray[Any]] = {"ts": batch.ts, "dur": batch.dur, "kind": kind, "operation": operation}
        columns |= {"track": np.broadcast_to(track, len(batch)), "name": self._names_of(batch.plane) + batch.place}
        for name, values in columns.items():
            self.spans[name].add(values)
        # Most events have none, and an empty column is as large as a full one.
        if correlation.null_count() < len(batch):
            having = correlation.is_not_null().to_numpy()
            self.correlations.append((np.flatnonzero(having) + first, correlation.drop_nulls().to_numpy()))
        self.count += len(batch)
        return first

    def _names_of(self, plane: Plane) -> int:
        """Return the number of a plane's first name."""
        if not self.names or self.names[-1] is not plane.span_names:
            self.names.append(plane.span_names)
        return sum(map(len, self.names[:-1]))

    def put(self, name: str, frame: pl.DataFrame) -> None:
        """Keep a piece of what becomes a table later."""
        if frame.height:
            self.pieces.setdefault(name, []).append(frame)

    def arguments(self, plane: Plane, stats: XplaneStats, first: int) -> None:
        """Add stats as arguments of the spans from ``first`` on; values as JSON."""
        if len(stats.owner):
            key = pl.Series(plane.stat_names, dtype=pl.String).gather(stats.key)
            span = pl.Series(stats.owner.astype(np.int64) + first)
            self.part.add("arguments", {"span": span, "key": key, "value": _json(plane, stats)})

    def steps(self, batch: XplaneBatch, chosen: npt.NDArray[np.bool_]) -> None:
        """Keep declared steps."""
        number = batch.integers("step_num")
        frame = pl.DataFrame({"number": number, "ts": batch.ts, "dur": batch.dur}).filter(pl.Series(chosen))
        self.put("steps", self.part.possible_steps(frame))

    def allocations(self, track: int, batch: XplaneBatch) -> None:
        """Keep what the allocator of a device reports."""
        name = batch.plane.event_names.gather(batch.place)
        frame = pl.DataFrame(
            {
                "ts": batch.ts,
                "allocator": batch.texts("allocator_name"),
                "address": batch.integers("addr"),
                "bytes": batch.integers("allocation_bytes"),
                "allocated": batch.integers("bytes_allocated"),
                "freed": name.str.contains("Deallocation"),
            }
        )
        self.put("allocations", frame.with_columns(track=pl.lit(track, pl.Int32)).drop_nulls("bytes"))


def _json(plane: Plane, stats: XplaneStats) -> pl.Series:
    """Return values of stats as JSON; each distinct value that is not an integer is encoded once."""
    signed = stats.field == xplane_events.SIGNED
    texts = pl.Series(stats.value).cast(pl.String)
    others = stats.where(~signed)
    found, number = distinct(others)
    values = [json.dumps(value.hex() if isinstance(value, bytes) else value) for value in plane.values(found)]
    return texts.scatter(np.flatnonzero(~signed), pl.Series(values, dtype=pl.String).gather(number))
