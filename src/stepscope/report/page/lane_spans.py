"""Tables of a rank → its timeline: spans by lane and time, as columns.

A lane is one row of the picture: spans of one track at one depth, which do not overlap. The spans of a track that cross
each other lie on lanes of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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


#: Lanes are counted by their number where these are at most so many more than spans.
_DENSE = 1 << 22


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
    ts, dur = (spans[name].to_numpy() for name in ("ts", "dur"))
    origin, total = _extent(tables, ts, dur)
    if windows:
        touches = [(ts < end) & (ts + dur >= begin) for begin, end in windows]
        spans = spans[np.flatnonzero(np.any(touches, axis=0))]
    track, depth, ts, dur = (spans[name].to_numpy() for name in ("track", "depth", "ts", "dur"))
    _, crossing = assign(track.astype(np.int64), ts, dur)
    kind = spans["kind"].to_physical().to_numpy().astype(np.uint8)
    key, found = _by_lane(track, crossing, depth, dur)
    steps = np.flatnonzero(kind == KIND_NAMES.index("step"))
    stepped = np.bincount(key[steps], dur[steps], len(found)).astype(np.int64)
    found = found.with_columns(stepped=stepped)
    lanes = _in_order(tables, found)
    place = {(lane.track, lane.crossing, lane.depth): index for index, lane in enumerate(lanes)}
    lane_of = np.array([place[row] for row in found.select("track", "crossing", "depth").iter_rows()], np.int64)[key]
    order = by_number(lane_of)
    lane_of, start = lane_of[order], ts[order]
    if ((lane_of[1:] == lane_of[:-1]) & (start[1:] < start[:-1])).any():
        later = np.lexsort((start, lane_of))
        order, start = order[later], start[later]
    names, codes = _names(spans["name"].cast(pl.Categorical))
    return LaneSpans(
        origin=origin,
        total=total,
        lanes=lanes,
        edges=np.searchsorted(lane_of, np.arange(len(lanes) + 1)),
        start=start - origin,
        dur=dur[order].astype(np.int64),
        name=codes[order],
        kind=kind[order],
        row=spans["id"].to_numpy()[order],
        names=names,
    )


def _extent(tables: Tables, ts: Array, dur: Array) -> tuple[int, int]:
    """Return the start of the first span or step, ns since the Unix epoch, and the time from there to the last end."""
    steps = columns_of(tables, "steps", "ts", "dur")
    origin = min((int(column.min()) for column in (ts, steps["ts"].to_numpy()) if len(column)), default=0)
    end = max((int(last.max()) for last in (ts + dur, (steps["ts"] + steps["dur"]).to_numpy()) if len(last)), default=0)
    return origin, max(0, end - origin)


def _by_lane(track: Array, crossing: Array, depth: Array, dur: Array) -> tuple[Array, pl.DataFrame]:
    """Return the number of each span's lane, and of each lane its track, crossing and depth, busy time and count."""
    crossings, depths = int(crossing.max(initial=0)) + 1, int(depth.max(initial=0)) + 1
    key = (track.astype(np.int64) * crossings + crossing) * depths + depth
    if int(key.max(initial=0)) > len(key) + _DENSE:
        _, key = np.unique(key, return_inverse=True)
    count = np.bincount(key)
    used = np.flatnonzero(count)
    number, one, busy = (np.zeros(len(count), np.int64) for _ in range(3))
    number[used] = np.arange(len(used))
    one[key] = np.arange(len(key))
    np.add.at(busy, key, dur)
    rows = one[used]
    columns = {"track": track[rows], "crossing": crossing[rows], "depth": depth[rows]}
    return number[key], pl.DataFrame({**columns, "busy": busy[used], "count": count[used]})


def _training_thread(tables: Tables, found: pl.DataFrame) -> int:
    """Return the track of the thread that trains; −1 without host threads."""
    threads = tables["tracks"].filter(pl.col("kind").cast(pl.String) == "thread").select("id", "thread", "process")
    rows = threads.pipe(collected, tables)
    steps = columns_of(tables, "spans", "track", "kind").filter(pl.col("kind").cast(pl.String) == "step")["track"]
    size = dict(found.group_by("track").agg(pl.col("count").sum()).iter_rows())
    stepped = set(steps.to_list())
    ranked = (
        (track in stepped, thread is not None and thread == process, size.get(track, 0), -track)
        for track, thread, process in rows.iter_rows()
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


def _in_order(tables: Tables, found: pl.DataFrame) -> tuple[TimelineLane, ...]:
    """Return the lanes: host before devices, the main thread first, then by work; a track's lanes stay together."""
    columns = ("id", "kind", "device", "process", "thread", "name", "order", "rank", "host")
    tracks = tables["tracks"].select(pl.col("id").alias("track"), *columns[1:])
    work = found.group_by("track").agg(pl.col("busy").filter(pl.col("depth") == 0).sum().alias("work"))
    rows = (
        found.lazy()
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
    return tuple(
        TimelineLane(
            track=row["track"],
            name=row["name"],
            group=row["device"] if row["on_device"] else f"process {row['process']}" if row["process"] else "host",
            kind=row["kind"],
            depth=row["depth"],
            crossing=row["crossing"],
            main=row["main"],
            busy=row["busy"],
            count=row["count"],
            stepped=row["stepped"],
        )
        for row in rows.iter_rows(named=True)
    )
