"""The CSV files of Ascend's layout: columns, units and rounding as theirs; a file without rows is not written.

Times since the epoch end with a tab, so that a spreadsheet does not round them; that is what Ascend's files do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl

from stepscope.analyse.device.npu_counters import L2_CACHE
from stepscope.analyse.units import timestamp_us, us
from stepscope.report.ascend.overlap_analysis import RankWork
from stepscope.report.ascend.variant import MEBIBYTE, Variant
from stepscope.report.files.csv_results import safe
from stepscope.report.protocol import Result
from stepscope.report.safe_text import csv_cell
from stepscope.report.whole_files import replacing

#: Model of work that belongs to none.
NO_MODEL = 4294967295
_NOT_KNOWN = "N/A"
#: Columns that end with a tab.
_STAMPS = (
    "Start Time(us)",
    "Timestamp(us)",
    "Allocation Time(us)",
    "Release Time(us)",
    "Active Release Time(us)",
    "Active Duration(us)",
)


def files(work: RankWork, results: Mapping[str, Result], variant: Variant) -> dict[str, pl.DataFrame]:
    """Return file name → table, without those that have no rows.

    Args:
        work: The rank's work.
        results: Its results by name.
        variant: Whose columns.
    """
    frames = {name: result for name, result in results.items() if isinstance(result, pl.DataFrame)}
    made = {
        "step_trace_time": work.step_trace_time(variant),
        "kernel_details": kernel_details(work, variant),
        "op_statistic": op_statistic(work, variant),
        "api_statistic": api_statistic(frames["api_statistic"], variant),
        "operator_details": operator_details(frames["operator_details"], variant),
        "memory_record": memory_record(frames["memory_record"], variant),
        "operator_memory": operator_memory(frames["operator_memory"], variant),
        "dataset": frames["dataset"],
    }
    of_npu = {"l2_cache": l2_cache, "npu_module_mem": npu_module_mem, "static_op_mem": static_op_mem}
    made |= {name: shown(frames[name], variant) for name, shown in of_npu.items() if name in frames}
    return {f"{name}.csv": frame for name, frame in made.items() if len(frame)}


def write(frame: pl.DataFrame, path: Path) -> None:
    """Write one table; texts are safe in a spreadsheet, and lines within a cell stay lines."""
    stacks = [name for name in frame.columns if name in ("Call Stack", "Input Shapes")]
    lines = {name: frame[name].str.split("\n").list.eval(_guarded()).list.join("\n") for name in stacks}
    shown = safe(frame.drop(stacks)).with_columns(pl.Series(name, column) for name, column in lines.items())
    stamps = [name for name in frame.columns if name in _STAMPS]
    # A duration ends with a tab where its neighbours do: in the life of a block.
    stamps += ["Duration(us)"] if "Release Time(us)" in stamps else []
    tabbed = [_tabbed(name, frame.schema[name]) for name in stamps]
    with replacing(path) as temporary:
        shown.select(frame.columns).with_columns(tabbed).write_csv(temporary, float_precision=3)


def _guarded() -> pl.Expr:
    return pl.element().map_elements(csv_cell, return_dtype=pl.String, skip_nulls=True)


def _tabbed(name: str, dtype: pl.DataType) -> pl.Expr:
    value = pl.col(name)
    if dtype.is_float():
        value = value.cast(pl.Decimal(38, 3))
    return value.cast(pl.String) + "\t"


def kernel_details(work: RankWork, variant: Variant) -> pl.DataFrame:
    """Return the pieces of work that compute or communicate, in order of start, and behind them their counters."""
    rows = pl.concat([_computing(work, variant), _communication(work)], how="diagonal").sort("ts", maintain_order=True)
    blocks, mixed = variant.blocks
    columns = {
        variant.step: pl.col("step"),
        "Model ID": pl.col("model").fill_null(NO_MODEL),
        "Task ID": _or_unknown("task"),
        "Stream ID": _or_unknown("lane"),
        "Name": pl.col("name"),
        "Type": pl.col("type"),
        "OP State": _or_unknown("state"),
        "Accelerator Core": pl.col("core"),
        "Start Time(us)": timestamp_us("ts"),
        "Duration(us)": us("dur"),
        "Wait Time(us)": us("idle"),
        blocks: pl.col("blocks").fill_null(0),
        mixed: _or_unknown("mix_blocks"),
        "HF32 Eligible": _or_unknown("reduced_precision"),
        "Input Shapes": _or_unknown("shapes"),
        "Input Data Types": _or_unknown("dtypes"),
        "Input Formats": _or_unknown("input_formats"),
        "Output Shapes": _or_unknown("output_shapes"),
        "Output Data Types": _or_unknown("output_dtypes"),
        "Output Formats": _or_unknown("output_formats"),
        "Context ID": _or_unknown("context"),
    }
    shown = pl.concat([rows.select(**columns), _counters(work, rows["id"])], how="horizontal")
    return shown if work.windows.declared else shown.drop(variant.step)


def _or_unknown(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.String).fill_null(_NOT_KNOWN)


def _computing(work: RankWork, variant: Variant) -> pl.DataFrame:
    pieces = work.computing
    modules = work.tables["operators"].select(pl.col("span").alias("id"), pl.col("module").cast(pl.String)).collect()
    pieces = pieces.join(modules, on="id", how="left", maintain_order="left")
    pieces = pieces.join(told(work), on="id", how="left", maintain_order="left")
    recorded = pl.col("operation").is_not_null()
    # What an NPU's profiler recorded has the operator in its name already.
    launching = pl.when(~recorded).then("operator_name") if variant.processes else pl.lit(None, pl.String)
    owner = pl.when(pl.col("kind") == "operator").then("module").otherwise(launching)
    grid = pl.col("grid").list.eval(pl.element().product()).list.first()
    quoted = pl.format('"{}"', pl.col("input_shapes"))
    return pieces.select(
        "id",
        pl.coalesce("told_step", "step").alias("step"),
        "ts",
        "dur",
        pl.coalesce("wait", "idle").alias("idle"),
        "lane",
        pl.when(recorded).then("told_context").otherwise("context").alias("context"),
        pl.coalesce("task", pl.when(~recorded).then(pl.int_range(pl.len()))).alias("task"),
        pl.concat_str(owner, "name", separator="/", ignore_nulls=True).alias("name"),
        pl.coalesce("operation", "name").alias("type"),
        pl.coalesce("core", core()).alias("core"),
        pl.coalesce("told_blocks", grid).alias("blocks"),
        pl.when(recorded).then(quoted).otherwise(texts(pieces["shapes"], kernel_shapes)).alias("shapes"),
        pl.when(recorded).then("input_dtypes").otherwise(texts(pieces["dtypes"], kernel_types)).alias("dtypes"),
        pl.format('"{}"', pl.col("output_shapes")).alias("output_shapes"),
        pl.col("mix_blocks").fill_null(0),
        *("model", "state", "reduced_precision", "input_formats", "output_dtypes", "output_formats"),
    )


def told(work: RankWork) -> pl.DataFrame:
    """Return what an NPU's profiler told of tasks, by ``id``; texts as text."""
    tasks = work.tables["tasks"].rename({"span": "id", "step": "told_step", "context": "told_context"}).collect()
    tasks = tasks.rename({"blocks": "told_blocks", "stream": "told_stream"}).drop("batch")
    return tasks.with_columns(pl.col(pl.Categorical).cast(pl.String))


def _counters(work: RankWork, ids: pl.Series) -> pl.DataFrame:
    """Return a column for each hardware counter of the pieces of work, ``N/A`` where one was not measured."""
    pieces = pl.DataFrame({"id": ids}).with_row_index("row")
    texts_ = [pl.col(name).cast(pl.String) for name in ("name", "unit")]
    rows = work.tables["kernel_counters"].rename({"span": "id"}).with_columns(texts_).collect()
    found = rows.filter(~pl.col("name").is_in(L2_CACHE)).join(pieces, on="id", how="inner")
    columns: dict[str, pl.Series] = {}
    for (name, unit), values in found.group_by("name", "unit", maintain_order=True):
        measured = pieces.join(values.unique("row"), on="row", how="left", maintain_order="left")["value"]
        # Counts are whole.
        shown = measured.cast(pl.Int64) if not unit and (values["value"] % 1 == 0).all() else measured
        # Names come from the source: a header is as safe as a cell.
        title = csv_cell(f"{name}({unit})" if unit else str(name))
        columns.setdefault(title, _number(shown).fill_null(_NOT_KNOWN).alias(title))
    return pl.DataFrame(list(columns.values()))


def _number(column: pl.Series) -> pl.Series:
    return (column if column.dtype.is_integer() else column.cast(pl.Decimal(38, 3))).cast(pl.String)


def core() -> pl.Expr:
    """Return what did the work, ``CPU`` or the sort of device: there are no AI Cores on those."""
    return pl.col("device_name").str.split(":").list.first().str.to_uppercase()


def _communication(work: RankWork) -> pl.DataFrame:
    """Return the communication; the wait before an operation counts from the end of the earlier ones."""
    rows = [
        (one.span, one.step, one.start, one.elapsed, call.name, call.type)
        for call in work.calls
        for one in (call.operation,)
    ]
    schema = {"id": pl.Int64, "step": pl.Int32, "ts": pl.Int64, "dur": pl.Int64, "name": pl.String, "type": pl.String}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    known = told(work).select("id", "told_step", "wait", "model")
    frame = frame.join(known, on="id", how="left", maintain_order="left")
    ended = (pl.col("ts") + pl.col("dur")).cum_max().shift(1)
    return frame.select(
        *("id", "ts", "dur", "name", "type", "model"),
        pl.coalesce("told_step", pl.when(pl.col("step") >= 0).then("step")).alias("step"),
        pl.coalesce("wait", (pl.col("ts") - ended).clip(0).fill_null(0)).alias("idle"),
        pl.lit("HCCL").alias("core"),
    )


def op_statistic(work: RankWork, variant: Variant) -> pl.DataFrame:
    """Return the pieces that compute by type, longest total first; their share is of all computing."""
    rows = work.computing.join(told(work).select("id", "operation", "core"), on="id", how="left")
    named = (pl.coalesce("operation", "name").alias("name"), pl.coalesce("core", core()).alias("core"))
    grouped = rows.group_by("device_name", *named).agg(
        pl.len().alias("count"),
        pl.col("dur").sum().alias("total"),
        pl.col("dur").min().alias("least"),
        pl.col("dur").mean().alias("mean"),
        pl.col("dur").max().alias("most"),
    )
    share = (100 * pl.col("total") / pl.col("total").sum()).fill_nan(0).round(3)
    shown = grouped.sort("total", "name", descending=[True, False]).select(
        pl.col("device_name").str.split(":").list.get(1, null_on_oob=True).fill_null("0").alias("Device_id"),
        pl.lit(_NOT_KNOWN).alias("Model Name"),
        pl.col("name").alias("OP Type"),
        pl.col("core").alias("Core Type"),
        pl.col("count").alias("Count"),
        us("total").alias("Total Time(us)"),
        us("least").alias("Min Time(us)"),
        us("mean").alias("Avg Time(us)"),
        us("most").alias("Max Time(us)"),
        share.alias("Ratio(%)"),
    )
    return shown if variant.device_columns else shown.drop("Device_id", "Model Name")


def api_statistic(result: pl.DataFrame, variant: Variant) -> pl.DataFrame:
    """Return calls of the device's runtime and driver, waits and communication calls; of the host, in µs."""
    if variant.device_columns:
        return result.with_columns(pl.lit("host").alias("Device_id"))
    # The layers of CANN have short names in torch_npu's file.
    short = {"AscendCL": "acl", "Communication": "hccl"} if "AscendCL" in result["Level"] else {}
    return result.drop("Device_id").with_columns(pl.col("Level").replace(short).str.to_lowercase())


def operator_details(result: pl.DataFrame, variant: Variant) -> pl.DataFrame:
    """Return every operator call; MindSpore's file has only those whose shapes were recorded."""
    rows = result if variant.stack_columns else result.drop_nulls("Input Shapes")
    rows = rows.with_columns(texts(rows["Input Shapes"], operator_shapes).alias("Input Shapes"))
    if not variant.stack_columns:
        return rows.select("Name", "Input Shapes")
    times = [f"{where} {which} Duration(us)" for where in ("Host", "Device") for which in ("Self", "Total")]
    cores = [pl.lit(0.0).alias(f"Device {which} Duration With AICore(us)") for which in ("Self", "Total")]
    return rows.select("Name", "Input Shapes", "Call Stack", *times, *cores)


def memory_record(result: pl.DataFrame, variant: Variant) -> pl.DataFrame:
    """Return memory over time, sizes in the variant's MB."""
    component = pl.col("Component").replace("Framework", variant.component)
    sizes = [_size(f"Total {name}(MB)", variant) for name in ("Allocated", "Reserved", "Active")]
    known = "Stream Ptr" in result.columns
    pointer = pl.col("Stream Ptr").cast(pl.String) if known else pl.lit(None, pl.String).alias("Stream Ptr")
    return result.select(component, "Timestamp(us)", *sizes, *([pointer] if variant.stream_pointer else []), _device())


def _size(column: str, variant: Variant) -> pl.Expr:
    """Return a size in the variant's unit with all its digits."""
    factor = MEBIBYTE / variant.megabyte if column.endswith("(MB)") else 1
    return (pl.col(column) * factor).cast(pl.String)


def operator_memory(result: pl.DataFrame, variant: Variant) -> pl.DataFrame:
    """Return the life of every block, sizes in KB of 1024 bytes and in the variant's MB."""
    sizes = [_size(name, variant) for name in result.columns if name.endswith(("(KB)", "(MB)"))]
    shown = result.with_columns(*sizes, _device())
    if variant.missing is None:
        return shown
    released = [name for name in result.columns if name.startswith(("Release", "Duration", "Active"))]
    return shown.with_columns(_shown(name, shown.schema[name]).fill_null(variant.missing) for name in released)


def _shown(name: str, dtype: pl.DataType) -> pl.Expr:
    value = pl.col(name).cast(pl.Decimal(38, 3)) if dtype.is_float() else pl.col(name)
    return value.cast(pl.String)


def l2_cache(result: pl.DataFrame, variant: Variant) -> pl.DataFrame:
    """Return the hits of each task in the L2 cache, in order of start."""
    rates = [pl.col(rate).cast(pl.String).fill_null(_NOT_KNOWN) for rate in L2_CACHE]
    shown = result.with_columns(_number_of_device(), *rates)
    return shown if variant.device_columns else shown.drop("Device_id")


def npu_module_mem(result: pl.DataFrame, variant: Variant) -> pl.DataFrame:
    """Return what each part of an NPU's software reserves over time, in KB or, of torch_npu, in MB."""
    size = pl.col("Total Reserved(KB)")
    shown = result.with_columns(_number_of_device(), pl.col("Device").str.to_uppercase())
    if variant.device_columns:
        return shown.with_columns(size.cast(pl.String))
    in_mb = (size / 1024).cast(pl.String).alias("Total Reserved(MB)")
    return shown.select("Component", "Timestamp(us)", in_mb, "Device")


def static_op_mem(result: pl.DataFrame, _: Variant) -> pl.DataFrame:
    """Return the memory that compiled graphs set aside for operators."""
    end = pl.col("Node Index End").fill_null(NO_MODEL)
    return result.with_columns(_number_of_device(), end, pl.col("Size(KB)").cast(pl.String))


def _number_of_device() -> pl.Expr:
    """Return the number in a device's name: ``npu:1`` → 1."""
    return pl.col("Device_id").str.extract(r":(\d+)$").fill_null("0")


def _device() -> pl.Expr:
    return pl.col("Device Type").cast(pl.String).str.to_uppercase()


def texts(column: pl.Series, convert: Callable[[str], str]) -> pl.Series:
    """Return a text column converted; each distinct text only once."""
    column = column.cast(pl.String)
    distinct = column.unique().drop_nulls()
    if distinct.is_empty():
        return column
    made = pl.Series([convert(text) for text in distinct], dtype=pl.String)
    return column.replace_strict(distinct, made, default=None, return_dtype=pl.String)


def kernel_shapes(text: str) -> str:
    """Return shapes as ``kernel_details.csv`` has them: ``[[8,3],[]]`` → ``"8,3;"``, with the quotes."""
    return f'"{";".join(_dimensions(text))}"'


def kernel_types(text: str) -> str:
    """Return types as ``kernel_details.csv`` has them: ``["float","Scalar"]`` → ``FLOAT;SCALAR``."""
    return ";".join(_items(text)).upper()


def operator_shapes(text: str) -> str:
    r"""Return shapes as ``operator_details.csv`` has them, a line for each input: ``8,3;\n``."""
    return ";\n".join(_dimensions(text))


def operator_types(text: str) -> str:
    r"""Return types as databases have them, a line for each input: ``long int;\n``."""
    return ";\n".join(_items(text))


def _dimensions(text: str) -> list[str]:
    return [item.strip("[]").replace(" ", "") if item.count("[") < 2 else item for item in _items(text)]


def _items(text: str) -> list[str]:
    """Return the items of a JSON list as texts; the text itself where it is none."""
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        return [text]
    if not isinstance(items, list):
        return [text]
    return [item if isinstance(item, str) else json.dumps(item, separators=(",", ":")) for item in items]
