"""Threads that go on where another one ended: a forward and a backward thread. Definition: ``docs/definitions.md``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.analyse.idle.thread_time import SLICE
from stepscope.analyse.intervals import Intervals, Times
from stepscope.analyse.step.activity import Rows

_NEVER = np.iinfo(np.int64).max


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
    each = max(SLICE // max(len(every.threads), 1), 1)
    for begin in range(0, len(last), each):
        pause, run = every.worked_half(*every.ended_in(np.arange(begin, min(begin + each, len(last)))))
        order = np.lexsort((-every.number[run], every.end[run], pause))
        pause, run = pause[order], run[order]
        behind = np.flatnonzero(np.append(pause[1:] != pause[:-1], True)[: len(pause)])
        last[pause[behind]] = run[behind]
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
        # A run's key orders runs by thread and start; that of a thread and an instant lies behind the runs begun then.
        starts = np.sort(self.start)
        self._begun_by = np.searchsorted(starts, self.since, side="right")
        self._key = self.number * (len(starts) + 1) + np.searchsorted(starts, self.start, side="right")
        self._by_end = np.argsort(self.end, kind="stable")
        self._ends = self.end[self._by_end]

    def ended_in(self, pauses: Rows) -> tuple[Rows, Rows]:
        """Return pauses, and runs that ended in each: all, or where these are many, the last of each thread."""
        first = np.searchsorted(self._ends, self.since[pauses], side="right")
        count = np.searchsorted(self._ends, self.start[pauses], side="right") - first
        few = count <= len(self.threads)
        place, behind = np.repeat(first[few], count[few]), np.cumsum(count[few])
        place += np.arange(len(place)) - np.repeat(behind - count[few], count[few])
        pause, run = [np.repeat(pauses[few], count[few])], [self._by_end[place]]
        for one, begin in zip(self._each, self._first[:-1], strict=True) if not few.all() else ():
            ended = np.searchsorted(one.end, self.start[pauses[~few]], side="right")
            pause.append(pauses[~few][ended > 0])
            run.append(begin + ended[ended > 0] - 1)
        return np.concatenate(pause), np.concatenate(run)

    def worked_half(self, pause: Rows, run: Rows) -> tuple[Rows, Rows]:
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
