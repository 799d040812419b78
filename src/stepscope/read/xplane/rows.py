"""What is gathered from the planes of a file: spans, and what belongs to them by the number of their span."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.nesting import Integers
from stepscope.read.xplane import decode
from stepscope.read.xplane.batches import Batch, distinct
from stepscope.read.xplane.decode import Stats
from stepscope.read.xplane.planes import Plane
from stepscope.trace.schema import KINDS
from stepscope.trace.tables import conform, dtype, empty

_KINDS = pl.Series(list(KINDS), dtype=dtype("enum:kind"))
SPANS: dict[str, pl.DataType | type[pl.DataType]] = {
    "track": pl.Int32,
    "ts": pl.Int64,
    "dur": pl.Int64,
    "name": pl.Categorical(),
    "kind": dtype("enum:kind"),
    "operation": pl.Int32,
}
_RUN = {"program_id": pl.Int64, "run": pl.Int64, "ts": pl.Int64, "end": pl.Int64, "total": pl.Int64}


@dataclass
class Rows:
    """Tables of a part while it is read; times as in :class:`~stepscope.read.xplane.batches.Batch`.

    Attributes:
        tracks: Rows of the table ``tracks``.
        spans: Pieces of the table ``spans``, with the column ``operation`` besides.
        tables: Pieces of other tables, by name.
    """

    tracks: list[dict[str, Any]] = field(default_factory=list)
    spans: list[pl.DataFrame] = field(default_factory=list)
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
        columns: dict[str, Any] = {
            "track": pl.Series([track], dtype=pl.Int32).new_from_index(0, len(batch)),
            "ts": batch.ts,
            "dur": batch.dur,
            "name": batch.plane.categories.gather(batch.place),
            "kind": _KINDS.gather(kind),
            "operation": pl.Series(operation, dtype=pl.Int32),
        }
        # Most events have none, and an empty column is as large as a full one.
        columns |= {"correlation": correlation} if correlation.null_count() < len(batch) else {}
        self.spans.append(pl.DataFrame(columns))
        self.count += len(batch)
        return first

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
    signed = stats.field == decode.SIGNED
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
