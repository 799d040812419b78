"""Work, calls and waits of one CUPTI capture → tables of the schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import PartBuilder, TrackRow
from stepscope.trace.clock import Clock
from stepscope.trace.tables import dtype


@dataclass(frozen=True)
class CuptiContent:
    """What was recorded, as :mod:`stepscope.read.cupti.cupti_work` gives it, and by which process.

    Attributes:
        work: Kernels, copies and fills.
        calls: Calls of the runtime and driver.
        waits: Waits for streams, events and contexts.
        overheads: CUPTI's and the driver's own work.
        allocations: Device memory taken and freed.
        process: Process id.
        contexts: Context → its device.
    """

    work: pl.DataFrame
    calls: pl.DataFrame
    waits: pl.DataFrame
    overheads: pl.DataFrame
    allocations: pl.DataFrame
    process: int | None
    contexts: Mapping[int, int]


def add_to(part: PartBuilder, content: CuptiContent, clock: Clock) -> None:
    """Add spans, kernels and allocations of one capture; ``clock``: from CUPTI's time to the epoch."""
    tracks, work, calls = part.tracks, content.work, content.calls
    device = pl.col("context").replace_strict(content.contexts or {0: 0}, default=0, return_dtype=pl.Int64)
    waits = content.waits.with_columns(device=device, stream=pl.when(pl.col("stream") < 1 << 31).then("stream"))
    own = TrackRow("other", "cpu", "profiler overhead", content.process)
    batches = [
        _batch(work, work["kind"], tracks.numbered(_stream, work["device"], work["stream"], _one_of_several(work))),
        _batch(calls, calls["kind"], tracks.numbered(_thread, calls["process"], calls["thread"])),
        _batch(waits, "sync", tracks.numbered(_waits, waits["device"], waits["stream"])),
        _batch(content.overheads, "overhead", [tracks.number(own) for _ in range(content.overheads.height)]),
    ]
    spans = pl.concat(batches, how="diagonal")
    start, end = (epochs(spans[name].to_numpy(), clock) for name in ("ts", "end"))
    part.add_spans(spans.drop("end").with_columns(ts=pl.Series(start), dur=pl.Series(np.maximum(end - start, 0))))
    part.add("kernels", _kernels(work))
    memory = content.allocations
    part.add("allocations", memory.with_columns(ts=pl.Series(epochs(memory["ts"].to_numpy(), clock), dtype=pl.Int64)))


def _batch(frame: pl.DataFrame, kind: pl.Series | str, track: pl.Series | list[int]) -> pl.DataFrame:
    """Return spans of one sort with their kind and track; times are still those of CUPTI."""
    columns = [name for name in ("ts", "end", "name", "correlation") if name in frame.columns]
    of_kind = kind.alias("kind") if isinstance(kind, pl.Series) else pl.lit(kind).alias("kind")
    return frame[columns].with_columns(of_kind.cast(dtype("enum:kind")), pl.Series("track", track, dtype=pl.Int32))


def epochs(times: Integers, clock: Clock) -> Integers:
    """Return times of CUPTI's clock as ns since the epoch."""
    if not len(times):
        return times
    first, last = int(times.min()), int(times.max())
    shift = clock.epoch(first) - first
    if clock.jumps == 0 and clock.epoch(last) - last == shift:
        return times + shift
    return np.array(clock.epochs(times.tolist()), np.int64)


def _one_of_several(work: pl.DataFrame) -> pl.Series:
    """Return the contexts of work on devices that run several: numbers of streams are unique within a context only."""
    several = pl.col("context").n_unique().over("device") > 1
    return work.select(pl.when(several).then("context")).to_series()


def _stream(device: int, stream: int, context: int | None) -> TrackRow:
    name = f"stream {stream}" if context is None else f"stream {stream} of context {context}"
    return TrackRow("stream", f"cuda:{device}", name, stream=stream)


def _thread(process: int, thread: int) -> TrackRow:
    return TrackRow("thread", "cpu", f"thread {thread}", process, thread)


def _waits(device: int, stream: int | None) -> TrackRow:
    name = "context" if stream is None else f"stream {stream}"
    return TrackRow("other", f"cuda:{device}", f"{name} synchronisation", stream=stream)


def _kernels(work: pl.DataFrame) -> pl.DataFrame:
    """Return details of device work, whose spans come first and in this order."""
    duration = pl.col("end") - pl.col("ts")
    return work.select(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("span"),
        *("device", "context", "stream", "grid", "block", "registers", "occupancy", "blocks_per_sm", "warps_per_sm"),
        *("bytes", "graph", "graph_node", "priority"),
        shared_memory=pl.col("static_shared") + pl.col("dynamic_shared"),
        bandwidth=pl.when((pl.col("kind") == "memcpy") & (duration > 0)).then(pl.col("bytes") / duration),
    )
