"""Tables of a rank → its timeline: spans by lane and time, as columns.

A lane is one row of the picture: spans of one track at one depth, which do not overlap. The spans of a track that cross
each other lie on lanes of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.report.timeline.lanes import assign, by_number
from stepscope.trace.schema import KINDS
from stepscope.trace.tables import Tables, collected, columns_of

Array = npt.NDArray[np.int64]

#: Kinds of spans by their number in :attr:`LaneSpans.kind`; the browser gives each a colour.
KIND_NAMES: tuple[str, ...] = tuple(KINDS)
_STEP = KIND_NAMES.index("step")
#: What the spans of a lane say of it.
_LANE = dict.fromkeys(("track", "depth", "crossing", "busy", "count", "stepped"), pl.Int64)


class TimelineLane(msgspec.Struct, frozen=True):
    """One row of the timeline.

    Attributes:
        track: ``tracks.id``.
        name: Name of the track.
        group: Name of the process or device that it belongs to.
        kind: Kind of the track: thread, stream, …
        depth: Number of spans around each of its spans.
        crossing: 0 for the main lanes of a track; 1, 2, … for spans that cross those.
        main: Whether it is of the thread that trains: the one with the steps, else the process's first thread, else
            the one with most spans.
        busy: Time that its spans cover, ns.
        count: Number of its spans.
        stepped: Time that spans of the kind step cover of it, ns.
    """

    track: int
    name: str
    group: str
    kind: str
    depth: int
    crossing: int
    main: bool
    busy: int
    count: int
    stepped: int = 0


@dataclass(frozen=True)
class LaneSpans:
    """The spans of a timeline, ordered by lane, then start.

    Attributes:
        origin: Start of the first span or step, ns since the Unix epoch.
        total: Time from there to the last end, ns.
        lanes: The lanes in the order to show.
        edges: Per lane the index of its first span, and the number of spans at the end.
        start: Start of each span, ns since ``origin``.
        dur: Duration, ns.
        name: Index of its name in ``names``.
        kind: Index of its kind in :data:`KIND_NAMES`.
        row: ``spans.id``.
        names: The names.
    """

    origin: int
    total: int
    lanes: tuple[TimelineLane, ...]
    edges: Array
    start: Array
    dur: Array
    name: npt.NDArray[np.uint32]
    kind: npt.NDArray[np.uint8]
    row: Array
    names: list[str]

    def longest(self, windows: Sequence[tuple[int, int]], most: int) -> LaneSpans:
        """Return the spans that touch ranges of time, of each the longest, with the same lanes and names.

        Args:
            windows: The ranges, ns since ``origin``; each has an equal share of the room.
            most: Most spans.
        """
        keep = np.zeros(len(self.start), np.bool_)
        for begin, end in windows:
            found = np.flatnonzero((self.start < end) & (self.start + self.dur >= begin))
            if (left_out := len(found) - most // len(windows)) > 0:
                dur = self.dur[found]
                found = found[dur > np.partition(dur, left_out - 1)[left_out - 1]]
            keep[found] = True
        lane = np.repeat(np.arange(len(self.lanes)), np.diff(self.edges))[keep]
        edges = np.searchsorted(lane, np.arange(len(self.lanes) + 1))
        columns = ("start", "dur", "name", "kind", "row")
        return replace(self, edges=edges, **{column: getattr(self, column)[keep] for column in columns})


def lane_spans(tables: Tables, windows: Sequence[tuple[int, int]] = ()) -> LaneSpans:
    """Return the timeline of a rank.

    Args:
        tables: The tables of the rank.
        windows: Times, ns since the Unix epoch: the timeline has the spans that touch one of them; without any, all.
            It begins and ends as that of all spans does.
    """
    spans = columns_of(tables, "spans", "id", "track", "depth", "ts", "dur", "name", "kind")
    end = pl.col("ts") + pl.col("dur")
    origin, total = _extent(tables, spans.select(start=pl.col("ts").min(), end=end.max()))
    if windows:
        spans = spans.filter(pl.any_horizontal((pl.col("ts") < last) & (end >= first) for first, last in windows))
    if not spans["track"].is_sorted():
        spans = spans[by_number(spans["track"].to_numpy())]
    kind = spans["kind"].to_physical().to_numpy()
    track, depth, ts, dur = (spans[name].to_numpy() for name in ("track", "depth", "ts", "dur"))
    edges = [0, *(np.flatnonzero(track[1:] != track[:-1]) + 1).tolist(), len(track)]
    found = [
        lane
        for low, high in pairwise(edges if len(track) else [])
        for lane in _of_track(int(track[low]), low, *(column[low:high] for column in (depth, ts, dur, kind)))
    ]
    lanes, order = _in_order(tables, pl.DataFrame([lane for lane, _ in found], schema=_LANE))
    places = [found[lane][1] for lane in order]
    names, codes = _names(spans["name"].cast(pl.Categorical))
    columns = {"start": ts, "dur": dur, "name": codes, "kind": kind, "row": spans["id"].to_numpy()}
    of_lanes = {name: _at(column, places) for name, column in columns.items()}
    of_lanes["start"] -= origin
    counts = [lane.count for lane in lanes]
    return LaneSpans(origin, total, lanes, np.cumsum([0, *counts]), names=names, **of_lanes)


#: Places of the spans of a lane in the table: a slice where they stand there one after the other.
_Places: TypeAlias = "Array | slice"


def _of_track(
    track: int, first: int, depth: Array, ts: Array, dur: Array, kind: npt.NDArray[np.uint8]
) -> Iterator[tuple[dict[str, int], _Places]]:
    """Yield the lanes of a track, each with the places of its spans by start; ``first`` is that of the track's first.

    A track at a time, its columns stay in the cache of the processor.
    """
    depths = int(depth.max()) + 1
    number = depth.astype(np.int64)
    order = _by_lane(number, ts)
    if _overlaps(number[order], ts[order], dur[order]):
        number += depths * assign(np.zeros_like(number), ts, dur)[1]
        order = _by_lane(number, ts)
    number = number[order]
    for low, high in pairwise([0, *(np.flatnonzero(number[1:] != number[:-1]) + 1).tolist(), len(ts)]):
        rows = slice(low, high) if isinstance(order, slice) else order[low:high]
        crossing, in_track = divmod(int(number[low]), depths)
        time = dur[rows]
        figures = (track, in_track, crossing, time.sum(), high - low, time[kind[rows] == _STEP].sum())
        lane = dict(zip(_LANE, map(int, figures), strict=True))
        yield lane, slice(first + low, first + high) if isinstance(rows, slice) else first + rows


def _by_lane(lane: Array, ts: Array) -> _Places:
    """Return the places of a track's spans by the number of their lane, and start."""
    order: _Places = by_number(lane) if (lane[1:] < lane[:-1]).any() else slice(None)
    number, start = lane[order], ts[order]
    if ((number[1:] == number[:-1]) & (start[1:] < start[:-1])).any():
        return np.lexsort((ts, lane))
    return order


def _overlaps(depth: Array, ts: Array, dur: Array) -> bool:
    """Tell whether spans of one depth overlap. If not, none cross: each lies inside a span of the depth above."""
    return bool(((depth[1:] == depth[:-1]) & (ts[1:] < ts[:-1] + dur[:-1])).any())


def _at(column: npt.NDArray[Any], places: Sequence[_Places]) -> npt.NDArray[Any]:
    """Return a column at places, one after the other."""
    return np.concatenate([column[:0], *(column[rows] for rows in places)])


def _extent(tables: Tables, spans: pl.DataFrame) -> tuple[int, int]:
    """Return the start of the first span or step, ns since the Unix epoch, and the time from there to the last end."""
    steps = columns_of(tables, "steps", "ts", "dur").select(start=pl.col("ts"), end=pl.col("ts") + pl.col("dur"))
    every = pl.concat([spans, steps])
    first, last = every.select(pl.col("start").min().fill_null(0), pl.col("end").max().fill_null(0)).row(0)
    return first, max(0, last - first)


def _training_thread(tables: Tables, found: pl.DataFrame) -> int:
    """Return the track of the thread that trains; −1 without host threads."""
    threads = tables["tracks"].filter(pl.col("kind").cast(pl.String) == "thread").select("id", "thread", "process")
    rows = threads.pipe(collected, tables)
    sums = found.group_by("track").agg(pl.col("count", "stepped").sum())
    known = {track: (stepped > 0, count) for track, count, stepped in sums.iter_rows()}
    ranked = (
        (stepped, thread is not None and thread == process, count, -track)
        for track, thread, process in rows.iter_rows()
        for stepped, count in [known.get(track, (False, 0))]
    )
    return -max(ranked, default=(False, False, 0, 1))[-1]


def _names(texts: pl.Series) -> tuple[list[str], npt.NDArray[np.uint32]]:
    """Return the distinct texts, and of each row the index of its own."""
    codes = texts.to_physical().to_numpy()
    place = np.full(int(codes.max(initial=0)) + 1, -1, np.int64)
    place[codes] = np.arange(len(codes))
    used = np.flatnonzero(place >= 0)
    number = np.zeros(len(place), np.uint32)
    number[used] = np.arange(len(used))
    return texts.gather(place[used]).cast(pl.String).to_list(), number[codes]


def _in_order(tables: Tables, found: pl.DataFrame) -> tuple[tuple[TimelineLane, ...], list[int]]:
    """Return the lanes in the order to show, and the place of each among those that were found.

    Host comes before devices, the main thread first, then by work; a track's lanes stay together.
    """
    columns = ("id", "kind", "device", "process", "thread", "name", "order", "rank", "host")
    tracks = tables["tracks"].select(pl.col("id").cast(pl.Int64).alias("track"), *columns[1:])
    work = found.group_by("track").agg(pl.col("busy").filter(pl.col("depth") == 0).sum().alias("work"))
    rows = (
        found.lazy()
        .with_row_index("place")
        .join(tracks, on="track", how="left")
        .join(work.lazy(), on="track", how="left")
        .with_columns(
            on_device=pl.col("device").cast(pl.String) != "cpu",
            main=pl.col("track") == _training_thread(tables, found),
        )
        .sort(
            "on_device",
            "process",
            "device",
            "main",
            "work",
            "order",
            "track",
            "crossing",
            "depth",
            descending=[False, False, False, True, True, False, False, False, False],
        )
        .pipe(collected, tables)
    )
    lanes = (
        TimelineLane(
            name=row["name"],
            group=row["device"] if row["on_device"] else f"process {row['process']}" if row["process"] else "host",
            kind=row["kind"],
            main=row["main"],
            **{name: row[name] for name in _LANE},
        )
        for row in rows.iter_rows(named=True)
    )
    return tuple(lanes), rows["place"].to_list()
