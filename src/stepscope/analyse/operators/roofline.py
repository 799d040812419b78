"""How near each operator comes to what its device can do. Definitions: ``docs/definitions.md``.

The model: S. Williams, A. Waterman, D. Patterson, *Roofline: an insightful visual performance model for multicore
architectures*, Communications of the ACM 52 (4), 2009.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from stepscope.analyse.operators.cost_rules import PRODUCTS
from stepscope.analyse.operators.device_peaks import DevicePeaks, device_peaks
from stepscope.analyse.operators.operator_calls import by_depth, device_time, host_operators, rows_of
from stepscope.analyse.operators.operator_costs import operator_costs
from stepscope.analyse.units import titled, us
from stepscope.trace.tables import Tables, columns_of, has_rows, shared

#: Instructions that run others, which have rows of their own.
CONTAINERS = ("while", "conditional", "call", "async-start")
_KEYS = ("device", "step", "name", "family", "dtype", "program", "opcode", "scope", "phase")
_WORK: dict[str, pl.DataType] = {
    **dict.fromkeys(_KEYS, pl.String()),
    "step": pl.Int64(),
    **dict.fromkeys(("count", "time"), pl.Int64()),
    **dict.fromkeys(("flops", "bytes"), pl.Float64()),
}
_PEAKS: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("device", "family", "dtype", "peak_from"), pl.String),
    **dict.fromkeys(("peak_flops", "peak_bytes", "peak_float32"), pl.Float64),
}
#: A type is why an operator is slow if the device does so much less in it than in float32.
_SLOWER = 0.9
#: Element types of XLA.
_OF_XLA = {
    "f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16", "f8e4m3fn": "float8", "f8e5m2": "float8",
}  # fmt: skip


#: Opcodes of products; and how the scope of a call of a library ends that computes one.
_XLA_FAMILIES = {"dot": "matmul", "convolution": "convolution"}
_XLA_SCOPES = {"dot_general": "matmul", "conv_general_dilated": "convolution"}


def costs_known(tables: Tables) -> bool:
    """Return whether the cost of an operator or instruction may be known."""
    said = columns_of(tables, "operators", "flops", "shapes")
    known = any(said[name].null_count() < len(said) for name in said.columns)
    return known or has_rows(tables, "instructions")


def roofline(tables: Tables) -> pl.DataFrame:
    """Return one row per device and operator whose operations or bytes are known, those with most time first.

    An instruction of a compiled program is an operator by itself. Operators of one name and type count together.
    """
    keys = [name for name in _KEYS if name != "step"]
    flops = pl.when(pl.col("flops").null_count() == 0).then(pl.col("flops").sum())
    moved = pl.when(pl.col("bytes").null_count() == 0).then(pl.col("bytes").sum())
    work = (
        costed_work(tables)
        .group_by(keys, maintain_order=True)
        .agg(pl.col("count", "time").sum(), flops=flops, bytes=moved)
    )
    known = pl.any_horizontal(pl.col("flops", "bytes").is_not_null())
    work = with_peaks(tables, work.filter((pl.col("time") > 0) & known))
    compute, memory = pl.col("flops") / pl.col("peak_flops"), pl.col("bytes") / pl.col("peak_bytes")
    seconds = pl.col("time") / 1e9
    slower = pl.col("family").is_in(PRODUCTS) & (pl.col("peak_flops") < _SLOWER * pl.col("peak_float32"))
    rows = work.with_columns(
        intensity=pl.when(pl.col("bytes") > 0).then(pl.col("flops") / pl.col("bytes")),
        bound=pl.when(compute >= memory).then(pl.lit("compute")).when(compute < memory).then(pl.lit("memory")),
        share=100 * pl.max_horizontal(compute, memory) / seconds,
        in_float32=pl.when(pl.col("flops") > 0).then(100 * pl.col("flops") / seconds / pl.col("peak_float32")),
        why=pl.when(slower).then(pl.col("dtype")),
    )
    attainable = pl.min_horizontal(pl.col("peak_flops"), pl.col("intensity") * pl.col("peak_bytes"))
    has_roof = pl.all_horizontal(pl.col("intensity", "peak_flops", "peak_bytes").is_not_null())
    ordered = rows.sort("device", "time", "name", "program", descending=[False, True, False, False])
    return ordered.select(titled({
        "Device_id": "device", "Name": "name", "Program": "program", "Opcode": "opcode", "Scope": "scope",
        "Phase": "phase", "Count": "count", "Total Time(us)": us("time"),
        "FLOPs": pl.col("flops").cast(pl.Int64, strict=False), "Bytes": pl.col("bytes").cast(pl.Int64, strict=False),
        "Intensity(FLOP/B)": "intensity", "Achieved(GFLOP/s)": pl.col("flops") / seconds / 1e9,
        "Achieved(GB/s)": pl.col("bytes") / seconds / 1e9, "Peak(GFLOP/s)": pl.col("peak_flops") / 1e9,
        "Peak(GB/s)": pl.col("peak_bytes") / 1e9, "Attainable(GFLOP/s)": pl.when(has_roof).then(attainable / 1e9),
        "Bound": "bound", "Roofline(%)": "share", "Family": "family", "Type": "dtype", "Peak From": "peak_from",
        "Of float32(%)": "in_float32", "Held Back By": "why",
    }))  # fmt: skip


@shared
def costed_work(tables: Tables) -> pl.DataFrame:
    """Return time (ns), operations and bytes of all work of known cost, by device, step, name, type and family."""
    return pl.concat([_instructions(tables), _operators(tables)])


def with_peaks(tables: Tables, work: pl.DataFrame) -> pl.DataFrame:
    """Add what the device of each row can do a second (peak_flops, peak_bytes, peak_float32), and peak_from."""
    kinds = work.select("device", "family", "dtype").unique()
    known, rows = device_peaks(tables), []
    for device, family, dtype in kinds.iter_rows():
        peaks = known.get(device, DevicePeaks())
        speeds = peaks.flops(dtype, family), peaks.bandwidth, peaks.flops("float32", family)
        rows.append((device, family, dtype, peaks.source or None, *speeds))
    table = pl.DataFrame(rows, schema=_PEAKS, orient="row")
    return work.join(table, on=["device", "family", "dtype"], how="left", nulls_equal=True, maintain_order="left")


def runs(tables: Tables) -> pl.DataFrame:
    """Return how often every instruction ran, and its time (ns), per device: columns device, instruction, count, time.

    A run may be several kernels: it counts once, and takes the time of all.
    """
    return _pieces(tables)


def _pieces(tables: Tables, *by: str) -> pl.DataFrame:
    """Return what :func:`runs` does, also by further columns of ``spans``."""
    devices = tables["tracks"].select(pl.col("id").alias("track"), pl.col("device").cast(pl.String))
    ran = tables["operators"].filter(pl.col("instruction").is_not_null()).select("span", "instruction")
    spans = tables["spans"].select(pl.col("id").alias("span"), "track", "dur", "name", *by)
    of = ran.join(spans, on="span", how="inner").join(devices, on="track", how="inner")
    keys = ["device", "instruction", *by]
    pieces = of.group_by(*keys, "name").agg(pl.len().cast(pl.Int64).alias("count"), pl.col("dur").sum())
    whole = pieces.group_by(keys).agg(pl.col("count").max(), pl.col("dur").sum().alias("time"))
    return whole.sort(keys).collect()


def _instructions(tables: Tables) -> pl.DataFrame:
    """Return time, operations and bytes of the instructions that ran, by step."""
    if not has_rows(tables, "instructions"):
        return pl.DataFrame(schema=_WORK)
    texts = [pl.col(name).cast(pl.String) for name in ("program", "name", "opcode", "scope", "phase")]
    known = _with_family(tables["instructions"].with_columns(texts, dtype=_xla_type()))
    known = known.filter(pl.col("flops").is_not_null() | pl.col("bytes").is_not_null())
    known = known.filter(~pl.col("opcode").is_in(CONTAINERS))
    each = _pieces(tables, "step").lazy().join(known, left_on="instruction", right_on="id", how="inner")
    total = each.with_columns(pl.col("flops", "bytes").cast(pl.Float64) * pl.col("count"))
    return total.select(*_WORK).cast(_WORK).collect()  # type: ignore[arg-type]


def _with_family(instructions: pl.LazyFrame) -> pl.LazyFrame:
    """Add the column family: that of a product, and of a fusion most of whose operations are those of its products."""
    opcode, last = pl.col("opcode"), pl.col("scope").str.extract(r"([^/]*)$")
    called, plain = (
        text.replace_strict(names, default=None, return_dtype=pl.String)
        for text, names in ((last, _XLA_SCOPES), (opcode, _XLA_FAMILIES))
    )
    named = instructions.with_columns(family=pl.when(opcode == "custom-call").then(called).otherwise(plain))
    parts = named.filter(pl.col("family").is_not_null() & (pl.col("flops") > 0) & pl.col("parent").is_not_null())
    most = parts.group_by("parent").agg(
        products=pl.col("flops").sum(), of_parts=pl.col("family").sort_by("flops", "family").last()
    )
    whole = pl.col("flops") + pl.col("transcendentals").fill_null(0)
    mostly = (opcode == "fusion") & (2 * pl.col("products") > whole)
    joined = named.join(most, left_on="id", right_on="parent", how="left")
    return joined.with_columns(family=pl.when(mostly).then("of_parts").otherwise("family"))


def _xla_type() -> pl.Expr:
    """Return the type of an instruction's first operand that is a number, else of its result."""
    kinds = "|".join(map(re.escape, _OF_XLA))
    found = pl.coalesce(pl.col(name).str.extract(rf"\b({kinds})\[", 1) for name in ("operands", "shape"))
    return found.replace_strict(_OF_XLA, default=None, return_dtype=pl.String)


def _operators(tables: Tables) -> pl.DataFrame:
    """Return time, operations and bytes of operators outside compiled programs: on the device that they keep busy."""
    operators = host_operators(tables)
    _, launched = device_time(tables, operators)
    rows = operators.select("name", "dur", "step", launched=pl.Series(launched), device=_devices(tables, operators))
    costs = operator_costs(tables)
    counted = rows[costs["row"]].hstack(costs.drop("row")).lazy()
    away = (pl.col("launched") > 0) & pl.col("device").is_not_null()
    placed = counted.with_columns(
        device=pl.when(away).then("device").otherwise(pl.lit("cpu")),
        time=pl.when(away).then("launched").otherwise("dur"),
    )
    flops, moved = (
        pl.when(pl.col(name).null_count() == 0).then(pl.col(name).cast(pl.Float64).sum()) for name in ("flops", "bytes")
    )
    grouped = placed.group_by("device", "step", pl.col("name").cast(pl.String), "family", "dtype").agg(
        pl.len().alias("count"), pl.col("time").sum(), flops=flops, bytes=moved
    )
    absent = [pl.lit(None).alias(name) for name in ("program", "opcode", "scope", "phase")]
    return grouped.with_columns(absent).select(*_WORK).cast(_WORK).collect()  # type: ignore[arg-type]


def _devices(tables: Tables, operators: pl.DataFrame) -> pl.Series:
    """Return the device on which each operator, or one inside it, first launched work; null without any."""
    tracks = tables["tracks"].select(pl.col("id").alias("track"), pl.col("device").cast(pl.String))
    spans = tables["spans"].select(pl.col("id").alias("span"), "track", "ts").join(tracks, on="track", how="inner")
    launched = tables["kernels"].filter(pl.col("operator").is_not_null()).select("span", "operator")
    work = launched.join(spans, on="span", how="inner").sort("ts", "span").collect()
    rows = rows_of(operators["id"], work["operator"])
    first, outer = np.full(len(operators), len(work)), operators["outer"].to_numpy()
    np.minimum.at(first, rows[rows >= 0], np.flatnonzero(rows >= 0))
    for level in reversed(by_depth(operators["depth"])):
        inner = level[outer[level] >= 0]
        np.minimum.at(first, outer[inner], first[inner])
    return work["device"].extend_constant(None, 1).gather(first)
