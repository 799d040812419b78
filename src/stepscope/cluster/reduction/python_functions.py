"""In which functions of the program's own Python code a rank's time goes: by samples, or by the calls recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import polars as pl

from stepscope.analyse.idle.line_of_code import own_functions
from stepscope.analyse.intervals import unite
from stepscope.analyse.stacks.sampled_time import sampled_time
from stepscope.analyse.step.activity import Windows, of_kinds, span_codes, span_kinds
from stepscope.cluster.rank_summary import NULL, ColumnValues, Texts
from stepscope.trace.tables import Tables, columns_of, has_rows

#: A function: number of the thread, place, time a step in ns, looks, and how deep it lies, on average.
_Function: TypeAlias = tuple[int, str, int, int, float]
#: Whose functions are told, by their order among the sampled threads.
_THREADS = ("training", "workers")
#: Most functions of a thread.
_MOST = 30


def python_functions(tables: Tables, steps: Windows) -> dict[str, ColumnValues]:
    """Return the table ``functions`` of a rank, by time; of equal ones the outer stands first.

    Files are named from the directory of the program's own ones on.
    """
    found = list(_sampled(tables) if has_rows(tables, "samples") else _called(tables, steps))
    rows = [
        (thread, *row)
        for thread in range(len(_THREADS))
        for row in sorted((row[1:] for row in found if row[0] == thread), key=lambda row: (-row[1], row[3]))[:_MOST]
    ]
    if not rows:
        return {}
    thread, place, total, looks, _ = zip(*rows, strict=True)
    programs = min((text.partition(" ")[0].rpartition("/")[0] for text in place), key=len)
    names = [_shown(text, programs) for text in place]
    return {
        "thread": Texts(np.array(thread, np.int64), _THREADS),
        "function": Texts(np.arange(len(names)), names),
        "total": np.array(total, np.int64),
        "looks": np.array(looks, np.int64),
    }


def _shown(place: str, programs: str) -> str:
    line, _, function = place.removeprefix(f"{programs}/").partition(" ")
    return f"{function} ({line})"


def _sampled(tables: Tables) -> Iterator[_Function]:
    """Yield the functions that were sampled in steps of the run."""
    sampled = sampled_time(tables)
    frames = sampled.frames.filter("own").unique(["stack", "file", "function"], keep="first", maintain_order=True)
    rows = sampled.rows.filter(pl.col("order") < len(_THREADS)).join(frames, on="stack", maintain_order="left")
    lines: dict[tuple[int, str, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    looks: dict[tuple[int, str, str], int] = defaultdict(int)
    inner: dict[tuple[int, str, str], int] = defaultdict(int)
    columns = ("order", "file", "function", "line", "inside", "count", "place")
    for order, file, function, line, inside, count, place in rows.select(columns).iter_rows():
        lines[order, file, function][line or 0] += inside
        looks[order, file, function] += count
        inner[order, file, function] += count * place
    for (order, file, function), times in lines.items():
        most, count = max(times, key=lambda line: times[line]), looks[order, file, function]
        per_step = sum(times.values()) // max(sampled.steps, 1)
        yield order, f"{file}:{most} {function}", per_step, count, -inner[order, file, function] / max(count, 1)


def _called(tables: Tables, steps: Windows) -> Iterator[_Function]:
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
        yield 0, own[number], int(inside.sum()) // len(steps.start), int(NULL), float(depth[calls].mean())
