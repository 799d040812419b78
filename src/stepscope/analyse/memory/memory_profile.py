"""What was alive in memory when the recording ended, by the line that took it. Definitions: ``docs/definitions.md``."""

from __future__ import annotations

import polars as pl

from stepscope.analyse.operators.operator_details import stack_texts
from stepscope.analyse.stacks.own_code import own_code
from stepscope.analyse.units import mib, titled
from stepscope.trace.tables import Tables


def memory_profile(tables: Tables) -> pl.DataFrame:
    """Return one row per device, kind of memory and call stack, the largest of a device first."""
    rows = tables["live_memory"].with_columns(pl.col("kind", "device").cast(pl.String))
    share = (100 * pl.col("bytes") / pl.col("bytes").sum().over("device")).fill_nan(None)
    placed = rows.join(stack_places(tables), on="stack", how="left")
    ordered = placed.sort("device", "bytes", "count", "stack", descending=[False, True, True, False], nulls_last=True)
    return ordered.select(titled({
        "Device_id": "device", "Kind": "kind", "Count": "count", "Size(MB)": mib("bytes"), "Ratio(%)": share,
        "Taken At": "place", "Call Stack": "text",
    })).collect()  # fmt: skip


def stack_places(tables: Tables) -> pl.LazyFrame:
    """Return of each stack ``place``, its innermost frame that is the program's own, and ``text``, the whole stack."""
    frames = tables["stacks"].filter(pl.col("frames").list.len() > 0).explode("frames").unnest("frames")
    own = frames.filter(own_code(tables) & (pl.col("line") > 0))
    place = pl.format("{}({}): {}", "file", "line", pl.col("function").fill_null(""))
    places = own.group_by(pl.col("id").alias("stack"), maintain_order=True).agg(place.first().alias("place"))
    return stack_texts(tables).join(places, on="stack", how="left")
