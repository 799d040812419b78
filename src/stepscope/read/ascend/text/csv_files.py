"""Ascend's CSV files → frames, one function a file; a missing column is null."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import polars as pl

from stepscope.read.ascend.text.csv_rows import AscendRows, key_of
from stepscope.read.ascend.text.text_values import reals
from stepscope.trace import ascend_columns as ascend
from stepscope.trace.ascend_columns import AscendColumn, unit_of

#: Headers of ``kernel_details.csv`` and ``op_summary_*.csv`` that are not hardware counters.
_OF_KERNELS = {key_of(header) for column in ascend.KERNEL_DETAILS for header in column.headers}
#: Columns of a network card's file that say which sample it is.
_OF_SAMPLES = {"device_id", "timestamp(us)", "timestamp", "funcid"}


def _columns(rows: AscendRows, columns: Iterable[AscendColumn]) -> pl.DataFrame:
    """Return the columns of a table that are ours; null if the file lacks one."""
    return pl.DataFrame({column.ours: rows.column(column) for column in columns if column.ours})


def _known(frame: pl.DataFrame, column: str) -> pl.Series:
    return frame[column].set(frame[column] == ascend.UNKNOWN_32, None)


def kernels(rows: AscendRows) -> pl.DataFrame:
    """Return kernels and communication of ``kernel_details.csv`` or ``op_summary_*.csv``.

    Columns of the frame ``tasks``, and one for each hardware counter: ``counter <name>|<unit>``.
    """
    frame = _columns(rows, ascend.KERNEL_DETAILS)
    counters = {
        f"counter {'|'.join(unit_of(header))}": rows.real(header)
        for header in rows.headers
        if key_of(header) not in _OF_KERNELS and header.strip()
    }
    # A kernel's type as a task is the core that it ran on.
    return frame.with_columns(_known(frame, "context"), frame["core"].alias("type"), **counters)


def memory(rows: AscendRows, *, of_mindspore: bool) -> pl.DataFrame:
    """Return the frame ``memory`` of ``memory_record.csv``.

    Args:
        rows: Rows of the file.
        of_mindspore: Whether MindSpore wrote the file: its MB are 1000 KB, those of all others 1024 KB.
    """
    frame = _columns(rows, ascend.MEMORY_RECORD)
    if of_mindspore or frame["component"].cast(pl.String).str.contains("MindSpore").any():
        sizes = pl.col([column.ours for column in ascend.MEMORY_RECORD if column.sort == ascend.HELD_SIZE])
        frame = frame.with_columns((sizes * (1000 / 1024)).round(0).cast(pl.Int64))
    return frame


def blocks(rows: AscendRows) -> pl.DataFrame:
    """Return the frame ``blocks`` of ``operator_memory.csv``."""
    return _columns(rows, ascend.OPERATOR_MEMORY)


def module_memory(rows: AscendRows) -> pl.DataFrame:
    """Return the frame ``counters`` of ``npu_module_mem.csv``, without rows of −1, which stands for unknown."""
    frame = _columns(rows, ascend.NPU_MODULE_MEM).drop_nulls("value")
    return frame.with_columns(
        pl.col("value").cast(pl.Float64), group=pl.lit(ascend.MODULE_MEMORY), unit=pl.lit("bytes")
    )


def static_memory(rows: AscendRows) -> pl.DataFrame:
    """Return the frame ``static_memory`` of ``static_op_mem.csv``, without the sums."""
    frame = _columns(rows, ascend.STATIC_OP_MEM)
    own = frame.with_columns(_known(frame, "last_node")).filter(pl.col("name").cast(pl.String) != "TOTAL")
    return own.drop_nulls("bytes")


def l2_cache(rows: AscendRows) -> pl.DataFrame:
    """Return hit and victim rates of ``l2_cache.csv`` by stream and task: stream, task, op, value, name, unit."""
    frame = _columns(rows, ascend.L2_CACHE_RATES)
    parts = [
        frame.select("stream", "task", "op", value=rate, name=pl.lit(rate), unit=pl.lit("")) for rate in ascend.L2_CACHE
    ]
    return pl.concat(parts).drop_nulls("value")


def ai_cpu(rows: AscendRows) -> pl.DataFrame:
    """Return the parts of an AI CPU task's time of ``data_preprocess.csv`` or ``aicpu_*.csv``.

    Columns: ts, stream, task, op, and the times in µs, one row a time: name, value, unit.
    """
    place = {
        "ts": rows.ns("Timestamp(us)", "Timestamp"),
        "stream": rows.integer("Stream ID"),
        "task": rows.integer("Task ID"),
        "op": rows.text("Node"),
    }
    frames = [
        pl.DataFrame({**place, "value": rows.real(one), "name": unit_of(one)[0], "unit": "us"})
        for one in rows.headers
        if one.lower().replace(" ", "").endswith("_time(us)")
    ]
    return pl.concat(frames).drop_nulls("value") if frames else pl.DataFrame()


def samples(rows: AscendRows, group: str) -> pl.DataFrame:
    """Return the frame ``counters`` of ``nic.csv`` or ``roce.csv``: a counter for every column."""
    port = rows.integer("funcId")
    base = pl.DataFrame({"ts": rows.ns("Timestamp(us)", "Timestamp"), "device": rows.device("Device_id"), "port": port})
    frames = []
    for header in rows.headers:
        if key_of(header) in _OF_SAMPLES or not header.strip():
            continue
        title, unit = unit_of(header)
        name = pl.when(pl.col("port").is_not_null()).then(pl.format("Port {}/{}", "port", pl.lit(title)))
        value = reals(rows.raw(header), rows.ledger).alias("value")
        frames.append(base.with_columns(value, name=name.otherwise(pl.lit(title)), unit=pl.lit(unit)).drop("port"))
    found = pl.concat(frames) if frames else pl.DataFrame()
    return found.with_columns(group=pl.lit(group)).drop_nulls(["ts", "value"]) if frames else found


def inputs(rows: AscendRows) -> pl.DataFrame:
    """Return the operators of ``operator_details.csv`` in order: name, shapes."""
    shapes = rows.raw("Input Shapes").str.replace_all(r"[\r\n]", "").cast(pl.Categorical())
    return pl.DataFrame({"name": rows.text("Name"), "shapes": shapes})


def summed(rows: AscendRows, path: Path) -> pl.DataFrame:
    """Return the rows of a file without times, as one fact: a JSON list of objects."""
    named = {header: rows.raw(header) for header in rows.headers if header.strip()}
    records = pl.DataFrame(named).iter_rows(named=True)
    text = json.dumps([{key: value for key, value in one.items() if value is not None} for one in records])
    return pl.DataFrame({"key": [path.name], "value": [text]})
