"""Samples and memory of an Ascend capture → tables."""

from __future__ import annotations

import polars as pl

from stepscope.read.ascend.ascend_frames import Frames
from stepscope.read.ascend.ascend_kinds import npu
from stepscope.read.common.distinct import filled, of_each, ordered, same, where, without_nulls
from stepscope.read.common.part_builder import PartBuilder, TrackRow
from stepscope.trace.tables import with_series

#: What a component's memory consists of; names of counters on its lane.
_MEMORY = ("allocated", "reserved", "active")


def add(part: PartBuilder, frames: Frames, host: pl.DataFrame) -> None:
    """Add samples, memory and the data pipeline.

    Args:
        part: Takes the tables.
        frames: What the capture says.
        host: Spans of the frame ``host``.
    """
    own = without_nulls(frames["counters"], ["ts", "name", "value"])
    track = part.tracks.numbered(_sampled, own["device"], own["group"])
    part.add("counters", pl.DataFrame([own["ts"], track, own["name"], own["value"], filled(own["unit"], "")]))
    _add_memory(part, frames)
    _add_allocations(part, frames, host)
    static = without_nulls(frames["static_memory"], ["bytes"])
    device = of_each(lambda number: "cpu" if number is None else npu(number), static["device"])
    part.add("static_memory", with_series(static, [device, filled(static["name"], "unknown")]))
    pipeline = frames["operations"]
    lane = pipeline["lane"].cast(pl.Categorical)
    track = part.tracks.numbered(lambda name: TrackRow("counter", "cpu", name), lane)
    part.add("pipeline", pl.DataFrame([*(one for one in pipeline if one.name != "lane"), track]))


def _sampled(device: int | None, group: str | None) -> TrackRow:
    return TrackRow("counter", "cpu" if device is None else npu(device), "Counters" if group is None else group)


def _add_memory(part: PartBuilder, frames: Frames) -> None:
    """Add the memory of components over time: a lane for each component, device and stream."""
    memory = without_nulls(frames["memory"], ["ts"])
    track = part.tracks.numbered(_component, memory["device"], memory["component"], memory["stream"])
    for name in _MEMORY:
        value = memory[name].cast(pl.Float64).alias("value")
        known = without_nulls(pl.DataFrame([memory["ts"], track, value]), ["value"])
        part.add("counters", known.hstack([same("name", name, len(known)), same("unit", "bytes", len(known))]))


def _component(device: int | None, component: str | None, stream: int | None) -> TrackRow:
    name = f"Memory of {'unknown' if component is None else component}"
    return TrackRow("counter", npu(device), name, stream=stream)


def _operator_tracks(frames: Frames, host: pl.DataFrame) -> pl.Series:
    """Return for each block the track on which an operator of its name ran when it was allocated; null for none."""
    is_operator = frames["host"]["sort"] == "operator"
    ts, dur, track, name = (host[column].filter(is_operator) for column in ("ts", "dur", "track", "name"))
    operators = pl.DataFrame([track, name.cast(pl.String), ts.alias("at"), (ts + dur).alias("end")])
    blocks = frames["blocks"]
    asked = pl.DataFrame([blocks["name"].cast(pl.String), blocks["ts"]]).with_row_index("row")
    found = ordered(asked, "ts").join_asof(
        ordered(operators, "at"), left_on="ts", right_on="at", by="name", check_sortedness=False
    )
    found = ordered(found, "row")
    return where(found["ts"] <= found["end"], found["track"])


def _add_allocations(part: PartBuilder, frames: Frames, host: pl.DataFrame) -> None:
    """Add for each block a row of its allocation, and one of its release."""
    blocks = frames["blocks"]
    if not len(blocks):
        return
    common = ("block", "name", "component", "stream", "address", "thread", "device")
    block = pl.int_range(len(blocks), eager=True).alias("block")
    known = blocks.with_columns(block, _operator_tracks(frames, host), of_each(npu, blocks["device"]))
    taken = without_nulls(known, ["ts", "bytes"])[["ts", "bytes", *_MEMORY, "track", *common]]
    freed = without_nulls(known, ["release", "bytes"]).select_seq(
        *common,
        ts="release",
        bytes=-pl.col("bytes"),
        **{name: pl.col(f"released_{name}") for name in _MEMORY},
        unused="active_release",
    )
    rows = pl.concat([taken, freed], how="diagonal")
    rows = rows.filter(rows["bytes"] != 0)
    part.add("allocations", rows.hstack([rows["ts"].alias("at")]))
