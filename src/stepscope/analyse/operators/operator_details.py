"""Every call of every host operator, with its inputs, its call stack, and its time on host and device."""

from __future__ import annotations

import polars as pl

from stepscope.analyse.operators.operator_calls import device_time, host_operators
from stepscope.analyse.step import sample
from stepscope.analyse.units import timestamp_us, us
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
    return rows.select(
        pl.col("name").alias("Name"),
        pl.col("shapes").alias("Input Shapes"),
        pl.col("text").alias("Call Stack"),
        us("self").alias("Host Self Duration(us)"),
        us("dur").alias("Host Total Duration(us)"),
        us("device_self").alias("Device Self Duration(us)"),
        us("device_total").alias("Device Total Duration(us)"),
        pl.col("dtypes").alias("Input Data Types"),
        pl.col("step").alias("Step ID"),
        pl.col("thread").alias("Thread ID"),
        timestamp_us("ts").alias("Start Time(us)"),
        pl.col("module").alias("Module"),
        pl.col("flops").alias("FLOPs"),
    ).pipe(collected, tables)


def stack_texts(tables: Tables) -> pl.LazyFrame:
    """Return every call stack as text, innermost frame first: ``file(line): function``, joined by a semicolon."""
    frames = tables["stacks"].filter(pl.col("frames").list.len() > 0).explode("frames").unnest("frames")
    line = pl.format(
        "{}({}): {}",
        pl.col("file").fill_null(""),
        pl.col("line").cast(pl.String).fill_null(""),
        pl.col("function").fill_null(""),
    )
    return frames.group_by(pl.col("id").alias("stack"), maintain_order=True).agg(line.str.join(";\n").alias("text"))
