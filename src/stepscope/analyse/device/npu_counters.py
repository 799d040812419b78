"""What an NPU's profiler measured besides: hits of its L2 cache, memory of its software, memory of compiled graphs."""

from __future__ import annotations

import polars as pl

from stepscope.analyse.units import timestamp_us, titled
from stepscope.trace.tables import Tables, columns_of

#: Counters of a kernel that are rates of the L2 cache, as their source names them.
L2_CACHE: tuple[str, ...] = ("Hit Rate", "Victim Rate")
#: Lane of the memory of the software's modules.
MODULE_MEMORY = "NPU module memory"


def l2_cache(tables: Tables) -> pl.DataFrame:
    """Return one row per kernel whose use of the L2 cache was measured, in order of start: rates from 0 to 1."""
    rates, name = tables["kernel_counters"], pl.col("name").cast(pl.String)
    measured = rates.filter(name.is_in(L2_CACHE)).group_by("span")
    wide = measured.agg(pl.col("value").filter(name == rate).first().alias(rate) for rate in L2_CACHE)
    places = tables["tracks"].select(pl.col("id").alias("track"), pl.col("device").cast(pl.String), lane="stream")
    spans = tables["spans"].select(pl.col("id").alias("span"), "track", "ts", "name").join(places, on="track")
    tasks = tables["tasks"].select("span", "task", "stream")
    rows = wide.join(spans, on="span").join(tasks, on="span", how="left").sort("ts", "span")
    task = titled({"Device_id": "device", "Stream Id": pl.coalesce("lane", "stream"), "Task Id": "task"})
    return rows.select(*task, *L2_CACHE, name.alias("Op Name")).collect()


def modules_sampled(tables: Tables) -> bool:
    """Return whether the memory of the NPU's software may have been sampled: there is a lane for it."""
    return MODULE_MEMORY in columns_of(tables, "tracks", "name")["name"].to_list()


def npu_module_mem(tables: Tables) -> pl.DataFrame:
    """Return what each module of the NPU's software held over time, in KB of 1024 bytes."""
    lanes = tables["tracks"].filter(pl.col("name") == MODULE_MEMORY)
    places = lanes.select(pl.col("id").alias("track"), pl.col("device").cast(pl.String))
    module = pl.col("name").cast(pl.String)
    rows = tables["counters"].join(places, on="track", how="inner").sort("device", module, "ts")
    return rows.select(titled({
        "Device_id": "device", "Component": module, "Timestamp(us)": timestamp_us("ts"),
        "Total Reserved(KB)": pl.col("value") / 1024, "Device": "device",
    })).collect()  # fmt: skip


def static_op_mem(tables: Tables) -> pl.DataFrame:
    """Return the memory that compiled graphs set aside for their operators, in KB of 1024 bytes."""
    return tables["static_memory"].select(titled({
        "Device_id": pl.col("device").cast(pl.String), "Op Name": pl.col("name").cast(pl.String),
        "Model Name": pl.col("model").cast(pl.String), "Graph ID": "graph", "Node Index Start": "first_node",
        "Node Index End": "last_node", "Size(KB)": pl.col("bytes") / 1024,
    })).collect()  # fmt: skip
