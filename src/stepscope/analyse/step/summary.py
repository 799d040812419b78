"""The summary of a rank: the few numbers that the printed page shows.

Every time is in integer nanoseconds, every share a fraction of the steps' time between 0 and 1 unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from stepscope.analyse.data.dataset import arguments, waits
from stepscope.analyse.intervals import unite
from stepscope.analyse.memory.memory_record import RESIDENT
from stepscope.analyse.operators import op_statistic
from stepscope.analyse.step import sample
from stepscope.analyse.step.activity import Windows, of_kinds, span_kinds
from stepscope.analyse.step.look_first import look_first
from stepscope.analyse.step.step_trace_time import Split, split
from stepscope.trace.losses import Loss, by_severity
from stepscope.trace.tables import Tables, collected, columns_of, has_rows, schema

#: How many operators and kernels the summary names.
TOP = 10


@dataclass(frozen=True)
class Steps:
    """How many steps, and how long they took.

    Attributes:
        count: Number of steps; 0 if the trace has none, and the times below are those of its whole range.
        total_ns: Sum of the steps' durations.
        mean_ns: Mean duration.
        p50_ns: Median duration.
        p95_ns: The duration that 95 % of the steps do not exceed (linear interpolation).
        shortest_ns: Shortest duration.
        longest_ns: Longest duration.
        per_second: Steps per second of step time; 0 without steps.
        inferred: Whether the steps were inferred rather than declared by the program.
    """

    count: int
    total_ns: int
    mean_ns: float
    p50_ns: float
    p95_ns: float
    shortest_ns: int
    longest_ns: int
    per_second: float
    inferred: bool


@dataclass(frozen=True)
class StepPart:
    """One part of the steps' time; the parts are disjoint and their sum is the steps' total.

    Attributes:
        name: ``computing``, ``communication``, ``copy``, ``data wait``, ``host only`` or ``idle``.
        total_ns: Time over all steps.
        mean_ns: Time in the mean step.
        share: Fraction of the steps' time.
    """

    name: str
    total_ns: int
    mean_ns: float
    share: float


@dataclass(frozen=True)
class Entry:
    """One operator or kernel among those that take most time.

    Attributes:
        name: Name.
        kind: Kind of its spans: operator, kernel, memcpy, memset or collective.
        total_ns: Self time of an operator, duration of a kernel, summed over all calls; of a sample of the operators,
            an estimate of their whole durations.
        count: Number of calls; of a sample, an estimate.
        share: Fraction of the time of all operators, or of all device work; of a sample, of the steps' time.
        error_ns: Standard error of ``total_ns``; 0 if it is not an estimate.
    """

    name: str
    kind: str
    total_ns: int
    count: int
    share: float
    error_ns: float = 0.0


@dataclass(frozen=True)
class DataWait:
    """How long the training thread waited for its next batch, inside the steps.

    Attributes:
        total_ns: All waiting, also while the device worked.
        exposed_ns: Waiting while nothing else worked: the part ``data wait`` of the split.
        share: ``total_ns`` as a fraction of the steps' time.
        count: Number of waits.
        workers: Worker processes of the data loader; None if the recording does not say.
    """

    total_ns: int
    exposed_ns: int
    share: float
    count: int
    workers: int | None


@dataclass(frozen=True)
class Garbage:
    """Pauses of Python's garbage collector inside the steps: their time, fraction of the steps' time, and number."""

    total_ns: int
    share: float
    count: int


@dataclass(frozen=True)
class MemoryPeak:
    """Most memory on one device, in bytes: allocated by tensors, reserved by the framework; None if unknown."""

    device: str
    allocated: int | None
    reserved: int | None


@dataclass(frozen=True)
class Summary:
    """What the printed summary shows.

    Attributes:
        on_device: Whether the split is that of device streams; else that of host threads.
        devices: Names of the devices that worked, such as ``cuda:0``.
        steps: Number and durations of the steps.
        split: Disjoint parts of the steps' time, in the order of :class:`StepPart`; they add up to it exactly. With a
            sample of the operators, ``host only`` counts as ``idle``, and on a rank without a device nothing is known.
        operators: Host operators with most self time within the steps, or anywhere without steps; most first.
        kernels: Device work with most time, likewise; empty without a device.
        data_wait: Waiting for batches.
        garbage: Garbage collection.
        memory: Peak of every device that reported memory, ``cpu`` among them.
        resident_bytes: Largest resident set of the process; None if it was not sampled.
        losses: Everything dropped, cut, clipped or repaired, most severe first.
        look_first: One line: what to look at first.
        sampled: Fraction of the operators that was recorded.
    """

    on_device: bool
    devices: tuple[str, ...]
    steps: Steps
    split: tuple[StepPart, ...]
    operators: tuple[Entry, ...]
    kernels: tuple[Entry, ...]
    data_wait: DataWait
    garbage: Garbage
    memory: tuple[MemoryPeak, ...]
    resident_bytes: int | None
    losses: tuple[Loss, ...]
    look_first: str
    sampled: float = 1.0


def summarise(tables: Tables) -> Summary:
    """Return the summary of a rank; of empty tables, one that says so."""
    parts, drawn = split(tables), sample.of(tables)
    sampled = drawn.fraction
    windows, work = parts.windows, parts.work
    inferred = "inferred" in columns_of(tables, "steps", "source")["source"].to_list()
    steps = _steps(windows, inferred=inferred)
    device, host = op_statistic.device_work(tables), op_statistic.host_work(tables)
    if windows.declared:  # what is shown is per step
        device, host = (_in_steps(work) for work in (device, host))
    summary = Summary(
        on_device=work.on_device,
        devices=tuple(sorted(set(device["device"].to_list()))),
        steps=steps,
        split=_parts(parts if sampled == 1 else _of_sample(parts), steps.total_ns),
        operators=_top(tables, host) if sampled == 1 else _estimated(host, drawn, steps.total_ns),
        kernels=_top(tables, device),
        data_wait=_data_wait(tables, parts, steps.total_ns),
        garbage=_garbage(tables, windows, steps.total_ns),
        memory=_memory(tables),
        resident_bytes=_resident(tables),
        losses=tuple(by_severity(Loss(*row) for row in columns_of(tables, "losses", *schema("losses")).iter_rows())),
        look_first="",
        sampled=sampled,
    )
    return replace(summary, look_first=look_first(summary))


def _steps(windows: Windows, *, inferred: bool) -> Steps:
    durations = windows.end - windows.start
    if not len(durations):
        return Steps(0, 0, 0.0, 0.0, 0.0, 0, 0, 0.0, inferred=False)
    total, count = int(durations.sum()), len(durations)
    return Steps(
        count=count if windows.declared else 0,
        total_ns=total,
        mean_ns=total / count,
        p50_ns=float(np.percentile(durations, 50)),
        p95_ns=float(np.percentile(durations, 95)),
        shortest_ns=int(durations.min()),
        longest_ns=int(durations.max()),
        per_second=count * 1e9 / total if windows.declared and total else 0.0,
        inferred=inferred,
    )


def _parts(parts: Split, total: int) -> tuple[StepPart, ...]:
    count = max(1, len(parts.windows.start))
    sums = {name: int(times.sum()) for name, times in parts.parts.items()}
    return tuple(StepPart(name, time, time / count, _share(time, total)) for name, time in sums.items())


def _of_sample(parts: Split) -> Split:
    """Return what is known where only a sample of the operators is there: what devices do, and waits for data."""
    if not parts.work.on_device:
        return replace(parts, parts={})
    idle = parts.parts["idle"] + parts.parts["host only"]
    return replace(parts, parts={**parts.parts, "host only": np.zeros_like(idle), "idle": idle})


def _in_steps(work: pl.DataFrame) -> pl.DataFrame:
    step = work["step"]
    return work[np.flatnonzero(~np.isnan(step.to_numpy()))] if step.null_count() else work


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _top(tables: Tables, work: pl.DataFrame) -> tuple[Entry, ...]:
    """Return the names with most time over all devices."""
    if not len(work):
        return ()
    whole = int(work["time"].sum())
    sums = work.lazy().group_by("name", "kind").agg(pl.col("time").sum(), pl.len().alias("count"))
    first = sums.sort("time", "name", "kind", descending=[True, False, False]).head(TOP).pipe(collected, tables)
    return tuple(Entry(name, kind, time, count, _share(time, whole)) for name, kind, time, count in first.rows())


def _estimated(work: pl.DataFrame, sampled: sample.Sample, whole: int) -> tuple[Entry, ...]:
    """Return the names with most time, estimated from a sample; shares are those of the steps' time."""
    first = op_statistic.statistic(work, sampled).head(TOP).select("name", "kind", "total", "count", "total_error")
    rows = first.collect().rows()
    return tuple(
        Entry(name, kind, total, count, _share(total, whole), error) for name, kind, total, count, error in rows
    )


def _data_wait(tables: Tables, parts: Split, total: int) -> DataWait:
    found = waits(tables)
    waited = int(parts.work.data.within(parts.windows.start, parts.windows.end).sum())
    exposed = int(parts.parts["data wait"].sum())
    return DataWait(waited, exposed, _share(waited, total), len(found), workers(tables, found))


def workers(tables: Tables, found: pl.DataFrame) -> int | None:
    """Return the worker processes of the data loader; the most if there are several loaders.

    They are the argument ``workers`` of the waits ``found`` (columns id and name); without it, PyTorch's loader
    without any is known by its name.
    """
    said = [values.get("workers") for values in arguments(tables, found["id"]).values()]
    known = [value for value in said if isinstance(value, int)]
    if known:
        return max(known)
    alone = all("_SingleProcessDataLoaderIter" in name for name in found["name"].to_list())
    return 0 if len(found) and alone else None


def _garbage(tables: Tables, windows: Windows, total: int) -> Garbage:
    rows = np.flatnonzero(of_kinds(span_kinds(tables), "garbage"))
    if not len(rows):
        return Garbage(0, 0.0, 0)
    pauses = columns_of(tables, "spans", "ts", "dur")[rows]
    paused = unite(pauses["ts"].to_numpy(), (pauses["ts"] + pauses["dur"]).to_numpy())
    time = int(paused.within(windows.start, windows.end).sum())
    return Garbage(time, _share(time, total), len(rows))


def _memory(tables: Tables) -> tuple[MemoryPeak, ...]:
    """Return the peaks; nothing is reserved on the host: PyTorch gives the sizes of mapped files under that name."""
    if not has_rows(tables, "allocations"):
        return ()
    peaks = tables["allocations"].group_by(pl.col("device").cast(pl.String)).agg(pl.col("allocated", "reserved").max())
    known = peaks.filter(pl.any_horizontal(pl.col("allocated", "reserved").is_not_null()))
    rows = known.sort("device").pipe(collected, tables).rows()
    return tuple(MemoryPeak(name, allocated, None if name == "cpu" else reserved) for name, allocated, reserved in rows)


def _resident(tables: Tables) -> int | None:
    if not has_rows(tables, "counters"):
        return None
    samples = tables["counters"].filter(pl.col("name").cast(pl.String) == RESIDENT)
    largest = samples.select(pl.col("value").max()).pipe(collected, tables).item()
    return None if largest is None else int(largest)
