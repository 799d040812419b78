"""The ``profiler`` folder of MindSpore 1.x on Ascend → frames.

``output_timeline_data_{id}.txt`` holds the kernels, ``step_trace_raw_{id}_detail_time.csv`` the steps, both on the
processor's clock, which starts with the machine: ms in one, 10 ns in the other. ``framework_raw_{id}.csv``
says what the kernels are. If only the timeline that MindSpore drew is present, it is read instead.

Readers of a file raise InputError if it cannot be read.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.read.ascend.ascend_frames import FRAMES, Frames, coalesced, complete, stacked
from stepscope.read.ascend.text import csv_rows, timeline_events
from stepscope.read.common.source import Progress
from stepscope.trace.losses import LossLedger

_TICK = 10
#: Where communication on a stream begins: the profiler sums up what runs there without a gap.
_REDUCE = re.compile(r"stream_(\d{1,9})_parallel_(\d{1,9})_start_point")
_MOST = 1 << 62
#: Processes of the timeline that MindSpore drew.
_AI_CPU, _STEP_TRACE = 9000, 10000
_CORE = "AI_CORE"


def timeline(path: Path, ledger: LossLedger, progress: Progress | None = None) -> Frames:
    """Return the kernels of ``output_timeline_data_{id}.txt``."""
    parts = [
        pl.DataFrame(
            {
                "ts": rows.ns("start_time(ms)", scale=1000),
                "dur": rows.ns("duration(ms)", scale=1000),
                "stream": rows.integer("stream_id"),
                "name": rows.text("op_name"),
            }
        )
        for rows in csv_rows.read(path, ledger, progress)
    ]
    ledger.add("start_unknown", int(bool(parts)))
    sound = stacked("tasks", parts).drop_nulls(["ts", "dur"])
    return complete({"tasks": sound.with_columns(type=pl.lit(_CORE), core=pl.lit(_CORE))})


def display(path: Path, ledger: LossLedger, progress: Progress | None = None) -> Frames:
    """Return the kernels of ``ascend_timeline_display_{id}.json``, whose times are relative to its first event."""
    found = timeline_events.read(path, ledger, progress).complete
    ledger.add("start_unknown", int(bool(found.height)))
    process = pl.col("process")
    kind = pl.when(process == _AI_CPU).then(pl.lit("AI_CPU")).when(process == _STEP_TRACE).then(pl.lit("STEP_TRACE"))
    sort = kind.otherwise(pl.lit(_CORE))
    core = pl.when(process != _STEP_TRACE).then(sort)
    return complete({"tasks": found.with_columns(stream="thread", type=sort, core=core)})


def steps(path: Path, ledger: LossLedger, progress: Progress | None = None) -> Frames:
    """Return the steps of ``step_trace_raw_{id}_detail_time.csv``, and its communication, which is summed by stream.

    The line of averages at the end is left out.
    """
    parts, reduced = [], []
    for rows in csv_rows.read(path, ledger, progress):
        number = rows.integer("step_num")
        parts.append(_intervals(rows, number, "start_point", "end_point"))
        for header in rows.headers:
            found = _REDUCE.fullmatch(csv_rows.key_of(header))
            if found is None:
                continue
            stream, place = int(found[1]), int(found[2])
            of_stream = _intervals(rows, number, header, f"stream_{stream}_parallel_{place}_end_point")
            name = pl.lit(f"stream {stream} reduce {place}")
            # The file does not say which operations these are.
            reduced.append(of_stream.select("ts", "dur", name=name, step="number", lane=pl.lit(stream, pl.Int64)))
    communications = stacked("communications", reduced).sort("ts", maintain_order=True)
    return complete({"steps": stacked("steps", parts), "communications": communications})


def _intervals(rows: csv_rows.AscendRows, number: pl.Series, start: str, stop: str) -> pl.DataFrame:
    """Return the numbers, starts and durations, ns, of the lines that have both ends of an interval."""
    frame = pl.DataFrame({"number": number, "begin": rows.integer(start), "end": rows.integer(stop)}).drop_nulls()
    begin, end = pl.col("begin"), pl.col("end")
    sound = frame.filter(begin > 0, end >= begin, end < _MOST // _TICK)
    return sound.select("number", ts=begin * _TICK, dur=(end - begin) * _TICK)


def kernels(path: Path, ledger: LossLedger, progress: Progress | None = None) -> pl.DataFrame:
    """Return what ``framework_raw_{id}.csv`` says of the kernels, by full name: columns of the frame ``tasks``."""
    parts = []
    for rows in csv_rows.read(path, ledger, progress):
        said = [_inputs(text) for text in rows.raw("op_info").to_list()]
        columns = [[one[place] for one in said] for place in range(len(_SAID))]
        parts.append(
            pl.DataFrame(
                {
                    "name": rows.text("full_kernel_name", "full_op_name"),
                    "op_type": rows.text("kernel_type", "op_type"),
                    "blocks": rows.integer("block_dim"),
                    "task": rows.integer("task_id"),
                    **dict(zip(_SAID, columns, strict=True)),
                },
                schema_overrides=dict.fromkeys(_SAID, pl.String),
            )
        )
    return stacked("tasks", parts).unique("name", keep="first", maintain_order=True)


_SAID = ("input_shapes", "input_dtypes", "input_formats", "output_shapes", "output_dtypes", "output_formats")


def _inputs(text: str | None) -> tuple[str | None, ...]:
    """Return shapes, types and formats of inputs and outputs, separated by semicolons."""
    try:
        said: Any = json.loads(text or "")
    except (ValueError, RecursionError):
        said = None
    tensors = said if isinstance(said, dict) else {}
    found: list[str | None] = []
    for side in ("input", "output"):
        chosen = [value for key, value in tensors.items() if key.startswith(side) and isinstance(value, dict)]
        found += [
            ";".join(_text(one.get(key)) for one in chosen) if chosen else None
            for key in ("shape", "data_type", "format")
        ]
    return tuple(found)


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value or "").removeprefix("NUMBER_TYPE_")


def together(tasks: pl.DataFrame, said: pl.DataFrame) -> pl.DataFrame:
    """Return tasks with the details of the kernel of their name."""
    columns = ("op_type", "blocks", "task", *_SAID)
    known = said.with_columns(pl.col(name).cast(FRAMES["tasks"][name]) for name in ("name", *columns))
    return coalesced(tasks, known, "name", columns)
