"""The timeline tool of ``paddle.fluid``: profile files of several workers as one picture, in Chrome's JSON.

Its rows are the original's: ``trainer1:cpu:block:2``, ``trainer1:cuda_api``, ``trainer1:gpu:0``, ``memory usage on
trainer1:cpu:0``. What was wrong is not: times are µs as Chrome's viewer reads them (the original left ns), memory is
summed by device, events are written once, and no thread is number 0. Clocks of workers are not aligned.

Times are written with three decimals and counted from ``baseTimeNanoseconds``, so that floating-point readers keep the
nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import polars as pl

from stepscope.read.paddle.fluid_profile import CUDA_CALLS, Profile
from stepscope.report.files.json_results import dumps
from stepscope.report.timeline import lanes
from stepscope.report.timeline.chrome_trace import WEEK, us_text
from stepscope.report.whole_files import replacing

_PLACES = {"cpu": "cpu", "cuda": "gpu", "cuda_pinned": "cudapinnedplace"}


def write(profiles: Mapping[str, Profile], path: Path) -> None:
    """Write the picture of all workers' profiles.

    Args:
        profiles: By the worker's label.
        path: The file to make; it appears complete or not at all.

    Raises:
        OutputError: The file or its directory cannot be written.
    """
    events = _labelled({label: profile.events for label, profile in profiles.items()})
    memory = _labelled({label: profile.memory for label, profile in profiles.items()})
    starts = [int(frame["ts"].min()) for frame in (events, memory) if frame.height]  # type: ignore[arg-type]
    base = min(starts, default=0) // WEEK * WEEK
    events = events.with_columns(process=_process())
    memory = memory.with_columns(process=_memory_process())
    names = pl.concat([events["process"], memory["process"]]).unique(maintain_order=True)
    processes = pl.DataFrame({"process": names, "pid": range(1, len(names) + 1)}, schema_overrides={"pid": pl.Int64})
    slices = _with_lanes(events.join(processes, on="process", how="left", maintain_order="left"), len(names))
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(f'{{"displayTimeUnit":"ns","baseTimeNanoseconds":{base},"traceEvents":[\n')
        lines = [*_names(processes, slices)]
        lines += _slices(slices, base).to_list()
        lines += _samples(memory.join(processes, on="process", how="left", maintain_order="left"), base).to_list()
        file.write(",\n".join(lines) + "\n]}\n")


def _labelled(frames: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    return pl.concat([frame.with_columns(worker=pl.lit(label)) for label, frame in frames.items()])


def _process() -> pl.Expr:
    """Return the row that an event is drawn in: on a CPU blocks of the same depth, calls of CUDA, or a GPU."""
    return (
        pl.when("on_gpu")
        .then(pl.format("{}:gpu:{}", "worker", "device"))
        .when(pl.col("device") == CUDA_CALLS)
        .then(pl.format("{}:cuda_api", "worker"))
        .otherwise(pl.format("{}:cpu:block:{}", "worker", "device"))
    )


def _memory_process() -> pl.Expr:
    place = pl.col("place").replace_strict(_PLACES, return_dtype=pl.String)
    return pl.format("memory usage on {}:{}:{}", "worker", place, "device")


def _with_lanes(events: pl.DataFrame, processes: int) -> pl.DataFrame:
    """Give events a thread of their process; on each, events nest or follow each other, as viewers want them.

    Threads are numbered through all processes, behind the processes' numbers: no viewer mistakes one for another.
    """
    track = events.select(pl.struct("pid", "sub").rank("dense").cast(pl.Int64)).to_series()
    _, lane = lanes.assign(track.to_numpy(), events["ts"].to_numpy(), (events["end"] - events["ts"]).to_numpy())
    numbered = events.with_columns(lane=pl.Series(lane, dtype=pl.Int64))
    return numbered.with_columns(tid=pl.struct("pid", "sub", "lane").rank("dense").cast(pl.Int64) + processes)


def _names(processes: pl.DataFrame, slices: pl.DataFrame) -> Iterator[str]:
    """Yield the events that name processes and threads."""
    for name, pid in processes.iter_rows():
        yield dumps({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        yield dumps({"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}})
    threads = slices.select("pid", "tid", "sub", "lane", "on_gpu").unique().sort("tid")
    for pid, tid, sub, lane, on_gpu in threads.iter_rows():
        name = f"{'stream' if on_gpu else 'thread'} {sub}" + (f" ({lane + 1})" if lane else "")
        yield dumps({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})


def _slices(slices: pl.DataFrame, base: int) -> pl.Series:
    """Return each event as a line of JSON."""
    name, detail = (_json(slices[column]) for column in ("name", "detail"))
    frame = slices.with_columns(name=name, detail=pl.when(slices["detail"] != "").then(detail))
    frame = frame.with_columns(ts=pl.col("ts") - base, dur=pl.col("end") - pl.col("ts"))
    copied = pl.format(',"mem_bytes":{}', "bytes").fill_null("")
    details = pl.format(',"detail_info":{}', "detail").fill_null("")
    event = '{{"ph":"X","cat":"Op","name":{},"pid":{},"tid":{},"ts":{},"dur":{},"args":{{"name":{}{}{}}}}}'
    text = pl.format(event, "name", "pid", "tid", us_text("ts"), us_text("dur"), "name", copied, details)
    return frame.select(text).to_series()


def _samples(memory: pl.DataFrame, base: int) -> pl.Series:
    """Return what is in use in each place whenever that changes; what was before the profile began is not known."""
    taken = memory.select("pid", "ts", "bytes")
    freed = memory.select("pid", pl.col("end").alias("ts"), -pl.col("bytes"))
    changes = pl.concat([taken, freed]).group_by("pid", "ts").agg(pl.col("bytes").sum()).sort("pid", "ts")
    totals = changes.with_columns(pl.col("bytes").cum_sum().over("pid"), pl.col("ts") - base)
    event = '{{"ph":"C","cat":"Memory","name":"Memory","pid":{},"ts":{},"args":{{"bytes":{}}}}}'
    return totals.select(pl.format(event, "pid", us_text("ts"), "bytes")).to_series()


def _json(texts: pl.Series) -> pl.Series:
    distinct = texts.unique().drop_nulls()
    return texts.replace_strict(distinct, pl.Series([dumps(text) for text in distinct], dtype=pl.String))
