"""All spans of a rank on one time line: merged from the parts, ordered, nested and numbered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.nesting import Integers, Nesting, inherit, innermost, nest
from stepscope.trace.schema import KINDS

#: Number of a kind in the enumeration of the schema.
KIND_CODE = {name: code for code, name in enumerate(KINDS)}


@dataclass(frozen=True)
class Timeline:
    """The spans of a rank, numbered by track and start.

    A span's number is its place: a parent's number is smaller than its children's, and all that a span contains
    follows it.

    Attributes:
        spans: Table ``spans`` in order of id, without parents, depth, steps and phases; ``part`` is the file.
        tracks: Table ``tracks``.
        nesting: How the spans lie in each other.
        number: Number of each span by its place in the parts, one behind the other.
    """

    spans: pl.DataFrame
    tracks: pl.DataFrame
    nesting: Nesting
    number: Integers

    @cached_property
    def track(self) -> npt.NDArray[np.int32]:
        """Track of each span."""
        return self.spans["track"].to_numpy()

    @cached_property
    def ts(self) -> Integers:
        """Start of each span, ns."""
        return self.spans["ts"].to_numpy()

    @cached_property
    def end(self) -> Integers:
        """End of each span, ns."""
        end: Integers = self.ts + self.spans["dur"].to_numpy()
        return end

    @cached_property
    def kind(self) -> npt.NDArray[np.uint8]:
        """Number of the kind of each span, see :data:`KIND_CODE`."""
        return self.spans["kind"].to_physical().cast(pl.UInt8).to_numpy()

    def of_kinds(self, *names: str) -> npt.NDArray[np.bool_]:
        """Return which spans have one of the kinds."""
        chosen: npt.NDArray[np.bool_] = self.kind == KIND_CODE[names[0]]
        for name in names[1:]:
            chosen |= self.kind == KIND_CODE[name]
        return chosen

    @cached_property
    def on_device(self) -> npt.NDArray[np.bool_]:
        """Which spans lie on a stream."""
        streams = np.zeros(self.tracks.height, np.bool_)
        streams[self.tracks.filter(pl.col("kind") == "stream")["id"].to_numpy()] = True
        return streams[self.track]

    def nearest(self, chosen: npt.NDArray[np.bool_]) -> Integers:
        """Return for each span its innermost ancestor among the chosen, itself included; −1 where there is none."""
        return inherit(self.nesting.parent, np.where(chosen, np.arange(len(chosen)), -1))

    def at(self, track: npt.NDArray[Any], ts: Integers) -> Integers:
        """Return the innermost span around each point of a track; −1 where there is none."""
        return innermost(self.nesting, (self.track, self.ts, self.end), track, ts)


def build(
    parts: Sequence[dict[str, pl.DataFrame]], rank: int | None, host: str | None
) -> tuple[Timeline, list[Integers]]:
    """Put the spans of all parts on one time line.

    Returns:
        The time line, and for each part the track numbers of its own tracks' ids.
    """
    tracks, numbers = _merge_tracks([part["tracks"] for part in parts], rank, host)
    frames = []
    for place, (part, number) in enumerate(zip(parts, numbers, strict=True)):
        spans = part["spans"].drop("id", "parent", "depth", "step", "phase", strict=False)
        moved = pl.Series("track", number[spans["track"].to_numpy()], dtype=pl.Int32)
        frames.append(spans.with_columns(moved, part=pl.lit(place, pl.Int32)))
    spans = pl.concat(frames, how="diagonal")
    nesting = nest(spans["track"].to_numpy(), spans["ts"].to_numpy(), spans["dur"].to_numpy())
    number_of = np.empty(spans.height, np.int64)
    number_of[nesting.order] = np.arange(spans.height)
    ordered = spans[nesting.order].with_columns(id=pl.int_range(spans.height, dtype=pl.Int64))
    return Timeline(ordered, tracks, nesting, number_of), numbers


_KEY = ["kind", "device", "process", "thread", "stream", "lane"]
_KIND_ORDER = {"thread": 0, "stream": 1, "annotation": 2, "other": 3, "counter": 4}


def _merge_tracks(
    frames: Sequence[pl.DataFrame], rank: int | None, host: str | None
) -> tuple[pl.DataFrame, list[Integers]]:
    """Return one table of tracks, and the new number of each part's tracks.

    Threads are the same when process and thread are, streams when device and stream are; other lanes, and streams
    without a number, when also their names are.
    """
    everything = pl.concat(
        [
            frame.with_columns(part=pl.lit(place), device=pl.col("device").cast(pl.String))
            for place, frame in enumerate(frames)
        ],
        how="diagonal_relaxed",
    )
    by_place = ((pl.col("kind") == "stream") & pl.col("stream").is_not_null()) | pl.col("thread").is_not_null()
    everything = everything.with_columns(
        lane=pl.when(by_place).then(pl.lit("")).otherwise(pl.col("name")),
        known=~pl.col("name").str.starts_with("thread "),
        rank_of=pl.col("kind").cast(pl.String).replace_strict(_KIND_ORDER, return_dtype=pl.Int32),
    )
    # The name of a thread that says more than its number wins; among those the first.
    merged = everything.sort("known", descending=True, maintain_order=True).unique(
        _KEY, keep="first", maintain_order=True
    )
    # The main thread, whose number is the process's, comes before the others.
    main = (pl.col("thread") == pl.col("process")).fill_null(value=False)
    merged = merged.sort("rank_of", "device", "process", ~main, "order", "stream", "thread", "name", nulls_last=True)
    merged = merged.with_columns(number=pl.int_range(merged.height, dtype=pl.Int32))
    joined = everything.join(merged.select(*_KEY, "number"), on=_KEY, nulls_equal=True, how="left")
    numbers = []
    for place, frame in enumerate(frames):
        own = joined.filter(pl.col("part") == place)
        mapping = np.zeros(int(frame["id"].max() or 0) + 1 if frame.height else 0, np.int64)  # type: ignore[arg-type]
        mapping[own["id"].to_numpy()] = own["number"].to_numpy()
        numbers.append(mapping)
    table = merged.with_columns(id="number", order="number").drop("part", "lane", "known", "rank_of", "number")
    if rank is not None:
        table = table.with_columns(rank=pl.lit(rank, pl.Int32))
    if host is not None:
        table = table.with_columns(host=pl.lit(host))
    return table, numbers
