"""What is drawn over the timeline of a rank: why its devices do nothing, and the critical path; as lanes of their own.

A lane of an overlay lies over the first lane of its track. Its spans are pieces of time: their name says the reason or
part, and what it consists of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analyse.idle.critical_path import PATH_PARTS, path_pieces
from stepscope.analyse.idle.gaps import gaps
from stepscope.analyse.idle.idle_pieces import REASONS, idle_pieces
from stepscope.analyse.step.activity import device_rows, devices_of
from stepscope.report.page.lane_spans import KIND_NAMES, Array, LaneSpans, TimelineLane
from stepscope.trace.tables import Tables, columns_of

#: Kinds of what a timeline shows, by number: those of spans, then the parts of overlays.
SHOWN_KINDS: tuple[str, ...] = (*KIND_NAMES, *PATH_PARTS)
_FIRST_PART = len(KIND_NAMES)


@dataclass(frozen=True, eq=False)
class _Pieces:
    """Pieces of an overlay: start and end in ns, track, part, and the row of ``spans`` that names each, or −1."""

    start: Array
    end: Array
    track: Array
    part: Array
    row: Array


def overlay_spans(tables: Tables, lanes: tuple[TimelineLane, ...], origin: int, total: int) -> LaneSpans:
    """Return the overlays of a rank, by lane and time.

    Args:
        tables: The tables of the rank.
        lanes: The lanes of its timeline.
        origin: Start of the timeline, ns since the Unix epoch.
        total: Its length, ns.
    """
    first: dict[int, TimelineLane] = {}
    for lane in lanes:
        first.setdefault(lane.track, lane)
    main = next((lane.track for lane in lanes if lane.main), next(iter(first), -1))
    overlays: dict[str, Callable[[Tables, int], _Pieces]] = {"idle": _idle, "path": _path}
    made = [
        (TimelineLane(track, base.name, base.group, kind, 0, 0, base.main, int(dur.sum()), len(dur)), columns)
        for kind, pieces in overlays.items()
        for track, *columns in _by_track(pieces(tables, main))
        if (base := first.get(track)) is not None
        for dur in (columns[1],)
    ]
    start, dur, part, row = (
        np.concatenate([columns[place] for _, columns in made] or [np.empty(0, np.int64)]) for place in range(4)
    )
    names, codes = _names(tables, part, row)
    ids = columns_of(tables, "spans", "id")["id"].to_numpy()
    return LaneSpans(
        origin=origin,
        total=total,
        lanes=tuple(lane for lane, _ in made),
        edges=np.cumsum([0, *(lane.count for lane, _ in made)]),
        start=start - origin,
        dur=dur,
        name=codes,
        kind=(part + _FIRST_PART).astype(np.uint8),
        row=np.where(row >= 0, np.append(ids, -1)[row], -1),
        names=names,
    )


def _by_track(pieces: _Pieces) -> Iterator[tuple[int, Array, Array, Array, Array]]:
    """Yield for each track its number and its pieces in order: start, duration, part, row; equal neighbours as one."""
    for track in np.unique(pieces.track).tolist():
        mine = np.flatnonzero((pieces.track == track) & (pieces.end > pieces.start))
        mine = mine[np.argsort(pieces.start[mine], kind="stable")]
        start, end, part, row = (getattr(pieces, name)[mine] for name in ("start", "end", "part", "row"))
        new = (start[1:] > end[:-1]) | (part[1:] != part[:-1]) | (row[1:] != row[:-1])
        first = np.flatnonzero(np.append(True, new)[: len(mine)])
        if len(first):
            last = np.append(first[1:], len(mine)) - 1
            yield track, start[first], end[last] - start[first], part[first], row[first]


def _idle(tables: Tables, main: int) -> _Pieces:
    """Return why each device does nothing: on its busiest stream, of a rank without a device on its main thread."""
    found, pieces = gaps(tables), idle_pieces(tables)
    track_of = np.full(max(1, len(found.devices)), main, np.int64)
    rows = device_rows(tables)
    if len(rows) and found.devices and found.devices != ["cpu"]:
        spans = columns_of(tables, "spans", "track", "dur")
        tracks = spans["track"].gather(rows)
        work = np.bincount(tracks.to_numpy(), spans["dur"].gather(rows).to_numpy())
        _, device = devices_of(tables, tracks)
        for number in range(len(found.devices)):
            used = np.unique(tracks.to_numpy()[device == number])
            track_of[number] = used[np.argmax(work[used])]
    row = np.where(pieces.name >= 0, pieces.name, pieces.operator)
    track = track_of[found.device[pieces.gap]] if len(pieces.gap) else pieces.gap
    return _Pieces(pieces.start, pieces.end, track, pieces.reason + len(PATH_PARTS) - len(REASONS), row)


def _path(tables: Tables, main: int) -> _Pieces:
    """Return the critical path; what nobody knows the thread of lies on the main one."""
    path = path_pieces(tables)
    row = np.where(path.name >= 0, path.name, path.operator)
    return _Pieces(path.start, path.end, np.where(path.track >= 0, path.track, main), path.part, row)


def _names(tables: Tables, part: Array, row: Array) -> tuple[list[str], npt.NDArray[np.uint32]]:
    """Return the distinct names of pieces, and of each piece the index of its own."""
    name = columns_of(tables, "spans", "name")["name"]
    if not len(row):
        return [], np.zeros(0, np.uint32)
    pairs, codes = np.unique(np.stack([part, row]), axis=1, return_inverse=True)
    of_row = name.gather(np.maximum(pairs[1], 0)).cast(pl.String).to_list() if len(name) else [""] * len(pairs[1])
    texts = [
        PATH_PARTS[number] if place < 0 else f"{PATH_PARTS[number]}: {text}"
        for number, place, text in zip(*pairs.tolist(), of_row, strict=True)
    ]
    distinct = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return list(distinct), np.array([distinct[text] for text in texts], np.uint32)[codes.reshape(-1)]
