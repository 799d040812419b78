"""In which functions of the program's own Python code a rank's time goes: by samples, or by the calls recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import polars as pl

from stepscope.analyse.idle.line_of_code import own_functions
from stepscope.analyse.intervals import unite
from stepscope.analyse.stacks.sampled_time import sampled_time
from stepscope.analyse.step.activity import Windows, of_kinds, span_codes, span_kinds
from stepscope.cluster.rank_summary import NULL, ColumnValues, Texts
from stepscope.trace.tables import Tables, columns_of, has_rows

#: Whose functions are told, by their order among the sampled threads.
_THREADS = ("training", "workers")
#: Most rows of a thread.
_MOST = 60


class _Row(NamedTuple):
    """A function, or what goes through one line of it: time a step in ns, looks, and how deep it lies on average."""

    thread: int
    whole: bool
    place: str
    total: int
    looks: int
    depth: float


def python_functions(tables: Tables, steps: Windows) -> dict[str, ColumnValues]:
    """Return the table ``functions`` of a rank: by thread and time, of equal ones the outer first.

    Files are named from the directory of the program on, others by their own directory.
    """
    found = list(_sampled(tables) if has_rows(tables, "samples") else _called(tables, steps))
    ordered = sorted(found, key=lambda row: (-row.total, row.depth, not row.whole, row.place))
    rows = [row for thread in range(len(_THREADS)) for row in [one for one in ordered if one.thread == thread][:_MOST]]
    if not rows:
        return {}
    programs = next(
        (_directory(row.place) for row in rows if row.place.endswith(" <module>")), _directory(rows[0].place)
    )
    names = [_shown(row.place, programs) for row in rows]
    texts, codes = np.unique(names, return_inverse=True)
    return {
        "thread": Texts(np.array([row.thread for row in rows]), _THREADS),
        "function": Texts(codes, texts.tolist()),
        "whole": np.array([row.whole for row in rows], np.int64),
        "total": np.array([row.total for row in rows]),
        "looks": np.array([row.looks for row in rows]),
    }


def _directory(place: str) -> str:
    return place.partition(" ")[0].rpartition("/")[0]


def _shown(place: str, programs: str) -> str:
    line, _, function = place.partition(" ")
    inside = line.startswith(f"{programs}/")
    return f"{function} ({line[len(programs) + 1 :] if inside else '/'.join(line.split('/')[-2:])})"


def _sampled(tables: Tables) -> Iterator[_Row]:
    """Yield the functions that were sampled in steps of the run, and their lines."""
    sampled = sampled_time(tables)
    frames = sampled.frames.filter("own").unique(["stack", "file", "function"], keep="first", maintain_order=True)
    rows = sampled.rows.filter(pl.col("order") < len(_THREADS)).join(frames, on="stack", maintain_order="left")
    sums = pl.col("inside").sum(), pl.col("count").sum(), (pl.col("count") * pl.col("place")).sum().alias("depth")
    keys = ["order", "file", "function"]
    of_lines = rows.group_by(*keys, "line").agg(sums)
    whole = of_lines.sort("inside", "line", descending=[True, False]).group_by(keys, maintain_order=True)
    of_functions = whole.agg(pl.col("line").first(), pl.col("inside", "count", "depth").sum())
    for is_whole, one in ((True, of_functions), (False, of_lines)):
        for order, file, function, line, inside, count, depth in one.select(
            *keys, "line", "inside", "count", "depth"
        ).iter_rows():
            place = f"{file}:{line or 0} {function or ''}"
            yield _Row(order, is_whole, place, inside // max(sampled.steps, 1), count, -depth / max(count, 1))


def _called(tables: Tables, steps: Windows) -> Iterator[_Row]:
    """Yield the functions whose calls were recorded, on the thread that spends most time in them."""
    python = of_kinds(span_kinds(tables), "python")
    own = own_functions(tables) if python.any() and steps.declared else {}
    if not own:
        return
    codes = span_codes(tables).name
    rows = np.flatnonzero(python & np.isin(codes, list(own)))
    rows = rows[np.argsort(codes[rows], kind="stable")]
    spans = columns_of(tables, "spans", "track", "ts", "dur", "depth")
    track, ts, dur, depth = (spans[name].to_numpy()[rows] for name in spans.columns)
    training = track == np.bincount(track, dur).argmax()
    code, first = np.unique(codes[rows], return_index=True)
    for number, calls in zip(code.tolist(), np.split(np.arange(len(rows)), first[1:]), strict=True):
        mine = calls[training[calls]]
        inside = unite(ts[mine], ts[mine] + dur[mine]).within(steps.start, steps.end)
        total = int(inside.sum()) // len(steps.start)
        yield _Row(0, whole=True, place=own[number], total=total, looks=int(NULL), depth=float(depth[calls].mean()))
