"""Every call of every host operator, with its inputs, its call stack, and its time on host and device."""

from __future__ import annotations

import polars as pl

from stepscope.analyse.operators.operator_calls import device_time, host_operators
from stepscope.analyse.step import sample
from stepscope.analyse.step.activity import of_tracks
from stepscope.analyse.units import timestamp_us, titled, us
from stepscope.trace.tables import Tables, collected, has_rows

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
    operators = host_operators(tables)
    if sample.fraction(tables) < 1:  # what is inside an operator is mostly not in the sample
        operators = operators.with_columns(pl.lit(None, pl.Int64).alias("self"))
    own, total = device_time(tables, operators)
    details = tables["operators"].select("span", "shapes", "dtypes", "module", "flops", "stack")
    more = [pl.Series("device_self", own, pl.Int64), pl.Series("device_total", total, pl.Int64)]
    more += of_tracks(tables, operators["track"], "thread")
    calls = operators.hstack(more)
    calls = calls if calls["ts"].is_sorted() else calls.sort("ts", "id")  # rows are many and wide
    rows = calls.lazy().join(details, left_on="id", right_on="span", how="left", maintain_order="left")
    if has_rows(tables, "stacks"):
        rows = rows.join(stack_texts(tables), on="stack", how="left", maintain_order="left")
    else:
        rows = rows.with_columns(text=pl.lit(None, pl.String))
    return rows.select(_SHOWN).pipe(collected, tables)


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
