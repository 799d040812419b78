"""The CSV files of Ascend's layout: columns, units and rounding as theirs; a file without rows is not written.

Times since the epoch end with a tab, so that a spreadsheet does not round them; that is what Ascend's files do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import polars as pl

from stepscope.analyse.operators import operator_calls
from stepscope.analyse.operators.operator_details import FRAMES_JOINED
from stepscope.analyse.units import timestamp_us, us
from stepscope.report.ascend.overlap_analysis import RankWork
from stepscope.report.ascend.variant import MINDSPORE, Variant
from stepscope.report.files.csv_results import safe
from stepscope.report.protocol import Result
from stepscope.report.safe_text import csv_cell
from stepscope.report.whole_files import replacing
from stepscope.trace import ascend_columns as ascend
from stepscope.trace.ascend_columns import AscendColumn, unit_of

_NOT_KNOWN = "N/A"
#: Types of tasks whose time torch_npu counts as that of AI Cores: in its timeline, and in its database.
_AI_CORE = ("AI_CORE", "KERNEL_AICORE", "KERNEL_AIVEC")
#: Our column of ``kernel_details.csv`` → value for the unknown, if it is not ``N/A``.
_UNKNOWN = {"step": None, "model": ascend.UNKNOWN_32, "blocks": 0}
#: Files that only the capture of an NPU has.
_OF_NPU = {
    "l2_cache": ascend.L2_CACHE_RATES,
    "npu_module_mem": ascend.NPU_MODULE_MEM,
    "static_op_mem": ascend.STATIC_OP_MEM,
}


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
        "api_statistic": api_statistic(work, frames["api_statistic"], variant),
        "operator_details": operator_details(work, frames["operator_details"], variant),
        "memory_record": memory_record(frames["memory_record"], variant),
        "operator_memory": _file(frames["operator_memory"], ascend.OPERATOR_MEMORY, variant),
        "dataset": frames["dataset"],
    }
    if "static_op_mem" in frames:
        end = pl.col("Node Index End").fill_null(ascend.UNKNOWN_32)
        frames["static_op_mem"] = frames["static_op_mem"].with_columns(end)
    made |= {name: _file(frames[name], columns, variant) for name, columns in _OF_NPU.items() if name in frames}
    return {f"{name}.csv": frame for name, frame in made.items() if len(frame)}


def write(frame: pl.DataFrame, path: Path) -> None:
    """Write one table; texts are safe in a spreadsheet, and lines within a cell stay lines."""
    stacks = [name for name in frame.columns if name in ("Call Stack", "Input Shapes")]
    if "Call Stack" in stacks:  # a frame a line, as torch_npu writes it
        frame = frame.with_columns(pl.col("Call Stack").str.replace_all(FRAMES_JOINED, ";\n", literal=True))
    guarded = pl.element().map_elements(csv_cell, return_dtype=pl.String, skip_nulls=True)
    lines = {name: frame[name].str.split("\n").list.eval(guarded).list.join("\n") for name in stacks}
    # Times are safe: those that are text are numbers with a tab.
    times = frame.select(name for name in frame.columns if name.endswith("(us)"))
    shown = safe(frame.drop(stacks, times.columns)).hstack(times).with_columns(**lines)
    with replacing(path) as temporary:
        shown.select(frame.columns).write_csv(temporary, float_precision=3)


def _file(result: pl.DataFrame, columns: Iterable[AscendColumn], variant: Variant) -> pl.DataFrame:
    """Return a result under the headers of a variant and in its units."""
    named = [(column, column.header(mindspore=variant is MINDSPORE)) for column in columns]
    return result.select(
        _cell(result, column.sort, header, variant).alias(header) for column, header in named if header
    )


def _cell(result: pl.DataFrame, sort: str, header: str, variant: Variant) -> pl.Expr:
    value = pl.col(header)
    if sort in (ascend.SIZE, ascend.HELD_SIZE):
        name, unit = unit_of(header)
        # The result may have another unit.
        source = next(one for one in result.columns if unit_of(one)[0] == name)
        parts = 1000 * ascend.BYTES["KB"] if sort == ascend.HELD_SIZE and variant is MINDSPORE else ascend.BYTES[unit]
        value = (pl.col(source) * (ascend.BYTES[unit_of(source)[1]] / parts)).cast(pl.String)
    elif sort in (ascend.STAMP, ascend.HELD):
        value = (value.cast(pl.Decimal(38, 3)) if result.schema[header].is_float() else value).cast(pl.String)
    elif sort == ascend.INDEX:
        value = value.str.extract(r":(\d+)$").fill_null("0")
    elif sort == ascend.DEVICE:
        value = value.cast(pl.String).str.to_uppercase()
    elif sort == ascend.REAL:
        value = value.cast(pl.String).fill_null(_NOT_KNOWN)
    if header.startswith(("Release", "Duration", "Active")) and variant.missing is not None:
        value = value.fill_null(variant.missing)
    return value + "\t" if sort in (ascend.STAMP, ascend.HELD) else value


def kernel_details(work: RankWork, variant: Variant) -> pl.DataFrame:
    """Return the work that computes or communicates, in order of start, with its counters.

    Of a capture that has such a file, the columns are those of that file: they differ by the level of the recording.
    """
    recorded = work.recorded_columns("kernel_details.csv")
    rows = pl.concat([_computing(work, variant), _communication(work)], how="diagonal").sort("ts", maintain_order=True)
    if recorded is not None and not {"OP State", "Input Shapes"} & set(recorded):  # the lowest level has no types
        rows = rows.with_columns(pl.lit(None, pl.String).alias("op_type"))
    shown = []
    for column in ascend.KERNEL_DETAILS:
        header, name = column.header(mindspore=variant is MINDSPORE), column.ours
        if not header or (recorded is not None and not set(column.headers) & set(recorded)):
            continue
        if column.sort == ascend.STAMP:
            cell = timestamp_us(name).cast(pl.String) + "\t"
        elif column.sort == ascend.TIME:
            cell = us(name)
        elif name in _UNKNOWN:
            cell = pl.col(name).fill_null(pl.lit(_UNKNOWN[name]))
        else:
            cell = pl.col(name).cast(pl.String).fill_null(_NOT_KNOWN)
        shown.append(cell.alias(header))
    found = pl.concat([rows.select(shown), _counters(work, rows["id"])], how="horizontal")
    step = ascend.KERNEL_DETAILS[0].header(mindspore=variant is MINDSPORE)
    return found if work.windows.declared else found.drop(step, strict=False)


def _computing(work: RankWork, variant: Variant) -> pl.DataFrame:
    pieces = work.computing
    modules = work.tables["operators"].select(pl.col("span").alias("id"), pl.col("module").cast(pl.String)).collect()
    pieces = pieces.join(modules, on="id", how="left", maintain_order="left")
    pieces = pieces.join(task_details(work), on="id", how="left", maintain_order="left")
    recorded = pl.col("operation").is_not_null()
    by_npu = pl.col("type").is_not_null()  # what its profiler did not say stays unknown
    # What an NPU's profiler recorded has the operator in its name already.
    launching = pl.when(~recorded).then("operator_name") if variant.processes else pl.lit(None, pl.String)
    owner = pl.when(pl.col("kind") == "operator").then("module").otherwise(launching)
    grid = pl.col("grid").list.eval(pl.element().product()).list.first()
    quoted = pl.format('"{}"', pl.col("input_shapes"))
    return pieces.select(
        "id",
        pl.coalesce("recorded_step", "step").alias("step"),
        "ts",
        "dur",
        pl.coalesce("wait", "idle").alias("gap"),
        pl.col("lane").alias("stream"),
        pl.when(recorded).then("recorded_context").otherwise("context").alias("context"),
        pl.coalesce("task", pl.when(~recorded).then(pl.int_range(pl.len()))).alias("task"),
        pl.concat_str(owner, "name", separator="/", ignore_nulls=True).alias("name"),
        pl.coalesce("operation", pl.when(~by_npu).then("name")).alias("op_type"),
        pl.coalesce("core", pl.when(~by_npu).then(core())).alias("core"),
        pl.coalesce("recorded_blocks", grid).alias("blocks"),
        pl.when(recorded).then(quoted).otherwise(texts(pieces["shapes"], kernel_shapes)).alias("input_shapes"),
        pl.when(recorded).then("input_dtypes").otherwise(texts(pieces["dtypes"], kernel_types)).alias("input_dtypes"),
        pl.format('"{}"', pl.col("output_shapes")).alias("output_shapes"),
        pl.col("mix_blocks").fill_null(0),
        pl.col("reduced_precision").alias("hf32"),
        *("model", "state", "input_formats", "output_dtypes", "output_formats"),
    )


def task_details(work: RankWork) -> pl.DataFrame:
    """Return the recorded details of tasks, by ``id``; texts as text."""
    tasks = (
        work.tables["tasks"].rename({"span": "id", "step": "recorded_step", "context": "recorded_context"}).collect()
    )
    tasks = tasks.rename({"blocks": "recorded_blocks", "stream": "recorded_stream"}).drop("batch")
    return tasks.with_columns(pl.col(pl.Categorical).cast(pl.String))


def _counters(work: RankWork, ids: pl.Series) -> pl.DataFrame:
    """Return a column for each hardware counter of the work, ``N/A`` if it was not measured."""
    pieces = pl.DataFrame({"id": ids}).with_row_index("row")
    texts_ = [pl.col(name).cast(pl.String) for name in ("name", "unit")]
    rows = work.tables["kernel_counters"].rename({"span": "id"}).with_columns(texts_).collect()
    found = rows.filter(~pl.col("name").is_in(ascend.L2_CACHE)).join(pieces, on="id", how="inner")
    columns: dict[str, pl.Series] = {}
    for (name, unit), values in found.group_by("name", "unit", maintain_order=True):
        measured = pieces.join(values.unique("row"), on="row", how="left", maintain_order="left")["value"]
        # Counts are integers.
        whole = not unit and (values["value"] % 1 == 0).all()
        shown = measured.cast(pl.Int64 if whole else pl.Decimal(38, 3)).cast(pl.String).fill_null(_NOT_KNOWN)
        # Names come from the source: a header is as safe as a cell.
        title = csv_cell(f"{name}({unit})" if unit else str(name))
        columns.setdefault(title, shown.alias(title))
    return pl.DataFrame(list(columns.values()))


def core() -> pl.Expr:
    """Return what did the work: ``CPU``, or the kind of device if it has no AI Cores."""
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
    known = task_details(work).select("id", "recorded_step", "wait", "model", "core")
    frame = frame.join(known, on="id", how="left", maintain_order="left")
    ended = (pl.col("ts") + pl.col("dur")).cum_max().shift(1)
    return frame.select(
        *("id", "ts", "dur", "name", "model"),
        pl.col("type").alias("op_type"),
        pl.coalesce("recorded_step", pl.when(pl.col("step") >= 0).then("step")).alias("step"),
        pl.coalesce("wait", (pl.col("ts") - ended).clip(0).fill_null(0)).alias("gap"),
        pl.col("core").fill_null("HCCL"),
    )


def op_statistic(work: RankWork, variant: Variant) -> pl.DataFrame:
    """Return the computing work by type, longest total first; their share is of all computing."""
    rows = work.computing.join(task_details(work).select("id", "operation", "core"), on="id", how="left")
    if work.recorded_by_npu:  # at the lowest level no file says what type of operator a kernel is
        rows = rows.drop_nulls("operation")
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
        pl.when(pl.col("device_name") == "cpu")
        .then(pl.lit("0"))
        .otherwise(pl.col("device_name").str.split(":").list.get(1, null_on_oob=True).fill_null(_NOT_KNOWN))
        .alias("Device_id"),
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
    if work.with_device("op_statistic.csv", variant):
        recorded = work.recorded_columns("op_statistic.csv")
        return shown if recorded is None else shown.select(name for name in shown.columns if name in recorded)
    return shown.drop("Device_id", "Model Name")


def api_statistic(work: RankWork, result: pl.DataFrame, variant: Variant) -> pl.DataFrame:
    """Return calls of the device's runtime and driver, waits and communication calls; of the host, in µs."""
    if work.with_device("api_statistic.csv", variant):
        return result.with_columns(pl.lit("host").alias("Device_id"))
    # The layers of CANN have short names in torch_npu's file.
    short = {"AscendCL": "acl", "Communication": "hccl"} if "AscendCL" in result["Level"] else {}
    return result.drop("Device_id").with_columns(pl.col("Level").replace(short).str.to_lowercase())


def operator_details(work: RankWork, result: pl.DataFrame, variant: Variant) -> pl.DataFrame:
    """Return every operator call; MindSpore's file has only those whose shapes were recorded."""
    on_cores = work.tables["tasks"].filter(pl.col("type").cast(pl.String).is_in(_AI_CORE)).select("span").collect()
    operators = operator_calls.host_operators(work.tables)
    times = operator_calls.device_time(work.tables, operators, on_cores["span"])
    cores = operators.select("ts", "id", own=pl.Series(times[0]), whole=pl.Series(times[1])).sort("ts", "id")
    named = {"own": "Device Self Duration With AICore(us)", "whole": "Device Total Duration With AICore(us)"}
    rows = result.hstack(cores.select(us(name).alias(title) for name, title in named.items()))
    rows = rows.drop_nulls("Input Shapes") if variant is MINDSPORE else rows
    rows = rows.with_columns(texts(rows["Input Shapes"], operator_shapes).alias("Input Shapes"))
    return _file(rows, ascend.OPERATOR_DETAILS, variant)


def memory_record(result: pl.DataFrame, variant: Variant) -> pl.DataFrame:
    """Return memory over time, sizes in the variant's MB."""
    component = pl.col("Component").replace("Framework", variant.component)
    pointer = [] if "Stream Ptr" in result.columns else [pl.lit(None, pl.Int64).alias("Stream Ptr")]
    return _file(result.with_columns(component, *pointer), ascend.MEMORY_RECORD, variant)


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
    """Return the items of a JSON list as texts; the text itself if it is not one."""
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        return [text]
    if not isinstance(items, list):
        return [text]
    return [item if isinstance(item, str) else json.dumps(item, separators=(",", ":")) for item in items]
