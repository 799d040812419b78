"""Memory over time, and the life of every block."""

from __future__ import annotations

import polars as pl

from stepscope.analyse.units import mib, timestamp_us, titled, us
from stepscope.trace.tables import Tables, collected, columns_of

#: Counter of the host collector that holds the resident set of the process, in bytes.
RESIDENT = "process memory"

#: What the names of lanes begin with on which a component's memory is sampled: allocated, reserved, active, in bytes.
COMPONENT_LANE = "Memory of "

_SIZES = ("allocated", "reserved", "active")


def memory_record(tables: Tables) -> pl.DataFrame:
    """Return one row per change of memory, in order of time, sizes in MB of 1024 x 1024 bytes.

    ``Framework`` rows are events of the framework's allocator; ``APP`` rows are samples of the whole process, whose
    resident set stands under Total Reserved. Total Active is known only where the allocator tells it apart (MindSpore).
    Where the source says what each component held (an NPU's profiler), these are the rows, and no others.
    """
    components = _components(tables)
    if components is not None:
        return components
    framework = tables["allocations"].select(
        pl.lit("Framework").alias("Component"), "ts", *_SIZES, pl.col("device").cast(pl.String)
    )
    resident = tables["counters"].filter(pl.col("name").cast(pl.String) == RESIDENT)
    process = resident.select(titled({
        "Component": pl.lit("APP"), "ts": "ts", "allocated": pl.lit(None, pl.Int64),
        "reserved": pl.col("value").cast(pl.Int64), "active": pl.lit(None, pl.Int64), "device": pl.lit("cpu"),
    }))  # fmt: skip
    rows = pl.concat([framework, process]).sort("ts", maintain_order=True)
    return rows.select(titled({
        "Component": "Component", "Timestamp(us)": timestamp_us("ts"), "Total Allocated(MB)": mib("allocated"),
        "Total Reserved(MB)": mib("reserved"), "Total Active(MB)": mib("active"), "Device Type": "device",
    })).pipe(collected, tables)  # fmt: skip


def _components(tables: Tables) -> pl.DataFrame | None:
    """Return the memory of components, in order of time; None where the source does not say."""
    names = columns_of(tables, "tracks", "name")["name"].to_list()
    if not any(name.startswith(COMPONENT_LANE) for name in names):
        return None
    lanes = tables["tracks"].filter((pl.col("kind") == "counter") & pl.col("name").str.starts_with(COMPONENT_LANE))
    places = lanes.select(
        pl.col("id").alias("track"), "stream", pl.col("device").cast(pl.String), component="name", lane="order"
    )
    samples = tables["counters"].join(places, on="track", how="inner").with_columns(pl.col("name").cast(pl.String))
    found = samples.pipe(collected, tables)
    if found.is_empty():
        return None
    # Two samples may have one time: the first of a name belongs to the first of the others.
    number = pl.int_range(pl.len()).over("track", "name", "ts")
    wide = found.with_columns(number=number).pivot(
        "name", index=["lane", "component", "ts", "number", "stream", "device"], values="value"
    )
    absent = [pl.lit(None, pl.Float64).alias(name) for name in _SIZES if name not in wide.columns]
    rows = wide.with_columns(absent).sort("ts", "lane", "number", maintain_order=True)
    return rows.select(
        pl.col("component").str.strip_prefix(COMPONENT_LANE).alias("Component"),
        timestamp_us("ts").alias("Timestamp(us)"),
        *(mib(name).alias(f"Total {name.capitalize()}(MB)") for name in _SIZES),
        pl.col("device").alias("Device Type"),
        pl.col("stream").alias("Stream Ptr"),
    )


def operator_memory(tables: Tables) -> pl.DataFrame:
    """Return one row per block taken, in order of time: by which operator, its size, and when it was given back.

    A block is given back by the next event of the same device and block, or address, if that frees memory. Blocks taken
    before the recording are not listed; those still held at its end have no release, nor any where the source gives no
    address (PyTorch of 2021). Sizes are in KB of 1024 bytes. Active Release is when the device used the block last,
    where the source tells it apart.
    """
    names = tables["spans"].select(pl.col("id").alias("span"), "name")
    following = pl.col("next").shift(-1).over("device", "address", "block")
    events = tables["allocations"].sort("ts", maintain_order=True).with_row_index("next").with_columns(following)
    events = events.with_columns(
        pl.col(name).gather(pl.col("next")).alias(f"next_{name}") for name in ("ts", "bytes", "unused", *_SIZES)
    )
    freed = (pl.col("next_bytes") < 0) & pl.any_horizontal(pl.col("address", "block").is_not_null())
    blocks = events.filter(pl.col("bytes") > 0).join(
        names, on="span", how="left", maintain_order="left", suffix="_span"
    )
    blocks = blocks.with_columns(
        pl.when(freed).then(pl.col(f"next_{name}")).alias(f"free_{name}") for name in ("ts", "unused", *_SIZES)
    ).with_columns((pl.col(f"free_{name}") - pl.col("ts")).alias(f"{name}_held") for name in ("ts", "unused"))
    return blocks.select(titled({
        "Name": pl.coalesce(pl.col("name", "name_span").cast(pl.String)), "Size(KB)": pl.col("bytes") / 1024,
        "Allocation Time(us)": timestamp_us("ts"), "Release Time(us)": timestamp_us("free_ts"),
        "Active Release Time(us)": timestamp_us("free_unused"), "Duration(us)": us("ts_held"),
        "Active Duration(us)": us("unused_held"), "Allocation Total Allocated(MB)": mib("allocated"),
        "Allocation Total Reserved(MB)": mib("reserved"), "Allocation Total Active(MB)": mib("active"),
        "Release Total Allocated(MB)": mib("free_allocated"), "Release Total Reserved(MB)": mib("free_reserved"),
        "Release Total Active(MB)": mib("free_active"), "Stream Ptr": "stream", "Device Type": "device",
    })).pipe(collected, tables)  # fmt: skip
