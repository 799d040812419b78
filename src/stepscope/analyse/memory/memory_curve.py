"""Memory by what it is for: over time, and at its peak with who holds it. Definitions: ``docs/definitions.md``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from stepscope.analyse.intervals import Times
from stepscope.analyse.memory.memory_blocks import CATEGORIES, MemoryBlocks, memory_blocks
from stepscope.analyse.memory.memory_profile import stack_places
from stepscope.analyse.units import mib, timestamp_us, titled
from stepscope.trace.tables import Tables, columns_of, facts, shared

#: Moments of a curve: of as many slices of time, that with most memory.
_MOMENTS = 1000
#: Fact of a recording: PyTorch's models and optimizers, when its window opened.
_STATE = "torch.state"
_UNKNOWN = CATEGORIES[-1]
_SIZES = {name: f"{name.title()}(MB)" for name in CATEGORIES}
_CURVE = {
    "device": pl.String, "ts": pl.Int64, "step": pl.Int64, "phase": pl.String, "allocated": pl.Int64,
    "reserved": pl.Int64, **dict.fromkeys(CATEGORIES, pl.Int64),
}  # fmt: skip
_HELD = ["category", "operator", "module", "stack"]


@dataclass(frozen=True, eq=False)
class DeviceMemory:
    """Memory of one device after each of its events.

    Attributes:
        device: Its name.
        rows: Rows of the events of :class:`MemoryBlocks`.
        allocated: Bytes allocated: as the source counts, and at least what is known to be there.
        by_category: Bytes by what they are for; they add up to ``allocated``.
    """

    device: str
    rows: Times
    allocated: Times
    by_category: dict[str, Times]


@shared
def device_memory(tables: Tables) -> list[DeviceMemory]:
    """Return the memory of each device that has events."""
    found = memory_blocks(tables)
    return [_of_device(tables, found, device) for device in found.events["device"].unique().sort().to_list()]


def memory_curve(tables: Tables) -> pl.DataFrame:
    """Return memory over time by what it is for, in MB of 1024 x 1024 bytes: at most 1,000 moments of a device."""
    events, curves = memory_blocks(tables).events, [pl.DataFrame(schema=_CURVE)]
    numbers = _numbers(tables)
    for one in device_memory(tables):
        mine = events[one.rows]
        rows = mine.select(
            "device", "ts", pl.col("step").replace_strict(numbers, default=None, return_dtype=pl.Int64), "phase",
            allocated=pl.Series(one.allocated), reserved=_reserved(mine, one.allocated),
        ).with_columns(pl.Series(name, times) for name, times in one.by_category.items())  # fmt: skip
        slices = (pl.col("ts") - pl.col("ts").min()) * _MOMENTS // (pl.col("ts").max() - pl.col("ts").min() + 1)
        most = (
            rows.with_row_index("row")
            .group_by(slices.alias("slice"))
            .agg(pl.col("row").gather(pl.col("allocated").arg_max()).first())
        )
        curves.append(rows[most["row"].sort()].select(*_CURVE).cast(_CURVE))  # type: ignore[arg-type]
    return pl.concat(curves).select(titled({
        "Device_id": "device", "Timestamp(us)": timestamp_us("ts"), "Step": "step", "Phase": "phase",
        "Allocated(MB)": mib("allocated"), "Reserved(MB)": mib("reserved"),
        **{title: mib(name) for name, title in _SIZES.items()},
    }))  # fmt: skip


def memory_peak(tables: Tables) -> pl.DataFrame:
    """Return what is alive when a device has most memory: one row per operator, module and stack, the largest first."""
    found, events = memory_blocks(tables), memory_blocks(tables).events
    schema = {"device": pl.String, "ts": pl.Int64, **dict.fromkeys(_HELD[:-1], pl.String), "stack": pl.Int64}
    schema |= {"count": pl.Int64, "bytes": pl.Int64, "share": pl.Float64}
    parts = [pl.DataFrame(schema=schema)]
    for one in device_memory(tables):
        peak = int(np.argmax(one.allocated))
        event, whole = int(one.rows[peak]), int(one.allocated[peak])
        freed = pl.col("freed").is_null() | (pl.col("freed") > event)
        alive = found.blocks.filter((pl.col("device") == one.device) & (pl.col("event") <= event) & freed)
        held = alive.group_by(_HELD).agg(count=pl.len().cast(pl.Int64), bytes=pl.col("bytes").sum())
        before = _before(one, peak, held)
        rows = pl.concat([held, before], how="diagonal_relaxed").sort("bytes", *_HELD, descending=[True] + [False] * 4)
        share = 100 * pl.col("bytes") / whole if whole else pl.lit(None, pl.Float64)
        said = rows.with_columns(device=pl.lit(one.device), ts=pl.lit(int(events["ts"][event])), share=share)
        parts.append(said.select(*schema).cast(schema))  # type: ignore[arg-type]
    placed = pl.concat(parts).lazy().join(stack_places(tables), on="stack", how="left", maintain_order="left")
    return placed.select(titled({
        "Device_id": "device", "Timestamp(us)": timestamp_us("ts"), "Category": "category", "Operator": "operator",
        "Module": "module", "Taken At": "place", "Count": "count", "Size(MB)": mib("bytes"), "Ratio(%)": "share",
        "Call Stack": "text",
    })).collect()  # fmt: skip


def _before(one: DeviceMemory, peak: int, held: pl.DataFrame) -> pl.DataFrame:
    """Return what the blocks that are known do not explain, by category: it was taken before the recording began."""
    known = dict(held.group_by("category").agg(pl.col("bytes").sum()).iter_rows())
    rest = {name: int(sizes[peak]) - known.get(name, 0) for name, sizes in one.by_category.items()}
    rows = [(name, "before the recording", size) for name, size in rest.items() if size]
    return pl.DataFrame(rows, schema={"category": pl.String, "operator": pl.String, "bytes": pl.Int64}, orient="row")


def _of_device(tables: Tables, found: MemoryBlocks, device: str) -> DeviceMemory:
    rows = np.flatnonzero((found.events["device"] == device).to_numpy())
    events, place = found.events[rows], np.full(len(found.events), -1, np.int64)
    place[rows] = np.arange(len(rows))
    said, counted = events["allocated"], np.cumsum(events["bytes"].to_numpy())
    allocated = counted if said.null_count() else said.to_numpy()
    blocks = found.blocks.filter(pl.col("device") == device)
    by_category, rest = {}, allocated.copy()
    for name in CATEGORIES[:-1]:
        mine = blocks.filter(pl.col("category") == name)
        change = np.zeros(len(rows), np.int64)
        np.add.at(change, place[mine["event"].to_numpy()], mine["bytes"].to_numpy())
        freed = mine.filter(pl.col("freed").is_not_null())
        np.subtract.at(change, place[freed["freed"].to_numpy()], freed["bytes"].to_numpy())
        by_category[name] = np.cumsum(change)
        rest = rest - by_category[name]
    # A source that counts from its own start does not count what was there, which shows when that is given back.
    missing = max(-int(rest.min()), 0) if len(rest) else 0
    rest, allocated = rest + missing, allocated + missing
    for name, size in _state(tables, device).items():
        if size <= rest.min():
            by_category[name] = by_category[name] + size
            rest = rest - size
    return DeviceMemory(device, rows, allocated, {**by_category, _UNKNOWN: rest})


def _state(tables: Tables, device: str) -> dict[str, int]:
    """Return how many bytes of a device PyTorch's parameters took when the window opened, where that is recorded."""
    said = facts(tables).get(_STATE)
    try:
        state: Any = json.loads(said or "{}")
        sizes = [model["bytes_by_device"].get(device, 0) for model in state.get("models", [])]
        return {"parameters": sum(sizes)} if all(type(size) is int and size >= 0 for size in sizes) else {}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def _reserved(events: pl.DataFrame, allocated: Times) -> pl.Series:
    """Return what the allocator reserved; null where it counts nothing: on the host it has no pool."""
    reserved = events["reserved"]
    return reserved.set(pl.Series((reserved.fill_null(0).to_numpy() == 0) & (allocated > 0)), None)


def _numbers(tables: Tables) -> dict[int, int]:
    """Return the number of each step by its place."""
    return dict(enumerate(columns_of(tables, "steps", "number", "ts").sort("ts")["number"].to_list()))
