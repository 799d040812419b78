"""Tables of a rank → its summary."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl

from stepscope.analyse.data.dataset import arguments, waits
from stepscope.analyse.intervals import Times, unite
from stepscope.analyse.memory.memory_record import RESIDENT
from stepscope.analyse.operators import op_statistic
from stepscope.analyse.operators.shown_names import most_time, readable
from stepscope.analyse.stacks.python_lines import python_lines
from stepscope.analyse.step import sample
from stepscope.analyse.step.activity import Windows, of_kinds, span_kinds
from stepscope.analyse.step.framework import framework_of
from stepscope.analyse.step.phase_times import phase_times
from stepscope.analyse.step.run_steps import disturbed_delays, summarised
from stepscope.analyse.step.step_trace_time import Split, split
from stepscope.analyse.step.summary import (
    Compiling,
    DataWait,
    Entry,
    Garbage,
    MemoryPeak,
    OutOfMemory,
    StepPart,
    Steps,
    Summary,
)
from stepscope.trace.losses import Loss, by_severity
from stepscope.trace.schema import OUT_OF_MEMORY, STEPS_OF_DEVICE, TOTALS
from stepscope.trace.tables import Tables, collected, columns_of, facts, has_rows, schema

#: How many operators and kernels the summary names.
TOP = 10


def summarise(tables: Tables) -> Summary:
    """Return the summary of a rank; of empty tables, one that says so."""
    parts, drawn = split(tables), sample.of(tables)
    sampled = drawn.fraction
    windows, work = parts.windows, parts.work
    inferred = "inferred" in columns_of(tables, "steps", "source")["source"].to_list()
    steps = replace(_steps(windows, inferred=inferred), of_device=_of_device(tables, windows))
    device, host = op_statistic.device_work(tables), op_statistic.host_work(tables)
    if windows.declared:  # what is shown is per step
        device, host = (_in_steps(work) for work in (device, host))
    preempted = preempted_ns = 0
    if sampled == 1:
        host, preempted_ns, preempted = op_statistic.without_preemption(host, disturbed_delays(tables))
    operators = _top(tables, host) if sampled == 1 else _estimated(host, drawn, steps.total_ns)
    names = (*(entry.name for entry in operators), *waits(tables)["name"].to_list()[:1])
    known = (parts if sampled == 1 else _of_sample(parts)).parts
    samples_alone = has_rows(tables, "samples") and not steps.total_ns and not has_rows(tables, "run_steps")
    return Summary(
        on_device=work.on_device,
        devices=tuple(sorted(set(device["device"].to_list()))),
        steps=steps,
        split=_step_parts({name: known[name] for name in known if name not in parts.unknown}, steps.total_ns),
        operators=operators,
        kernels=_top(tables, device),
        data_wait=_data_wait(tables, parts, steps.total_ns),
        garbage=_garbage(tables, windows, steps.total_ns),
        memory=_memory(tables),
        resident_bytes=_resident(tables),
        losses=losses_of(tables),
        run=summarised(tables),
        sampled=sampled,
        not_recorded=tuple(name for name in parts.parts if name in parts.unknown),
        totals_compared=TOTALS in facts(tables),
        framework=framework_of(tables, names),
        phases=_step_parts(phase_times(tables, windows, work), steps.total_ns) if sampled == 1 else (),
        preempted=preempted,
        preempted_ns=preempted_ns,
        compiling=_compiling(tables, windows, steps.total_ns),
        sampled_only=_most_sampled(tables) if samples_alone else None,
        exhausted=tuple(_exhausted(tables)),
    )


def _most_sampled(tables: Tables) -> Entry | None:
    """Return the function, with its line, that most samples of Python stacks saw at work."""
    rows = python_lines(tables).drop_nulls("Function").sort("Self(us)", descending=True)
    if rows.is_empty():
        return None
    most = rows.row(0, named=True)
    name = f"{most['Function']} ({(most['File'] or '').rpartition('/')[2]}:{most['Line'] or 0})"
    return Entry(name, "python", round(1000 * most["Self(us)"]), most["Samples"], most["Share(%)"] / 100)


def losses_of(tables: Tables) -> tuple[Loss, ...]:
    """Return what was dropped, cut, clipped or repaired, most severe first."""
    return tuple(by_severity(Loss(*row) for row in columns_of(tables, "losses", *schema("losses")).iter_rows()))


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


def _of_device(tables: Tables, windows: Windows) -> tuple[float, ...]:
    """Return shortest, median and longest duration of these steps as the device works for them, where that is said."""
    said = dict(json.loads(facts(tables).get(STEPS_OF_DEVICE, "[]")))
    durations = [said[number] for number in windows.number.tolist() if number in said]
    return (min(durations), float(np.median(durations)), max(durations)) if durations else ()


def _step_parts(parts: dict[str, Times], total: int) -> tuple[StepPart, ...]:
    sums = {name: (int(times.sum()), max(1, len(times))) for name, times in parts.items()}
    return tuple(StepPart(name, time, time / count, _share(time, total)) for name, (time, count) in sums.items())


def _of_sample(parts: Split) -> Split:
    """Return what is known where only a sample of the operators is there: what devices do, and waits for data."""
    if not parts.work.on_device:
        return replace(parts, parts={})
    idle = parts.parts["idle"] + parts.parts["sync"] + parts.parts["host only"]
    none = np.zeros_like(idle)
    return replace(parts, parts={**parts.parts, "sync": none, "host only": none, "idle": idle})


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
    return tuple(
        Entry(name, kind, time, count, _share(time, whole), flops=flops)
        for (name, kind), (time, count, flops) in most_time(tables, work, TOP)
        if time
    )


def _estimated(work: pl.DataFrame, sampled: sample.Sample, whole: int) -> tuple[Entry, ...]:
    """Return the names with most time, estimated from a sample; shares are those of the steps' time."""
    first = op_statistic.statistic(work, sampled).head(TOP).select("name", "kind", "total", "count", "total_error")
    rows = first.collect().rows()
    return tuple(
        Entry(readable(name), kind, total, count, _share(total, whole), error)
        for name, kind, total, count, error in rows
    )


def _data_wait(tables: Tables, parts: Split, total: int) -> DataWait:
    found = waits(tables)
    waited = int(parts.work.data.within(parts.windows.start, parts.windows.end).sum())
    exposed = int(parts.parts["data wait"].sum())
    workers, cores = (said_of_loaders(tables, found, key) for key in ("workers", "cores"))
    alone = workers is None and all("_SingleProcessDataLoaderIter" in name for name in found["name"].to_list())
    workers = 0 if len(found) and alone else workers
    return DataWait(waited, exposed, _share(waited, total), len(found), workers, cores)


def said_of_loaders(tables: Tables, found: pl.DataFrame, key: str) -> int | None:
    """Return a number that the arguments of waits say, the largest of all; None if none says it.

    Args:
        tables: The tables of the rank.
        found: The waits, with a column id.
        key: Name of the argument.
    """
    said = [values.get(key) for values in arguments(tables, found["id"]).values()]
    return max((value for value in said if isinstance(value, int)), default=None)


def _garbage(tables: Tables, windows: Windows, total: int) -> Garbage:
    pauses = _spans_of(tables, "garbage")
    if not pauses.height:
        return Garbage(0, 0.0, 0)
    compiling = _spans_of(tables, "compile").select("track", "ts", until=pl.col("ts") + pl.col("dur")).sort("ts")
    around = pauses.sort("ts").join_asof(compiling, on="ts", by="track", check_sortedness=False)
    pauses = around.filter((pl.col("until") <= pl.col("ts")).fill_null(value=True))
    paused = unite(pauses["ts"].to_numpy(), (pauses["ts"] + pauses["dur"]).to_numpy())
    time = int(paused.within(windows.start, windows.end).sum())
    inside = np.searchsorted(windows.start, paused.end) > np.searchsorted(windows.end, paused.start, side="right")
    return Garbage(time, _share(time, total), int(inside.sum()))


def _compiling(tables: Tables, windows: Windows, total: int) -> Compiling | None:
    spans = _spans_of(tables, "compile")
    if not spans.height:
        return None
    inside = spans.filter((pl.col("ts") < int(windows.end.max(initial=0))) & (pl.col("dur") > 0))
    time = _time_inside(inside, windows)
    if not time:
        return None
    longest = inside.sort("dur")[-1]
    facts = arguments(tables, longest["id"]).get(longest["id"][0], {})
    name = str(facts.get("function") or longest["name"].cast(pl.String)[0])
    return Compiling(time, _share(time, total), name, str(facts.get("why") or ""))


def _spans_of(tables: Tables, kind: str) -> pl.DataFrame:
    rows = np.flatnonzero(of_kinds(span_kinds(tables), kind))
    return columns_of(tables, "spans", "id", "track", "ts", "dur", "name")[rows]


def _time_inside(spans: pl.DataFrame, windows: Windows) -> int:
    """Return the time of the steps that any of the spans covers, ns."""
    covered = unite(spans["ts"].to_numpy(), (spans["ts"] + spans["dur"]).to_numpy())
    return int(covered.within(windows.start, windows.end).sum())


def _memory(tables: Tables) -> tuple[MemoryPeak, ...]:
    """Return the peaks; nothing is reserved on the host: PyTorch gives the sizes of mapped files under that name."""
    if not has_rows(tables, "allocations"):
        return ()
    peaks = tables["allocations"].group_by(pl.col("device").cast(pl.String)).agg(pl.col("allocated", "reserved").max())
    known = peaks.filter(pl.any_horizontal(pl.col("allocated", "reserved").is_not_null()))
    rows = known.sort("device").pipe(collected, tables).rows()
    return tuple(MemoryPeak(name, allocated, None if name == "cpu" else reserved) for name, allocated, reserved in rows)


def _exhausted(tables: Tables) -> Iterator[OutOfMemory]:
    refused = json.loads(facts(tables).get(OUT_OF_MEMORY, "[]"))
    for device in sorted({one["device"] for one in refused}):
        *_, last = own = [one for one in refused if one["device"] == device]
        yield OutOfMemory(device, last["asked"], last["free"], last["line"], len(own))


def _resident(tables: Tables) -> int | None:
    if not has_rows(tables, "counters"):
        return None
    samples = tables["counters"].filter(pl.col("name").cast(pl.String) == RESIDENT)
    largest = samples.select(pl.col("value").max()).pipe(collected, tables).item()
    return None if largest is None else int(largest)
