"""Time by name: kernels per device, operators on the host. Definitions: ``docs/definitions.md``."""

from __future__ import annotations

import polars as pl

from stepscope.analyse.operators.operator_calls import host_operators
from stepscope.analyse.step import sample
from stepscope.analyse.step.activity import device_rows, devices_of
from stepscope.analyse.units import titled, us
from stepscope.trace.tables import Tables, collected, columns_of, has_rows, shared

_KEYS = ["device", "name", "kind"]


def op_statistic(tables: Tables) -> pl.DataFrame:
    """Return one row per device, name and kind: count, total, least, mean and longest time in µs, and the share.

    A kernel counts with its duration, a host operator with its self time. ``Ratio(%)`` is the share of its device.
    Rows are ordered by device, the devices before ``cpu``, and by total time, longest first.

    Of a sample of the operators, counts and totals are estimated; columns behind the others say how far they may be
    off.
    """
    sampled = sample.of(tables)
    rows = pl.concat([statistic(device_work(tables)), statistic(host_work(tables), sampled)])
    share = (100 * pl.col("total") / pl.col("total").sum().over("device")).fill_nan(0).round(3)
    columns: dict[str, str | pl.Expr] = {
        "Device_id": "device", "Model Name": pl.lit(None, pl.String), "OP Type": "name", "Core Type": "kind",
        "Count": "count", "Total Time(us)": us("total"), "Min Time(us)": us("least"), "Avg Time(us)": us("mean"),
        "Max Time(us)": us("most"), "Ratio(%)": share,
    }  # fmt: skip
    if sampled.fraction < 1:
        columns |= {"Sampled Calls": "sampled", "Count Error": pl.col("count_error").round(3)}
        columns["Total Time Error(us)"] = us("total_error")
    return rows.select(titled(columns)).pipe(collected, tables)


@shared
def device_work(tables: Tables) -> pl.DataFrame:
    """Return device, name, kind, time (ns) and step of every kernel, copy, fill and collective on a device's stream.

    Where the source says what type of operator a kernel is, and on which kind of core it ran, these are name and kind.
    """
    rows = device_rows(tables)
    spans = columns_of(tables, "spans", "id", "track", "name", "kind", "dur", "step")[rows]
    name, kind = spans["name"].cast(pl.String), spans["kind"].cast(pl.String)
    if has_rows(tables, "tasks"):
        of_task = tables["tasks"].select(pl.col("span").alias("id"), "operation", "core")
        tasks = spans.lazy().select("id").join(of_task, on="id", how="left", maintain_order="left")
        operation, core = tasks.select(pl.col("operation", "core").cast(pl.String)).pipe(collected, tables)
        name, kind = operation.zip_with(operation.is_not_null(), name), core.zip_with(core.is_not_null(), kind)
    devices, number = devices_of(tables, spans["track"])
    device = pl.Series("device", devices, pl.String)[number] if len(number) else pl.Series("device", [], pl.String)
    return pl.DataFrame([device, name.alias("name"), kind.alias("kind"), spans["dur"].alias("time"), spans["step"]])


@shared
def host_work(tables: Tables) -> pl.DataFrame:
    """Return device (``cpu``), name, kind, self time (ns) and step of every operator on a host thread.

    Of a sample, the whole duration: what is inside an operator is mostly not in the sample.
    """
    operators = host_operators(tables)
    time = "self" if sample.fraction(tables) == 1 else "dur"
    names = [operators[name].cast(pl.String) for name in ("name", "kind")]
    device = pl.Series("device", ["cpu"], pl.String).new_from_index(0, len(operators))
    return pl.DataFrame([device, *names, operators[time].alias("time"), operators["step"]])


def statistic(work: pl.DataFrame, sampled: sample.Sample = sample.EVERYTHING) -> pl.LazyFrame:
    """Return count, total, least, mean and longest time (ns) per device, name and kind, in a fixed order.

    Count and total are estimates where only a sample of the work is there, see :func:`sample.estimated`.
    """
    time = pl.col("time")
    number, certain = pl.len().cast(pl.Int64), {"count_error": pl.lit(0.0), "total_error": pl.lit(0.0)}
    times = {"total": time.sum(), "least": time.min(), "mean": time.mean(), "most": time.max()}
    grouped = work.lazy().group_by(_KEYS).agg(count=number, **times, sampled=number, **certain)
    if sampled.fraction < 1:
        estimates = sample.estimated(work, _KEYS, sampled).lazy()
        columns = grouped.collect_schema().names()
        grouped = grouped.select(*_KEYS, "least", "mean", "most").join(estimates, on=_KEYS).select(columns)
    return grouped.sort("device", "total", "name", "kind", descending=[False, True, False, False])
