"""What is gathered from the planes of a file: spans, and what belongs to them by the number of their span."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.common.nesting import Integers
from stepscope.read.xplane import xplane_events
from stepscope.read.xplane.batches import Batch, distinct
from stepscope.read.xplane.planes import Plane
from stepscope.read.xplane.xplane_events import Stats
from stepscope.trace.tables import conform, empty

_RUN = {"program_id": pl.Int64, "run": pl.Int64, "ts": pl.Int64, "end": pl.Int64, "total": pl.Int64}


class Growing:
    """A column that grows where it lies: the system moves its pages, and nothing is copied or left behind in pieces."""

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


def _columns() -> dict[str, Growing]:
    kinds = {"track": "i4", "ts": "i8", "dur": "i8", "name": "i4", "kind": "u1", "operation": "i4"}
    return {name: Growing(np.dtype(kind)) for name, kind in kinds.items()}


@dataclass
class Rows:
    """Tables of a part while it is read; times as in :class:`~stepscope.read.xplane.batches.Batch`.

    Attributes:
        tracks: Rows of the table ``tracks``.
        spans: Columns of the table ``spans``, with ``operation`` besides; names and kinds by their number.
        names: The names of the spans, of one plane after the other.
        correlations: Numbers of spans that have a correlation, and the correlations.
        tables: Pieces of other tables, by name.
    """

    tracks: list[dict[str, Any]] = field(default_factory=list)
    spans: dict[str, Growing] = field(default_factory=_columns)
    names: list[pl.Series] = field(default_factory=list)
    correlations: list[tuple[Integers, Integers]] = field(default_factory=list)
    tables: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    count: int = 0

    def thread(self, process: int | None, thread: int, name: str) -> int:
        """Return the number of a thread's track."""
        return self.track(
            kind="thread", device="cpu", process=process, thread=thread, name=name.split("/")[0] or "thread"
        )

    def track(self, **values: Any) -> int:  # noqa: ANN401 - columns of the table
        """Return the number of a new track."""
        number = len(self.tracks)
        self.tracks.append({"id": number, "order": number, "rank": 0, "host": "", **values})
        return number

    def add(
        self, batch: Batch, track: int, kind: npt.NDArray[np.uint8], *, correlation: pl.Series, operation: Integers
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
        if not self.names or self.names[-1] is not plane.event_names:
            self.names.append(plane.event_names)
        return sum(map(len, self.names[:-1]))

    def put(self, name: str, frame: pl.DataFrame) -> None:
        """Add rows to a table."""
        if frame.height:
            self.tables.setdefault(name, []).append(frame)

    def table(self, name: str) -> pl.DataFrame:
        """Return a table of the schema as far as it was gathered."""
        frames = self.tables.get(name)
        return conform(name, pl.concat(frames, how="diagonal_relaxed")) if frames else empty(name)

    def arguments(self, plane: Plane, stats: Stats, first: int) -> None:
        """Keep stats as arguments of the spans from ``first`` on; values as JSON."""
        if not len(stats.owner):
            return
        key = pl.Series(plane.stat_names, dtype=pl.String).gather(stats.key)
        span = pl.Series(stats.owner.astype(np.int64) + first)
        self.put("arguments", pl.DataFrame({"span": span, "key": key, "value": _json(plane, stats)}))

    def steps(self, batch: Batch, chosen: npt.NDArray[np.bool_]) -> None:
        """Keep declared steps."""
        number = batch.integers("step_num")
        frame = pl.DataFrame({"number": number, "ts": batch.ts, "dur": batch.dur}).filter(pl.Series(chosen))
        self.put("steps", frame.filter(pl.col("number").is_between(0, (1 << 31) - 1)))

    def runs(self, batch: Batch) -> None:
        """Keep when each run of a program began and ended, and how long its operators took together."""
        frame = pl.DataFrame(
            {
                "program_id": batch.integers("program_id"),
                "run": batch.integers("run_id"),
                "ts": batch.ts,
                "end": batch.ts + batch.dur,
                "total": batch.dur,
            },
            schema=_RUN,
        )
        self.put("runs", united_runs([frame.filter(pl.col("run").is_not_null())]))

    def allocations(self, track: int, batch: Batch) -> None:
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


def _json(plane: Plane, stats: Stats) -> pl.Series:
    """Return values of stats as JSON; each distinct one that is no integer is looked at once."""
    signed = stats.field == xplane_events.SIGNED
    texts = pl.Series(stats.value).cast(pl.String)
    others = stats.where(~signed)
    found, number = distinct(others)
    values = [json.dumps(value.hex() if isinstance(value, bytes) else value) for value in plane.values(found)]
    return texts.scatter(np.flatnonzero(~signed), pl.Series(values, dtype=pl.String).gather(number))


def united_runs(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Return one row per run of a program."""
    together = pl.concat([pl.DataFrame(schema=_RUN), *frames])
    return together.group_by("program_id", "run", maintain_order=True).agg(
        pl.col("ts").min(), pl.col("end").max(), pl.col("total").sum()
    )
