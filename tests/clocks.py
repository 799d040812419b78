"""What tests of times ask for, on a machine that may take the core from a process at any place."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import median


def drift(durations: Sequence[int], stamps: Sequence[int]) -> float:
    """Return how far the durations of steps are from a stopwatch that was read at all their ends.

    The stopwatch is read a moment after a step has ended, and what takes the core in that moment makes this reading
    late and no other. So each reading is compared with the sum of the durations up to it: where the durations are true,
    the two are apart by the same time in most of the readings.

    Args:
        durations: Of each step.
        stamps: The end of the step before the first, and of each; in the same unit.

    Returns:
        The median of how much the readings deviate from their own median, in that unit.
    """
    late = [stamp - end for stamp, end in zip(stamps, accumulate(durations, initial=0), strict=True)]
    middle = median(late)
    return median(abs(one - middle) for one in late)


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until something is true.

    Raises:
        AssertionError: It was not within this time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.02)
