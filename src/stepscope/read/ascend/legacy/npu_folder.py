"""The ``profiler`` folder of MindSpore 1.x on Ascend → frames.

``output_timeline_data_{id}.txt`` holds the kernels, ``step_trace_raw_{id}_detail_time.csv`` the steps, both on the
processor's clock, which counts from the start of the machine: ms in one, 10 ns in the other. ``framework_raw_{id}.csv``
says what the kernels are. If only the timeline that MindSpore drew is present, it is read instead.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.read.ascend.ascend_frames import Frames, complete, conform
from stepscope.read.ascend.text import csv_rows, timeline_events
from stepscope.read.common.source import Progress
from stepscope.trace.losses import LossLedger

_TICK = 10
_MOST = 1 << 62
#: Processes of the timeline that MindSpore drew.
_AI_CPU, _STEP_TRACE = 9000, 10000
_CORE = "AI_CORE"


def timeline(path: Path, ledger: LossLedger, progress: Progress | None = None) -> Frames:
    """Return the kernels of ``output_timeline_data_{id}.txt``.

    Raises:
        InputError: It cannot be read.
    """
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
    found = pl.concat([pl.DataFrame(schema={"ts": pl.Int64, "dur": pl.Int64}), *parts], how="diagonal")
    sound = found.drop_nulls(["ts", "dur"]).with_columns(type=pl.lit(_CORE), core=pl.lit(_CORE))
    return complete({"tasks": conform("tasks", sound)})


def display(path: Path, ledger: LossLedger, progress: Progress | None = None) -> Frames:
    """Return the kernels of ``ascend_timeline_display_{id}.json``, whose times count from its first event.

    Raises:
        InputError: It cannot be read.
    """
    found = timeline_events.read(path, ledger, progress).complete
    ledger.add("start_unknown", int(bool(found.height)))
    process = pl.col("process")
    kind = pl.when(process == _AI_CPU).then(pl.lit("AI_CPU")).when(process == _STEP_TRACE).then(pl.lit("STEP_TRACE"))
    sort = kind.otherwise(pl.lit(_CORE))
    core = pl.when(process != _STEP_TRACE).then(sort)
    return complete({"tasks": conform("tasks", found.with_columns(stream="thread", type=sort, core=core))})


def steps(path: Path, ledger: LossLedger, progress: Progress | None = None) -> pl.DataFrame:
    """Return the frame ``steps`` of ``step_trace_raw_{id}_detail_time.csv``, without its line of averages.

    Raises:
        InputError: It cannot be read.
    """
    parts = []
    for rows in csv_rows.read(path, ledger, progress):
        number, begin, end = rows.integer("step_num"), rows.integer("start_point"), rows.integer("end_point")
        frame = pl.DataFrame({"number": number, "begin": begin, "end": end}).drop_nulls()
        sound = frame.filter(
            (pl.col("begin") > 0) & (pl.col("end") >= pl.col("begin")) & (pl.col("end") < _MOST // _TICK)
        )
        parts.append(sound.select("number", ts=pl.col("begin") * _TICK, dur=(pl.col("end") - pl.col("begin")) * _TICK))
    return pl.concat([conform("steps", pl.DataFrame()), *parts])


def kernels(path: Path, ledger: LossLedger, progress: Progress | None = None) -> pl.DataFrame:
    """Return what ``framework_raw_{id}.csv`` says of the kernels, by their full name: columns of the frame ``tasks``.

    Raises:
        InputError: It cannot be read.
    """
    parts = []
    for rows in csv_rows.read(path, ledger, progress):
        name = rows.text("full_kernel_name", "full_op_name")
        said = [_inputs(text) for text in rows.raw("op_info").to_list()]
        columns = [[one[place] for one in said] for place in range(len(_SAID))]
        parts.append(
            pl.DataFrame(
                {
                    "name": name,
                    "op_type": rows.text("kernel_type", "op_type"),
                    "blocks": rows.integer("block_dim"),
                    "task": rows.integer("task_id"),
                    **dict(zip(_SAID, columns, strict=True)),
                },
                schema_overrides=dict.fromkeys(_SAID, pl.String),
            )
        )
    empty = pl.DataFrame(schema={"name": pl.Categorical})
    return pl.concat([empty, *parts], how="diagonal").unique("name", keep="first", maintain_order=True)


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
    joined = tasks.join(
        said.with_columns(pl.col("name").cast(pl.Categorical())),
        on="name",
        how="left",
        suffix="_said",
        maintain_order="left",
    )
    columns = ("op_type", "blocks", "task", *_SAID)
    return joined.with_columns(
        pl.coalesce(
            name, pl.col(f"{name}_said").cast(pl.Categorical() if name != "blocks" and name != "task" else pl.Int64())
        ).alias(name)
        for name in columns
    ).select(tasks.columns)
