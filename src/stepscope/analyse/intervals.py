"""Sets of time as sorted, disjoint, half-open intervals ``[start, end)`` in integer nanoseconds.

Everything is vectorised and exact: no value passes through a float. Length is measured with :meth:`Intervals.before`,
the time covered before an instant; the time covered inside a window is then one subtraction, for any number of windows,
which may overlap each other. That is what makes the categories of a step add up to the step by construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]


def joined(parts: Sequence[Times]) -> Times:
    """Return the parts as one array, without a copy where only one has any."""
    some = [part for part in parts if len(part)]
    return some[0] if len(some) == 1 else np.concatenate(parts)


def all_of(value: int, length: int) -> Times:
    """Return the same integer ``length`` times, to read only: it takes no memory."""
    return np.broadcast_to(np.int64(value), length)


@dataclass(frozen=True, eq=False)
class Intervals:
    """A set of time.

    Attributes:
        start: Starts in ns, ascending, int64.
        end: Ends in ns, ascending, int64; every ``end`` lies before the next ``start``.
    """

    start: Times
    end: Times

    def __len__(self) -> int:
        return len(self.start)

    @property
    def length(self) -> int:
        """Time covered, in ns."""
        return int((self.end - self.start).sum())

    def before(self, instants: Times) -> Times:
        """Return the time covered before each instant, in ns (same shape as ``instants``)."""
        if not len(self):
            return np.zeros(len(instants), np.int64)
        covered = np.concatenate(([0], np.cumsum(self.end - self.start)))
        begun = np.searchsorted(self.start, instants, side="right")
        unfinished = np.where(begun > 0, self.end[begun - 1] - instants, 0)
        return np.asarray(covered[begun] - np.maximum(unfinished, 0), np.int64)

    def within(self, start: Times, end: Times) -> Times:
        """Return the time covered inside each window ``[start, end)``, in ns; windows may overlap each other."""
        covered = self.before(np.concatenate((end, start)))
        return covered[: len(end)] - covered[len(end) :]

    def first_from(self, instants: Times) -> Times:
        """Return the first covered instant at or after each instant; the largest int64 if none is."""
        never = np.int64(np.iinfo(np.int64).max)
        index = np.searchsorted(self.end, instants, side="right")
        starts = np.concatenate((self.start, [never]))
        return np.maximum(starts[index], instants)

    def last_until(self, instants: Times) -> Times:
        """Return the last covered instant at or before each instant; the smallest int64 if none is."""
        never = np.int64(np.iinfo(np.int64).min)
        index = np.searchsorted(self.start, instants, side="left")
        ends = np.concatenate(([never], self.end))
        return np.minimum(ends[index], instants)


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def unite(start: Times, end: Times) -> Intervals:
    """Return the union of intervals in any order, overlapping or not; touching ones are joined, empty ones dropped.

    Args:
        start: Starts in ns.
        end: Ends in ns, none before its start.
    """
    if not len(start):
        return EMPTY
    starts, ends = np.sort(start, kind="stable"), np.sort(end, kind="stable")  # long sorted runs
    return _join(starts, ends, starts[1:] > ends[:-1])[1]


def unite_groups(group: npt.NDArray[np.int64], start: Times, end: Times) -> tuple[npt.NDArray[np.int64], Intervals]:
    """Return the union of intervals within each group, ordered by group and time, and the group of each result.

    The result holds disjoint intervals within a group only; :class:`Intervals` methods that measure need one group.
    """
    by_start, by_end = np.lexsort((start, group)), np.lexsort((end, group))
    starts, ends, groups = start[by_start], end[by_end], group[by_start]
    first, result = _join(starts, ends, (starts[1:] > ends[:-1]) | (groups[1:] != groups[:-1]))
    return groups[first], result


def _join(starts: Times, ends: Times, gap: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.intp], Intervals]:
    """Return the joined intervals, and the index in ``starts`` of the start of each.

    Starts and ends are each sorted, and ``gap[i]`` is true if start ``i + 1`` lies after end ``i``. Then exactly
    ``i + 1`` intervals have started and as many have ended, so nothing is open; no running maximum of ends is needed.
    """
    opens = np.concatenate(([True], gap))[: len(starts)]
    closes = np.concatenate((gap, [True]))[: len(starts)]
    first, last = opens.nonzero()[0], closes.nonzero()[0]
    covers = ends[last] > starts[first]
    first, last = first[covers], last[covers]
    return first, Intervals(starts[first], ends[last])


def union(*sets: Intervals) -> Intervals:
    """Return the time covered by any of the sets."""
    full = [one for one in sets if len(one)]
    if len(full) < 2:
        return full[0] if full else EMPTY
    return unite(np.concatenate([one.start for one in full]), np.concatenate([one.end for one in full]))


def subtract(left: Intervals, right: Intervals) -> Intervals:
    """Return the time covered by ``left`` and not by ``right``: a walk over the edges of both."""
    if not len(left) or not len(right):
        return left
    at = np.concatenate((left.start, left.end, right.start, right.end))
    edges = [(1, 0), (-1, 0), (0, 1), (0, -1)]
    counts = [len(left), len(left), len(right), len(right)]
    order = np.argsort(at, kind="stable")
    inside_left = np.cumsum(np.repeat([edge[0] for edge in edges], counts)[order])
    inside_right = np.cumsum(np.repeat([edge[1] for edge in edges], counts)[order])
    wanted = (inside_left > 0) & (inside_right == 0)
    at = at[order]
    return unite(at[:-1][wanted[:-1]], at[1:][wanted[:-1]])
