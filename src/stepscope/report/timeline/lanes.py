"""Lanes: a track's spans distributed so that on each lane spans nest or follow each other, and never cross.

Timeline viewers draw a lane as a stack and drop what does not fit: Perfetto leaves out a slice that begins inside
another and ends after it, with no more notice than a row in its statistics. Spans of one stream or thread do cross in
real captures (concurrent kernels on a logical stream, asynchronous ranges, rounding), so each is put on the first lane
it fits on.
"""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]

#: Lanes that are filled first fit, which keeps a track's main lane full. Beyond, a span gets a lane that is free when
#: it begins: with thousands of spans open at once, trying every lane for each would take quadratic time.
_FIRST_FIT = 32


def assign(track: Times, ts: Times, dur: Times) -> tuple[Times, Times]:
    """Put every span on a lane of its track.

    Args:
        track: Track of each span.
        ts: Start, ns.
        dur: Duration, ns, never negative.

    Returns:
        The order of the spans by track, start, longest first, as positions in the arguments; and the lane of each span,
        in the order of the arguments: 0 for the main lane, 1, 2, … for what crosses.
    """
    order = by_number(track)
    lanes = np.zeros(len(ts), np.int64)
    edges = [0, *(np.flatnonzero(np.diff(track[order])) + 1).tolist(), len(order)]
    for low, high in pairwise(edges):
        order[low:high] = rows = _by_start(order[low:high], ts, dur)
        rows = rows[dur[rows] > 0]  # a span without duration crosses nothing
        start, end = ts[rows], ts[rows] + dur[rows]
        if (start[1:] >= end[:-1]).all():
            continue
        crossing = np.flatnonzero(_in_crossing_groups(start, end))
        lanes[rows[crossing]] = _first_fit(start[crossing].tolist(), end[crossing].tolist())
    return order, lanes


def by_number(numbers: npt.NDArray[Any]) -> Times:
    """Return the positions in order of numbers that are not negative, such as tracks; of equal ones as they are."""
    # NumPy sorts integers of 16 bits by counting.
    small = numbers.astype(np.uint16) if int(numbers.max(initial=0)) < 1 << 16 else numbers
    return np.argsort(small, kind="stable")


def _by_start(rows: Times, ts: Times, dur: Times) -> Times:
    """Return the spans of a track by start, longest first; most sources write them so."""
    start, length = ts[rows], dur[rows]
    after, equal = start[1:] > start[:-1], start[1:] == start[:-1]
    if (after | (equal & (length[1:] <= length[:-1]))).all():
        return rows
    ordered: Times = rows[np.lexsort((-length, start))]
    return ordered


def _in_crossing_groups(start: Times, end: Times) -> npt.NDArray[np.bool_]:
    """Tell which spans of one track belong to a group of overlapping spans in which some cross.

    Of a span, as many others are open just before it begins as just after it ends, unless others cross it on one side.
    In any set of crossing spans the one that begins first is crossed on its right side only, so counting finds every
    such set.

    Args:
        start: Starts, ascending; of equal ones, the longest span first.
        end: Ends, each greater than its start.
    """
    count = len(start)
    if count == 0:
        return np.zeros(0, np.bool_)
    places = np.arange(count)
    by_end = count - 1 - np.argsort(end[::-1], kind="stable")  # of equal ends the innermost, begun last, comes first
    ended_before = np.empty(count, np.int64)
    ended_before[by_end] = places
    open_before = places - np.searchsorted(end[by_end], start, side="right")
    open_after = np.searchsorted(start, end, side="left") - ended_before - 1
    reach = np.maximum.accumulate(end)
    group = np.cumsum(np.concatenate(([True], start[1:] >= reach[:-1])))
    crossing = np.zeros(int(group[-1]) + 1, np.bool_)
    crossing[group[open_before != open_after]] = True
    result: npt.NDArray[np.bool_] = crossing[group]
    return result


def _first_fit(starts: list[int], ends: list[int]) -> list[int]:
    stacks: list[list[int]] = []
    free: list[tuple[int, int]] = []  # end and lane, for the lanes beyond first fit, which hold one span at a time
    lanes = []
    for start, end in zip(starts, ends, strict=True):
        lane = _stack_that_fits(stacks, start, end)
        if lane < _FIRST_FIT:
            if lane == len(stacks):
                stacks.append([])
            stacks[lane].append(end)
        elif free and free[0][0] <= start:
            lane = heapq.heapreplace(free, (end, free[0][1]))[1]
        else:
            lane = _FIRST_FIT + len(free)
            heapq.heappush(free, (end, lane))
        lanes.append(lane)
    return lanes


def _stack_that_fits(stacks: list[list[int]], start: int, end: int) -> int:
    for lane, stack in enumerate(stacks):
        while stack and stack[-1] <= start:
            stack.pop()
        if not stack or end <= stack[-1]:
            return lane
    return len(stacks)
