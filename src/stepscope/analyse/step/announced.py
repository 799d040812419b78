"""What the program or a library announces besides the training: the events of the table ``run_events`` by name."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.trace.tables import Tables, columns_of

#: Part of the steps to whose end evaluation mode lasts, if the program trains in it; how near an end is that of a step.
_MOST, _AT_END_NS = 0.6, 100_000


def announced(tables: Tables, name: str) -> pl.DataFrame:
    """Return ``ts`` and ``dur`` of all events of a name, in order.

    Of evaluations none, if evaluation mode lasts to the end of nearly every step: the training goes on in it; a part
    of the network was switched, or a copy of it.
    """
    events = columns_of(tables, "run_events", "name", "ts", "dur")
    found = events.filter(pl.col("name").cast(pl.String) == name).select("ts", "dur").sort("ts")
    return found.clear() if name == "evaluation" and _trains_on(tables, found) else found


def _trains_on(tables: Tables, found: pl.DataFrame) -> bool:
    steps = columns_of(tables, "run_steps", "ts", "dur").drop_nulls().sort("ts")
    if steps.is_empty() or len(found) < _MOST * len(steps):
        return False
    ends, last = ((some["ts"] + some["dur"]).to_numpy() for some in (steps, found))
    near = ends[np.minimum(np.searchsorted(ends, last - _AT_END_NS), len(ends) - 1)]
    return bool((np.abs(near - last) <= _AT_END_NS).mean() >= _MOST)
