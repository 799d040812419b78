"""The level of a run: own times, their quick steps, without the warm-up."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

from stepscope.comparison.levels import level_of, levels_of_rank
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
