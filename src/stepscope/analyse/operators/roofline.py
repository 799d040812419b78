"""How near each operator comes to what its device can do. Definitions: ``docs/definitions.md``.

The model: S. Williams, A. Waterman, D. Patterson, *Roofline: an insightful visual performance model for multicore
architectures*, Communications of the ACM 52 (4), 2009.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import msgspec
import polars as pl

from stepscope.analyse.operators.operator_calls import device_time, host_operators
from stepscope.analyse.units import titled, us
from stepscope.trace.tables import Tables, columns_of, has_rows

#: Facts of the run that say what a device can do: a number for all devices, or one for each by name.
PEAK_FLOPS, PEAK_BANDWIDTH = "device_peak_flops", "device_peak_bandwidth"
#: Instructions that run others, which have rows of their own.
CONTAINERS = ("while", "conditional", "call", "async-start")
_KEYS = ("device", "name", "program", "opcode", "scope", "phase")
_WORK: dict[str, pl.DataType] = {
    **dict.fromkeys(_KEYS, pl.String()),
    **dict.fromkeys(("count", "time"), pl.Int64()),
    **dict.fromkeys(("flops", "bytes"), pl.Float64()),
}


def costs_known(tables: Tables) -> bool:
    """Return whether the cost of an operator or instruction may be known."""
    flops = columns_of(tables, "operators", "flops")["flops"]
    return has_rows(tables, "instructions") or flops.null_count() < len(flops)


def roofline(tables: Tables) -> pl.DataFrame:
    """Return one row per device and operator whose operations or bytes are known, those with most time first.

    An instruction of a compiled program is an operator by itself. Operators of one name count together.
    """
    work = pl.concat([_instructions(tables), _operators(tables)]).filter(pl.col("time") > 0)
    work = work.join(_peaks(tables, work["device"].unique().to_list()), on="device", how="left")
    compute, memory = pl.col("flops") / pl.col("peak_flops"), pl.col("bytes") / pl.col("peak_bytes")
    seconds = pl.col("time") / 1e9
    rows = work.with_columns(
        intensity=pl.when(pl.col("bytes") > 0).then(pl.col("flops") / pl.col("bytes")),
        bound=pl.when(compute >= memory).then(pl.lit("compute")).when(compute < memory).then(pl.lit("memory")),
        share=100 * pl.max_horizontal(compute, memory) / seconds,
    )
    attainable = pl.min_horizontal(pl.col("peak_flops"), pl.col("intensity") * pl.col("peak_bytes"))
    known = pl.all_horizontal(pl.col("intensity", "peak_flops", "peak_bytes").is_not_null())
    ordered = rows.sort("device", "time", "name", "program", descending=[False, True, False, False])
    return ordered.select(titled({
        "Device_id": "device", "Name": "name", "Program": "program", "Opcode": "opcode", "Scope": "scope",
        "Phase": "phase", "Count": "count", "Total Time(us)": us("time"),
        "FLOPs": pl.col("flops").cast(pl.Int64, strict=False), "Bytes": pl.col("bytes").cast(pl.Int64, strict=False),
        "Intensity(FLOP/B)": "intensity", "Achieved(GFLOP/s)": pl.col("flops") / seconds / 1e9,
        "Achieved(GB/s)": pl.col("bytes") / seconds / 1e9, "Peak(GFLOP/s)": pl.col("peak_flops") / 1e9,
        "Peak(GB/s)": pl.col("peak_bytes") / 1e9, "Attainable(GFLOP/s)": pl.when(known).then(attainable / 1e9),
        "Bound": "bound", "Roofline(%)": "share",
    }))  # fmt: skip


def runs(tables: Tables) -> pl.DataFrame:
    """Return how often every instruction ran, and its time (ns), per device: columns device, instruction, count, time.

    A run may be several kernels: it counts once, and takes the time of all.
    """
    devices = tables["tracks"].select(pl.col("id").alias("track"), pl.col("device").cast(pl.String))
    ran = tables["operators"].filter(pl.col("instruction").is_not_null()).select("span", "instruction")
    spans = tables["spans"].select(pl.col("id").alias("span"), "track", "dur", "name")
    of = ran.join(spans, on="span", how="inner").join(devices, on="track", how="inner")
    pieces = of.group_by("device", "instruction", "name").agg(
        pl.len().cast(pl.Int64).alias("count"), pl.col("dur").sum()
    )
    whole = pieces.group_by("device", "instruction").agg(pl.col("count").max(), pl.col("dur").sum().alias("time"))
    return whole.sort("device", "instruction").collect()


def _instructions(tables: Tables) -> pl.DataFrame:
    """Return time, operations and bytes of the instructions that ran."""
    if not has_rows(tables, "instructions"):
        return pl.DataFrame(schema=_WORK)
    texts = [pl.col(name).cast(pl.String) for name in ("program", "name", "opcode", "scope", "phase")]
    known = tables["instructions"].filter(pl.col("flops").is_not_null() | pl.col("bytes").is_not_null())
    known = known.filter(~pl.col("opcode").cast(pl.String).is_in(CONTAINERS))
    each = runs(tables).lazy().join(known.with_columns(texts), left_on="instruction", right_on="id", how="inner")
    total = each.with_columns(pl.col("flops", "bytes").cast(pl.Float64) * pl.col("count"))
    return total.select(*_WORK).cast(_WORK).collect()  # type: ignore[arg-type]


def _operators(tables: Tables) -> pl.DataFrame:
    """Return time and operations of operators outside compiled programs: on the device that they keep busy."""
    said = tables["operators"].filter(pl.col("flops").is_not_null() & pl.col("instruction").is_null())
    operators = host_operators(tables)
    _, launched = device_time(tables, operators)
    rows = operators.select("id", "name", "dur", pl.Series("launched", launched, pl.Int64)).lazy()
    counted = said.select("span", "flops").join(rows, left_on="span", right_on="id", how="inner")
    counted = counted.join(_devices(tables), on="span", how="left")
    away = (pl.col("launched") > 0) & pl.col("device").is_not_null()
    placed = counted.with_columns(
        device=pl.when(away).then("device").otherwise(pl.lit("cpu")),
        time=pl.when(away).then("launched").otherwise("dur"),
    )
    grouped = placed.group_by("device", pl.col("name").cast(pl.String)).agg(
        pl.len().alias("count"), pl.col("time").sum(), pl.col("flops").cast(pl.Float64).sum()
    )
    absent = [pl.lit(None).alias(name) for name in _WORK if name not in ("device", "name", "count", "time", "flops")]
    return grouped.with_columns(absent).select(*_WORK).cast(_WORK).collect()  # type: ignore[arg-type]


def _devices(tables: Tables) -> pl.LazyFrame:
    """Return the device that each operator, or one inside it, first launched work on."""
    tracks = tables["tracks"].select(pl.col("id").alias("track"), pl.col("device").cast(pl.String))
    spans = tables["spans"].select(pl.col("id").alias("span"), "track", "ts").join(tracks, on="track", how="inner")
    launched = tables["kernels"].filter(pl.col("operator").is_not_null()).select("span", "operator")
    work = launched.join(spans, on="span", how="inner").sort("ts", "span")
    first = work.unique("operator", keep="first", maintain_order=True)
    return first.select(pl.col("operator").alias("span"), "device")


def _peaks(tables: Tables, devices: list[str]) -> pl.DataFrame:
    """Return the most operations and bytes a second of each device; null if unknown."""
    peaks = tables["metadata"].filter(pl.col("key").is_in((PEAK_FLOPS, PEAK_BANDWIDTH)))
    facts = dict(peaks.select("key", "value").collect().rows())
    said = [_by_device(facts.get(key), devices) for key in (PEAK_FLOPS, PEAK_BANDWIDTH)]
    rows = [(device, *(one.get(device) for one in said)) for device in devices]
    schema = {"device": pl.String, "peak_flops": pl.Float64, "peak_bytes": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _by_device(text: str | None, devices: list[str]) -> dict[str, float]:
    """Return the numbers that a fact says, by device; one number is that of all; anything else is unknown."""
    try:
        value: Any = msgspec.json.decode(text or "null")
    except (ValueError, RecursionError):
        return {}
    found = value if isinstance(value, dict) else dict.fromkeys(devices, value)
    return {
        device: float(one)
        for device, one in found.items()
        if isinstance(one, int | float) and not isinstance(one, bool) and 0 < one < 1e30 and isfinite(one)
    }
