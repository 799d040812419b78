"""Threads that go on where another one ended: a forward and a backward thread. Definition: ``docs/definitions.md``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.analyse.idle.thread_time import SLICE
from stepscope.analyse.intervals import Intervals, Times
from stepscope.analyse.step.activity import Rows

_NEVER = np.iinfo(np.int64).max
#: So many runs that ended last in a pause are looked at first.
FEW_RUNS = 16


@dataclass(frozen=True, eq=False)
class HandOver:
    """When threads went on, ordered by thread and time.

    Attributes:
        thread: The thread that went on.
        at: When it did, in ns.
        since: When the other one had ended, in ns.
        other: That thread.
    """

    thread: Rows
    at: Times
    since: Times
    other: Rows


def hand_over(runs: Mapping[int, Intervals]) -> HandOver:
    """Return when a thread went on that had done nothing while another one worked.

    That is so if the other one worked for at least half of the time, and ended before the thread went on. Of several
    the one that ended last counts.

    Args:
        runs: When each thread worked.
    """
    every = _Runs({thread: one for thread, one in runs.items() if len(one)})
    last = np.full(len(every.start), -1, np.int64)
    # Mostly one of the runs that ended last is what counts; where none is, many may have ended in a long pause.
    each = max(SLICE // FEW_RUNS, 1)
    for begin in range(0, len(last), each):
        every.keep_last(last, *every.last_ended(np.arange(begin, min(begin + each, len(last)))))
    pauses, able = every.able(np.flatnonzero((last < 0) & (every.ended > FEW_RUNS)))
    part = np.cumsum(able) // SLICE
    for places in np.split(np.arange(len(pauses)), np.flatnonzero(part[1:] != part[:-1]) + 1):
        every.keep_last(last, *every.last_of_threads(pauses[places], able[places]))
    some = np.flatnonzero(last >= 0)
    thread = every.threads[every.number]
    return HandOver(thread[some], every.start[some], every.end[last[some]], thread[last[some]])


class _Runs:
    """The runs of all threads, one thread after the other, each with the pause of its thread that ends where it begins.

    Attributes:
        threads: The threads.
        number: Number of the thread of each run among these.
        since: Start of the pause: the end of the run before, in ns; that of everything if there is none.
        start: Starts in ns.
        end: Ends in ns.
        ended: How many runs of all threads end in the pause.
    """

    def __init__(self, runs: Mapping[int, Intervals]) -> None:
        none = [np.empty(0, np.int64)]
        counts = [len(one) for one in runs.values()]
        self.threads = np.array(list(runs), np.int64)
        self.number = np.repeat(np.arange(len(runs)), counts)
        self.start = np.concatenate(none + [one.start for one in runs.values()])
        self.end = np.concatenate(none + [one.end for one in runs.values()])
        self._each = list(runs.values())
        self._first = np.cumsum([0, *counts])
        self.since, self._next = np.roll(self.end, 1), np.roll(self.start, -1)
        self.since[self._first[:-1]] = self.start.min(initial=_NEVER)
        self._next[self._first[1:] - 1] = _NEVER
        self._worked = np.cumsum(np.append(0, self.end - self.start))
        work = np.diff(self._worked[self._first])
        # Threads by all their work, the most first: most of very many threads work too little for most pauses.
        self._busiest = np.argsort(-work, kind="stable")
        self._work = work[self._busiest]
        # A run's key orders runs by thread and start; that of a thread and an instant lies behind the runs begun then.
        starts = np.sort(self.start)
        self._begun_by = np.searchsorted(starts, self.since, side="right")
        self._key = self.number * (len(starts) + 1) + np.searchsorted(starts, self.start, side="right")
        self._by_end = np.argsort(self.end, kind="stable")
        ends = self.end[self._by_end]
        self._behind = np.searchsorted(ends, self.start, side="right")
        self.ended = self._behind - np.searchsorted(ends, self.since, side="right")

    def last_ended(self, pauses: Rows) -> tuple[Rows, Rows]:
        """Return pauses, and the last :data:`FEW_RUNS` runs that ended in each."""
        count = np.minimum(self.ended[pauses], FEW_RUNS)
        behind = np.cumsum(count)
        place = np.arange(count.sum()) + np.repeat(self._behind[pauses] - behind, count)
        return np.repeat(pauses, count), self._by_end[place]

    def able(self, pauses: Rows) -> tuple[Rows, Rows]:
        """Return pauses, and how many threads worked for half of each in all their time, by this number."""
        able = np.searchsorted(-self._work, -((self.start - self.since)[pauses] + 1) // 2, side="right")
        order = np.argsort(able, kind="stable")
        order = order[able[order] > 0]
        return pauses[order], able[order]

    def last_of_threads(self, pauses: Rows, able: Rows) -> tuple[Rows, Rows]:
        """Return what :meth:`able` returns as pairs: pauses, and the last run of each of the threads before its end."""
        pause, run = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for place, number in enumerate(self._busiest[: int(able.max(initial=0))].tolist()):
            some = pauses[np.searchsorted(able, place, side="right") :]
            ended = np.searchsorted(self._each[number].end, self.start[some], side="right")
            pause.append(some[ended > 0])
            run.append(self._first[number] + ended[ended > 0] - 1)
        return np.concatenate(pause), np.concatenate(run)

    def keep_last(self, last: Rows, pause: Rows, run: Rows) -> None:
        """Set ``last`` of each pause to the run that ended last, of those whose thread did its work."""
        pause, run = self._worked_half(pause, run)
        order = np.lexsort((-self.number[run], self.end[run], pause))
        pause, run = pause[order], run[order]
        behind = np.flatnonzero(np.append(pause[1:] != pause[:-1], True)[: len(pause)])
        last[pause[behind]] = run[behind]

    def _worked_half(self, pause: Rows, run: Rows) -> tuple[Rows, Rows]:
        """Return the pairs in which the thread of the run worked in half of the pause, and no more when it ends."""
        since, until = self.since[pause], self.start[pause]
        good = (self.end[run] > since) & (self._next[run] >= until) & (self.number[run] != self.number[pause])
        pause, run, since, until = pause[good], run[good], since[good], until[good]
        number = self.number[run]
        begun = np.searchsorted(self._key, number * (len(self._key) + 1) + self._begun_by[pause], side="right")
        unfinished = np.where(begun > self._first[number], np.maximum(self.end[begun - 1] - since, 0), 0)
        worked = self._worked[run + 1] - self._worked[begun] + unfinished
        half = 2 * worked >= until - since
        return pause[half], run[half]
