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
        crossing = np.flatnonzero(_crossing(start, end))
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


def _crossing(start: Times, end: Times) -> npt.NDArray[np.bool_]:
    """Tell which spans of one track cross others; all others nest with every span, and fit on the main lane.

    Args:
        start: Starts, ascending; of equal ones, the longest span first.
        end: Ends, each greater than its start.
    """
    crossing = _outlasted(start, end)
    if crossing.any():  # backward in time, those that outlast are outlasted
        backward = len(end) - 1 - np.argsort(end[::-1], kind="stable")[::-1]
        crossing[backward] |= _outlasted(-end[backward], -start[backward])
    return crossing


def _outlasted(start: Times, end: Times) -> npt.NDArray[np.bool_]:
    """Tell in which spans another begins that ends later. The arguments are those of :func:`_crossing`."""
    first, behind = np.arange(1, len(start) + 1), np.searchsorted(start, end, side="left")
    inside = behind - first
    found = np.zeros(len(start), np.bool_)
    # The latest end of `size` spans from each on answers for the spans that have one to two times as many inside.
    latest, size, most = end, 1, int(inside.max(initial=0))
    while size <= most:
        rows = np.flatnonzero((inside >= size) & (inside < 2 * size))
        found[rows] = np.maximum(latest[first[rows]], latest[behind[rows] - size]) > end[rows]
        latest, size = np.maximum(latest[:-size], latest[size:]), 2 * size
    return found


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
