"""How spans of a track lie in each other: order, parents, depth, and what follows from parents."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.native import nesting as native

Integers = npt.NDArray[np.int64]


class Nesting(NamedTuple):
    """Spans in order of track, start, and longest first.

    Attributes:
        order: Index of the span that comes at each place.
        parent: Place of the innermost span of the same track that contains it; −1 at the top. It is smaller.
        depth: Number of ancestors.
        crossing: Whether it overlaps an earlier span of its track without either containing the other.
    """

    order: Integers
    parent: Integers
    depth: npt.NDArray[np.int32]
    crossing: npt.NDArray[np.bool_]


def nest(track: npt.NDArray[Any], ts: Integers, dur: Integers) -> Nesting:
    """Order spans and find their parents.

    A span contains another that begins within it and ends no later. Of equal spans the earlier in the input contains
    the other.

    Args:
        track: Track of each span.
        ts: Start, ns.
        dur: Duration, ns, not negative; ``ts + dur`` fits 64 bits.
    """
    fast = native.nest(track, ts, dur)
    if fast is not None:
        return Nesting(*fast)
    return nest_in_python(track, ts, dur)


def nest_in_python(track: npt.NDArray[Any], ts: Integers, dur: Integers) -> Nesting:
    """Do what :func:`nest` does, without the C library."""
    order = np.lexsort((-dur, ts, track))
    parent, depth, crossing = _walk(track[order].tolist(), ts[order].tolist(), (ts + dur)[order].tolist())
    return Nesting(order, np.array(parent, np.int64), np.array(depth, np.int32), np.array(crossing, np.bool_))


def _walk(tracks: list[int], starts: list[int], ends: list[int]) -> tuple[list[int], list[int], list[bool]]:
    """Walk the ordered spans with a stack of those that may still contain one.

    A span below another in the stack that ends earlier can contain nothing that the one above does not contain as well,
    so it is dropped: ends never increase from bottom to top, and the walk is linear.
    """
    parents: list[int] = []
    depths: list[int] = []
    crossings: list[bool] = []
    stack: list[int] = []
    current = None
    for place, (track, start, end) in enumerate(zip(tracks, starts, ends, strict=True)):
        if track != current:
            stack.clear()
            current = track
        crossing = False
        while stack:
            top = stack[-1]
            if ends[top] >= end and (ends[top] > start or starts[top] == start):
                break
            crossing = crossing or start < ends[top] < end
            stack.pop()
        parents.append(stack[-1] if stack else -1)
        depths.append(depths[stack[-1]] + 1 if stack else 0)
        crossings.append(crossing)
        stack.append(place)
    return parents, depths, crossings


def inherit(parent: Integers, own: Integers) -> Integers:
    """Give every span the value of its nearest ancestor that has one, itself included.

    Args:
        parent: Place of each span's parent, −1 at the top; parents come before children.
        own: Value of each span; −1 where it has none.
    """
    fast = native.inherit(parent, own)
    return inherit_in_python(parent, own) if fast is None else fast


def inherit_in_python(parent: Integers, own: Integers) -> Integers:
    """Do what :func:`inherit` does, without the C library."""
    result: list[int] = []
    append = result.append
    for above, value in zip(parent.tolist(), own.tolist(), strict=True):
        append(value if value >= 0 or above < 0 else result[above])
    return np.array(result, np.int64)


def innermost(
    places: Nesting, bounds: tuple[npt.NDArray[Any], Integers, Integers], track: npt.NDArray[Any], at: Integers
) -> Integers:
    """Return for each point the place of the innermost span that contains it, −1 where none does.

    Args:
        places: The nesting of the spans.
        bounds: Track, start and end of the spans, in the order of ``places``.
        track: Track of each point.
        at: Time of each point.
    """
    tracks, starts, ends = bounds
    found = np.full(len(at), -1, np.int64)
    for number in np.unique(track).tolist():
        low, high = np.searchsorted(tracks, [number, number + 1])
        points = np.flatnonzero(track == number)
        place = low + np.searchsorted(starts[low:high], at[points], side="right") - 1
        place[place < low] = -1
        while (outside := (place >= 0) & (ends[place] <= at[points]) & (starts[place] != at[points])).any():
            place[outside] = places.parent[place[outside]]
        found[points] = place
    return found
