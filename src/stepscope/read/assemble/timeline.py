"""All spans of a rank on one time line: merged from the parts, ordered, nested and numbered."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.assemble.rank_tracks import merged
from stepscope.read.common.distinct import is_missing
from stepscope.read.common.nesting import Integers, innermost, looked_up, nearest, nest, outermost
from stepscope.read.common.part_builder import KIND_CODE
from stepscope.trace.tables import codes, dtype, of_columns, together, with_series

#: Columns that come out of the merging.
_MADE = {"id", "parent", "depth", "step", "phase"}
#: What a time line finds once, and not of the kinds of spans.
_OF_OTHER_COLUMNS = {"track", "ts", "end", "on_device", "codes", "distinct_names"}


@dataclass(frozen=True)
class RankTimeline:
    """The spans of a rank, numbered by track and start.

    A span's number is its place: a parent's number is smaller than its children's, and all that a span contains
    follows it.

    Attributes:
        spans: Table ``spans`` in order of id, without ids, parents, depth, steps and phases, and without the columns
            that no span has a value of.
        tracks: Table ``tracks``.
        part: Number of the part that each span comes from.
        parent: Parent of each span; −1 at the top.
        depth: Number of ancestors of each span.
        crossing: Which spans begin inside the sibling before them, and end behind it.
    """

    spans: pl.DataFrame
    tracks: pl.DataFrame
    part: npt.NDArray[np.int32]
    parent: Integers
    depth: npt.NDArray[np.int32]
    crossing: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return self.spans.height

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
        return np.asarray(self._numbers[0], np.uint8)

    @cached_property
    def _numbers(self) -> list[npt.NDArray[Any]]:
        return codes(self.spans["kind"], self.spans["name"])

    def of_kinds(self, *names: str) -> npt.NDArray[np.bool_]:
        """Return which spans have one of the kinds."""
        chosen: npt.NDArray[np.bool_] = self.kind == KIND_CODE[names[0]]
        for name in names[1:]:
            chosen |= self.kind == KIND_CODE[name]
        return chosen

    @cached_property
    def on_device(self) -> npt.NDArray[np.bool_]:
        """Which spans lie on a stream."""
        return self.on_tracks("stream")

    def on_tracks(self, kind: str) -> npt.NDArray[np.bool_]:
        """Return which spans lie on a track of a kind."""
        of_kind = np.array([found == kind for found in self.tracks["kind"].to_list()], np.bool_)
        result: npt.NDArray[np.bool_] = of_kind[self.track]
        return result

    def given(self, column: str) -> pl.Series | None:
        """Return a column that may be null; None if no span has a value."""
        return self.spans.get_column(column) if column in self.spans.columns else None

    def integers(self, column: str) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """Return the integers of a column, and which spans have one; 0 stands for null."""
        values = self.given(column)
        if values is None:
            return np.zeros(len(self), np.int64), np.zeros(len(self), np.bool_)
        if not values.null_count():
            return values.to_numpy(), np.ones(len(self), np.bool_)
        known = ~is_missing(values)
        return values.zip_with(pl.Series(known), pl.Series([0], dtype=values.dtype)).to_numpy(), known

    def with_kind(self, name: str, chosen: npt.NDArray[np.bool_]) -> RankTimeline:
        """Return the time line with another kind for the chosen spans; it keeps what was found of other columns."""
        kind = pl.Series("kind", [name], dtype("enum:kind")).zip_with(pl.Series(chosen), self.spans["kind"])
        line = dataclasses.replace(self, spans=with_series(self.spans, [kind]))
        found = {key: value for key, value in self.__dict__.items() if key in _OF_OTHER_COLUMNS}
        line.__dict__.update(found, kind=np.where(chosen, np.uint8(KIND_CODE[name]), self.kind))
        return line

    @property
    def nowhere(self) -> Integers:
        """Return −1 for each span; it takes no memory and cannot be written to."""
        return np.broadcast_to(np.int64(-1), len(self))

    def nearest(self, chosen: npt.NDArray[np.bool_]) -> Integers:
        """Return for each span its innermost ancestor among the chosen, itself included; −1 without one."""
        return nearest(self.parent, chosen)

    @cached_property
    def codes(self) -> npt.NDArray[np.uint32]:
        """Number of each span's name; spans of one name have one number."""
        return self._numbers[1]

    @cached_property
    def distinct_names(self) -> dict[int, str]:
        """Number of each distinct name → the name."""
        if not len(self):
            return {}
        row_of = np.full(int(self.codes.max()) + 1, -1, np.int64)
        row_of[self.codes] = np.arange(len(self))
        found = np.flatnonzero(row_of >= 0)
        return dict(zip(found.tolist(), self.spans["name"][row_of[found]].to_list(), strict=True))

    def names(self, spans: Integers) -> list[str]:
        """Return the names of spans; empty for −1."""
        codes = looked_up(self.codes.astype(np.int64), spans)
        return [self.distinct_names.get(code, "") for code in codes.tolist()]

    def distinct(self, chosen: npt.NDArray[np.bool_]) -> dict[int, str]:
        """Return the distinct names of the chosen spans by their numbers."""
        occurring = np.zeros(max(self.distinct_names, default=-1) + 1, np.bool_)
        occurring[self.codes[chosen]] = True
        return {code: self.distinct_names[code] for code in np.flatnonzero(occurring).tolist()}

    def named(self, prefixes: Mapping[str, int]) -> npt.NDArray[np.int8]:
        """Return for each span the value of the prefix that its name begins with, −1 where it begins with none.

        Each distinct name is looked at once.
        """
        begins, distinct = tuple(prefixes), self.distinct_names
        found = {code: text for code, text in distinct.items() if text.startswith(begins)}
        if not found:
            return np.broadcast_to(np.int8(-1), len(self))
        value_of = np.full(max(distinct) + 1, -1, np.int8)
        for code, text in found.items():
            value_of[code] = next(value for prefix, value in prefixes.items() if text.startswith(prefix))
        result: npt.NDArray[np.int8] = value_of[self.codes]
        return result

    def starting(self, track: npt.NDArray[Any], ts: Integers, chosen: npt.NDArray[np.bool_] | None = None) -> Integers:
        """Return the outermost span, of all or of the chosen, that starts at each point; −1 if none does."""
        if chosen is None:
            return outermost((self.track, self.ts), track, ts)
        places = np.flatnonzero(chosen)
        return looked_up(places, outermost((self.track[places], self.ts[places]), track, ts))

    def at(self, track: npt.NDArray[Any], ts: Integers) -> Integers:
        """Return the innermost span around each point of a track; −1 without one."""
        return innermost(self.parent, (self.track, self.ts, self.end), track, ts)


class Renumbering(NamedTuple):
    """For each part the track of each of its tracks' ids, and the number of each of its spans."""

    tracks: list[Integers]
    spans: list[npt.NDArray[np.uint32]]


def build(
    parts: Sequence[dict[str, pl.DataFrame]], rank: int | None, host: str | None
) -> tuple[RankTimeline, Renumbering]:
    """Put the spans of all parts, from which ``tracks`` and ``spans`` are taken out, on one time line."""
    tracks, numbers = merged([part.pop("tracks") for part in parts], rank, host)
    frames = [_moved(part.pop("spans"), number) for part, number in zip(parts, numbers, strict=True)]
    behind = np.cumsum([frame.height for frame in frames])
    of_several = np.count_nonzero([frame.height for frame in frames]) > 1
    spans = together("spans", frames)
    spans = spans[[name for name in spans.columns if name not in _MADE]]
    frames.clear()
    order, parent, depth, crossing = nest(*(spans[name].to_numpy() for name in ("track", "ts", "dur")))
    places = order.astype(np.uint32)
    del order  # 8 bytes a span
    number_of = np.empty(len(places), np.uint32)
    number_of[places] = np.arange(len(places), dtype=np.uint32)
    part_of = np.searchsorted(behind, places, side="right") if of_several else np.zeros(1, np.int64)
    line = RankTimeline(
        _ordered(spans, places),
        tracks,
        np.broadcast_to(part_of.astype(np.int32), len(places)),
        parent,
        depth,
        crossing,
    )
    return line, Renumbering(numbers, np.split(number_of, behind[:-1]))


def _moved(spans: pl.DataFrame, numbers: Integers) -> pl.DataFrame:
    """Return the spans of a part on the tracks of the rank, without what is made anew and what no span has."""
    if not spans.height:
        return spans
    track = pl.Series("track", numbers[spans["track"].to_numpy()], dtype=pl.Int32)
    others = [column for column in spans.iter_columns() if column.name not in {*_MADE, "track"}]
    return of_columns([track, *(column for column in others if column.null_count() < len(column))])


def _ordered(spans: pl.DataFrame, places: npt.NDArray[np.uint32]) -> pl.DataFrame:
    """Return the spans at places; each column is taken out of ``spans`` when it is moved."""
    order = pl.Series(places)
    return of_columns([spans.drop_in_place(name)[order] for name in spans.columns])
