"""Which of a few numbers is too large to be one of them: Rosner's test (ESD), with a known spread as a start.

Eight ranks say little about how much ranks differ. What is known of healthy ones counts like some ranks more:
the spread is that of the ranks that remain, and of :data:`PRIOR_WEIGHT` ranks with the spread that healthy ones have.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

#: As many ranks the spread that is known beforehand counts for.
PRIOR_WEIGHT = 6
#: From the median absolute deviation of normal numbers to their standard deviation.
MAD_TO_SIGMA = 1.4826


def student_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t, by the expansion of Cornish and Fisher: to 1 % from 6 degrees on."""
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom ** (i + 1) for i, term in enumerate(terms))


def too_large(values: Floats, known_sigma: float, false_alarms: float, weight: int = PRIOR_WEIGHT) -> Flags:
    """Return which values are too large to belong to the others; at most half of them are.

    The largest values are taken away one after the other; the last that Student's t calls an outlier among those
    below it, and all above it, are outliers. So several outliers do not hide each other.

    Args:
        values: One for each rank; NaN where it is not known.
        known_sigma: How much healthy values differ, as a standard deviation.
        false_alarms: Probability that healthy values have an outlier.
        weight: As many ranks ``known_sigma`` counts for.
    """
    flags = np.zeros(len(values), dtype=np.bool_)
    known = np.flatnonzero(~np.isnan(values))
    if len(known) < 2:
        return flags
    order = known[np.argsort(values[known], kind="stable")]
    ordered = _without_low_outliers(values[order], known_sigma)
    count = len(ordered)
    for rest in range((count + 1) // 2, count):
        below = ordered[:rest]
        freedom = weight + rest - 1
        variance = (weight * known_sigma**2 + float(((below - below.mean()) ** 2).sum())) / freedom
        spread = math.sqrt(variance * (1 + 1 / rest))
        if ordered[rest] - below.mean() > student_quantile(1 - false_alarms / count, freedom) * spread:
            flags[order[rest:]] = True
            break
    return flags


def _without_low_outliers(ordered: Floats, known_sigma: float) -> Floats:
    """Move values that are far too small up to where they no longer widen the spread of the others."""
    median = float(np.median(ordered))
    sigma = max(MAD_TO_SIGMA * float(np.median(np.abs(ordered - median))), known_sigma)
    return np.maximum(ordered, median - 3 * sigma)


def happens_by_chance(times: int, total: int, ranks: int) -> float:
    """Return how probable it is that one of ``ranks`` has ``times`` or more of ``total`` events that hit any rank."""
    share = 1 / ranks
    tail = sum(math.comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(times, total + 1))
    return min(1.0, ranks * tail)


def lower_median(matrix: Floats) -> Floats:
    """Return the lower median of each row, without its NaN: half of its values or more are that large or larger.

    Of two values it is the smaller one, so that one hiccup never moves it.
    """
    ordered = np.sort(matrix, axis=1)  # NaN last
    known = (~np.isnan(matrix)).sum(axis=1)
    place = np.maximum(known - 1, 0) // 2
    result: Floats = ordered[np.arange(len(ordered)), place]
    return result
