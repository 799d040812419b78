"""Every call of every host operator, with its inputs, its call stack, and its time on host and device."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analyse.operators.operator_calls import device_time, host_operators, rows_of
from stepscope.analyse.step import sample
from stepscope.analyse.step.activity import of_tracks
from stepscope.analyse.units import timestamp_us, titled, us
from stepscope.trace.tables import Tables, collected, columns_of, has_rows

#: What stands between two frames of a stack.
FRAMES_JOINED = "; "
_SHOWN = titled({
    "Name": "name", "Input Shapes": "shapes", "Call Stack": "text", "Host Self Duration(us)": us("self"),
    "Host Total Duration(us)": us("dur"), "Device Self Duration(us)": us("device_self"),
    "Device Total Duration(us)": us("device_total"), "Input Data Types": "dtypes", "Step ID": "step",
    "Thread ID": "thread", "Start Time(us)": timestamp_us("ts"), "Module": "module", "FLOPs": "flops",
})  # fmt: skip


def operator_details(tables: Tables) -> pl.DataFrame:
    """Return one row per call of a host operator, in order of start: the columns of torch_npu, then ours."""
    return first_operators(tables)[0]


def first_operators(tables: Tables, cells: int | None = None) -> tuple[pl.DataFrame, int]:
    """Return the first rows of :func:`operator_details`, of so many cells together, and how many it has."""
    operators = host_operators(tables)
    if sample.fraction(tables) < 1:  # what is inside an operator is mostly not in the sample
        operators = operators.with_columns(pl.lit(None, pl.Int64).alias("self"))
    own, total = device_time(tables, operators)
    more = [pl.Series("device_self", own, pl.Int64), pl.Series("device_total", total, pl.Int64)]
    calls = operators.hstack(more)
    calls = calls if calls["ts"].is_sorted() else calls.sort("ts", "id")  # rows are many and wide
    calls = calls if cells is None else calls.head(1 + cells // len(_SHOWN))
    calls = calls.hstack(of_tracks(tables, calls["track"], "thread")).hstack(_details(tables, calls["id"]))
    rows = calls.lazy()
    if has_rows(tables, "stacks"):
        rows = rows.join(stack_texts(tables), on="stack", how="left", maintain_order="left")
    else:
        rows = rows.with_columns(text=pl.lit(None, pl.String))
    return rows.select(_SHOWN).pipe(collected, tables), len(operators)


def _details(tables: Tables, ids: pl.Series) -> pl.DataFrame:
    """Return what the table ``operators`` says of spans, a row each: looked up, as a join takes memory."""
    details = columns_of(tables, "operators", "span", "shapes", "dtypes", "module", "flops", "stack")
    details = details if details["span"].is_sorted() else details.sort("span")
    found, said = rows_of(details["span"], ids), details.drop("span")
    if len(found) == len(said) and (found == np.arange(len(found))).all():
        return said
    place = pl.Series(found, dtype=pl.Int64)
    return said.select(pl.all().gather(place.set(place < 0, None)))


def stack_texts(tables: Tables) -> pl.LazyFrame:
    """Return every call stack as one line of text, innermost frame first: ``file(line): function; …``.

    A frame without a file (a module, a function in C) is its function alone.
    """
    frames = tables["stacks"].filter(pl.col("frames").list.len() > 0).explode("frames").unnest("frames")
    function = pl.col("function").fill_null("")
    place = pl.concat_str("file", pl.format("({})", "line").fill_null(""))
    line = pl.when(pl.col("file").is_null()).then(function).otherwise(pl.concat_str(place, pl.lit(": "), function))
    text = line.str.join(FRAMES_JOINED).alias("text")
    return frames.group_by(pl.col("id").alias("stack"), maintain_order=True).agg(text)
