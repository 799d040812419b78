"""Memory over time, and the life of every block."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analyse.step.activity import Windows
from stepscope.analyse.units import mib, timestamp_us, titled, us
from stepscope.trace.tables import Tables, collected, columns_of, has_rows

#: Counter of the host collector that holds the resident set of the process, in bytes.
RESIDENT = "process memory"

#: What the names of lanes begin with on which a component's memory is sampled: allocated, reserved, active, in bytes.
COMPONENT_LANE = "Memory of "

_SIZES = ("allocated", "reserved", "active")

_OF_FRAMEWORK = [pl.lit("Framework").alias("Component"), pl.col("ts", *_SIZES), pl.col("device").cast(pl.String)]
_OF_PROCESS = titled({
    "Component": pl.lit("APP"), "ts": "ts", "allocated": pl.lit(None, pl.Int64),
    "reserved": pl.col("value").cast(pl.Int64, strict=False), "active": pl.lit(None, pl.Int64),
    "device": pl.lit("cpu"),
})  # fmt: skip
#: Columns of the result, of those two.
_RECORD = titled({
    "Component": "Component", "Timestamp(us)": timestamp_us("ts"), "Total Allocated(MB)": mib("allocated"),
    "Total Reserved(MB)": mib("reserved"), "Total Active(MB)": mib("active"), "Device Type": "device",
})  # fmt: skip

#: Of the next event of the same block: its place and values; of a block: when and at which sizes it was given back.
_FOLLOWING = pl.col("next").shift(-1).over("device", "address", "block")
_NEXT = [pl.col(name).gather(pl.col("next")).alias(f"next_{name}") for name in ("ts", "bytes", "unused", *_SIZES)]
_FREED = (pl.col("next_bytes") < 0) & pl.any_horizontal(pl.col("address", "block").is_not_null())
_FREE = [pl.when(_FREED).then(pl.col(f"next_{name}")).alias(f"free_{name}") for name in ("ts", "unused", *_SIZES)]
_HELD = [(pl.col(f"free_{name}") - pl.col("ts")).alias(f"{name}_held") for name in ("ts", "unused")]
_BLOCK = titled({
    "Name": pl.coalesce(pl.col("name", "name_span").cast(pl.String)), "Size(KB)": pl.col("bytes") / 1024,
    "Allocation Time(us)": timestamp_us("ts"), "Release Time(us)": timestamp_us("free_ts"),
    "Active Release Time(us)": timestamp_us("free_unused"), "Duration(us)": us("ts_held"),
    "Active Duration(us)": us("unused_held"), "Allocation Total Allocated(MB)": mib("allocated"),
    "Allocation Total Reserved(MB)": mib("reserved"), "Allocation Total Active(MB)": mib("active"),
    "Release Total Allocated(MB)": mib("free_allocated"), "Release Total Reserved(MB)": mib("free_reserved"),
    "Release Total Active(MB)": mib("free_active"), "Stream Ptr": "stream", "Device Type": "device",
})  # fmt: skip


def memory_record(tables: Tables) -> pl.DataFrame:
    """Return one row per change of memory, in order of time, sizes in MB of 1024 x 1024 bytes.

    ``Framework`` rows are events of the framework's allocator; ``APP`` rows are samples of the whole process, whose
    resident set stands under Total Reserved. Total Active is known only where the allocator tells it apart (MindSpore).
    Where the source says what each component held (an NPU's profiler), these are the rows, and no others.
    """
    components = _components(tables)
    if components is not None:
        return components
    rows = tables["allocations"].select(_OF_FRAMEWORK)
    if has_rows(tables, "counters"):
        resident = tables["counters"].filter(pl.col("name").cast(pl.String) == RESIDENT)
        rows = pl.concat([rows, resident.select(_OF_PROCESS)])
    return rows.sort("ts", maintain_order=True).select(_RECORD).pipe(collected, tables)


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
    events = tables["allocations"].sort("ts", maintain_order=True).with_row_index("next").with_columns(_FOLLOWING)
    taken = events.with_columns(_NEXT).filter(pl.col("bytes") > 0)
    blocks = taken.join(names, on="span", how="left", maintain_order="left", suffix="_span")
    return blocks.with_columns(_FREE).with_columns(_HELD).select(_BLOCK).pipe(collected, tables)


def step_memory(tables: Tables, windows: Windows) -> dict[str, list[int | None]]:
    """Return for each device the most bytes allocated in each step, by the allocator's own count.

    What was allocated when a step began counts for it. A step that ends before the first event of a device is unknown
    (None), and a device whose source does not count is left out.
    """
    events = columns_of(tables, "allocations", "ts", "device", "allocated").drop_nulls()
    peaks: dict[str, list[int | None]] = {}
    for (device,), rows in events.with_columns(pl.col("device").cast(pl.String)).group_by("device"):
        ordered = rows.sort("ts", maintain_order=True)
        times, allocated = ordered["ts"].to_numpy(), ordered["allocated"].to_numpy()
        first = np.maximum(np.searchsorted(times, windows.start, side="right") - 1, 0).tolist()
        behind = np.searchsorted(times, windows.end, side="left").tolist()
        peaks[str(device)] = [
            int(allocated[begin:end].max()) if begin < end else None for begin, end in zip(first, behind, strict=True)
        ]
    return dict(sorted(peaks.items()))
