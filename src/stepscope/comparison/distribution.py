"""The few distributions that a comparison needs: Student's t, and the exact interval of ranks.

A dependency for two functions would weigh more than they do; tests compare them with SciPy's values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np


def _beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function, by its continued fraction (Lentz's method)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    upper, lower = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = lower
    for term in range(1, 300):
        even = term * (b - term) * x / ((a + 2 * term - 1) * (a + 2 * term))
        lower, upper = 1 / (1 + even * lower), 1 + even / upper
        fraction *= lower * upper
        odd = -(a + term) * (a + b + term) * x / ((a + 2 * term) * (a + 2 * term + 1))
        lower, upper = 1 / (1 + odd * lower), 1 + odd / upper
        fraction *= lower * upper
        if abs(lower * upper - 1) < 1e-12:
            break
    return math.exp(log_front) / a * fraction


def t_tails(t: float, freedom: float) -> float:
    """Return the probability of both tails of Student's t beyond ``t``."""
    return _beta(freedom / 2, 0.5, freedom / (freedom + t * t))


@lru_cache(4096)
def t_quantile(probability: float, freedom: float) -> float:
    """Return t with P(T < t) = ``probability``, which lies above one half."""
    low, high = 0.0, 1e4
    for _ in range(80):
        middle = (low + high) / 2
        if t_tails(middle, freedom) > 2 * (1 - probability):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def rank_interval(a: Sequence[float], b: Sequence[float], sure: float) -> tuple[float, float, float] | None:
    """Return the shift from ``a`` to ``b`` after Hodges and Lehmann, and its exact interval for noise of any shape.

    Returns:
        The median of all differences and the ends of the interval; None where no interval is as sure as asked (fewer
        than four values on each side at 95 %).
    """
    first, second = len(a), len(b)
    # ways[k, u]: choices of k of the ranks so far whose sum is k (k + 1) / 2 + u; whole numbers of any size.
    ways = np.zeros((second + 1, first * second + 1), dtype=object)
    ways[0, 0] = 1
    for rank in range(1, first + second + 1):
        for chosen in range(min(second, rank), 0, -1):
            if (shift := rank - chosen) <= first * second:
                ways[chosen, shift:] = ways[chosen, shift:] + ways[chosen - 1, : first * second + 1 - shift]
    below, total, place = 0, sum(ways[second]), 0
    for count in ways[second]:
        below += count
        if below / total > (1 - sure) / 2:
            break
        place += 1
    if not place:
        return None
    differences = np.sort(np.subtract.outer(np.asarray(b), np.asarray(a)).ravel())
    return float(np.median(differences)), float(differences[place - 1]), float(differences[-place])
