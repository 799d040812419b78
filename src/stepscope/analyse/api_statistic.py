"""Time spent in calls of the device's runtime and driver, in waits for the device, and in communication calls."""

from __future__ import annotations

import polars as pl

from stepscope.analyse.units import us
from stepscope.trace.tables import Tables

#: Kind of a span on a host thread → level of the result.
LEVELS: dict[str, str] = {
    "runtime": "Runtime",
    "driver": "Driver",
    "sync": "Synchronization",
    "collective": "Communication",
}


def api_statistic(tables: Tables) -> pl.DataFrame:
    """Return one row per level and function, longest total first, times in µs and their population variance in µs²."""
    threads = tables["tracks"].filter(pl.col("kind") == "thread").select(pl.col("id").alias("track"), "device")
    calls = tables["spans"].filter(pl.col("kind").is_in(list(LEVELS))).join(threads, on="track", how="inner")
    level = pl.col("kind").cast(pl.String).replace_strict(LEVELS, return_dtype=pl.String)
    grouped = calls.group_by("device", "kind", "name").agg(
        pl.col("dur").sum().alias("total"),
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("dur").mean().alias("mean"),
        pl.col("dur").min().alias("least"),
        pl.col("dur").max().alias("most"),
        (pl.col("dur") / 1000).var(ddof=0).alias("variance"),
    )
    rows = grouped.select(
        pl.col("device").cast(pl.String).alias("Device_id"),
        level.alias("Level"),
        pl.col("name").cast(pl.String).alias("API Name"),
        us("total").alias("Time(us)"),
        pl.col("count").alias("Count"),
        us("mean").alias("Avg(us)"),
        us("least").alias("Min(us)"),
        us("most").alias("Max(us)"),
        pl.col("variance").round(3).alias("Variance"),
    )
    return rows.sort("Time(us)", "Level", "API Name", descending=[True, False, False]).collect()
