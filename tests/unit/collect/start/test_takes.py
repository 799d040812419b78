"""Which window of a program is kept: the one whose steps are like all others, in the middle and in their shares."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import mean, median, quantiles
from typing import Any, cast

import pytest

from stepscope.collect.start.takes import SETTLING, Takes, midmean

MS = 1_000_000


class Kept:
    """A recorded window, of which only whether it stays is asked."""

    def __init__(self) -> None:
        self.there = True
        self.notes: dict[str, Any] = {}

    def note(self, key: str, value: Any) -> None:
        self.notes[key] = value

    def exchange(self, other: Kept) -> None:
        """Take the place of the first window: of neither asks this test where it lies."""

    def remove(self) -> None:
        self.there = False


def kept(step_ms: Callable[[int], float], steps: int = 300, first: int = 5) -> tuple[list[float], int]:
    """Return the steps of the window that stays, in ms, and how many were recorded, for steps of such durations."""
    takes, now, begin, room = Takes(5, 40), 0, first, 5
    windows: dict[Kept, list[float]] = {}
    recorded: list[float] = []
    for number in range(steps):
        now += round(step_ms(number) * MS)
        inside = begin <= number < begin + room
        if inside:
            recorded.append(step_ms(number))
        again = takes.step(now, recorded=inside)
        if inside and number == begin + room - 1:
            window = Kept()
            windows[window], recorded = recorded, []
            takes.add(cast("Any", window))
        if again:
            begin, room = number + 1 + SETTLING, takes.active
    best = cast("Any", takes.keep_best(last=False))
    assert [window for window in windows if window.there] == [best]
    return windows[best], len(windows)


def test_one_window_is_enough_where_steps_are_alike() -> None:
    assert kept(lambda _: 20.0) == ([20.0] * 5, 1)


@pytest.mark.parametrize(
    "step_ms",
    [lambda number: 30.0 if number % 3 == 0 else 15.0, lambda number: 40.0 if number % 5 < 2 else 15.0],
    ids=["one in three", "two in five"],
)
def test_a_window_has_the_usual_share_of_long_steps(step_ms: Callable[[int], float]) -> None:
    # Given long steps that come regularly, so that the median of any window is that of the short ones
    found, _ = kept(step_ms)
    all_steps = [step_ms(number) for number in range(300)]
    assert median(found) == median(all_steps)
    assert mean(found) == pytest.approx(mean(all_steps), rel=0.05)


def test_of_steps_that_vary_the_window_that_stays_is_near_all_of_them() -> None:
    # Given programs whose steps take any time between 15 and 45 ms, so that the median of a window is one of chance
    apart = []
    for seed in range(100):
        chance = random.Random(seed)
        steps = [chance.uniform(15.0, 45.0) for _ in range(150)]
        found, _ = kept(lambda number, steps=steps: steps[number], 150)  # type: ignore[misc]
        apart.append(abs(median(found) / median(steps) - 1))
    # Then nine of ten windows are as near as one of 40 steps can be
    assert quantiles(apart, n=10)[-1] < 0.085


def test_steps_that_drain_a_queue_are_replaced() -> None:
    found, windows = kept(lambda number: 12.0 if number < 12 else 25.0)
    assert windows == 2
    assert found == [25.0] * 10


@pytest.mark.parametrize(
    ("durations", "middle"),
    [([7], 7), ([1, 9], 5), ([1, 2, 9], 2), ([0, 4, 6, 90], 5), ([0, 10, 20, 30, 90], 20), ([0, 0, 8, 8, 8], 5.6)],
)
def test_the_midmean_is_the_mean_of_the_middle_half(durations: list[int], middle: float) -> None:
    assert midmean(durations) == pytest.approx(middle)
