"""How steps differ: spread, what varies with them, trend over the run, the first step. See ``docs/definitions.md``."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analyse.step import sample
from stepscope.analyse.step.phase_times import phase_times
from stepscope.analyse.step.step_trace_time import PARTS, split
from stepscope.trace.tables import Tables, columns_of

Floats = npt.NDArray[np.float64]

#: Of a normal distribution, 95 % lie within so many standard deviations.
_Z = 1.96
#: Groups of consecutive steps whose medians make the trend: all pairs of them are compared.
_GROUPS = 300
#: Steps from which on a trend is computed.
_FEWEST = 8
#: Name of the row of the whole step, and of the rows of its parts as the kernel counts them.
WHOLE = "step"
_OF_RUN = {"cpu": "cpu time", "delay": "run queue delay"}
_SCHEMA: dict[str, type[pl.DataType]] = {
    "Steps": pl.String, "Of": pl.String, "Count": pl.Int64, "Median(us)": pl.Float64, "P5(us)": pl.Float64,
    "P95(us)": pl.Float64, "Deviation(us)": pl.Float64, "Variation(%)": pl.Float64, "Slope(us/step)": pl.Float64,
    "Slope Low(us/step)": pl.Float64, "Slope High(us/step)": pl.Float64, "Trend(%)": pl.Float64,
    "First Step": pl.Int64, "First(us)": pl.Float64, "First Excess(us)": pl.Float64,
}  # fmt: skip


@dataclass(frozen=True)
class Slope:
    """A robust line through values: the median of the slopes of all pairs, and its 95 % interval.

    H. Theil 1950 and P. K. Sen, *Estimates of the regression coefficient based on Kendall's tau*, Journal of the
    American Statistical Association 63, 1968.
    """

    middle: float
    low: float
    high: float


def step_variation(tables: Tables) -> pl.DataFrame:
    """Return one row per quantity: of all steps of the run, then of the recorded ones with their parts and phases."""
    rows = _of_run(tables) + _recorded(tables)
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def slope(values: Floats) -> Slope | None:
    """Return the slope of values at 0, 1, 2, …; None of fewer than :data:`_FEWEST`.

    Args:
        values: In their order; of more than 300, medians of 300 groups stand for them.
    """
    if len(values) < _FEWEST:
        return None
    place = np.arange(len(values), dtype=np.float64)
    if len(values) > _GROUPS:
        edges = np.linspace(0, len(values), _GROUPS + 1).astype(np.int64)
        pieces = [slice(begin, end) for begin, end in itertools.pairwise(edges)]
        values = np.array([np.median(values[piece]) for piece in pieces])
        place = np.array([place[piece].mean() for piece in pieces])
    count = len(values)
    left, right = np.triu_indices(count, 1)
    slopes = np.sort((values[right] - values[left]) / (place[right] - place[left]))
    half = _Z * np.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = max(round((len(slopes) - half) / 2), 1) - 1
    high = min(round((len(slopes) + half) / 2), len(slopes) - 1)
    return Slope(float(np.median(slopes)), float(slopes[low]), float(slopes[high]))


def _of_run(tables: Tables) -> list[tuple[object, ...]]:
    """Return the rows of all steps of the run: their time, and what it consists of as far as the kernel says."""
    steps = columns_of(tables, "run_steps", "number", "ts", "dur", *_OF_RUN).sort("ts")
    steps = steps.filter(pl.col("dur").is_not_null())
    values = {WHOLE: _floats(steps["dur"])}
    if steps.height and not any(steps[name].null_count() for name in _OF_RUN):
        values |= {title: _floats(steps[name]) for name, title in _OF_RUN.items()}
        values["waiting"] = values[WHOLE] - sum(values[title] for title in _OF_RUN.values())
    first = int(steps["number"][0]) if steps.height else None
    return _rows("run", values, first)


def _recorded(tables: Tables) -> list[tuple[object, ...]]:
    """Return the rows of the recorded steps: their time, then its parts, then its phases."""
    parts = split(tables)
    windows = parts.windows
    if not windows.declared:
        return []
    values = {WHOLE: np.asarray(windows.end - windows.start, np.float64)}
    if sample.fraction(tables) == 1:
        known = {name: parts.parts[name] for name in PARTS if name not in parts.unknown}
        phases = phase_times(tables, windows, parts.work)
        values |= {name: np.asarray(times, np.float64) for name, times in known.items()}
        values |= {f"phase {name}": np.asarray(times, np.float64) for name, times in phases.items()}
    return _rows("recorded", values, None)


def _rows(steps: str, values: dict[str, Floats], first: int | None) -> list[tuple[object, ...]]:
    """Return one row per quantity. The first step stands by itself: the other columns are of the steps after it.

    Args:
        steps: Which steps these are.
        values: Quantity → ns, a value a step; :data:`WHOLE` is the step.
        first: Number of the first step; None if it is like the others.
    """
    skipped = int(first is not None and len(values[WHOLE]) > 1)
    whole = values[WHOLE][skipped:]
    rows: list[tuple[object, ...]] = []
    for name, every in values.items():
        later = every[skipped:]
        if not len(later) or (name != WHOLE and not every.any()):
            continue
        median = float(np.median(later))
        line = slope(later)
        rows.append((
            steps, name, len(later), _us(median), *(_us(float(np.percentile(later, share))) for share in (5, 95)),
            _us(1.4826 * float(np.median(np.abs(later - median)))), _explained(later, whole),
            *((_us(line.middle), _us(line.low), _us(line.high), _trend(line, whole)) if line else [None] * 4),
            first, *((_us(float(every[0])), _us(float(every[0]) - median)) if skipped else (None, None)),
        ))  # fmt: skip
    return rows


def _explained(part: Floats, whole: Floats) -> float | None:
    """Return how many percent of the variance of the step are of a part: of its parts they add up to 100."""
    if len(whole) < 3 or not np.ptp(whole):
        return None
    off = whole - whole.mean()
    return float(100 * (off @ (part - part.mean())) / (off @ off))


def _trend(line: Slope, whole: Floats) -> float | None:
    """Return by how many percent of the median step the line rises from the first to the last one."""
    median = float(np.median(whole))
    return 100 * line.middle * (len(whole) - 1) / median if median else None


def _floats(column: pl.Series) -> Floats:
    return np.asarray(column.to_numpy(), np.float64)


def _us(ns: float) -> float:
    return round(ns / 1000, 3)
