"""Threads that go on where another one ended, against the definition looked up pair by pair."""

from __future__ import annotations

import time

import numpy as np
import pytest

from stepscope.analyse.idle import hand_over
from stepscope.analyse.intervals import Intervals, unite


def pair_by_pair(runs: dict[int, Intervals]) -> list[tuple[int, int, int, int]]:
    """Return thread, time, end of the other one and the other one, by a look at every instant."""
    begun = min((int(own.start[0]) for own in runs.values() if len(own)), default=0)
    found = []
    for thread, own in runs.items():
        for since, until in zip([begun, *own.end.tolist()], own.start.tolist(), strict=False):
            best = None
            for other, theirs in runs.items():
                work = list(zip(theirs.start.tolist(), theirs.end.tolist(), strict=True))
                ended = max((end for _, end in work if end <= until), default=-1)
                going = any(start < until < end for start, end in work)
                worked = sum(max(min(end, until) - max(start, since), 0) for start, end in work)
                if other == thread or going or ended <= since or 2 * worked < until - since:
                    continue
                if best is None or ended > best[0]:
                    best = ended, other
            if best is not None:
                found.append((thread, until, *best))
    return found


@pytest.mark.parametrize("together", [1 << 20, 20])
def test_threads_go_on_where_another_one_worked_for_half_of_their_pause(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_over, "SLICE", together)
    monkeypatch.setattr(hand_over, "FEW_RUNS", 2)
    rng = np.random.default_rng(0)
    seen = 0
    for _ in range(200):
        runs = {}
        for thread in rng.permutation(12)[: rng.integers(0, 7)].tolist():
            count, longest = rng.integers(0, 30), rng.integers(1, 30)
            start = rng.integers(0, rng.choice([40, 300]), count)
            runs[thread] = unite(start, start + rng.integers(0, longest, count))
        found = hand_over.hand_over(runs)
        columns = (found.thread, found.at, found.since, found.other)
        expected = pair_by_pair(runs)
        assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
        seen += len(expected)
    assert seen > 200


def seconds(threads: int) -> float:
    """Return the CPU time for so many threads that hardly work, each of which has twenty pauses."""
    rng = np.random.default_rng(0)
    starts = rng.integers(0, 10**10, (threads, 20))
    runs = {thread: unite(start, start + 10**5) for thread, start in enumerate(starts)}
    begin = time.process_time()
    hand_over.hand_over(runs)
    return time.process_time() - begin


def test_the_time_for_many_threads_grows_as_their_runs_do() -> None:
    few, many = (min(seconds(threads) for _ in range(2)) for threads in (200, 1_600))
    assert many < 20 * few  # of every pause with every thread it would be 64
