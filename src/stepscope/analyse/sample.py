"""Recordings that hold a sample of the operators: how large it is, and how far estimates from it may be off.

Every call is in the sample with the same probability, whatever happens to the others (Bernoulli sampling, as
``at::RecordFunction`` draws). So n recorded calls that took t₁ … tₙ stand for n / p calls that took Σt / p, with the
standard errors √(n (1 − p)) / p and √((1 − p) Σt²) / p: the estimator of Horvitz and Thompson and that of its variance.
"""

from __future__ import annotations

import math

import polars as pl

from stepscope.trace.schema import SAMPLE
from stepscope.trace.tables import Tables

#: Column of every table of results that rests on a sample.
COLUMN = "Operators Sampled(%)"


def fraction(tables: Tables) -> float:
    """Return the fraction of the operators that was recorded; 1 for all."""
    said = tables["metadata"].filter(pl.col("key") == SAMPLE).select("value").collect()["value"].to_list()
    try:
        known = [float(value) for value in said]
    except ValueError:
        return 1.0
    return min([value for value in known if 0 < value < 1], default=1.0)


def marked(table: pl.DataFrame, sampled: float) -> pl.DataFrame:
    """Return a table of results that says of which sample it is; as it is where that is everything."""
    return table if sampled == 1 else table.with_columns(pl.lit(100 * sampled).alias(COLUMN))


def estimated(counted: pl.DataFrame, sampled: float) -> pl.DataFrame:
    """Return counts and totals of all calls, of those in the sample.

    Args:
        counted: Columns ``count``, ``total`` (ns) and ``squares`` (ns², the sum over the calls), of the sample.
        sampled: Fraction of the calls that is in it.

    Returns:
        ``count`` and ``total`` estimated; besides ``sampled``, the calls in the sample, and the standard errors
        ``count_error`` and ``total_error`` (ns), both 0 where the sample is everything.
    """
    if sampled == 1:
        nothing = pl.lit(0.0)
        return counted.with_columns(sampled="count", count_error=nothing, total_error=nothing).drop("squares")
    return counted.with_columns(
        sampled="count",
        count_error=(pl.col("count") * (1 - sampled)).sqrt() / sampled,
        total_error=pl.col("squares").sqrt() * math.sqrt(1 - sampled) / sampled,
        count=(pl.col("count") / sampled).round().cast(pl.Int64),
        total=(pl.col("total") / sampled).round().cast(pl.Int64),
    ).drop("squares")
