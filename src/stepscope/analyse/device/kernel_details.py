"""Every piece of work of a device by itself: kernels, copies, fills and collectives."""

from __future__ import annotations

from functools import cache

import numpy as np
import polars as pl

from stepscope.analyse.operators.operator_calls import host_operators
from stepscope.analyse.step.activity import device_rows, of_tracks
from stepscope.analyse.units import timestamp_us, us
from stepscope.trace.tables import Tables, collected, columns_of, complete, has_rows, lazy, schema

#: Column of the result → column it is taken from.
_COLUMNS: dict[str, str] = {
    "Step ID": "step", "Device_id": "device_name", "Stream ID": "lane", "Name": "name", "Type": "kind",
    "Operator": "operator_name", "Start Time(us)": "start", "Duration(us)": "duration", "Wait Time(us)": "wait",
    "Block Num": "blocks", "Grid": "grid_text", "Block": "block_text", "Registers": "registers",
    "Shared Memory(bytes)": "shared_memory", "Occupancy(%)": "occupancy", "Blocks per SM": "blocks_per_sm",
    "Warps per SM": "warps_per_sm", "Bytes": "bytes", "Bandwidth(GB/s)": "bandwidth", "Input Shapes": "shapes",
    "Input Data Types": "dtypes", "Context ID": "context", "Graph ID": "graph", "Correlation ID": "correlation",
}  # fmt: skip

#: Column of the result → column of the table ``tasks``: what only an NPU's profiler says.
_OF_TASKS: dict[str, str] = {
    "Model ID": "model", "Task ID": "task", "OP State": "state", "Accelerator Core": "core",
    "Mix Block Num": "mix_blocks", "HF32 Eligible": "reduced_precision", "Input Formats": "input_formats",
    "Output Shapes": "output_shapes", "Output Data Types": "output_dtypes", "Output Formats": "output_formats",
}  # fmt: skip

_OF_SPANS = ("id", "track", "ts", "dur", "name", "kind", "step", "correlation")


def kernel_details(tables: Tables) -> pl.DataFrame:
    """Return one row per piece of device work, in order of start; none on a rank without a device.

    What an NPU's profiler says of its tasks stands in its own columns, and every hardware counter in one of its own.
    """
    if not len(device_rows(tables)):
        return _none().clone()
    if not has_rows(tables, "tasks"):
        return first_kernels(tables)[0]
    rows = pieces(tables).pipe(collected, tables)
    shown = rows.select(_shown())
    tasks = (
        tables["tasks"]
        .join(rows.lazy().select(pl.col("id").alias("span")), on="span", how="semi")
        .pipe(collected, tables)
    )
    if tasks.is_empty():
        return shown
    completed, counters = _completed(shown, rows, tasks), _counters(rows, tables)
    taken = {name: f"{name} (counter)" for name in counters.columns if name in completed.columns}
    return pl.concat([completed, counters.rename(taken)], how="horizontal")


def first_kernels(tables: Tables, cells: int | None = None) -> tuple[pl.DataFrame, int]:
    """Return the first rows of :func:`kernel_details`, of so many cells together, and how many it has."""
    if has_rows(tables, "tasks"):  # their columns are not known before
        rows = kernel_details(tables)
        return rows, len(rows)
    most = None if cells is None else 1 + cells // len(_COLUMNS)
    return pieces(tables, most).select(_shown()).pipe(collected, tables), len(device_rows(tables))


def _completed(shown: pl.DataFrame, rows: pl.DataFrame, tasks: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with what an NPU's profiler says of its tasks."""
    texts = tasks.rename(lambda name: f"task_{name}").with_columns(pl.col(pl.Categorical).cast(pl.String))
    both = rows.select("id").join(texts, left_on="id", right_on="task_span", how="left", maintain_order="left")
    joined = pl.concat([shown, both], how="horizontal")
    replaced = {"Type": "operation", "Block Num": "blocks", "Input Shapes": "input_shapes"}
    replaced |= {"Input Data Types": "input_dtypes", "Context ID": "context"}
    return joined.select(
        *(
            pl.coalesce(f"task_{replaced[name]}", pl.col(name).cast(both.schema[f"task_{replaced[name]}"])).alias(name)
            if name in replaced
            else pl.coalesce(us("task_wait"), name).alias(name)
            if name == "Wait Time(us)"
            else pl.col(name)
            for name in shown.columns
        ),
        *(pl.col(f"task_{column}").alias(header) for header, column in _OF_TASKS.items()),
    )


def _counters(rows: pl.DataFrame, tables: Tables) -> pl.DataFrame:
    """Return the hardware counters of the rows, a column each: ``aic_mac_time(us)``."""
    ids = rows.select(pl.col("id").alias("span"))
    found = tables["kernel_counters"].join(ids.lazy(), on="span", how="semi").pipe(collected, tables)
    name, unit = (pl.col(column).cast(pl.String) for column in ("name", "unit"))
    header = pl.when(unit == "").then(name).otherwise(pl.format("{}({})", name, unit)).alias("header")
    wide = found.select("span", header, "value").pivot(
        "header", index="span", values="value", aggregate_function="first"
    )
    return ids.join(wide, on="span", how="left", maintain_order="left").drop("span")


def pieces(tables: Tables, most: int | None = None) -> pl.LazyFrame:
    """Return the same rows as the tables have them, in ns; on a rank without a device, its leaf operators.

    Columns: id, track, ts, dur, name, kind, step, correlation as in ``spans``; ``device_name``; ``lane``, the number of
    the stream or thread; those of ``kernels``; ``operator_name``, ``shapes`` and ``dtypes`` of the launching operator;
    ``idle``, the time since the end of the earlier work on the track. With ``most``, at most so many of the first.
    """
    if not len(device_rows(tables)):
        return _leaves(tables)
    spans = columns_of(tables, "spans", *_OF_SPANS)[pl.Series(device_rows(tables).astype(np.uint32))]
    spans = _in_order(spans)[:most]
    kernels = tables["kernels"]
    if most is not None:
        kernels = kernels.join(spans.lazy().select(span="id"), on="span", how="semi")
    work = _on_lanes(spans, tables, "stream")
    return _of_operators(work.join(kernels, left_on="id", right_on="span", how="left", maintain_order="left"), tables)


def _in_order(spans: pl.DataFrame) -> pl.DataFrame:
    """Return spans in order of start, with the time since the end of the earlier ones on their track."""
    ended = (pl.col("ts") + pl.col("dur")).cum_max().shift(1).over("track")
    idle = (pl.col("ts") - ended).clip(0).fill_null(0)
    return spans.sort("ts", "id").with_columns(idle.alias("idle"))


def _on_lanes(spans: pl.DataFrame, tables: Tables, lane: str) -> pl.LazyFrame:
    """Add the device's name, and the number of the stream or thread, to spans."""
    device, number = of_tracks(tables, spans["track"], "device", lane)
    return spans.hstack([device.alias("device_name"), number.alias("lane")]).lazy()


def _of_operators(work: pl.LazyFrame, tables: Tables) -> pl.LazyFrame:
    """Add the launching operator's name, shapes and data types."""
    launching = tables["kernels"].select(pl.col("operator").alias("id")).unique()
    spans = tables["spans"].select("id", pl.col("name").alias("operator_name")).join(launching, on="id", how="semi")
    names = spans.rename({"id": "operator"})
    inputs = tables["operators"].select(pl.col("span").alias("operator"), "shapes", "dtypes")
    named = work.join(names, on="operator", how="left", maintain_order="left")
    return named.join(inputs, on="operator", how="left", maintain_order="left")


def _leaves(tables: Tables) -> pl.LazyFrame:
    """Return host operators with no operator inside them, in the columns of device work."""
    operators = host_operators(tables)
    inner = operators.filter(~pl.int_range(pl.len()).is_in(operators["outer"].unique().implode()))
    inner = inner[list(_OF_SPANS[:-1])].hstack(
        [pl.Series("correlation", [None], pl.Int64).new_from_index(0, len(inner))]
    )
    leaves = _on_lanes(_in_order(inner), tables, "thread")
    nothing = [pl.lit(None, dtype).alias(name) for name, dtype in schema("kernels").items() if name != "span"]
    inputs = tables["operators"].select(pl.col("span").alias("id"), "shapes", "dtypes")
    return (
        leaves.with_columns(nothing)
        .with_columns(operator_name="name")
        .join(inputs, on="id", how="left", maintain_order="left")
    )


@cache
def _none() -> pl.DataFrame:
    """Return the result without rows."""
    return pieces(lazy(complete({}))).select(_shown()).collect()


@cache
def _shown() -> list[pl.Expr]:
    derived = {
        "start": timestamp_us("ts"),
        "duration": us("dur"),
        "wait": us("idle"),
        "blocks": pl.col("grid").list.get(0) * pl.col("grid").list.get(1) * pl.col("grid").list.get(2),
        "grid_text": _triple("grid"),
        "block_text": _triple("block"),
    }
    return [derived.get(source, pl.col(source)).alias(name) for name, source in _COLUMNS.items()]


def _triple(column: str) -> pl.Expr:
    """Return a list of numbers as text such as ``[16, 1, 1]``; null where the list is null."""
    numbers = pl.col(column).cast(pl.List(pl.String)).list.join(", ")
    return pl.when(pl.col(column).is_not_null()).then(pl.format("[{}]", numbers))
