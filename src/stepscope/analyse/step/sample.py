"""Recordings that hold a sample of the operators: how large it is, and how far estimates from it may be off.

Of the first steps, every call is in the sample with the same probability p, whatever happens to the others (Bernoulli
sampling, as ``at::RecordFunction`` draws): a call that took t stands for 1 / p calls that took t / p in all, and adds
(1 − p) / p² and (1 − p) t² / p² to the variances (the estimators of Horvitz and Thompson).

Of the later ones, whole steps are. Where m of K steps were recorded, with the sums y of each, the estimate of all is K
times their mean, its variance K² (1 − m/K) s² / m, where s² is the variance of the y (simple random sampling: Cochran,
Sampling Techniques, 1977, 2.13 and 2.20). All steps are estimated so where two or more were drawn; where not, from the
first ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.trace.schema import SAMPLE, SAMPLED
from stepscope.trace.tables import Tables, facts, shared

#: Column of every table of results that rests on a sample.
COLUMN = "Operators Sampled(%)"

#: From so many drawn steps on, something is known of how they differ.
_FEWEST = 2


@dataclass(frozen=True)
class Sample:
    """Which operators are in a recording.

    Attributes:
        fraction: Of all operators, on average; 1 where it has them all.
        steps: How many steps there are.
        first: Of them, steps in which every operator was drawn by itself.
        drawn: Numbers of the later ones that were drawn, and recorded as a whole.
    """

    fraction: float = 1.0
    steps: int = 0
    first: int = 0
    drawn: tuple[int, ...] = ()


EVERYTHING = Sample()


@shared
def fraction(tables: Tables) -> float:
    """Return the fraction of the operators that was recorded; 1 for all."""
    try:
        known = float(facts(tables).get(SAMPLE, 1))
    except ValueError:
        return 1.0
    return known if 0 < known < 1 else 1.0


def of(tables: Tables) -> Sample:
    """Return which operators are in the recording."""
    whole = fraction(tables)
    if whole == 1:
        return EVERYTHING
    changes = tables["counters"].filter(pl.col("name").cast(pl.String) == SAMPLED).sort("ts").select("ts", "value")
    times, values = changes.collect()
    steps = tables["steps"].select("number", middle=pl.col("ts") + pl.col("dur") // 2).collect()
    at = np.searchsorted(times.to_numpy(), steps["middle"].to_numpy(), side="right")
    rates = np.append(whole, values.to_numpy())[at]
    drawn = steps["number"].to_numpy()[rates == 1]
    return Sample(whole, len(rates), int((rates == whole).sum()), tuple(drawn.tolist()))


def marked(table: pl.DataFrame, sampled: float) -> pl.DataFrame:
    """Return a table of results that says of which sample it is; as it is where that is everything."""
    return table if sampled == 1 else table.with_columns(pl.lit(100 * sampled).alias(COLUMN))


def estimated(work: pl.DataFrame, keys: list[str], sample: Sample) -> pl.DataFrame:
    """Return counts and totals of all calls, of those in the sample.

    Args:
        work: The calls in the sample: columns ``time`` (ns), ``step``, and the keys.
        keys: Columns that name an operator.
        sample: Which calls these are.

    Returns:
        A row for each operator, in any order: ``sampled``, the calls in the sample; ``count`` and ``total`` (ns),
        estimates of all; and their standard errors ``count_error`` and ``total_error`` (ns).
    """
    in_drawn = pl.col("step").is_in(pl.Series(sample.drawn, dtype=work.schema["step"]).implode())
    later, first = work.filter(in_drawn), work.filter(in_drawn.not_().fill_null(value=True))
    # All steps are taken to be like those of which more is known. But what these have not, the others have.
    if len(sample.drawn) >= _FEWEST:
        parts = [
            _of_steps(later, keys, sample),
            _one_by_one(first.join(later, on=keys, how="anti"), keys, sample.fraction),
        ]
    else:
        scale = sample.steps / sample.first if sample.first else 1.0
        others = later.join(first, on=keys, how="anti")
        parts = [_one_by_one(first, keys, sample.fraction, scale), _one_by_one(others, keys, sample.fraction)]
    return pl.concat(parts).with_columns(
        pl.col("count", "total").round().cast(pl.Int64), pl.col("count_error", "total_error").sqrt()
    )


def _one_by_one(work: pl.DataFrame, keys: list[str], probability: float, scale: float = 1.0) -> pl.DataFrame:
    """Return estimates and their variances, of calls that were drawn each by itself."""
    calls, time = pl.len().cast(pl.Float64), pl.col("time").cast(pl.Float64)
    unknown = (1 - probability) * (scale / probability) ** 2
    return work.group_by(keys).agg(
        sampled=pl.len().cast(pl.Int64),
        count=calls * (scale / probability),
        total=time.sum() * (scale / probability),
        count_error=calls * unknown,
        total_error=(time**2).sum() * unknown,
    )


def _of_steps(work: pl.DataFrame, keys: list[str], sample: Sample) -> pl.DataFrame:
    """Return the same of all calls in the steps that were drawn."""
    drawn = len(sample.drawn)
    of_all = sample.steps / drawn
    unknown = of_all**2 * (1 - 1 / of_all) * drawn / (drawn - 1)

    def variance(name: str) -> pl.Expr:
        # A step in which an operator has no call has no row, and counts.
        return unknown * ((pl.col(name) ** 2).sum() - pl.col(name).sum() ** 2 / drawn).clip(lower_bound=0)

    steps = work.group_by(*keys, "step").agg(
        calls=pl.len().cast(pl.Float64), time=pl.col("time").cast(pl.Float64).sum()
    )
    return steps.group_by(keys).agg(
        sampled=pl.col("calls").sum().cast(pl.Int64),
        count=pl.col("calls").sum() * of_all,
        total=pl.col("time").sum() * of_all,
        count_error=variance("calls"),
        total_error=variance("time"),
    )
