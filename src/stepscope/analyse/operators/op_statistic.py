"""Time by name: kernels per device, operators on the host. Definitions: ``docs/definitions.md``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from stepscope.analyse.operators.operator_calls import host_operators
from stepscope.analyse.step import sample
from stepscope.analyse.step.activity import device_rows, devices_of, not_recorded, with_stated
from stepscope.analyse.units import titled, us
from stepscope.trace.tables import Tables, collected, columns_of, has_rows, shared

_KEYS = ["device", "name", "kind"]
#: A call counts as preempted if it takes this many times the median call of its name, and at least a scheduler's slice.
_FAR, _LEAST_NS = 10, 500_000
#: Calls that a median needs.
_CALLS = 3
_SHOWN = titled({
    "Device_id": "device", "Model Name": pl.lit(None, pl.String), "OP Type": "name", "Core Type": "kind",
    "Count": "count", "Total Time(us)": us("total"), "Min Time(us)": us("least"), "Avg Time(us)": us("mean"),
    "Max Time(us)": us("most"),
    "Ratio(%)": (100 * pl.col("total") / pl.col("total").sum().over("device")).fill_nan(0).round(3),
})  # fmt: skip
_OF_SAMPLE = titled({
    "Sampled Calls": "sampled", "Count Error": pl.col("count_error").round(3),
    "Total Time Error(us)": us("total_error"),
})  # fmt: skip
_FIGURES = titled({
    "count": pl.len().cast(pl.Int64), "total": pl.col("time").sum(), "least": pl.col("time").min(),
    "mean": pl.col("time").mean(), "most": pl.col("time").max(), "sampled": pl.len().cast(pl.Int64),
    "count_error": pl.lit(0.0), "total_error": pl.lit(0.0),
})  # fmt: skip


def op_statistic(tables: Tables) -> pl.DataFrame:
    """Return one row per device, name and kind: count, total, least, mean and longest time in µs, and the share.

    A kernel counts with its duration, a host operator with its self time. ``Ratio(%)`` is the share of its device.
    Rows are ordered by device, the devices before ``cpu``, and by total time, longest first.

    Of a sample of the operators, counts and totals are estimated; columns behind the others say how far they may be
    off.
    """
    sampled = sample.of(tables)
    device, host = device_work(tables), host_work(tables)
    if sampled.fraction == 1:
        rows = statistic(pl.concat([device, host])).select(_SHOWN)
    else:
        rows = pl.concat([statistic(device), statistic(host, sampled)]).select(*_SHOWN, *_OF_SAMPLE)
    found = rows.pipe(collected, tables)
    if "computing" not in not_recorded(tables):
        return found
    devices = [name for name in columns_of(tables, "tracks", "device")["device"].cast(pl.String) if name != "cpu"]
    return with_stated(found, tables, "op_statistic", pl.lit(devices[0] if devices else "npu"))


@shared
def device_work(tables: Tables) -> pl.DataFrame:
    """Return id, device, name, kind, time (ns) and step of every kernel, copy, fill, collective on a device's stream.

    Where the source says what type of operator a kernel is, and on which kind of core it ran, these are name and kind.
    """
    rows = device_rows(tables)
    spans = columns_of(tables, "spans", "id", "track", "name", "kind", "dur", "step")[rows]
    name, kind = spans["name"], spans["kind"].cast(pl.Categorical)
    if has_rows(tables, "tasks"):
        of_task = tables["tasks"].select(pl.col("span").alias("id"), "operation", "core")
        tasks = spans.lazy().select("id").join(of_task, on="id", how="left", maintain_order="left")
        operation, core = tasks.select("operation", "core").pipe(collected, tables)
        name, kind = operation.zip_with(operation.is_not_null(), name), core.zip_with(core.is_not_null(), kind)
    devices, number = devices_of(tables, spans["track"])
    device = pl.Series("device", devices, pl.Categorical).gather(number)
    time = spans["dur"].alias("time")
    return pl.DataFrame([spans["id"], device, name.alias("name"), kind.alias("kind"), time, spans["step"]])


@shared
def host_work(tables: Tables) -> pl.DataFrame:
    """Return id, device (``cpu``), name, kind, self time (ns) and step of every operator on a host thread.

    Of a sample, the whole duration: what is inside an operator is mostly not in the sample.
    """
    operators = host_operators(tables)
    time = "self" if sample.fraction(tables) == 1 else "dur"
    device = pl.Series("device", ["cpu"], pl.Categorical).new_from_index(0, len(operators))
    columns = operators.select("id", "name", pl.col("kind").cast(pl.Categorical), pl.col(time).alias("time"), "step")
    return columns.insert_column(1, device)


def statistic(work: pl.DataFrame, sampled: sample.Sample = sample.EVERYTHING) -> pl.LazyFrame:
    """Return count, total, least, mean and longest time (ns) per device, name and kind, in a fixed order.

    Count and total are estimates where only a sample of the work is there, see :func:`sample.estimated`.
    """
    grouped = work.lazy().group_by(_KEYS).agg(_FIGURES).with_columns(pl.col(_KEYS).cast(pl.String))
    if sampled.fraction < 1:
        estimates = sample.estimated(work, _KEYS, sampled).lazy().with_columns(pl.col(_KEYS).cast(pl.String))
        columns = grouped.collect_schema().names()
        grouped = grouped.select(*_KEYS, "least", "mean", "most").join(estimates, on=_KEYS).select(columns)
    order = [pl.col("device") == "cpu", "device", "total", "name", "kind"]
    return grouped.sort(order, descending=[False, False, True, False, False])


def without_preemption(work: pl.DataFrame, delays: Mapping[int, int]) -> tuple[pl.DataFrame, int, int]:
    """Take the run-queue delay of disturbed steps out of the calls that it fell into, as far as that can be told.

    Of the calls in a step that take far longer than the median call of their name, the one with the largest excess
    comes first; together they lose no more than the delay of the step.

    Args:
        work: Columns name, time (ns) and step.
        delays: Run-queue delay in ns of each disturbed step.

    Returns:
        The same rows, the ns taken out, and the calls that lost time.
    """
    times = work["time"].to_numpy()
    if not delays or not (times >= _LEAST_NS).any():
        return work, 0, 0
    steps = work["step"].fill_null(-1).to_numpy()
    long = np.flatnonzero((times >= _LEAST_NS) & np.isin(steps, list(delays)))
    names = work["name"].gather(long)
    known = work.lazy().filter(pl.col("name").is_in(names.unique().implode()))
    usual = known.group_by("name").agg(pl.col("time").median(), pl.len()).filter(pl.col("len") >= _CALLS).collect()
    medians = dict(usual.select("name", "time").iter_rows())
    excess = np.array([time - medians.get(name, time) for name, time in zip(names, times[long], strict=True)])
    excess = np.where(times[long] > _FAR * (times[long] - excess), excess, 0).astype(np.int64)
    left, taken = dict(delays), times.copy()
    for place in np.argsort(-excess, kind="stable"):
        row = long[place]
        part = min(int(excess[place]), left[int(steps[row])])
        taken[row] -= part
        left[int(steps[row])] -= part
    removed = times - taken
    return work.with_columns(pl.Series("time", taken)), int(removed.sum()), int((removed > 0).sum())
