"""Time spent in calls of the device's runtime and driver, in waits for the device, and in communication calls."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analyse.step.activity import of_kinds, of_tracks, on_tracks, span_kinds, with_stated
from stepscope.analyse.units import titled, us
from stepscope.trace.tables import Tables, collected, columns_of

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

_TEXT = pl.col("name").cast(pl.String)
_FIGURES = (
    pl.col("dur").sum().alias("total"),
    pl.len().cast(pl.Int64).alias("count"),
    pl.col("dur").mean().alias("mean"),
    pl.col("dur").min().alias("least"),
    pl.col("dur").max().alias("most"),
    (pl.col("dur") / 1000).var(ddof=0).alias("variance"),
)
_LAYER = _TEXT.str.extract("^([A-Z][A-Za-z]*)@", 1)
_IN_LAYER = pl.col("layer").is_in(list(_LAYERS))
_SORT = pl.when(_IN_LAYER).then("layer").otherwise(pl.col("kind").cast(pl.String))
_LEVEL = _SORT.replace_strict({**_LAYERS, **LEVELS}, return_dtype=pl.String)
_PLAIN = pl.when(_IN_LAYER).then(_TEXT.str.replace("^[A-Z][A-Za-z]*@", "")).otherwise(_TEXT)
_SHOWN = titled({
    "Device_id": pl.col("device").cast(pl.String), "Level": _LEVEL, "API Name": _PLAIN, "Time(us)": us("total"),
    "Count": "count", "Avg(us)": us("mean"), "Min(us)": us("least"), "Max(us)": us("most"),
    "Variance": pl.col("variance").round(3),
})  # fmt: skip


def api_statistic(tables: Tables) -> pl.DataFrame:
    """Return one row per level and function, longest total first, times in µs and their population variance in µs².

    Calls of CANN have the level of the layer that their name begins with.
    """
    chosen = np.flatnonzero(on_tracks(tables, "thread") & of_kinds(span_kinds(tables), *LEVELS))
    spans = columns_of(tables, "spans", "track", "kind", "name", "dur")[pl.Series(chosen.astype(np.uint32))]
    calls = spans.hstack(of_tracks(tables, spans["track"], "device")).lazy()
    rows = calls.group_by("device", "kind", "name").agg(_FIGURES).filter(~_TEXT.str.contains(_QUEUE))
    found = (
        rows.with_columns(layer=_LAYER)
        .select(_SHOWN)
        .sort("Time(us)", "Level", "API Name", descending=[True, False, False])
        .pipe(collected, tables)
    )
    return found if len(found) else with_stated(found, tables, "api_statistic", pl.lit("cpu"))
