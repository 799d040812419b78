"""Time spent in calls of the device's runtime and driver, in waits for the device, and in communication calls."""

from __future__ import annotations

import polars as pl

from stepscope.analyse.units import titled, us
from stepscope.trace.tables import Tables, collected

#: Kind of a span on a host thread → level of the result.
LEVELS: dict[str, str] = {
    "runtime": "Runtime", "driver": "Driver", "sync": "Synchronization", "collective": "Communication",
}  # fmt: skip
#: Layer in front of the name of a call of CANN (``AscendCL@aclrtMemcpyAsync``) → level of the result.
_LAYERS: dict[str, str] = {
    "AscendCL": "AscendCL", "Model": "Model", "Node": "Node", "Runtime": "Runtime", "Hccl": "Communication",
}  # fmt: skip
#: The queue in which torch_npu hands its operators to the thread that launches them; no calls of CANN.
_QUEUE = "^(Enqueue|Dequeue)(@|$)"


def api_statistic(tables: Tables) -> pl.DataFrame:
    """Return one row per level and function, longest total first, times in µs and their population variance in µs².

    Calls of CANN have the level of the layer that their name begins with.
    """
    threads = tables["tracks"].filter(pl.col("kind") == "thread").select(pl.col("id").alias("track"), "device")
    calls = tables["spans"].filter(pl.col("kind").is_in(list(LEVELS))).join(threads, on="track", how="inner")
    text = pl.col("name").cast(pl.String)
    layer = text.str.extract("^([A-Z][A-Za-z]*)@", 1).replace_strict(_LAYERS, default=None, return_dtype=pl.String)
    level = pl.coalesce(layer, pl.col("kind").cast(pl.String).replace_strict(LEVELS, return_dtype=pl.String))
    plain = pl.when(layer.is_not_null()).then(text.str.replace("^[A-Z][A-Za-z]*@", "")).otherwise(text)
    grouped = calls.group_by("device", "kind", "name").agg(
        pl.col("dur").sum().alias("total"),
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("dur").mean().alias("mean"),
        pl.col("dur").min().alias("least"),
        pl.col("dur").max().alias("most"),
        (pl.col("dur") / 1000).var(ddof=0).alias("variance"),
    )
    rows = grouped.filter(~text.str.contains(_QUEUE)).select(titled({
        "Device_id": pl.col("device").cast(pl.String), "Level": level, "API Name": plain, "Time(us)": us("total"),
        "Count": "count", "Avg(us)": us("mean"), "Min(us)": us("least"), "Max(us)": us("most"),
        "Variance": pl.col("variance").round(3),
    }))  # fmt: skip
    return rows.sort("Time(us)", "Level", "API Name", descending=[True, False, False]).pipe(collected, tables)
