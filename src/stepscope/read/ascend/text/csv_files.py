"""Ascend's CSV files → frames, one function a file; a column that is not there is null."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl

from stepscope.read.ascend.text.csv_rows import Rows
from stepscope.read.ascend.text.text_values import UNKNOWN_32, reals, unit_of

#: Columns of ``kernel_details.csv`` and ``op_summary_*.csv`` that are no hardware counters.
_OF_KERNELS = {
    *("stepid", "device_id", "modelid", "modelname", "taskid", "streamid", "name", "opname", "type", "optype"),
    *("opstate", "acceleratorcore", "tasktype", "starttime(us)", "taskstarttime(us)", "taskstarttime"),
    *("duration(us)", "taskduration(us)", "waittime(us)", "taskwaittime(us)", "blockdim", "blocknum", "mixblockdim"),
    *("mixblocknum", "hf32eligible", "inputshapes", "inputdatatypes", "inputformats", "outputshapes", "index"),
    *("outputdatatypes", "outputformats", "contextid", "batchid", "infid", "inferid", "subtaskid", "attrinfo"),
}
#: Columns of a network card's file that say which sample it is.
_OF_SAMPLES = {"device_id", "timestamp(us)", "timestamp", "funcid"}
#: Group of the counters of ``npu_module_mem.csv``.
MODULE_MEMORY = "NPU module memory"


def kernels(rows: Rows) -> pl.DataFrame:
    """Return kernels and communication of ``kernel_details.csv`` or ``op_summary_*.csv``.

    Columns of the frame ``tasks``, and one for each hardware counter, called ``counter <name>|<unit>``.
    """
    context = rows.integer("Context ID", "Subtask ID")
    columns = {
        "ts": rows.ns("Start Time(us)", "Task Start Time(us)", "Task Start Time"),
        "dur": rows.ns("Duration(us)", "Task Duration(us)"),
        "device": rows.integer("Device_id"),
        "stream": rows.integer("Stream ID"),
        "name": rows.text("Name", "Op Name"),
        "type": rows.text("Accelerator Core", "Task Type"),
        "task": rows.integer("Task ID"),
        "context": context.set(context == UNKNOWN_32, None),
        "batch": rows.integer("Batch ID"),
        "model": rows.integer("Model ID"),
        "op_type": rows.text("Type", "OP Type"),
        "core": rows.text("Accelerator Core", "Task Type"),
        "state": rows.text("OP State"),
        "blocks": rows.integer("Block Num", "Block Dim"),
        "mix_blocks": rows.integer("Mix Block Num", "Mix Block Dim"),
        "hf32": rows.text("HF32 Eligible"),
        "input_shapes": rows.quoted("Input Shapes"),
        "input_dtypes": rows.text("Input Data Types"),
        "input_formats": rows.text("Input Formats"),
        "output_shapes": rows.quoted("Output Shapes"),
        "output_dtypes": rows.text("Output Data Types"),
        "output_formats": rows.text("Output Formats"),
        "gap": rows.ns("Wait Time(us)", "Task Wait Time(us)"),
        "step": rows.integer("Step ID", "Step Id"),
        "attributes": rows.text("Attr Info"),
    }
    counters = {
        f"counter {'|'.join(unit_of(header))}": rows.real(header)
        for header in rows.headers
        if "".join(header.lower().split()) not in _OF_KERNELS and header.strip()
    }
    return pl.DataFrame({**columns, **counters})


def memory(rows: Rows, *, of_mindspore: bool) -> pl.DataFrame:
    """Return the frame ``memory`` of ``memory_record.csv``.

    Args:
        rows: Rows of the file.
        of_mindspore: Whether MindSpore wrote it, whose MB are 1000 KB; of all others they are 1024 KB.
    """
    component = rows.text("Component")
    sizes = {column: rows.size(f"Total {column.capitalize()}") for column in ("allocated", "reserved", "active")}
    if of_mindspore or component.cast(pl.String).str.contains("MindSpore").any():
        sizes = {column: (size * (1000 / 1024)).round(0).cast(pl.Int64) for column, size in sizes.items()}
    return pl.DataFrame(
        {
            "ts": rows.ns("Timestamp(us)"),
            "device": _device(rows, "Device Type", "Device"),
            "component": component,
            "stream": rows.integer("Stream Ptr"),
            **sizes,
        }
    )


def blocks(rows: Rows) -> pl.DataFrame:
    """Return the frame ``blocks`` of ``operator_memory.csv``."""
    totals = ("allocated", "reserved", "active")
    return pl.DataFrame(
        {
            "device": _device(rows, "Device Type"),
            "name": rows.text("Name"),
            "bytes": rows.size("Size"),
            "ts": rows.ns("Allocation Time(us)"),
            "release": rows.ns("Release Time(us)"),
            "active_release": rows.ns("Active Release Time(us)"),
            **{column: rows.size(f"Allocation Total {column.capitalize()}") for column in totals},
            **{f"released_{column}": rows.size(f"Release Total {column.capitalize()}") for column in totals},
            "stream": rows.integer("Stream Ptr"),
        }
    )


def module_memory(rows: Rows) -> pl.DataFrame:
    """Return the frame ``counters`` of ``npu_module_mem.csv``; −1 stands for unknown and is left out."""
    size = rows.size("Total Reserved")
    frame = pl.DataFrame(
        {
            "ts": rows.ns("Timestamp(us)"),
            "device": _device(rows, "Device", "Device Type"),
            "name": rows.text("Component"),
            "value": size.cast(pl.Float64),
        }
    )
    return frame.with_columns(group=pl.lit(MODULE_MEMORY), unit=pl.lit("bytes")).drop_nulls("value")


def static_memory(rows: Rows) -> pl.DataFrame:
    """Return the frame ``static_memory`` of ``static_op_mem.csv``, without the sums."""
    last = rows.integer("Node Index End")
    frame = pl.DataFrame(
        {
            "device": _device(rows, "Device_id"),
            "name": rows.text("Op Name"),
            "model": rows.text("Model Name"),
            "graph": rows.integer("Graph ID"),
            "first_node": rows.integer("Node Index Start"),
            "last_node": last.set(last == UNKNOWN_32, None),
            "bytes": rows.size("Size"),
        }
    )
    return frame.filter(pl.col("name").cast(pl.String) != "TOTAL").drop_nulls("bytes")


def l2_cache(rows: Rows) -> pl.DataFrame:
    """Return hit and victim rates of ``l2_cache.csv`` by stream and task: stream, task, op, name, value, unit."""
    place = {
        "stream": rows.integer("Stream Id"),
        "task": rows.integer("Task Id"),
        "op": rows.text("Op Name"),
    }
    frames = [
        pl.DataFrame({**place, "value": rows.real(header)}).with_columns(name=pl.lit(header), unit=pl.lit(""))
        for header in ("Hit Rate", "Victim Rate")
    ]
    return pl.concat(frames).drop_nulls("value")


def ai_cpu(rows: Rows) -> pl.DataFrame:
    """Return the parts of an AI CPU task's time of ``data_preprocess.csv`` or ``aicpu_*.csv``.

    Columns: ts, stream, task, op, and the times in µs, one row a time: name, value, unit.
    """
    place = {
        "ts": rows.ns("Timestamp(us)", "Timestamp"),
        "stream": rows.integer("Stream ID"),
        "task": rows.integer("Task ID"),
        "op": rows.text("Node"),
    }
    times = [header for header in rows.headers if header.lower().replace(" ", "").endswith("_time(us)")]
    frames = [
        pl.DataFrame({**place, "value": rows.real(header)}).with_columns(
            name=pl.lit(unit_of(header)[0]), unit=pl.lit("us")
        )
        for header in times
    ]
    return pl.concat(frames).drop_nulls("value") if frames else pl.DataFrame()


def samples(rows: Rows, group: str) -> pl.DataFrame:
    """Return the frame ``counters`` of ``nic.csv`` or ``roce.csv``: a counter for every column."""
    port = rows.integer("funcId")
    base = pl.DataFrame(
        {"ts": rows.ns("Timestamp(us)", "Timestamp"), "device": _device(rows, "Device_id"), "port": port}
    )
    frames = []
    for header in rows.headers:
        if "".join(header.lower().split()) in _OF_SAMPLES or not header.strip():
            continue
        title, unit = unit_of(header)
        name = pl.when(pl.col("port").is_not_null()).then(pl.format("Port {}/{}", "port", pl.lit(title)))
        value = reals(rows.raw(header), rows.ledger).alias("value")
        frames.append(base.with_columns(value, name=name.otherwise(pl.lit(title)), unit=pl.lit(unit)).drop("port"))
    found = pl.concat(frames) if frames else pl.DataFrame()
    return found.with_columns(group=pl.lit(group)).drop_nulls(["ts", "value"]) if frames else found


def inputs(rows: Rows) -> pl.DataFrame:
    """Return the operators of ``operator_details.csv`` in order: name, shapes."""
    shapes = rows.raw("Input Shapes").str.replace_all(r"[\r\n]", "").cast(pl.Categorical())
    return pl.DataFrame({"name": rows.text("Name"), "shapes": shapes})


def summed(rows: Rows, path: Path) -> pl.DataFrame:
    """Return the rows of a file without times, as one fact: a JSON list of objects."""
    named = {header: rows.raw(header) for header in rows.headers if header.strip()}
    records = pl.DataFrame(named).to_dicts()
    text = json.dumps([{key: value for key, value in one.items() if value is not None} for one in records])
    return pl.DataFrame({"key": [path.name], "value": [text]})


def _device(rows: Rows, *headers: str) -> pl.Series:
    """Return the number in ``NPU:0`` or ``0``."""
    text = rows.text(*headers).cast(pl.String)
    return text.str.extract(r"(\d{1,9})\s*$", 1).cast(pl.Int64, strict=False)
