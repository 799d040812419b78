"""What an NPU's profiler measured besides: hits of its L2 cache, memory of its software, memory of compiled graphs."""

from __future__ import annotations

import polars as pl

from stepscope.analyse.units import timestamp_us
from stepscope.trace.tables import Tables, columns_of

#: Counters of a kernel that are rates of the L2 cache, as their source names them.
L2_CACHE: tuple[str, ...] = ("Hit Rate", "Victim Rate")
#: Lane of the memory of the software's modules.
MODULE_MEMORY = "NPU module memory"


def l2_cache(tables: Tables) -> pl.DataFrame:
    """Return one row per kernel whose use of the L2 cache was measured, in order of start: rates from 0 to 1."""
    rates = tables["kernel_counters"].with_columns(pl.col("name").cast(pl.String))
    wide = (
        rates.filter(pl.col("name").is_in(L2_CACHE))
        .group_by("span")
        .agg(pl.col("value").filter(pl.col("name") == rate).first().alias(rate) for rate in L2_CACHE)
    )
    places = tables["tracks"].select(pl.col("id").alias("track"), pl.col("device").cast(pl.String), lane="stream")
    spans = tables["spans"].select(pl.col("id").alias("span"), "track", "ts", "name").join(places, on="track")
    tasks = tables["tasks"].select("span", "task", "stream")
    rows = wide.join(spans, on="span").join(tasks, on="span", how="left").sort("ts", "span")
    return rows.select(
        pl.col("device").alias("Device_id"),
        pl.coalesce("lane", "stream").alias("Stream Id"),
        pl.col("task").alias("Task Id"),
        *L2_CACHE,
        pl.col("name").cast(pl.String).alias("Op Name"),
    ).collect()


def modules_sampled(tables: Tables) -> bool:
    """Return whether the memory of the NPU's software may have been sampled: there is a lane for it."""
    return MODULE_MEMORY in columns_of(tables, "tracks", "name")["name"].to_list()


def npu_module_mem(tables: Tables) -> pl.DataFrame:
    """Return what each module of the NPU's software held over time, in KB of 1024 bytes."""
    lanes = tables["tracks"].filter(pl.col("name") == MODULE_MEMORY)
    places = lanes.select(pl.col("id").alias("track"), pl.col("device").cast(pl.String))
    rows = tables["counters"].join(places, on="track", how="inner")
    module = pl.col("name").cast(pl.String)
    return (
        rows.sort("device", module, "ts")
        .select(
            pl.col("device").alias("Device_id"),
            module.alias("Component"),
            timestamp_us("ts").alias("Timestamp(us)"),
            (pl.col("value") / 1024).alias("Total Reserved(KB)"),
            pl.col("device").alias("Device"),
        )
        .collect()
    )


def static_op_mem(tables: Tables) -> pl.DataFrame:
    """Return the memory that compiled graphs set aside for their operators, in KB of 1024 bytes."""
    return (
        tables["static_memory"]
        .select(
            pl.col("device").cast(pl.String).alias("Device_id"),
            pl.col("name").cast(pl.String).alias("Op Name"),
            pl.col("model").cast(pl.String).alias("Model Name"),
            pl.col("graph").alias("Graph ID"),
            pl.col("first_node").alias("Node Index Start"),
            pl.col("last_node").alias("Node Index End"),
            (pl.col("bytes") / 1024).alias("Size(KB)"),
        )
        .collect()
    )
