"""The level of a run: own times, their quick steps, without the warm-up."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

from stepscope.comparison.levels import in_turns, level_of, levels_of_rank
from stepscope.trace.tables import complete, lazy


def test_the_level_is_the_tenth_percentile_of_own_times_after_the_warm_up() -> None:
    wall = np.concatenate([np.full(10, 9e6), np.linspace(1e6, 2e6, 90)])
    delay = np.concatenate([np.zeros(55), np.full(45, 0.5e6)])
    found = level_of(wall, delay, np.full(100, 7.0))
    assert found is not None
    own = (wall - delay)[10:]
    assert math.exp(found.level) == pytest.approx(np.quantile(own, 0.1))
    assert math.exp(found.mean) == pytest.approx(own.mean())
    assert found.delay == pytest.approx(delay[10:].sum() / wall[10:].sum())
    assert (found.steps, found.faults, found.stalls) == (90, 7.0, 0)
    quickest, median, longest = (found.quantiles_ns[percent] for percent in (0, 50, 100))
    assert (quickest, longest) == (own.min(), own.max())
    assert median == pytest.approx(np.median(own), abs=1)


def test_a_delay_read_across_steps_is_not_taken_off() -> None:
    found = level_of(np.full(40, 1e6), np.full(40, 1.2e6))
    assert found is not None
    assert math.exp(found.level) == pytest.approx(1e6)


def test_unknown_stays_unknown() -> None:
    found = level_of(np.full(40, 1e6), np.full(40, np.nan))
    assert found is not None
    assert found.delay is None
    assert found.faults is None
    assert level_of(np.zeros(0)) is None


def test_steps_far_outside_are_stalls_and_show_in_the_mean() -> None:
    wall = np.full(60, 1e6)
    wall[[30, 50]] = 9e6
    found = level_of(wall)
    assert found is not None
    assert found.stalls == 2
    assert math.exp(found.level) == pytest.approx(1e6)
    assert math.exp(found.mean) == pytest.approx(1e6 + 16e6 / 50)


def test_runs_in_turns_lie_as_far_apart_as_turns_that_followed_each_other() -> None:
    chance = np.random.default_rng(1)
    machine = np.cumsum(chance.normal(0, 0.05, 101))  # it becomes slower and quicker in the middle of a turn, too
    one, two = machine[:-1], machine[1:] + np.log(1.05)
    a, b = (level_of(1e6 * np.exp(side[start : start + 40])) for side, start in ((one, 0), (two, 60)))
    assert a is not None
    assert b is not None
    assert abs(b.level - a.level - np.log(1.05)) > 0.05, "each run by itself has its own moment of the machine"
    apart = in_turns(a, b, list(zip(one, two, strict=True)))
    assert apart[1].level - apart[0].level == pytest.approx(np.log(1.05), abs=0.02)
    assert apart[0].level + apart[1].level == pytest.approx(a.level + b.level)
    assert in_turns(a, b, [(1.0, 2.0)] * 9) == (a, b), "too few turns say nothing"


def steps(recorded: int, others: int) -> dict[str, pl.LazyFrame]:
    count = recorded + others
    rows = pl.DataFrame(
        {
            "number": range(count),
            "ts": [i * 10_000 for i in range(count)],
            "dur": [5_000] * recorded + [1_000] * others,
            "recorded": [True] * recorded + [False] * others,
        }
    )
    return dict(lazy(complete({"run_steps": rows})))


def test_recorded_steps_and_others_are_never_mixed() -> None:
    many, few = levels_of_rank(steps(5, 40)), levels_of_rank(steps(5, 8))
    assert {recorded: math.exp(level.level) for recorded, level in many.items()} == pytest.approx(
        {False: 1_000, True: 5_000}
    )
    assert {recorded: math.exp(level.level) for recorded, level in few.items()} == pytest.approx({True: 5_000})
