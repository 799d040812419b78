"""What tests of times ask for, on a machine that may take the core from a process at any place."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import polars as pl

from stepscope.trace.clock import take_anchor

#: What two readings of different clocks are apart, in ns.
ERROR = 100_000


def check_ends(steps: pl.DataFrame, stamps: Sequence[int], *, within: float = 1e6) -> None:
    """Hold the times of steps against a stopwatch that the program reads once an iteration, behind the end of a step.

    Whatever takes the core, a step begins before one reading, and ends between this and the next one. And the reading
    follows closely, but where something takes the core between the two: so in one of the steps it does.

    Args:
        steps: Start ``ts`` and duration ``dur`` of each, in ns since the epoch.
        stamps: Readings of ``time.perf_counter_ns`` behind the step before the first, and behind each.
        within: How close a reading is behind the end of a step, in ns.
    """
    begins, ends = on_stopwatch(steps["ts"]), on_stopwatch(steps["ts"] + steps["dur"])
    assert len(stamps) == len(ends) + 1
    for begin, end, (before, after) in zip(begins, ends, pairwise(stamps), strict=True):
        assert begin - ERROR <= before < end <= after + ERROR, (begin, before, end, after)
    assert min(after - end for end, after in zip(ends, stamps[1:], strict=True)) < within
    assert min(before - begin for begin, before in zip(begins, stamps, strict=False)) < within


def on_stopwatch(times: pl.Series) -> list[int]:
    """Return times of the epoch on the clock of ``time.perf_counter_ns``, in ns."""
    found: list[int] = (times - take_anchor().offset).to_list()
    return found


def wait_until(condition: Callable[[], object], seconds: float = 300.0) -> None:
    """Wait until something is true.

    Raises:
        AssertionError: It was not within this time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.02)
