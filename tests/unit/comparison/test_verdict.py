"""The verdict on the step: false alarms and power on noise that is known, and the bounds of what it claims."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from stepscope.comparison.levels import RunLevel
from stepscope.comparison.verdict import FASTER, NONE, SAME, SLOWER, Spread, change_of_level, squares_of

KNOWN = {False: Spread(0.02, 8, "history"), True: Spread(0.02, 6, "history")}


def runs(levels: Sequence[float]) -> list[RunLevel]:
    return [RunLevel(level=math.log(1e6) + level, mean=math.log(1e6) + level, steps=100) for level in levels]


@pytest.mark.parametrize(("pairs", "turns"), [(3, True), (5, True), (3, False), (6, False)])
def test_false_alarms_are_as_rare_as_promised_and_power_is_that_of_detectable(pairs: int, turns: bool) -> None:
    random = np.random.default_rng(pairs)
    false = found = 0
    detectable = []
    for _ in range(500):
        known = Spread(0.02 * math.sqrt(random.chisquare(6) / 6), 6, "history")
        noise = random.normal(0, 0.02, (2, pairs))
        if turns:  # what both sides of a pair share does not count
            noise[0], noise[1] = noise[0] * 0 + random.normal(0, 0.3, pairs), noise[1] + 0
            noise[1] += noise[0]
        unchanged = change_of_level(runs(noise[0]), runs(noise[1]), known, turns=turns)
        false += unchanged.verdict != SAME
        assert unchanged.detectable is not None
        detectable.append(unchanged.detectable)
        slower = change_of_level(runs(noise[0]), runs(noise[1] + math.log(1.08)), known, turns=turns)
        found += slower.verdict == SLOWER
    assert false / 500 <= 0.065
    if float(np.median(detectable)) <= 0.08:
        assert found / 500 >= 0.85


def test_the_interval_in_turns_is_that_of_students_t() -> None:
    scipy_t = 2.3060041350333704  # t.ppf(0.975, 8)
    found = change_of_level(runs([0.0, 0.1, 0.2]), runs([0.05, 0.13, 0.26]), KNOWN[True], turns=True)
    differences = np.array([0.05, 0.03, 0.06])
    spread = math.sqrt((6 * 0.02**2 + ((differences - differences.mean()) ** 2).sum()) / 8)
    assert found.spread == pytest.approx(spread)
    half = scipy_t * spread / math.sqrt(3)
    ends = [math.expm1(differences.mean() + sign * half) for sign in (-1, 1)]
    assert [found.low, found.high] == pytest.approx(ends)
    assert found.verdict == SLOWER


def test_one_run_a_side_has_no_verdict() -> None:
    found = change_of_level(runs([0.0]), runs([0.5]))
    assert found.verdict == NONE
    assert found.low is None
    assert found.change == pytest.approx(math.expm1(0.5))


def test_one_pair_in_turns_may_say_something_by_the_history() -> None:
    assert change_of_level(runs([0.0]), runs([-0.3]), KNOWN[True], turns=True).verdict == FASTER


def test_a_machine_never_repeats_itself_perfectly() -> None:
    found = change_of_level(runs([0.0] * 4), runs([0.0005] * 4), Spread(0.0, 30, "history"))
    assert found.spread == pytest.approx(0.003)
    assert found.verdict == SAME


def test_how_many_runs_are_needed_grows_with_the_spread() -> None:
    quiet, loud = (
        change_of_level(runs([0, size]), runs([0, size]), Spread(size, 8, "history")) for size in (0.01, 0.05)
    )
    assert quiet.runs_needed(0.05) < loud.runs_needed(0.05) < 1000
    assert quiet.runs_needed(0.05) < quiet.runs_needed(0.01)


def test_what_a_history_keeps_does_not_see_the_difference_between_the_sides() -> None:
    a, b = runs([0.0, 0.02, 0.04]), runs([0.5, 0.52, 0.54])
    assert squares_of(a, b, turns=False) == (pytest.approx(2 * 0.0008), 4)
    assert squares_of(a, b, turns=True) == (pytest.approx(0), 2)
