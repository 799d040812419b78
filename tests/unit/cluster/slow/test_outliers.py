"""Outliers against the distributions that they are defined by."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stepscope.cluster.slow.outliers import PRIOR_WEIGHT, happens_by_chance, lower_median, student_quantile, too_large

#: Tables of Student's t, one-sided.
QUANTILES = [(0.95, 6, 1.943), (0.99, 6, 3.143), (0.999, 6, 5.208), (0.99, 20, 2.528), (0.9995, 20, 3.850)]


@pytest.mark.parametrize(("probability", "freedom", "expected"), QUANTILES)
def test_quantiles_are_those_of_the_tables(probability: float, freedom: int, expected: float) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(expected, rel=0.012)


@pytest.mark.parametrize("count", [2, 4, 8, 64])
@pytest.mark.parametrize("weight", [3, PRIOR_WEIGHT])
@pytest.mark.parametrize("spread", [0.5, 1.0])
def test_healthy_values_seldom_have_an_outlier(count: int, spread: float, weight: int) -> None:
    rng = np.random.default_rng(1)
    alarms = sum(bool(too_large(rng.normal(0, spread, count), 1.0, 0.01, weight).any()) for _ in range(1_000))
    assert alarms <= 20


@pytest.mark.parametrize("count", [8, 64])
def test_values_that_spread_more_than_known_are_no_outliers(count: int) -> None:
    """The spread is learnt from the ranks: the more there are, the less what was known before counts."""
    rng = np.random.default_rng(2)
    alarms = sum(bool(too_large(rng.normal(0, 2.0, count), 1.0, 0.01).any()) for _ in range(500))
    assert alarms <= 30


def test_several_outliers_do_not_hide_each_other() -> None:
    values = np.array([0.1, 30.0, -0.4, 0.3, 29.0, 0.0, -0.2, 8.0])
    assert np.flatnonzero(too_large(values, 1.0, 0.01)).tolist() == [1, 4, 7]


def test_at_most_half_are_outliers() -> None:
    assert np.flatnonzero(too_large(np.array([9.0, 0.0, 9.1, 0.1]), 0.1, 0.01)).tolist() == [0, 2]
    assert not too_large(np.array([9.0, 0.0, 9.1]), 0.1, 0.01).any()


def test_a_value_that_is_too_small_hides_nothing() -> None:
    values = np.array([-500.0, 0.2, 0.1, 12.0, -0.2, -0.1])
    assert np.flatnonzero(too_large(values, 1.0, 0.01)).tolist() == [3]


def test_unknown_values_are_left_out() -> None:
    assert np.flatnonzero(too_large(np.array([math.nan, 0.0, 40.0, 0.3]), 1.0, 0.01)).tolist() == [2]
    assert not too_large(np.array([math.nan, 40.0]), 1.0, 0.01).any()


def test_chance_is_that_of_dice() -> None:
    assert happens_by_chance(2, 2, 6) == pytest.approx(6 / 36)
    assert happens_by_chance(0, 5, 3) == 1


def test_a_hiccup_does_not_move_the_lower_median() -> None:
    rows = np.array([[1.0, 900.0, math.nan], [1.0, 2.0, 900.0], [5.0, math.nan, math.nan]])
    assert lower_median(rows).tolist() == [1.0, 2.0, 5.0]
