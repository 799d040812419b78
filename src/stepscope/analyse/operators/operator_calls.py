"""Operators on host threads with the time that is their own, and the device work they launched."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analyse.intervals import Times
from stepscope.analyse.step.activity import track_ids
from stepscope.trace.tables import Tables

#: Kinds of spans on host threads that count as operators: framework operators and communication calls.
OPERATOR_KINDS: tuple[str, ...] = ("operator", "collective")

Rows = npt.NDArray[np.int64]


def host_operators(tables: Tables) -> pl.DataFrame:
    """Return one row per operator or communication call on a host thread, in order of the table ``spans``.

    Columns: id, track, ts, dur, name, kind, step, depth as in the table; ``outer``, the row (not id) of the nearest
    operator around it or -1; ``self``, its duration in ns without the operators directly inside it. Runtime calls,
    Python code and ranges inside an operator count as its own time, so that the self times of nested operators add up
    to the time the thread spends in operators.
    """
    columns = ("id", "track", "ts", "dur", "name", "kind", "step", "depth", "parent")
    threads = tables["spans"].select(columns).filter(pl.col("track").is_in(track_ids(tables, "thread")))
    spans = in_order(threads.collect())
    chosen = spans["kind"].is_in(OPERATOR_KINDS).to_numpy()
    outer = nearest(spans, chosen)[chosen]
    place = np.cumsum(chosen) - 1
    outer = np.where(outer >= 0, place[outer], -1)
    operators = spans.filter(pl.Series(chosen)).drop("parent")
    own = operators["dur"].to_numpy().copy()
    inside = outer >= 0
    np.subtract.at(own, outer[inside], operators["dur"].to_numpy()[inside])
    return operators.with_columns(pl.Series("outer", outer, pl.Int64), pl.Series("self", own, pl.Int64))


def nearest(spans: pl.DataFrame, chosen: npt.NDArray[np.bool_]) -> Rows:
    """Return, per row, the row of the nearest ancestor that is ``chosen``, or -1; one pass per depth.

    Args:
        spans: Columns id (ascending), parent and depth; an ancestor that is not among them ends the walk.
        chosen: Whether each row is looked for.
    """
    parent = rows_of(spans["id"], spans["parent"])
    nearest = np.full(len(spans), -1, np.int64)
    for rows in by_depth(spans["depth"])[1:]:
        above = parent[rows]
        rows, above = rows[above >= 0], above[above >= 0]
        nearest[rows] = np.where(chosen[above], above, nearest[above])
    return nearest


def in_order(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the rows ordered by id, as readers write them; the check is much cheaper than sorting again."""
    return spans if spans["id"].is_sorted() else spans.sort("id")


def by_depth(depth: pl.Series) -> list[Rows]:
    """Return the rows at each depth, outermost first."""
    values = depth.to_numpy()
    deepest = int(values.max(initial=0))
    # NumPy sorts integers of 16 bits by counting.
    order = np.argsort(values.astype(np.uint16) if deepest < 1 << 16 else values, kind="stable")
    edges = np.searchsorted(values[order], np.arange(1, deepest + 1))
    return [np.asarray(rows, np.int64) for rows in np.split(order, edges)]


def rows_of(ids: pl.Series, wanted: pl.Series) -> Rows:
    """Return the row of each wanted id in ``ids`` (ascending), or -1 where it is null or not there."""
    known, asked = ids.to_numpy(), wanted.fill_null(-1).to_numpy()
    if not len(known):
        return np.full(len(asked), -1, np.int64)
    found = _placed(known, asked)
    return np.where((known[found] == asked) & wanted.is_not_null().to_numpy(), found, -1)


def _placed(known: Rows, asked: Rows) -> Rows:
    """Return where each of ``asked`` would stand in ``known``, by a table where ids are dense, else by bisection."""
    first, extent = int(known[0]), int(known[-1]) - int(known[0]) + 1
    if extent > 8 * len(known):
        return np.minimum(np.searchsorted(known, asked), len(known) - 1)
    table = np.zeros(extent, np.int64)
    table[known - first] = np.arange(len(known))
    return table[np.clip(asked - first, 0, extent - 1)]


def device_time(tables: Tables, operators: pl.DataFrame) -> tuple[Times, Times]:
    """Return the ns of device work that each operator launched itself, and together with the operators inside it.

    Args:
        tables: Tables of a rank.
        operators: What :func:`host_operators` returned for them.

    Durations are added, not united: two kernels that run at the same time count twice, as profilers of others do.
    """
    durations = tables["spans"].select(pl.col("id").alias("span"), "dur")
    launched = tables["kernels"].filter(pl.col("operator").is_not_null()).join(durations, on="span", how="inner")
    sums = launched.group_by("operator").agg(pl.col("dur").sum()).collect()
    rows = rows_of(operators["id"], sums["operator"])
    own = np.zeros(len(operators), np.int64)
    own[rows[rows >= 0]] = sums["dur"].to_numpy()[rows >= 0]
    total, outer = own.copy(), operators["outer"].to_numpy()
    for level in reversed(by_depth(operators["depth"])):
        inner = level[outer[level] >= 0]
        np.add.at(total, outer[inner], total[inner])
    return own, total
