"""What one run says of the step: its level, that of its mean, and what the machine did meanwhile.

Own time of a step = wall time - run-queue delay of its thread. The level of a run is the natural logarithm of the 10th
percentile of the own times: noise only adds to a step, so the quick steps repeat best. Levels of two runs that took
turns are as far apart as turns that followed each other say. Definition: ``docs/compare.md``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.tables import Tables, columns_of

#: The quantile of a run's own times that is its level.
QUANTILE = 0.10
#: Warm-up: this many steps at least, else this part of them; never more than half.
_WARM, _WARM_PART = 10, 10
#: Steps outside the window from which on they alone are used: a recorded step is slower than another.
_ENOUGH = 20
#: A delay that takes more of a step than this was read across steps: the step counts with its wall time.
_IMPOSSIBLE = 0.95
#: Turns of each side from which on they say how far the levels lie apart.
_ENOUGH_TURNS = 10

Floats = npt.NDArray[np.float64]


class RunLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One run, as evidence of how long a step takes.

    Attributes:
        level: Natural logarithm of the 10th percentile of own times in ns; of runs in turns see :func:`in_turns`.
        mean: Natural logarithm of the mean own time in ns: what one step in ten makes longer shows here.
        steps: Steps used.
        delay: Part of their wall time in which their thread waited for a core; None if the system does not say.
        faults: Page faults without a disk in the median step; None if the system does not say.
        stalls: Steps far outside.
        recorded: Whether the steps were recorded ones, which take longer than others.
        quantiles_ns: Own times in ns that 0, 1, …, 100 % of the steps do not exceed.
    """

    level: float
    mean: float
    steps: int
    delay: float | None = None
    faults: float | None = None
    stalls: int = 0
    recorded: bool = False
    quantiles_ns: list[int] = []


def level_of(
    wall: Floats, delay: Floats | None = None, faults: Floats | None = None, *, recorded: bool = False
) -> RunLevel | None:
    """Return the level of one run.

    Args:
        wall: Wall times of its steps in order, ns.
        delay: Run-queue delay in each, ns, NaN where it is unknown; None if the system does not say.
        faults: Minor page faults in each.
        recorded: Whether the steps lie in the window of a recording.

    Returns:
        None without a step of known duration.
    """
    waited = np.zeros(len(wall)) if delay is None else np.nan_to_num(delay)
    own = own_times(wall, waited)
    skip = min(max(_WARM, len(wall) // _WARM_PART), len(wall) // 2)
    late = np.flatnonzero(own > 0)
    late = late[late >= skip]
    if not len(late):
        return None
    own, level = own[late], float(np.quantile(own[late], QUANTILE))
    middle = float(np.median(own))
    spread = 1.4826 * float(np.median(np.abs(own - middle)))
    known = None if delay is None or np.isnan(delay[late]).all() else float(waited[late].sum() / wall[late].sum())
    missed = None if faults is None or np.isnan(faults[late]).all() else float(np.nanmedian(faults[late]))
    return RunLevel(
        level=math.log(level),
        mean=math.log(float(own.mean())),
        steps=len(late),
        delay=known,
        faults=missed,
        stalls=int((own > middle + max(10 * spread, middle)).sum()),
        recorded=recorded,
        quantiles_ns=np.quantile(own, np.linspace(0, 1, 101)).round().astype(np.int64).tolist(),
    )


def own_times(wall: Floats, delay: Floats) -> Floats:
    """Return the own times of steps, ns, from their wall times and run-queue delays."""
    return np.where(delay < _IMPOSSIBLE * wall, wall - delay, wall)


def in_turns(a: RunLevel, b: RunLevel, turns: Sequence[tuple[float, float]]) -> tuple[RunLevel, RunLevel]:
    """Return the levels of two runs that took turns, as far apart as the median of their turns says.

    Two turns that followed each other saw the same machine; percentiles of whole runs may each be of another moment.

    Args:
        a: The one run by itself.
        b: The other.
        turns: Natural logarithms of how long a step of A and of B took in turns that followed each other.
    """
    if len(turns) < _ENOUGH_TURNS:
        return a, b
    middle, half = (a.level + b.level) / 2, float(np.median([two - one for one, two in turns])) / 2
    return msgspec.structs.replace(a, level=middle - half), msgspec.structs.replace(b, level=middle + half)


def levels_of_rank(tables: Tables) -> dict[bool, RunLevel]:
    """Return the levels of a recorded rank, by whether their steps are the recorded ones: the two are never mixed.

    Steps outside the window count where there are enough of them.
    """
    names = ("dur", "delay", "minor_faults")
    rows = columns_of(tables, "run_steps", *names, "recorded").filter(pl.col("dur").is_not_null())
    others, window = rows.filter(~pl.col("recorded")), rows.filter("recorded")
    steps = columns_of(tables, "steps", "ts", "dur").sort("ts")
    found = {False: None if len(others) < _ENOUGH else level_of(*(_floats(others, name) for name in names))}
    if len(window):
        found[True] = level_of(*(_floats(window, name) for name in names), recorded=True)
    elif len(steps):
        found[True] = level_of(_floats(steps, "dur"), recorded=True)
    return {recorded: level for recorded, level in found.items() if level is not None}


def _floats(rows: pl.DataFrame, column: str) -> Floats:
    """Return a column with NaN in place of null."""
    return np.asarray(rows[column].cast(pl.Float64).fill_null(np.nan).to_numpy(), np.float64)
