"""Events that wait for each other: each happens when the last of its causes has, and its delay has passed.

That is all a training job does between two steps: an operator starts after the one before it, a collective ends some
time after the last of its ranks has arrived. The times of all events are the longest paths through the graph.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]


class EventGraph:
    """Events, and edges from cause to effect; its order is found once, its times for any delays.

    Args:
        causes: Event at the start of each edge.
        effects: Event at its end.
        events: Number of events.

    Raises:
        ValueError: Some events wait for each other in a circle.
    """

    def __init__(self, causes: Ints, effects: Ints, events: int) -> None:
        self.events, self.edges = events, len(causes)
        level = _levels(causes, effects, events)
        #: Edges in the order in which their effects happen; those of one effect lie together.
        self._order = np.lexsort((effects, level[effects]))
        self._causes, self._effects = causes[self._order], effects[self._order]
        first = np.flatnonzero(np.diff(self._effects, prepend=-1))
        levels = level[self._effects]
        starts = np.flatnonzero(np.diff(levels, prepend=-1))
        ends = np.append(starts, len(levels))[1:]
        #: One item a level: its edges, and where those of each of its events begin among them.
        self._rounds = [
            (slice(start, end), first[np.searchsorted(first, start) : np.searchsorted(first, end)] - start)
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]

    def times(self, delays: Floats, origins: Floats | None = None) -> Floats:
        """Return when each event happens.

        Args:
            delays: Delay of each edge, in the order given to the constructor; further axes are computed side by side.
            origins: Time of the events without a cause, one per event; 0 without it.
        """
        delays = delays[self._order]
        times: Floats = np.zeros((self.events, *delays.shape[1:]))
        if origins is not None:
            times += origins.reshape(-1, *(1,) * (delays.ndim - 1))
        for edges, first in self._rounds:
            arrivals = times[self._causes[edges]] + delays[edges]
            times[self._effects[edges][first]] = np.maximum.reduceat(arrivals, first, axis=0)
        return times

    def longest_path(self, delays: Floats, end: int, favour: Floats) -> tuple[Ints, Ints]:
        """Return the edges that decide when an event happens, the first one first, and the events that they lead to.

        Args:
            delays: Delay of each edge.
            end: The event.
            favour: By how much an edge may arrive earlier than another one and is taken all the same.
        """
        arrivals = (self.times(delays)[self._causes] + (delays + favour)[self._order]).tolist()
        first = np.flatnonzero(np.diff(self._effects, prepend=-1))
        edges_of = dict(zip(self._effects[first].tolist(), pairwise([*first.tolist(), self.edges]), strict=True))
        edges, effects = [], [end]
        while effects[-1] in edges_of:
            edges.append(max(range(*edges_of[effects[-1]]), key=arrivals.__getitem__))
            effects.append(int(self._causes[edges[-1]]))
        return self._order[edges[::-1]], np.array(effects[-2::-1], np.int64)


def _levels(causes: Ints, effects: Ints, events: int) -> Ints:
    """Return for each event the number of edges on the longest way to it."""
    order = np.argsort(causes, kind="stable")
    begins = np.searchsorted(causes[order], np.arange(events + 1))
    followers = effects[order]
    missing = np.bincount(effects, minlength=events)
    level = np.zeros(events, np.int64)
    ready, done, depth = np.flatnonzero(missing == 0), 0, 0
    while len(ready):
        level[ready] = depth
        done, depth = done + len(ready), depth + 1
        begin, count = begins[ready], begins[ready + 1] - begins[ready]
        edges = np.repeat(begin - np.cumsum(count) + count, count) + np.arange(count.sum())
        reached, times = _counted(followers[edges])
        missing[reached] -= times
        ready = reached[missing[reached] == 0]
    if done < events:
        msg = f"{events - done} of {events} events wait for each other in a circle"
        raise ValueError(msg)
    return level


def _counted(values: Ints) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    return np.unique(values, return_counts=True)
