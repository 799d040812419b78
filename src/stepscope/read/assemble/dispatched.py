"""Steps whose work is computed after the program has asked for it."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.read.common.nesting import Integers


def settled(steps: pl.DataFrame, dispatches: pl.DataFrame) -> pl.DataFrame:
    """Return the steps with each boundary where everything that was asked for before it has been computed.

    A program that waits for its results in every step has its boundaries there already.

    Args:
        steps: Columns ``ts`` and ``dur`` in ns, ordered by ``ts``.
        dispatches: When work was asked for (``ts``), and when it had been computed (``end``), in ns.
    """
    if not dispatches.height or not steps.height:
        return steps
    ordered = dispatches.sort("ts")
    asked = ordered["ts"].to_numpy()
    computed = np.maximum.accumulate(ordered["end"].to_numpy())
    begin = _later(steps["ts"].to_numpy(), asked, computed)
    end = _later((steps["ts"] + steps["dur"]).to_numpy(), asked, computed)
    return steps.with_columns(pl.Series("ts", begin), pl.Series("dur", end - begin))


def _later(times: Integers, asked: Integers, computed: Integers) -> Integers:
    place = np.searchsorted(asked, times, side="left") - 1
    return np.maximum(times, np.where(place >= 0, computed[place], times))
