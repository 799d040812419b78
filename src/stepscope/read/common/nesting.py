"""How spans of a track nest: order, parents, depth, and what follows from parents."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.native import nesting as native

Integers = npt.NDArray[np.int64]

#: Two ends may be wrong by this much against each other, if begins and durations are rounded to ns.
_ROUNDED_NS = 2
#: A cut span may seem to cross another one: so often it is looked at again.
_TURNS = 4


class Nesting(NamedTuple):
    """Spans in order of track, start, and longest first.

    Attributes:
        order: Index of the span at each position.
        parent: Position of the innermost span of the same track that contains it, always smaller; −1 at the top.
        depth: Number of ancestors.
        crossing: Whether it begins inside the preceding child of the same parent and ends after it.
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
    track, start, end = track[order], ts[order], (ts + dur)[order]
    parent = _parents(track, start, end)
    return Nesting(order, parent, _depths(parent), _crossings(track, parent, start, end))


def _parents(track: npt.NDArray[Any], start: Integers, end: Integers) -> Integers:
    """Return the parent of each ordered span.

    Each looks at its predecessor first. Where that cannot contain it, nothing between the predecessor and what the
    predecessor looks at can either, because all of that ends before the predecessor; so it looks there next. All spans
    look at once, and the distances that they skip double.
    """
    looks = np.arange(-1, len(start) - 1)
    open_spans = np.flatnonzero(looks >= 0)
    while len(open_spans):
        at = looks[open_spans]
        too_short = (end[at] < end[open_spans]) | ((end[at] <= start[open_spans]) & (start[at] != start[open_spans]))
        elsewhere = track[at] != track[open_spans]
        looks[open_spans[elsewhere]] = -1
        again = open_spans[too_short & ~elsewhere]
        looks[again] = looks[looks[again]]
        open_spans = again[looks[again] >= 0]
    return looks


def _depths(parent: Integers) -> npt.NDArray[np.int32]:
    """Return how many ancestors each span has: the distances to an ancestor double until it is the topmost."""
    ancestor = parent.copy()
    depth = (parent >= 0).astype(np.int32)
    below = np.flatnonzero(ancestor >= 0)
    while len(below):
        above = ancestor[below]
        depth[below] += depth[above]
        ancestor[below] = ancestor[above]
        below = below[ancestor[below] >= 0]
    return depth


def _crossings(track: npt.NDArray[Any], parent: Integers, start: Integers, end: Integers) -> npt.NDArray[np.bool_]:
    """Return which spans begin before the child of the same parent ends that comes before them."""
    siblings = np.lexsort((np.arange(len(parent)), parent, track))
    before, after = siblings[:-1], siblings[1:]
    crossing = np.zeros(len(parent), np.bool_)
    related = (parent[before] == parent[after]) & (track[before] == track[after])
    crossing[after] = related & (end[before] > start[after]) & (end[before] < end[after])
    return crossing


def unrounded(track: npt.NDArray[Any], ts: Integers, dur: Integers) -> Integers:
    """Return the durations with which spans nest whose writer rounded begin and duration one by one.

    Two spans that seem to cross by :data:`_ROUNDED_NS` or less touch or nest: the one that reaches too far is cut.
    """
    for _ in range(_TURNS):
        found = nest(track, ts, dur)
        after = np.flatnonzero(found.crossing)
        if not len(after):
            break
        before = after - 1
        while (deeper := found.depth[before] > found.depth[after]).any():
            before = np.where(deeper, found.parent[before], before)
        before, after = found.order[before], found.order[after]
        inside = ts[before] + dur[before] - ts[after]
        beyond = dur[after] - inside
        nests = beyond <= _ROUNDED_NS
        touches = (inside <= _ROUNDED_NS) & ~nests & ~np.isin(before, after[nests])
        if not (nests | touches).any():
            break
        dur = dur.copy()
        dur[after[nests]] -= beyond[nests]
        dur[before[touches]] -= inside[touches]
    return dur


def nearest(parent: Integers, chosen: npt.NDArray[np.bool_]) -> Integers:
    """Return for each span its innermost chosen ancestor, itself included; −1 without one.

    Args:
        parent: Position of each span's parent, −1 at the top; parents come before children.
        chosen: Which spans are chosen.
    """
    fast = native.nearest(parent, chosen)
    return nearest_in_python(parent, chosen) if fast is None else fast


def nearest_in_python(parent: Integers, chosen: npt.NDArray[np.bool_]) -> Integers:
    """Do what :func:`nearest` does, without the C library."""
    result: Integers = _inherited(parent, np.where(chosen, np.arange(len(chosen)), -1))
    return result


def inherit(parent: Integers, own: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """Give every span the value of its nearest ancestor with one, itself included; −1 is none. ``parent`` as above."""
    fast = native.inherit(parent, own)
    return inherit_in_python(parent, own) if fast is None else fast


def inherit_in_python(parent: Integers, own: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """Do what :func:`inherit` does, without the C library."""
    result: npt.NDArray[np.int8] = _inherited(parent, own.astype(np.int8))
    return result


def _inherited(parent: Integers, result: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Fill in the values that spans have none of; in place."""
    ancestor = parent.copy()
    seeking = np.flatnonzero((result < 0) & (ancestor >= 0))
    while len(seeking):
        above = ancestor[seeking]
        result[seeking] = result[above]
        ancestor[seeking] = ancestor[above]
        seeking = seeking[(result[seeking] < 0) & (ancestor[seeking] >= 0)]
    return result


def innermost(
    parent: Integers, bounds: tuple[npt.NDArray[Any], Integers, Integers], track: npt.NDArray[Any], at: Integers
) -> Integers:
    """Return for each point the position of the innermost span that contains it; −1 if none does.

    Args:
        parent: Position of the parent of each span, −1 at the top.
        bounds: Track, start and end of the spans, in order.
        track: Track of each point.
        at: Time of each point.
    """
    tracks, starts, ends = bounds
    found = np.full(len(at), -1, np.int64)
    for number in np.unique(track).tolist():
        low, high = np.searchsorted(tracks, [number, number + 1])
        if low == high:
            continue
        points = np.flatnonzero(track == number)
        place = low + np.searchsorted(starts[low:high], at[points], side="right") - 1
        place[place < low] = -1
        while (outside := (place >= 0) & (ends[place] <= at[points]) & (starts[place] != at[points])).any():
            place[outside] = parent[place[outside]]
        found[points] = place
    return found


def outermost(bounds: tuple[npt.NDArray[Any], Integers], track: npt.NDArray[Any], at: Integers) -> Integers:
    """Return for each point the position of the first span that starts there, as :func:`innermost`; −1 if none does."""
    tracks, starts = bounds
    found = np.full(len(at), -1, np.int64)
    for number in np.unique(track).tolist():
        low, high = np.searchsorted(tracks, [number, number + 1])
        points = np.flatnonzero(track == number)
        place = low + np.searchsorted(starts[low:high], at[points])
        points, place = points[place < high], place[place < high]
        exact = starts[place] == at[points]
        found[points[exact]] = place[exact]
    return found


def looked_up(values: Integers, places: Integers) -> Integers:
    """Return the value at each position; −1 for position −1."""
    result = np.full(len(places), -1, np.int64)
    known = places >= 0
    result[known] = values[places[known]]
    return result
