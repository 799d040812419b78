"""Samples and memory of an Ascend capture → tables."""

from __future__ import annotations

import polars as pl

from stepscope.read.ascend.ascend_frames import Frames
from stepscope.read.ascend.ascend_tracks import AscendTrack, AscendTracks, npu
from stepscope.read.common.distinct import filled, of_each, ordered, same, where, without_nulls
from stepscope.trace.tables import conform, empty

#: What a component's memory consists of; names of counters on its lane.
MEMORY = ("allocated", "reserved", "active")


def counters(frames: Frames, tracks: AscendTracks) -> pl.DataFrame:
    """Return the table ``counters``: samples, and the memory of components."""
    own = without_nulls(frames["counters"], ["ts", "name", "value"])
    track = tracks.numbered(_sampled, own["device"], own["group"])
    sampled = pl.DataFrame([own["ts"], track, own["name"], own["value"], filled(own["unit"], "")])
    return pl.concat([sampled, *_memory(frames, tracks)])


def _sampled(device: int | None, group: str | None) -> AscendTrack:
    return AscendTrack("counter", "cpu" if device is None else npu(device), "Counters" if group is None else group)


def _memory(frames: Frames, tracks: AscendTracks) -> list[pl.DataFrame]:
    """Return the memory of components over time: a lane for each component, device and stream."""
    memory = without_nulls(frames["memory"], ["ts"])
    track = tracks.numbered(_component, memory["device"], memory["component"], memory["stream"])
    parts = []
    for name in MEMORY:
        told = without_nulls(pl.DataFrame([memory["ts"], track, memory[name].alias("value")]), ["value"])
        parts.append(
            pl.DataFrame(
                [
                    told["ts"],
                    told["track"],
                    same("name", name, len(told)),
                    told["value"].cast(pl.Float64),
                    same("unit", "bytes", len(told)),
                ]
            )
        )
    return parts


def _component(device: int | None, component: str | None, stream: int | None) -> AscendTrack:
    return AscendTrack(
        "counter", npu(device), f"Memory of {'unknown' if component is None else component}", stream=stream
    )


def operations(frames: Frames, tracks: AscendTracks) -> pl.DataFrame:
    """Return the table ``pipeline``."""
    frame = frames["operations"]
    track = tracks.numbered(lambda lane: AscendTrack("counter", "cpu", lane), frame["lane"].cast(pl.Categorical))
    return conform("pipeline", frame.drop("lane").with_columns(track)) if len(frame) else empty("pipeline")


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


def allocations(frames: Frames, host: pl.DataFrame) -> pl.DataFrame:
    """Return the table ``allocations``: for each block a row of its allocation, and one of its release.

    Args:
        frames: What the capture says.
        host: Spans of the frame ``host``.
    """
    blocks = frames["blocks"]
    if not len(blocks):
        return empty("allocations")
    common = ("block", "name", "component", "stream", "address", "thread", "device")
    block = pl.int_range(len(blocks), eager=True).alias("block")
    known = blocks.with_columns(block, _operator_tracks(frames, host), of_each(npu, blocks["device"]))
    taken = without_nulls(known, ["ts", "bytes"])[["ts", "bytes", "allocated", "reserved", "active", "track", *common]]
    freed = without_nulls(known, ["release", "bytes"]).select_seq(
        *common,
        ts="release",
        bytes=-pl.col("bytes"),
        allocated="released_allocated",
        reserved="released_reserved",
        active="released_active",
        unused="active_release",
    )
    rows = pl.concat([taken, freed], how="diagonal")
    rows = rows.filter(rows["bytes"] != 0)
    track = rows.drop_in_place("track")
    return conform("allocations", rows).hstack([track, rows["ts"].alias("at")])


def static_memory(frames: Frames) -> pl.DataFrame:
    """Return the table ``static_memory``."""
    frame = without_nulls(frames["static_memory"], ["bytes"])
    if not len(frame):
        return empty("static_memory")
    device = of_each(lambda number: "cpu" if number is None else npu(number), frame["device"])
    return conform("static_memory", frame.with_columns(device, filled(frame["name"], "unknown")))
