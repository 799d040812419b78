"""Memory that grows from step to step and who holds it; memory that an allocator holds and nobody uses."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analyse.memory.memory_blocks import MemoryBlocks, memory_blocks
from stepscope.analyse.memory.memory_curve import DeviceMemory, device_memory
from stepscope.analyse.memory.memory_profile import stack_places
from stepscope.analyse.units import mib, titled
from stepscope.trace.tables import Tables, has_rows

#: Steps that growth needs: the first and the last one say nothing, and two must agree.
_FEWEST = 4
_WHO = ["category", "operator", "module", "stack"]
_GROWTH = {
    "device": pl.String, **dict.fromkeys(_WHO[:-1], pl.String), "stack": pl.Int64, "count": pl.Int64,
    "steps": pl.Int64, "held": pl.Int64, "growth": pl.Float64,
}  # fmt: skip
_PIECES = {
    "device": pl.String, "peak": pl.Int64, "peak_reserved": pl.Int64, "most": pl.Int64, "most_allocated": pl.Int64,
    "segments": pl.Int64, "held": pl.Int64, "used": pl.Int64, "rounding": pl.Int64, "split": pl.Int64,
    "whole": pl.Int64, "largest": pl.Int64,
}  # fmt: skip


def memory_growth(tables: Tables) -> pl.DataFrame:
    """Return who takes memory in every step and keeps it: first each device as a whole, then what grows most.

    It needs four steps. What is taken in the first step (state that is made once) and in the last one (which may still
    be given back) does not count.
    """
    found = memory_blocks(tables)
    parts = [pl.DataFrame(schema=_GROWTH)]
    if found.steps >= _FEWEST:
        for one in device_memory(tables):
            parts += [_whole(found, one), _holders(found, one.device)]
    rows = pl.concat(parts).lazy().join(stack_places(tables), on="stack", how="left", maintain_order="left")
    return rows.select(titled({
        "Device_id": "device", "Category": "category", "Operator": "operator", "Module": "module", "Taken At": "place",
        "Count": "count", "Steps": "steps", "Held(MB)": mib("held"), "Growth(MB/step)": mib("growth"),
        "Call Stack": "text",
    })).collect()  # fmt: skip


def _whole(found: MemoryBlocks, one: DeviceMemory) -> pl.DataFrame:
    """Return what is allocated at the end of the last step more than at the end of the first one."""
    step = found.events["step"].to_numpy()[one.rows]
    last = np.searchsorted(step, np.arange(found.steps), side="right") - 1
    at_end = one.allocated[last[last >= 0]]
    if len(at_end) < _FEWEST:
        return pl.DataFrame(schema=_GROWTH)
    rise = int(at_end[-1] - at_end[0])
    row = {"device": one.device, "category": "all", "steps": len(at_end) - 1, "held": rise}
    return pl.DataFrame([row | {"growth": rise / (len(at_end) - 1)}]).select(
        (pl.col(name) if name in (*row, "growth") else pl.lit(None)).cast(kind).alias(name)
        for name, kind in _GROWTH.items()
    )


def _holders(found: MemoryBlocks, device: str) -> pl.DataFrame:
    """Return who takes blocks in at least half of the inner steps, two at least, and holds them to the end."""
    inner = found.steps - 2
    mine = found.blocks.filter((pl.col("device") == device) & pl.col("freed").is_null())
    step = found.events["step"].gather(mine["event"]).alias("step")
    held = mine.with_columns(step).filter(pl.col("step").is_between(1, inner))
    grouped = held.group_by(_WHO).agg(
        count=pl.len().cast(pl.Int64), steps=pl.col("step").n_unique().cast(pl.Int64), held=pl.col("bytes").sum()
    )
    growing = grouped.filter(pl.col("steps") >= max(2, inner / 2))
    rows = growing.with_columns(device=pl.lit(device), growth=pl.col("held") / inner)
    return rows.sort("growth", *_WHO, descending=[True] + [False] * 4).select(*_GROWTH).cast(_GROWTH)  # type: ignore[arg-type]


def reserved_known(tables: Tables) -> bool:
    """Return whether an allocator says what it reserved."""
    reserved = tables["allocations"].select(pl.col("reserved").max()).collect().item()
    return bool(reserved) or has_rows(tables, "memory_segments")


def memory_fragmentation(tables: Tables) -> pl.DataFrame:
    """Return one row per device with a pool: what it reserved and what of it was allocated; where the rest lies."""
    said = pl.col("allocated").max().over("device") > 0  # else nobody counts what is allocated there
    events = memory_blocks(tables).events.filter(said & (pl.col("reserved") > 0))
    peaks = events.group_by("device").agg(
        peak=pl.col("allocated").max(),
        peak_reserved=pl.col("reserved").gather(pl.col("allocated").arg_max()).first(),
        most=pl.col("reserved").max(),
        most_allocated=pl.col("allocated").gather(pl.col("reserved").arg_max()).first(),
    )
    unused = pl.col("bytes") - pl.col("allocated") - pl.col("awaiting").fill_null(0)
    in_use = pl.col("blocks") > 0
    segments = (
        tables["memory_segments"]
        .with_columns(pl.col("device").cast(pl.String))
        .group_by("device")
        .agg(
            segments=pl.len().cast(pl.Int64),
            held=pl.col("bytes").sum(),
            used=pl.col("allocated").sum(),
            rounding=(pl.col("allocated") + pl.col("awaiting").fill_null(0) - pl.col("requested")).sum(),
            split=unused.filter(in_use).sum(),
            whole=unused.filter(~in_use).sum(),
            largest=pl.col("largest_free").max(),
        )
    )
    rows = peaks.join(segments.collect(), on="device", how="full", coalesce=True).sort("device")
    shown = rows.select(
        (pl.col(name) if name in rows.columns else pl.lit(None)).cast(kind).alias(name)
        for name, kind in _PIECES.items()
    )
    share = 100 * (pl.col("most") - pl.col("most_allocated")) / pl.col("most")
    return shown.select(titled({
        "Device_id": "device", "Peak Allocated(MB)": mib("peak"), "Reserved at Peak(MB)": mib("peak_reserved"),
        "Peak Reserved(MB)": mib("most"), "Allocated at Peak Reserved(MB)": mib("most_allocated"),
        "Fragmentation(%)": share, "Segments": "segments", "Segments(MB)": mib("held"), "In Use(MB)": mib("used"),
        "Rounding(MB)": mib("rounding"), "Free in Used Segments(MB)": mib("split"),
        "Free Segments(MB)": mib("whole"), "Largest Free Block(MB)": mib("largest"),
    }))  # fmt: skip
