"""Memory over time, and the life of every block."""

from __future__ import annotations

import polars as pl

from stepscope.analyse.units import mib, timestamp_us, us
from stepscope.trace.tables import Tables

#: Counter of the host collector that holds the resident set of the process, in bytes.
RESIDENT = "process memory"

_SIZES = ("allocated", "reserved", "active")


def memory_record(tables: Tables) -> pl.DataFrame:
    """Return one row per change of memory, in order of time, sizes in MB of 1024 x 1024 bytes.

    ``Framework`` rows are events of the framework's allocator; ``APP`` rows are samples of the whole process, whose
    resident set stands under Total Reserved. Total Active is known only where the allocator tells it apart (MindSpore).
    """
    framework = tables["allocations"].select(
        pl.lit("Framework").alias("Component"), "ts", *_SIZES, pl.col("device").cast(pl.String)
    )
    resident = tables["counters"].filter(pl.col("name").cast(pl.String) == RESIDENT)
    process = resident.select(
        pl.lit("APP").alias("Component"),
        "ts",
        pl.lit(None, pl.Int64).alias("allocated"),
        pl.col("value").cast(pl.Int64).alias("reserved"),
        pl.lit(None, pl.Int64).alias("active"),
        pl.lit("cpu").alias("device"),
    )
    rows = pl.concat([framework, process]).sort("ts", maintain_order=True)
    return rows.select(
        "Component",
        timestamp_us("ts").alias("Timestamp(us)"),
        mib("allocated").alias("Total Allocated(MB)"),
        mib("reserved").alias("Total Reserved(MB)"),
        mib("active").alias("Total Active(MB)"),
        pl.col("device").alias("Device Type"),
    ).collect()


def operator_memory(tables: Tables) -> pl.DataFrame:
    """Return one row per block taken, in order of time: by which operator, its size, and when it was given back.

    A block is given back by the next event of the same device and block, or address, if that frees memory. Blocks taken
    before the recording are not listed; those still held at its end have no release, nor any where the source gives no
    address (PyTorch of 2021). Sizes are in KB of 1024 bytes. Active Release is when the device used the block last,
    where the source tells it apart.
    """
    names = tables["spans"].select(pl.col("id").alias("span"), "name")
    following = [
        pl.col(name).shift(-1).over("device", "address", "block").alias(f"next_{name}")
        for name in ("ts", "bytes", "unused", *_SIZES)
    ]
    events = tables["allocations"].sort("ts", maintain_order=True).with_columns(following)
    freed = (pl.col("next_bytes") < 0) & pl.any_horizontal(pl.col("address", "block").is_not_null())
    blocks = events.filter(pl.col("bytes") > 0).join(
        names, on="span", how="left", maintain_order="left", suffix="_span"
    )
    blocks = blocks.with_columns(
        pl.when(freed).then(pl.col(f"next_{name}")).alias(f"free_{name}") for name in ("ts", "unused", *_SIZES)
    ).with_columns((pl.col(f"free_{name}") - pl.col("ts")).alias(f"{name}_held") for name in ("ts", "unused"))
    return blocks.select(
        pl.coalesce(pl.col("name", "name_span").cast(pl.String)).alias("Name"),
        (pl.col("bytes") / 1024).alias("Size(KB)"),
        timestamp_us("ts").alias("Allocation Time(us)"),
        timestamp_us("free_ts").alias("Release Time(us)"),
        timestamp_us("free_unused").alias("Active Release Time(us)"),
        us("ts_held").alias("Duration(us)"),
        us("unused_held").alias("Active Duration(us)"),
        mib("allocated").alias("Allocation Total Allocated(MB)"),
        mib("reserved").alias("Allocation Total Reserved(MB)"),
        mib("active").alias("Allocation Total Active(MB)"),
        mib("free_allocated").alias("Release Total Allocated(MB)"),
        mib("free_reserved").alias("Release Total Reserved(MB)"),
        mib("free_active").alias("Release Total Active(MB)"),
        pl.col("stream").alias("Stream Ptr"),
        pl.col("device").alias("Device Type"),
    ).collect()
