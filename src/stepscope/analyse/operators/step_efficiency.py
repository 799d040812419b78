"""How much of what its devices can do a step uses (MFU), and what bounds it. Definition: ``docs/definitions.md``."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analyse.operators.cost_rules import PRODUCTS
from stepscope.analyse.operators.device_peaks import DevicePeaks, device_peaks
from stepscope.analyse.operators.operator_calls import host_operators
from stepscope.analyse.operators.roofline import costed_work, with_peaks
from stepscope.analyse.step import sample
from stepscope.analyse.step.activity import not_recorded
from stepscope.analyse.step.step_trace_time import split
from stepscope.analyse.units import titled, us
from stepscope.trace.tables import Tables, columns_of

#: Part of a device's time from which on work without an operator leaves the operations of a step unknown.
_MUCH = 0.1
_BOUNDS = {"compute": "compute", "memory": "memory", "calls": "calls", "rest": "other"}
_SUMS = {
    **dict.fromkeys(("flops", "other_flops", "bytes", "time", "ideal", "compute", "memory"), pl.Float64),
    **dict.fromkeys(("unknown_peak", "unknown_bytes", "unknown_flops"), pl.Boolean),
}


def step_efficiency(tables: Tables) -> pl.DataFrame:
    """Return one row per device and step, and before them one of all steps: operations, MFU, and what bounds the step.

    Of a sample of the operators, and where some may be missing, nothing is known.
    """
    windows = split(tables).windows
    work = with_peaks(tables, costed_work(tables))
    if sample.fraction(tables) < 1 or "computing" in not_recorded(tables):
        work = work.clear()
    if not windows.declared:
        work = work.with_columns(step=pl.lit(0, pl.Int64))
    steps = pl.DataFrame({"step": windows.number, "total": windows.end - windows.start})
    sums = work.filter(pl.col("step").is_in(steps["step"].implode())).group_by("device", "step").agg(_summed())
    # A product whose cost is not known may have run on any device.
    unknown = pl.col("unknown_flops").any().over("step") | pl.col("device").is_in(_without_operators(tables))
    each = sums.join(steps, on="step", how="inner").with_columns(unknown_flops=unknown)
    each = each.join(_calls(tables, steps), on=["device", "step"], how="left")
    whole = each.group_by("device").agg(
        pl.lit(None, pl.Int64).alias("step"),
        *(pl.col(name).any() for name, kind in _SUMS.items() if kind == pl.Boolean),
        *(pl.col(name).sum() for name, kind in _SUMS.items() if kind != pl.Boolean),
        pl.col("total").sum(),
        pl.when(pl.col("calls").null_count() == 0).then(pl.col("calls").sum()),
    )
    rows = pl.concat([whole.select(each.columns), each]).sort("device", "step", nulls_last=False)
    return rows.with_columns(_derived()).with_columns(bound=_bound()).select(titled({
        "Device_id": "device", "Step": "step", "Total(us)": us("total"),
        "Model FLOPs": pl.when(~pl.col("unknown_flops")).then("flops").cast(pl.Int64),
        "Other FLOPs": pl.col("other_flops").cast(pl.Int64),
        "Bytes": pl.when(~pl.col("unknown_bytes")).then("bytes").cast(pl.Int64),
        "Achieved(GFLOP/s)": "achieved", "Peak(GFLOP/s)": "peak", "MFU(%)": "mfu",
        "Compute Bound(us)": us("compute"), "Memory Bound(us)": us("memory"), "Calls(us)": us("calls"),
        "Other(us)": us("rest"), "Costed Time(us)": us("time"), "Bound": "bound",
    }))  # fmt: skip


def _without_operators(tables: Tables) -> list[str]:
    """Return the devices of which a tenth of the kernels' time or more has no operator: replayed graphs, for one."""
    kernels = columns_of(tables, "kernels", "span", "operator", "launch")
    tracks = columns_of(tables, "tracks", "id", "device")
    spans = (
        tables["spans"].select(pl.col("id").alias("span"), "track", "dur", "kind").filter(pl.col("kind") == "kernel")
    )
    timed = kernels.lazy().join(spans, on="span", how="inner").collect()
    device = timed["track"].replace_strict(tracks["id"], tracks["device"].cast(pl.String), default=None)
    without = pl.col("operator").is_null() | pl.col("operator").eq_missing(pl.col("launch"))
    share = pl.col("dur").filter(without).sum() / pl.col("dur").sum()
    found = timed.with_columns(device=device.cast(pl.String)).group_by("device").agg(share=share)
    return found.filter(pl.col("share") >= _MUCH)["device"].to_list()


def _summed() -> list[pl.Expr]:
    """Return the sums of a step: operations, and the shortest time (ns) in which the device could do them."""
    product = pl.col("family").is_in(PRODUCTS) | pl.col("family").is_null()
    flops, ideal = pl.col("flops").fill_null(0.0), 1e9 * pl.col("flops").fill_null(0.0) / pl.col("peak_flops")
    moving = 1e9 * pl.col("bytes").fill_null(0.0) / pl.col("peak_bytes")
    # A type in which the device was not measured makes no product faster than it is in float32.
    computes = ideal.fill_null(1e9 * flops / pl.col("peak_float32"))
    least = pl.max_horizontal(computes, moving)
    by_compute = computes >= moving.fill_null(0.0)
    return [
        flops.filter(product).sum().alias("flops"), flops.filter(~product).sum().alias("other_flops"),
        pl.col("bytes").sum().alias("bytes"), pl.col("time").cast(pl.Float64).sum().alias("time"),
        ideal.filter(product).sum().alias("ideal"), least.filter(by_compute).sum().alias("compute"),
        least.filter(~by_compute).sum().alias("memory"),
        (product & (pl.col("flops") > 0) & pl.col("peak_flops").is_null()).any().alias("unknown_peak"),
        (pl.col("bytes").null_count() > 0).alias("unknown_bytes"),
        (product & pl.col("flops").is_null()).any().alias("unknown_flops"),
    ]  # fmt: skip


def _calls(tables: Tables, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the time in ns that calls of operators take by themselves: their number × that of the smallest one.

    It is known on the host; on a device calls and work run at the same time.
    """
    known = device_peaks(tables).get("cpu", DevicePeaks()).call_ns
    operators = host_operators(tables)
    outermost = operators["step"].cast(pl.Int64).filter(pl.Series(operators["outer"].to_numpy() < 0))
    if not split(tables).windows.declared:
        outermost = pl.Series("step", np.zeros(len(outermost), np.int64))
    counts = pl.DataFrame({"step": outermost}).group_by("step").agg(pl.len().cast(pl.Float64).alias("calls"))
    time = pl.col("calls").fill_null(0.0) * known if known else pl.lit(None, pl.Float64)
    return steps.join(counts, on="step", how="left").select(pl.lit("cpu").alias("device"), "step", calls=time)


def _derived() -> list[pl.Expr]:
    seconds, counted = pl.col("total") / 1e9, ~pl.col("unknown_flops")
    known = ~pl.col("unknown_peak") & counted & (pl.col("ideal") > 0)
    rest = pl.col("total") - pl.col("compute") - pl.col("memory") - pl.col("calls").fill_null(0.0)
    some = counted & (pl.col("compute") + pl.col("memory") > 0)
    return [
        pl.when(counted & (pl.col("total") > 0)).then(pl.col("flops") / seconds / 1e9).alias("achieved"),
        pl.when(known).then(pl.col("flops") / pl.col("ideal")).alias("peak"),
        pl.when(known & (pl.col("total") > 0)).then(100 * pl.col("ideal") / pl.col("total")).alias("mfu"),
        *(pl.when(some).then(pl.col(name)).alias(name) for name in ("compute", "memory", "calls")),
        pl.when(some).then(rest.clip(lower_bound=0)).alias("rest"),
    ]


def _bound() -> pl.Expr:
    """Return what takes most of the step; null where no peak is known."""
    most = pl.max_horizontal(*_BOUNDS)
    return pl.coalesce(pl.when(pl.col(name) == most).then(pl.lit(shown)) for name, shown in _BOUNDS.items())
