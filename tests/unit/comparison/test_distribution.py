"""Student's t and the interval of ranks, against values that SciPy 1.17 gives."""

from __future__ import annotations

import itertools
import math

import pytest

from stepscope.comparison.distribution import rank_interval, t_quantile, t_tails


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [
        (0.975, 1, 12.706204736432095),
        (0.975, 4, 2.7764451051977987),
        (0.9, 4, 1.5332062740589438),
        (0.9875, 7, 2.8412442497710713),
        (0.975, 32, 2.0369333434601011),
        (0.975, 2.5, 3.5749),
    ],
)
def test_quantiles_are_those_of_student(probability: float, freedom: float, expected: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(expected, rel=2e-3 if freedom == 2.5 else 1e-6)


def test_tails_and_quantiles_are_inverse() -> None:
    for freedom in (1, 2, 5, 40):
        assert t_tails(t_quantile(0.95, freedom), freedom) == pytest.approx(0.1, abs=1e-9)


def test_the_interval_of_ranks_is_as_sure_as_the_count_of_all_orders_says() -> None:
    a, b = [0.0, 0.11, 0.23, 0.31, 0.42], [1.0, 1.07, 1.19, 1.34, 1.51]
    found = rank_interval(a, b, 0.95)
    assert found is not None
    differences = sorted(y - x for x in a for y in b)
    # Of all 252 orders of ten values, those whose Mann-Whitney statistic is below k: at most 2.5 %.
    statistics = [sum(ranks) - 15 for ranks in itertools.combinations(range(1, 11), 5)]
    k = max(k for k in range(25) if sum(u < k for u in statistics) / math.comb(10, 5) <= 0.025)
    assert found[1:] == pytest.approx((differences[k - 1], differences[-k]))
    assert found[0] == pytest.approx(differences[12])


def test_too_few_values_have_no_interval() -> None:
    assert rank_interval([1, 2, 3], [4, 5, 6], 0.95) is None
