"""What a rank was doing, as sets of time: computing, communication, copies, waits for data, host activity.

The tracks that do the work are the device's streams; on a rank without a device, the host threads that run operators.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analyse.intervals import EMPTY, Intervals, Times, subtract, union, unite
from stepscope.trace.tables import Tables, dtype

#: Kinds of spans that are work when they lie on a device's stream.
DEVICE_WORK: tuple[str, ...] = ("kernel", "memcpy", "memset", "collective")
#: Kinds of spans that show that the host runs operators or Python.
HOST_ACTIVITY: tuple[str, ...] = (
    "operator",
    "collective",
    "runtime",
    "driver",
    "python",
    "sync",
    "garbage",
    "overhead",
    "compile",
)


@dataclass(frozen=True, eq=False)
class Work:
    """Sets of time of one rank; all may overlap each other.

    Attributes:
        on_device: Whether the work is that of device streams; else that of host threads.
        computing: Work that is neither communication nor a copy.
        communication: Collectives and point-to-point communication.
        receiving: The part of the communication that is point to point.
        copying: Copies to, from and within a device.
        data: A host thread waits for its next batch.
        host: Host threads run operators, Python, or calls of the device's runtime.
    """

    on_device: bool
    computing: Intervals
    communication: Intervals
    receiving: Intervals
    copying: Intervals
    data: Intervals
    host: Intervals


@dataclass(frozen=True, eq=False)
class Windows:
    """The steps as windows of time.

    Attributes:
        number: Number of each step, int64; a single 0 where the rank has no steps.
        start: Starts in ns.
        end: Ends in ns.
        declared: Whether there are steps at all; else the one window is the range of everything recorded.
    """

    number: Times
    start: Times
    end: Times
    declared: bool


def track_ids(tables: Tables, kind: str) -> list[int]:
    """Return the ids of the tracks of one kind: ``thread``, ``stream``, …; filtering by them is faster than a join."""
    tracks = tables["tracks"].filter(pl.col("kind") == kind).select("id").collect()
    return tracks["id"].to_list()


def located(tables: Tables) -> pl.DataFrame:
    """Return the spans on host threads and device streams: id, track, ts, end, kind, on_stream.

    An operator of the phase ``communication`` (a call of torch.distributed that waits for its result) is a collective.
    """
    threads, streams = track_ids(tables, "thread"), track_ids(tables, "stream")
    spans = tables["spans"].filter(pl.col("track").is_in(threads + streams))
    on_stream = pl.col("track").is_in(streams).alias("on_stream")
    calls = (pl.col("kind") == "operator") & (pl.col("phase") == "communication")
    kind = pl.when(calls).then(pl.lit("collective", dtype("enum:kind"))).otherwise("kind").alias("kind")
    end = (pl.col("ts") + pl.col("dur")).alias("end")
    return spans.select("id", "track", "ts", end, kind, on_stream).collect()


def windows(tables: Tables, spans: pl.DataFrame) -> Windows:
    """Return the steps in order; where there are none, one window over everything in ``spans``.

    Args:
        tables: Tables of a rank.
        spans: What :func:`located` returned for them.
    """
    steps = tables["steps"].select("number", "ts", (pl.col("ts") + pl.col("dur")).alias("end")).sort("ts").collect()
    if len(steps):
        columns = [steps[name].cast(pl.Int64).to_numpy() for name in ("number", "ts", "end")]
        return Windows(columns[0], columns[1], columns[2], declared=True)
    if not len(spans):
        return Windows(EMPTY.start, EMPTY.start, EMPTY.start, declared=False)
    first, last = spans["ts"].to_numpy().min(), spans["end"].to_numpy().max()
    return Windows(np.zeros(1, np.int64), np.array([first]), np.array([last]), declared=False)


def work(tables: Tables, spans: pl.DataFrame) -> Work:
    """Return what the rank was doing.

    Args:
        tables: Tables of a rank.
        spans: What :func:`located` returned for them.
    """
    device = spans.filter(pl.col("on_stream") & pl.col("kind").is_in(DEVICE_WORK))
    threads = spans.filter(~pl.col("on_stream"))
    worker = device if len(device) else threads
    computing = _set(device, "kernel", "memset") if len(device) else _computing_on_threads(threads)
    received = tables["collectives"].filter(is_point_to_point()).select("span").collect()
    return Work(
        on_device=bool(len(device)),
        computing=computing,
        communication=_set(worker, "collective"),
        receiving=_set(worker.join(received, left_on="id", right_on="span", how="semi"), "collective"),
        copying=_set(device, "memcpy"),
        data=_set(threads, "data"),
        host=_set(threads, *HOST_ACTIVITY),
    )


def is_point_to_point() -> pl.Expr:
    """Return whether a row of the table ``collectives`` moves data between two ranks rather than within a group."""
    named = pl.col("operation").cast(pl.String).str.contains("^(i?send|i?recv|receive)(_|$)")
    return named | pl.col("source").is_not_null() | pl.col("destination").is_not_null()


def _set(spans: pl.DataFrame, *kinds: str) -> Intervals:
    chosen = spans.filter(pl.col("kind").is_in(kinds))
    return unite(chosen["ts"].to_numpy(), chosen["end"].to_numpy())


def _computing_on_threads(threads: pl.DataFrame) -> Intervals:
    """Return when host threads run operators: on each, without its waits for data and its communication calls.

    An operator inside a wait for data (a batch put together on the training thread) belongs to that wait; one around or
    inside a communication call does not compute while that lasts.
    """
    parts = [
        subtract(_set(mine, "operator"), _set(mine, "data", "collective"))
        for mine in threads.filter(pl.col("kind").is_in(["operator", "data", "collective"])).partition_by("track")
    ]
    return union(*parts) if parts else EMPTY
