"""Samples and memory of an Ascend capture → tables."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.read.ascend.frames import Frames
from stepscope.read.ascend.tracks import Tracks, npu
from stepscope.trace.tables import conform

#: What a component's memory consists of; names of counters on its lane.
MEMORY = ("allocated", "reserved", "active")
#: Name of a component's lane of memory.
_LANE = "Memory of {}"


@dataclass(frozen=True)
class Named:
    """Finds the operator that a block of memory was taken by.

    Attributes:
        frames: What the capture says.
        spans: Spans of the frame ``host``.
    """

    frames: Frames
    spans: pl.DataFrame

    def tracks(self, blocks: pl.DataFrame) -> pl.Series:
        """Return for each block the track on which an operator of its name ran at that time; null for none."""
        host = self.frames["host"].select("sort").with_columns(self.spans.select("ts", "dur", "track", "name"))
        operators = host.filter(pl.col("sort") == "operator").select(
            "track", pl.col("name").cast(pl.String), at="ts", end=pl.col("ts") + pl.col("dur")
        )
        asked = blocks.select(pl.col("name").cast(pl.String), "ts").with_row_index("row").sort("ts")
        found = asked.join_asof(
            operators.sort("at"), left_on="ts", right_on="at", by="name", check_sortedness=False
        ).sort("row")
        return found.select(pl.when(pl.col("ts") <= pl.col("end")).then("track").alias("track"))["track"]


def counters(frames: Frames, tracks: Tracks) -> pl.DataFrame:
    """Return the table ``counters``: samples, and the memory of components."""
    own = frames["counters"].drop_nulls(["ts", "name", "value"])
    device = pl.when(pl.col("device").is_null()).then(pl.lit("cpu")).otherwise(npu())
    group = pl.col("group").cast(pl.String).fill_null("Counters")
    places = own.select(kind=pl.lit("counter"), device=device, name=group)
    rows = own.select("ts", "name", "value", unit=pl.col("unit").cast(pl.String).fill_null(""))
    sampled = rows.with_columns(tracks.numbered(places))
    return pl.concat([sampled, _memory(frames, tracks)], how="diagonal_relaxed").select(
        "ts", "track", "name", "value", "unit"
    )


def _memory(frames: Frames, tracks: Tracks) -> pl.DataFrame:
    """Return the memory of components over time: a lane for each component, device and stream."""
    memory = frames["memory"].drop_nulls("ts")
    places = memory.select(
        "stream",
        kind=pl.lit("counter"),
        device=npu(),
        name=pl.format(_LANE, pl.col("component").cast(pl.String).fill_null("unknown")),
    )
    placed = memory.with_columns(tracks.numbered(places))
    long = placed.unpivot(MEMORY, index=["ts", "track"], variable_name="name").drop_nulls("value")
    return long.select(
        "ts", "track", pl.col("name").cast(pl.Categorical()), pl.col("value").cast(pl.Float64), unit=pl.lit("bytes")
    )


def operations(frames: Frames, tracks: Tracks) -> pl.DataFrame:
    """Return the table ``pipeline``."""
    frame = frames["operations"]
    places = frame.select(kind=pl.lit("counter"), device=pl.lit("cpu"), name="lane")
    return conform("pipeline", frame.drop("lane").with_columns(tracks.numbered(places)))


def allocations(frames: Frames, named: Named) -> pl.DataFrame:
    """Return the table ``allocations``: for each block a row where it is taken, and one where it is freed."""
    blocks = frames["blocks"].with_row_index("block").with_columns(pl.col("block").cast(pl.Int64))
    common = ("block", "name", "component", "stream", "address", "thread")
    device = npu()
    known = blocks.with_columns(named.tracks(blocks), device=device)
    taken = known.drop_nulls(["ts", "bytes"]).select(
        "ts", "device", "bytes", "allocated", "reserved", "active", "track", *common
    )
    freed = known.drop_nulls(["release", "bytes"]).select(
        "device",
        *common,
        ts="release",
        bytes=-pl.col("bytes"),
        allocated="released_allocated",
        reserved="released_reserved",
        active="released_active",
        unused="active_release",
    )
    rows = pl.concat([taken, freed], how="diagonal_relaxed").filter(pl.col("bytes") != 0)
    whole = conform("allocations", rows.drop("track"))
    return whole.with_columns(rows["track"], at=rows["ts"])


def static_memory(frames: Frames) -> pl.DataFrame:
    """Return the table ``static_memory``."""
    frame = frames["static_memory"].drop_nulls("bytes")
    device = pl.when(pl.col("device").is_null()).then(pl.lit("cpu")).otherwise(npu()).alias("device")
    return conform("static_memory", frame.with_columns(device, pl.col("name").cast(pl.String).fill_null("unknown")))
