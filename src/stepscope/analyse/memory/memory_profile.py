"""What was alive in memory when the recording ended, by the line that took it. Definitions: ``docs/definitions.md``."""

from __future__ import annotations

import polars as pl

from stepscope.analyse.operators.operator_details import stack_texts
from stepscope.analyse.units import mib, titled
from stepscope.trace.tables import Tables

#: Where installed packages lie: a frame outside is the user's own.
_INSTALLED = r"[/\\](site-packages|dist-packages|lib[/\\]python\d[^/\\]*)[/\\]"


def memory_profile(tables: Tables) -> pl.DataFrame:
    """Return one row per device, kind of memory and call stack, the largest of a device first."""
    rows = tables["live_memory"].with_columns(pl.col("kind", "device").cast(pl.String))
    share = (100 * pl.col("bytes") / pl.col("bytes").sum().over("device")).fill_nan(None)
    placed = rows.join(_lines(tables), on="stack", how="left").join(stack_texts(tables), on="stack", how="left")
    ordered = placed.sort("device", "bytes", "count", "stack", descending=[False, True, True, False], nulls_last=True)
    return ordered.select(titled({
        "Device_id": "device", "Kind": "kind", "Count": "count", "Size(MB)": mib("bytes"), "Ratio(%)": share,
        "Taken At": "place", "Call Stack": "text",
    })).collect()  # fmt: skip


def _lines(tables: Tables) -> pl.LazyFrame:
    """Return the innermost frame of each stack that is not an installed package's."""
    frames = tables["stacks"].filter(pl.col("frames").list.len() > 0).explode("frames").unnest("frames")
    own = frames.filter(~pl.col("file").str.contains(_INSTALLED) & (pl.col("line") > 0))
    place = pl.format("{}({}): {}", "file", "line", pl.col("function").fill_null(""))
    return own.group_by(pl.col("id").alias("stack"), maintain_order=True).agg(place.first().alias("place"))
