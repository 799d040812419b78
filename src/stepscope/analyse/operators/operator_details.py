"""Every call of every host operator, with its inputs, its call stack, and its time on host and device."""

from __future__ import annotations

import polars as pl

from stepscope.analyse.operators.operator_calls import device_time, host_operators
from stepscope.analyse.step import sample
from stepscope.analyse.units import timestamp_us, titled, us
from stepscope.trace.tables import Tables, collected


def operator_details(tables: Tables) -> pl.DataFrame:
    """Return one row per call of a host operator, in order of start: the columns of torch_npu, then ours."""
    operators = host_operators(tables)
    if sample.fraction(tables) < 1:  # what is inside an operator is mostly not in the sample
        operators = operators.with_columns(pl.lit(None, pl.Int64).alias("self"))
    own, total = device_time(tables, operators)
    threads = tables["tracks"].select(pl.col("id").alias("track"), "thread")
    details = tables["operators"].select("span", "shapes", "dtypes", "module", "flops", "stack")
    rows = (
        operators.hstack([pl.Series("device_self", own, pl.Int64), pl.Series("device_total", total, pl.Int64)])
        .lazy()
        .join(details, left_on="id", right_on="span", how="left")
        .join(stack_texts(tables), on="stack", how="left")
        .join(threads, on="track", how="left")
        .sort("ts", "id")
    )
    return rows.select(titled({
        "Name": "name", "Input Shapes": "shapes", "Call Stack": "text", "Host Self Duration(us)": us("self"),
        "Host Total Duration(us)": us("dur"), "Device Self Duration(us)": us("device_self"),
        "Device Total Duration(us)": us("device_total"), "Input Data Types": "dtypes", "Step ID": "step",
        "Thread ID": "thread", "Start Time(us)": timestamp_us("ts"), "Module": "module", "FLOPs": "flops",
    })).pipe(collected, tables)  # fmt: skip


def stack_texts(tables: Tables) -> pl.LazyFrame:
    """Return every call stack as text, innermost frame first: ``file(line): function``, joined by a semicolon."""
    frames = tables["stacks"].filter(pl.col("frames").list.len() > 0).explode("frames").unnest("frames")
    file, number, function = (pl.col(name).cast(pl.String).fill_null("") for name in ("file", "line", "function"))
    line = pl.format("{}({}): {}", file, number, function)
    return frames.group_by(pl.col("id").alias("stack"), maintain_order=True).agg(line.str.join(";\n").alias("text"))
