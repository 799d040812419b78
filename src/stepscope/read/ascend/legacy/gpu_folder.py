"""The ``profiler`` folder of MindSpore 1.x on a GPU → frames; the layout is that of ``gpu_data_saver.cc`` of MindSpore.

``gpu_op_execute_timestamp_{id}.txt`` holds the operators on the host, ``activity_execute_timestamp_{id}.txt`` the work
on the device; starts are ns since the epoch, durations µs. If they are missing, the timeline that MindSpore drew of
them is read. ``step_trace_profiling_{id}.txt`` holds the steps.

Readers of a file raise InputError if it cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from stepscope.read.ascend.ascend_frames import Frames, coalesced, complete, conform, stacked
from stepscope.read.ascend.text import csv_rows, timeline_events
from stepscope.read.ascend.text.event_columns import BASE, chosen
from stepscope.read.common.plain_text import lines_of
from stepscope.read.common.source import Progress, tell_all
from stepscope.trace.losses import LossLedger

_KERNEL = "KERNEL"
_MOST = 1 << 62
#: Steps of work that is launched and waited for are in 10 ns, those of work that is only launched in ns.
_TICK = 10
_TIMES: dict[str, pl.DataType] = {"ts": pl.Int64(), "dur": pl.Int64()}


def kernels(path: Path, ledger: LossLedger, progress: Progress | None = None) -> Frames:
    """Return the device's work: lines ``name;stream;start;duration``."""
    pattern = r"^(?<name>.*);(?<stream>\d{1,9});(?<ts>\d{1,19});(?<dur>\d+(?:\.\d+)?)\s*$"
    found = _matched(path, pattern, ledger)
    tell_all(path, progress)
    numbers = pl.col("stream", "ts").cast(pl.Int64, strict=False)
    tasks = found.select("name", numbers, dur=_ns("dur"), type=pl.lit(_KERNEL)).filter(pl.col("ts") < _MOST)
    return complete({"tasks": tasks})


def operators(path: Path, ledger: LossLedger, progress: Progress | None = None) -> Frames:
    """Return the operators: lines ``name;Ops;start,duration start,duration …``."""
    lines = _matched(path, r"^(?<name>.*);[^;]*;(?<calls>[\d,. ]*)\s*$", ledger)
    tell_all(path, progress)
    calls = lines.with_columns(pl.col("calls").str.strip_chars().str.split(" ")).explode("calls")
    parts = calls["calls"].str.extract_groups(r"^(?<ts>\d{1,19}),(?<dur>\d+(?:\.\d+)?)$").struct.unnest()
    rows = calls.select("name").with_columns(parts)
    rows = rows.with_columns(pl.col("ts").cast(pl.Int64, strict=False), dur=_ns("dur"))
    ledger.add("value_unreadable", rows["ts"].null_count() - calls.filter(pl.col("calls") == "").height)
    sound = rows.drop_nulls().sort("ts", maintain_order=True).filter(pl.col("ts") < _MOST)
    return complete({"host": sound.with_columns(sort=pl.lit("operator"), module="name")})


def display(path: Path, ledger: LossLedger, progress: Progress | None = None) -> Frames:
    """Return the operators and the work of ``gpu_timeline_display_{id}.json``; lanes of the work have a number."""
    found = chosen(timeline_events.read(path, ledger, progress).complete, (*BASE, "full_name", "grid", "block"))
    on_host = pl.col("thread").is_null()
    tasks = found.filter(~on_host).with_columns(stream="thread", type=pl.lit(_KERNEL), operator="full_name")
    host = found.filter(on_host).with_columns(sort=pl.lit("operator"), module="name", process=None)
    return complete({"host": host, "tasks": tasks})


def activities(path: Path, ledger: LossLedger, progress: Progress | None = None) -> pl.DataFrame:
    """Return what ``gpu_activity_data_{id}.csv`` says of the work of a name on a stream."""
    parts = [
        pl.DataFrame(
            {
                "name": rows.text("name"),
                "stream": rows.integer("stream_id"),
                "operator": rows.text("op_full_name"),
                "grid": rows.text("grid_dim"),
                "block": rows.text("block_dim"),
            }
        )
        for rows in csv_rows.read(path, ledger, progress)
    ]
    return stacked("tasks", parts).unique(["name", "stream"], keep="none")


def with_activities(tasks: pl.DataFrame, said: pl.DataFrame) -> pl.DataFrame:
    """Return tasks with the details of the work of their name on their stream."""
    return coalesced(tasks, said, ["name", "stream"], ("operator", "grid", "block"))


def steps(path: Path, ledger: LossLedger, progress: Progress | None = None) -> pl.DataFrame:
    """Return the frame ``steps``.

    A line is either a step, ``operator,start`` of its first operator, of forward, backward and, with the end, of its
    last; or an operator with ``start,end`` for every step: forward's first, backward's last, the step's last.
    """
    lines = [line.split() for line in lines_of(path, ledger).to_list()]
    tell_all(path, progress)
    of_steps = [words for words in lines if len(words) >= 4 and all("," in word for word in words[:4])]
    found = [(begin, end - begin) for begin, end in map(_ends, of_steps)] if of_steps else list(_of_operators(lines))
    sound = [(begin, dur) for begin, dur in found if 0 < begin < _MOST and 0 <= dur < _MOST]
    ledger.add("value_unreadable", len(found) - len(sound))
    frame = pl.DataFrame(sound, schema=_TIMES, orient="row")
    return conform("steps", frame.with_columns(number=pl.int_range(1, pl.len() + 1, dtype=pl.Int64)))


def _ends(words: list[str]) -> tuple[int, int]:
    return _number(words[0].rpartition(",")[2]), _number(words[3].rpartition(",")[2])


def _of_operators(lines: list[list[str]]) -> Iterator[tuple[int, int]]:
    """Yield the steps: from the end of the step before, the first from its first operator."""
    if len(lines) < 3:
        return
    first, last = lines[0][1:], lines[2][1:]
    begin = _number(first[0].partition(",")[0]) if first else 0
    for word in last:
        end = _number(word.rpartition(",")[2])
        yield begin * _TICK, (end - begin) * _TICK
        begin = end


def _matched(path: Path, pattern: str, ledger: LossLedger) -> pl.DataFrame:
    """Return the groups of the lines that are as they should be; the others are counted."""
    found = lines_of(path, ledger).str.extract_groups(pattern).struct.unnest()
    sound = found.drop_nulls()
    ledger.add("event_damaged", found.height - sound.height)
    return sound


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 20 and int(text) < _MOST else 0


def _ns(microseconds: str) -> pl.Expr:
    return (pl.col(microseconds).cast(pl.Float64) * 1000).round(0).cast(pl.Int64, strict=False)
