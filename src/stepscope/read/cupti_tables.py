"""Work, calls and waits of one CUPTI capture → tables of the schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stepscope.read import kineto_kinds
from stepscope.read.cupti_records import Integers
from stepscope.trace.clock import Clock
from stepscope.trace.tables import conform, dtype


@dataclass(frozen=True)
class Content:
    """What was recorded, as :mod:`stepscope.read.cupti_work` gives it."""

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


#: Columns that tell tracks apart.
_PLACE = ("track_kind", "device", "process", "thread", "stream", "track_name")
_PLACES: dict[str, pl.DataType | type[pl.DataType]] = {
    **dict.fromkeys(("track_kind", "device"), pl.String),
    **dict.fromkeys(("process", "thread", "stream"), pl.Int64),
    "track_name": pl.String,
}


@dataclass
class _Spans:
    """Spans of all sorts, one behind the other, with the place of each."""

    frames: list[pl.DataFrame] = field(default_factory=list)

    def add(self, frame: pl.DataFrame, kind: pl.Expr, place: Mapping[str, pl.Expr]) -> None:
        missing = {name: pl.lit(None, kind_) for name, kind_ in _PLACES.items() if name not in place}
        correlation = pl.col("correlation") if "correlation" in frame.columns else pl.lit(None, pl.Int64)
        self.frames.append(
            frame.select(
                "ts",
                "end",
                "name",
                kind.cast(dtype("enum:kind")).alias("kind"),
                correlation.alias("correlation"),
                *(expression.cast(_PLACES[name]).alias(name) for name, expression in {**missing, **place}.items()),
            ).select("ts", "end", "name", "kind", "correlation", *_PLACE)
        )


def build(content: Content, owner: Owner, clock: Clock) -> dict[str, pl.DataFrame]:
    """Make the tables of one capture.

    Args:
        content: What was recorded, in CUPTI's time.
        owner: Whose it is.
        clock: From CUPTI's clock to the epoch.
    """
    spans, tracks = _numbered(_placed(content, owner))
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
        "tracks": _tracks(tracks, owner.host),
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


def _placed(content: Content, owner: Owner) -> pl.DataFrame:
    """Return spans of all sorts with their places: kernels, copies and fills first, in the order of the work."""
    spans = _Spans()
    stream = pl.col("stream")
    device = "cuda:" + pl.col("device").cast(pl.String)
    named = "stream " + stream.cast(pl.String)
    kinds = pl.when(_collective(content.work)).then(pl.lit("collective")).otherwise(pl.col("kind"))
    spans.add(
        content.work, kinds, {"track_kind": pl.lit("stream"), "device": device, "stream": stream, "track_name": named}
    )
    thread = {name: pl.col(name) for name in ("process", "thread")}
    label = "thread " + pl.col("thread").cast(pl.String)
    host = {"track_kind": pl.lit("thread"), "device": pl.lit("cpu"), "track_name": label}
    spans.add(content.calls, pl.col("kind"), {**host, **thread})
    where = pl.col("context").replace_strict(owner.contexts, default=0, return_dtype=pl.Int64)
    of_wait = pl.when(stream < 1 << 31).then(stream)
    lane = {
        "track_kind": pl.lit("other"),
        "device": "cuda:" + where.cast(pl.String),
        "stream": of_wait,
        "track_name": pl.coalesce("stream " + of_wait.cast(pl.String), pl.lit("context")) + " synchronisation",
    }
    spans.add(content.waits, pl.lit("sync"), lane)
    own = {"track_kind": pl.lit("other"), "device": pl.lit("cpu"), "process": pl.lit(owner.process, pl.Int64)}
    spans.add(content.overheads, pl.lit("overhead"), {**own, "track_name": pl.lit("profiler overhead")})
    return pl.concat(spans.frames)


def _collective(work: pl.DataFrame) -> pl.Series:
    """Return which kernels are collectives by their names."""
    names = work["name"].unique().cast(pl.String).to_list()
    found = [name for name in names if kineto_kinds.name_class(name) == kineto_kinds.NAME_DEVICE_COLLECTIVE]
    return work["name"].cast(pl.String).is_in(found) if found else pl.repeat(False, work.height, eager=True)  # noqa: FBT003


def _numbered(spans: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return spans with the number of their track, and the tracks."""
    tracks = spans.select(_PLACE).unique(maintain_order=True).with_row_index("track")
    numbered = spans.join(tracks, on=_PLACE, how="left", nulls_equal=True, maintain_order="left")
    return numbered.with_columns(pl.col("track").cast(pl.Int32)), tracks


def _tracks(tracks: pl.DataFrame, host: str) -> pl.DataFrame:
    return tracks.select(
        id=pl.col("track").cast(pl.Int32),
        kind=pl.col("track_kind").cast(dtype("enum:track_kind")),
        rank=pl.lit(0, pl.Int32),
        host=pl.lit(host),
        device=pl.col("device"),
        process=pl.col("process"),
        thread=pl.col("thread"),
        stream=pl.col("stream"),
        name=pl.col("track_name"),
        order=pl.col("track").cast(pl.Int32),
    )


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
