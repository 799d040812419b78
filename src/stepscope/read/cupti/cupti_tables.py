"""Work, calls and waits of one CUPTI capture → tables of the schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stepscope.read.cupti.activity_records import Integers
from stepscope.read.kineto import kineto_kinds
from stepscope.trace.clock import Clock
from stepscope.trace.tables import conform, dtype


@dataclass(frozen=True)
class Content:
    """What was recorded, as :mod:`stepscope.read.cupti.cupti_work` gives it."""

    work: pl.DataFrame
    calls: pl.DataFrame
    waits: pl.DataFrame
    overheads: pl.DataFrame
    allocations: pl.DataFrame


@dataclass(frozen=True)
class Owner:
    """Whose recording it is: process, host, and the device of each context."""

    process: int | None
    host: str
    contexts: Mapping[int, int]


_TRACK: dict[str, pl.DataType | type[pl.DataType]] = {
    "kind": dtype("enum:track_kind"),
    "device": pl.String,
    **dict.fromkeys(("process", "thread", "stream"), pl.Int64),
    "name": pl.String,
}


_NO_TRACKS = pl.DataFrame(schema={"id": pl.Int32, **_TRACK})
_NO_SPANS = pl.DataFrame(
    schema={
        "track": pl.Int32,
        "ts": pl.Int64,
        "end": pl.Int64,
        "name": pl.Categorical(),
        "kind": dtype("enum:kind"),
        "correlation": pl.Int64,
    }
)


@dataclass
class _Spans:
    """Spans of all sorts, one behind the other, and their tracks."""

    spans: list[pl.DataFrame] = field(default_factory=list)
    tracks: list[pl.DataFrame] = field(default_factory=list)
    count: int = 0

    def add(self, frame: pl.DataFrame, kind: pl.Expr, keys: Sequence[str], track: Mapping[str, pl.Expr]) -> None:
        """Append spans.

        Args:
            frame: Their times and names.
            kind: What they are.
            keys: Columns that tell their tracks apart.
            track: Columns of a track, of its keys.
        """
        if frame.is_empty():
            return
        distinct = frame.select(keys).unique(maintain_order=True) if keys else pl.DataFrame({"only": [0]})
        missing = {name: pl.lit(None, kind_) for name, kind_ in _TRACK.items() if name not in track}
        numbered = distinct.with_row_index("track", self.count).with_columns(pl.col("track").cast(pl.Int32))
        columns = {name: expression.cast(_TRACK[name]) for name, expression in {**missing, **track}.items()}
        self.tracks.append(numbered.select(id="track", **columns).select("id", *_TRACK))
        self.count += distinct.height
        correlation = pl.col("correlation") if "correlation" in frame.columns else pl.lit(None, pl.Int64)
        columns = {"kind": kind.cast(dtype("enum:kind")), "correlation": correlation}
        spans = frame.select("ts", "end", "name", *keys, **columns)
        where = {"on": keys, "how": "left", "nulls_equal": True, "maintain_order": "left"} if keys else {"how": "cross"}
        self.spans.append(spans.join(numbered, **where).select("track", "ts", "end", "name", "kind", "correlation"))


def build(content: Content, owner: Owner, clock: Clock) -> dict[str, pl.DataFrame]:
    """Make the tables of one capture.

    Args:
        content: What was recorded, in CUPTI's time.
        owner: Whose it is.
        clock: From CUPTI's clock to the epoch.
    """
    placed = _placed(content, owner)
    spans = pl.concat([_NO_SPANS, *placed.spans])
    start = epochs(spans["ts"].to_numpy(), clock)
    end = epochs(spans["end"].to_numpy(), clock)
    spans = spans.with_columns(
        id=pl.int_range(pl.len(), dtype=pl.Int64),
        ts=pl.Series(start),
        dur=pl.Series(np.maximum(end - start, 0)),
        depth=pl.lit(0, pl.Int32),
    )
    return {
        "spans": spans.select("id", "track", "ts", "dur", "name", "kind", "depth", "correlation"),
        "tracks": pl.concat([_NO_TRACKS, *placed.tracks]).with_columns(
            rank=pl.lit(0, pl.Int32), host=pl.lit(owner.host), order=pl.col("id")
        ),
        "kernels": _kernels(content.work),
        "allocations": content.allocations.with_columns(
            ts=pl.Series(epochs(content.allocations["ts"].to_numpy(), clock), dtype=pl.Int64)
        ).pipe(lambda frame: conform("allocations", frame)),
    }


def epochs(times: Integers, clock: Clock) -> Integers:
    """Return times of CUPTI's clock as ns since the epoch."""
    if not len(times):
        return times
    first, last = int(times.min()), int(times.max())
    shift = clock.epoch(first) - first
    if clock.jumps == 0 and clock.epoch(last) - last == shift:
        return times + shift
    return np.array(clock.epochs(times.tolist()), np.int64)


def _placed(content: Content, owner: Owner) -> _Spans:
    """Return spans of all sorts with their tracks: kernels, copies and fills first, in the order of the work."""
    spans = _Spans()
    stream = pl.col("stream")
    kinds = pl.when(_collective(content.work)).then(pl.lit("collective")).otherwise(pl.col("kind"))
    device = {"device": "cuda:" + pl.col("device").cast(pl.String), "stream": stream}
    track = {"kind": pl.lit("stream"), **device, "name": "stream " + stream.cast(pl.String)}
    spans.add(content.work, kinds, ["device", "stream"], track)
    thread = {name: pl.col(name) for name in ("process", "thread")}
    label = "thread " + pl.col("thread").cast(pl.String)
    host = {"kind": pl.lit("thread"), "device": pl.lit("cpu"), "name": label, **thread}
    spans.add(content.calls, pl.col("kind"), ["process", "thread"], host)
    contexts = pl.DataFrame(
        {"context": list(owner.contexts), "device": list(owner.contexts.values())},
        schema={"context": pl.Int64, "device": pl.Int64},
    )
    waits = content.waits.join(contexts, on="context", how="left", maintain_order="left").with_columns(
        pl.col("device").fill_null(0), stream=pl.when(stream < 1 << 31).then(stream)
    )
    of_stream = pl.coalesce("stream " + stream.cast(pl.String), pl.lit("context"))
    track = {"kind": pl.lit("other"), **device, "name": of_stream + " synchronisation"}
    spans.add(waits, pl.lit("sync"), ["device", "stream"], track)
    own = {"kind": pl.lit("other"), "device": pl.lit("cpu"), "process": pl.lit(owner.process, pl.Int64)}
    spans.add(content.overheads, pl.lit("overhead"), [], {**own, "name": pl.lit("profiler overhead")})
    return spans


def _collective(work: pl.DataFrame) -> pl.Series:
    """Return which kernels are collectives by their names."""
    names = work["name"].unique().cast(pl.String).to_list()
    found = [name for name in names if kineto_kinds.name_class(name) == kineto_kinds.NAME_DEVICE_COLLECTIVE]
    return work["name"].cast(pl.String).is_in(found) if found else pl.repeat(False, work.height, eager=True)  # noqa: FBT003


def _kernels(work: pl.DataFrame) -> pl.DataFrame:
    """Return details of device work, whose spans come first and in this order."""
    duration = pl.col("end") - pl.col("ts")
    frame = work.with_row_index("span").select(
        pl.col("span").cast(pl.Int64),
        "device",
        "context",
        "stream",
        "grid",
        "block",
        "registers",
        (pl.col("static_shared") + pl.col("dynamic_shared")).alias("shared_memory"),
        "occupancy",
        "blocks_per_sm",
        "warps_per_sm",
        "bytes",
        pl.when((pl.col("kind") == "memcpy") & (duration > 0)).then(pl.col("bytes") / duration).alias("bandwidth"),
        "graph",
        "graph_node",
        "priority",
    )
    return conform("kernels", frame)
