"""Operators on host threads with the time that is their own, and the device work they launched."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analyse.intervals import Times
from stepscope.analyse.step.activity import Rows, of_kinds, on_tracks, span_kinds
from stepscope.trace.tables import Tables, columns_of, shared, taken

#: Kinds of spans on host threads that count as operators: framework operators and communication calls.
OPERATOR_KINDS: tuple[str, ...] = ("operator", "collective")


@shared
def host_operators(tables: Tables) -> pl.DataFrame:
    """Return one row per operator or communication call on a host thread, in order of the table ``spans``.

    The replay of a graph whose capture was not recorded counts as the operator of its kernels.

    Columns: id, track, ts, dur, name, kind, step, depth as in the table; ``outer``, the row (not id) of the nearest
    operator around it or -1; ``self``, its duration in ns without the operators directly inside it. Runtime calls,
    Python code and ranges inside an operator count as its own time, so that the self times of nested operators add up
    to the time the thread spends in operators.
    """
    columns = ("id", "track", "ts", "dur", "name", "kind", "step", "depth", "parent")
    spans, kinds = columns_of(tables, "spans", *columns), span_kinds(tables)
    on_thread = on_tracks(tables, "thread")
    if not on_thread.all():
        rows = np.flatnonzero(on_thread)
        spans, kinds = taken(spans, pl.Series(rows.astype(np.uint32))), kinds[rows]
    if not spans["id"].is_sorted():
        order = spans["id"].arg_sort().to_numpy()
        spans, kinds = spans[order], kinds[order]
    chosen = of_kinds(kinds, *OPERATOR_KINDS) | _replays(tables, spans["id"])
    outer = nearest(spans, chosen)[chosen]
    row = np.cumsum(chosen) - 1
    outer = np.where(outer >= 0, row[outer], -1)
    operators = taken(spans[list(columns[:-1])], pl.Series(np.flatnonzero(chosen).astype(np.uint32)))
    own = operators["dur"].to_numpy().copy()
    inside = outer >= 0
    np.subtract.at(own, outer[inside], operators["dur"].to_numpy()[inside])
    return operators.hstack([pl.Series("outer", outer, pl.Int64), pl.Series("self", own, pl.Int64)])


@shared
def operator_names(tables: Tables) -> frozenset[str]:
    """Return the distinct names of :func:`host_operators`."""
    return frozenset(host_operators(tables)["name"].unique().to_list())


def _replays(tables: Tables, ids: pl.Series) -> npt.NDArray[np.bool_]:
    """Return which spans are calls that stand for the operators of the kernels of a replayed graph."""
    kernels = columns_of(tables, "kernels", "operator", "launch", "graph")
    if kernels["graph"].null_count() == len(kernels):
        return np.zeros(len(ids), np.bool_)
    standing = kernels.filter((pl.col("operator") == pl.col("launch")) & pl.col("graph").is_not_null())
    return np.isin(ids.to_numpy(), standing["operator"].unique().to_numpy())


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


def or_negative(numbers: pl.Series) -> Rows:
    """Return integers of at most 64 bits, with −1 in place of null."""
    if not numbers.null_count():
        return numbers.to_numpy()
    null = pl.Series(np.isnan(numbers.to_numpy()))  # reals, for this only: they have not all digits
    return pl.Series([-1], dtype=numbers.dtype).zip_with(null, numbers).to_numpy()


def rows_of(ids: pl.Series, wanted: pl.Series) -> Rows:
    """Return the row of each wanted id in ``ids`` (ascending), or -1 where it is null or not there."""
    known, asked = ids.to_numpy(), or_negative(wanted)
    if not len(known):
        return np.full(len(asked), -1, np.int64)
    first, last = int(known[0]), int(known[-1])
    if last - first == len(known) - 1:  # as spans are numbered
        return np.where((asked >= max(first, 0)) & (asked <= last), asked - known[0], -1)
    found = _placed(known, asked)
    return np.where((known[found] == asked) & (asked >= 0), found, -1)


def _placed(known: Rows, asked: Rows) -> Rows:
    """Return where each of ``asked`` would stand in ``known``, by a table where ids are dense, else by bisection."""
    first, extent = int(known[0]), int(known[-1]) - int(known[0]) + 1
    if extent > 8 * len(known):
        return np.minimum(np.searchsorted(known, asked), len(known) - 1)
    table = np.zeros(extent, np.int64)
    table[known - first] = np.arange(len(known))
    return table[np.clip(asked - first, 0, extent - 1)]


def device_time(tables: Tables, operators: pl.DataFrame, only: pl.Series | None = None) -> tuple[Times, Times]:
    """Return the ns of device work that each operator launched itself, and together with the operators inside it.

    Durations are added, not united: two kernels that run at the same time count twice, as profilers of others do.

    Args:
        tables: Tables of the rank.
        operators: Columns id, outer and depth of :func:`host_operators`.
        only: Ids of the spans that count; None counts all device work.
    """
    kernels = columns_of(tables, "kernels", "span", "operator")
    if only is not None:
        kernels = kernels.filter(kernels["span"].is_in(only.implode()))
    spans = in_order(columns_of(tables, "spans", "id", "dur"))
    rows = rows_of(operators["id"], kernels["operator"])
    launched = np.flatnonzero(rows >= 0)
    # What launched work may have been left out by a choice of steps.
    of_work = rows_of(spans["id"], kernels["span"])[launched]
    launched = launched[of_work >= 0]
    own = np.zeros(len(operators), np.int64)
    np.add.at(own, rows[launched], spans["dur"].to_numpy()[of_work[of_work >= 0]])
    total, outer = own.copy(), operators["outer"].to_numpy()
    for level in reversed(by_depth(operators["depth"])):
        inner = level[outer[level] >= 0]
        np.add.at(total, outer[inner], total[inner])
    return own, total
