"""What a step consists of: operators and kernels by phase, scope, name and shapes, with their time and calls a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analyse.operators.op_statistic import device_work, host_work, without_preemption
from stepscope.analyse.step import activity, sample
from stepscope.analyse.step.phase_times import phase_times
from stepscope.analyse.step.run_steps import disturbed_delays
from stepscope.analyse.step.step_trace_time import Split, split
from stepscope.trace.tables import Tables, columns_of, has_rows

#: The quantile over steps that is the level of a step and its phases: its quick steps, of few.
_QUANTILE = 0.25
#: That of a call of an operator, as one of its times: of up to ten steps the quickest. Noise only adds.
_OF_CALLS = 0.1

#: What stands among the operators for the rest of a step on the host.
WAIT, OUTSIDE = "wait for data", "outside operators"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PartKey:
    """What identifies a part of the step.

    Attributes:
        place: ``host``, or ``device`` for kernels, copies and collectives on streams.
        phase: Phase of the step; empty if unknown.
        scope: Module that ran it, of a compiled program its place in the source, of a kernel the operator that
            launched it; empty if unknown.
        name: Name as the source gave it.
        shapes: Shapes of the inputs, JSON; empty if unknown.
    """

    place: str
    phase: str
    scope: str
    name: str
    shapes: str


@dataclass(frozen=True)
class StepPartLevel:
    """One part of the steps of a run.

    Attributes:
        key: What it is.
        level_ns: Time a step: self time of operators, duration of kernels. The sum over its first, second, … calls of
            the 10th percentile over the steps, of collectives the 25th, or the mean of calls that some steps lack.
        error_ns: Standard error of it inside the run.
        calls: Calls in the median step.
        varies: Whether the number of calls differs between steps of the run.
    """

    key: PartKey
    level_ns: float
    error_ns: float
    calls: float
    varies: bool


@dataclass(frozen=True)
class StepParts:
    """The parts of a rank's steps in the order in which a step meets them first, and the phases.

    Attributes:
        parts: Operators, or operators and kernels.
        phases: Time of each phase a step, ns, the same percentile as that of parts; empty if none is known.
        steps: Recorded steps; 0 where the range of the recording counts as one.
        step_ns: Time of a step of which ``parts`` are parts, as the 25th percentile, ns.
        on_device: Whether the work of the step is that of device streams.
        faults: Page faults without a disk in the median recorded step; None if the system does not say.
        delay_ns: Time in which the training thread waited for a core in the quick recorded steps, which it may have
            spent inside any operator; 0 if it is unknown.
        delay_share: That time as a part of all steps of the run; 0 if it is unknown.
    """

    parts: tuple[StepPartLevel, ...]
    phases: dict[str, float]
    steps: int
    step_ns: float
    on_device: bool
    faults: float | None = None
    delay_ns: float = 0.0
    delay_share: float = 0.0


def step_parts(tables: Tables) -> StepParts:
    """Return what the steps of a rank consist of.

    A sample of the operators gives kernels and phases alone: the time of a sampled operator contains others.
    """
    found = split(tables)
    frames = [] if sample.fraction(tables) < 1 else [_of_host(tables)]
    if found.work.on_device:
        frames.append(_of_device(tables))
    rows = pl.concat(frames) if frames else None
    steps = len(found.windows.number) if found.windows.declared else 0
    parts = [] if rows is None or rows.is_empty() else _levels(rows, declared=bool(steps))
    if parts and not found.work.on_device:
        parts += _between(found, frames[0])
    times = phase_times(tables, found.windows, found.work)
    durations = (found.windows.end - found.windows.start).astype(np.float64)
    if not len(durations):
        return StepParts((), {}, 0, 0.0, found.work.on_device)
    phases = {name: _quick(each) for name, each in times.items() if each.any()}
    steps_read = columns_of(tables, "run_steps", "recorded", "minor_faults", "delay", "dur")
    readings, measured = steps_read.filter("recorded"), steps_read.drop_nulls(["delay", "dur"])
    missed, waited = readings["minor_faults"].median(), readings["delay"].quantile(_QUANTILE)
    return StepParts(
        parts=tuple(parts),
        phases=phases,
        steps=steps,
        step_ns=_quick(durations),
        on_device=found.work.on_device,
        faults=float(missed) if isinstance(missed, int | float) else None,
        delay_ns=float(waited or 0),
        delay_share=float(measured["delay"].to_numpy().sum() / max(measured["dur"].to_numpy().sum(), 1)),
    )


_KEY = ["place", "phase", "scope", "name", "shapes"]


def _quick(times: npt.NDArray[Any]) -> float:
    """Return the level of times of steps."""
    return float(np.quantile(times, _QUANTILE))


def _of_host(tables: Tables) -> pl.DataFrame:
    work = without_preemption(host_work(tables), disturbed_delays(tables))[0]
    spans = columns_of(tables, "spans", "id", "ts", "phase").lazy()
    details = columns_of(tables, "operators", "span", "shapes", "module", "instruction").lazy().rename({"span": "id"})
    rows = work.lazy().join(spans, on="id", how="left").join(details, on="id", how="left")
    scope, name = pl.col("module").cast(pl.String), pl.col("name").cast(pl.String)
    if has_rows(tables, "instructions"):
        known = tables["instructions"].select(
            pl.col("id").alias("instruction"), "opcode", pl.col("scope").cast(pl.String).alias("source")
        )
        rows = rows.join(known, on="instruction", how="left")
        scope, name = pl.coalesce(scope, "source"), pl.coalesce(pl.col("opcode").cast(pl.String), name)
    return _keyed(rows, "host", scope, name)


def _of_device(tables: Tables) -> pl.DataFrame:
    """Return the work of streams, each in the operator that launched it and in the step of that launch.

    A slower device does the work of a step later, in part during the next one: the calls of a step stay those that it
    asked for.
    """
    spans = columns_of(tables, "spans", "id", "ts", "name", "phase", "step")
    launched = columns_of(tables, "kernels", "span", "operator", "launch").rename({"span": "id"}).unique("id")
    around = spans.lazy().select(
        pl.col("id").alias("operator"), pl.col("name").cast(pl.String).alias("scope"), pl.col("phase").alias("by")
    )
    asked = spans.lazy().select(pl.col("id").alias("launch"), pl.col("step").alias("asked"), known=True)
    details = columns_of(tables, "operators", "span", "shapes").lazy().rename({"span": "operator"})
    rows = device_work(tables).lazy().join(spans.lazy().select("id", "ts", "phase"), on="id", how="left")
    rows = rows.join(launched.lazy(), on="id", how="left").join(around, on="operator", how="left")
    rows = rows.join(asked, on="launch", how="left").join(details, on="operator", how="left")
    rows = rows.with_columns(
        step=pl.when("known").then("asked").otherwise("step"),
        phase=pl.coalesce(pl.col("phase").cast(pl.String), pl.col("by").cast(pl.String)),
    )
    return _keyed(rows, "device", pl.col("scope"), pl.col("name").cast(pl.String))


def _keyed(rows: pl.LazyFrame, place: str, scope: pl.Expr, name: pl.Expr) -> pl.DataFrame:
    texts = {"phase": pl.col("phase"), "scope": scope, "name": name, "shapes": pl.col("shapes")}
    keys = [each.cast(pl.String).fill_null("").alias(title) for title, each in texts.items()]
    exchanged = (pl.col("kind").cast(pl.String) == "collective").alias("exchanged")
    return rows.select("ts", "step", "time", exchanged, pl.lit(place).alias("place"), *keys).collect()


def _levels(rows: pl.DataFrame, *, declared: bool) -> list[StepPartLevel]:
    rows = rows.filter(pl.col("step").is_not_null()) if declared else rows.with_columns(step=pl.lit(0, pl.Int32))
    if rows.is_empty():
        return []
    begun = rows.lazy().group_by("step").agg(begun=pl.col("ts").min())
    each = rows.lazy().join(begun, on="step").group_by([*_KEY, "step"])
    sums = each.agg(pl.col("time").sum(), calls=pl.len(), order=(pl.col("ts") - pl.col("begun")).min())
    found = sums.collect()
    steps = np.unique(found["step"].to_numpy())
    keys = found.group_by(_KEY).agg(pl.col("order").median()).join(_call_levels(rows, len(steps)), on=_KEY)
    keys = keys.sort("order", *_KEY).with_row_index("key")
    numbered = found.join(keys.select(*_KEY, "key"), on=_KEY)
    shape = (len(keys), len(steps))
    place = numbered["key"].to_numpy(), np.searchsorted(steps, numbered["step"].to_numpy())
    times, calls = np.zeros(shape), np.zeros(shape)
    times[place], calls[place] = numbered["time"].to_numpy(), numbered["calls"].to_numpy()
    level, error = keys["level"].to_numpy(), _error(times)
    usual, varies = np.median(calls, axis=1), calls.min(axis=1) != calls.max(axis=1)
    return [
        StepPartLevel(PartKey(*key), float(level[at]), float(error[at]), float(usual[at]), bool(varies[at]))
        for at, key in enumerate(keys.select(_KEY).iter_rows())
    ]


def _call_levels(rows: pl.DataFrame, steps: int) -> pl.DataFrame:
    """Return the level of each part: that of its first calls of all steps, of its second ones, …, together.

    What a collective waits for another rank belongs to it: its usual calls count, not the quickest.
    """
    nth = pl.col("ts").rank("ordinal").over([*_KEY, "step"]).alias("nth")
    time = pl.col("time")
    quick = (
        pl.when(pl.col("exchanged").first())
        .then(time.quantile(_QUANTILE, "linear"))
        .otherwise(time.quantile(_OF_CALLS, "lower"))
    )
    level = pl.when(pl.len() == steps).then(quick).otherwise(time.sum() / steps).alias("level")
    return (
        rows.lazy().with_columns(nth).group_by([*_KEY, "nth"]).agg(level).group_by(_KEY).agg(pl.sum("level")).collect()
    )


def _between(found: Split, host: pl.DataFrame) -> list[StepPartLevel]:
    """Return what the host does besides operators: it waits for data, and runs Python and everything unknown.

    Operators inside of a wait, which make the batch in the training process, are parts of their own.
    """
    if found.unknown:
        return []
    waits = found.parts["data wait"]
    rest = found.windows.end - found.windows.start - found.parts["computing"] - found.parts["communication"] - waits
    loading = host.filter(pl.col("phase") == "data").group_by("step").agg(pl.col("time").sum())
    steps = pl.DataFrame({"step": pl.Series(found.windows.number, dtype=host.schema["step"])})
    inside = steps.join(loading, on="step", how="left", maintain_order="left")["time"].fill_null(0).to_numpy()
    made = []
    for name, phase, times in ((WAIT, "data", np.maximum(waits - inside, 0)), (OUTSIDE, "", rest)):
        if times.any():
            error = float(_error(times[None].astype(np.float64))[0])
            made.append(StepPartLevel(PartKey("host", phase, "", name, ""), _quick(times), error, 1.0, varies=False))
    return made


def _error(times: Floats) -> Floats:
    """Return the standard error of each part, times of its steps in a row, by the median absolute deviation."""
    deviations = np.abs(times - np.median(times, axis=1, keepdims=True))
    return np.asarray(1.4826 * np.median(deviations, axis=1) / np.sqrt(times.shape[1]))


def steps_computed_on(tables: Tables) -> tuple[str, ...]:
    """Return the names of the devices whose streams did work, in order; ``cpu`` without one."""
    rows = activity.device_rows(tables)
    tracks = columns_of(tables, "spans", "track")["track"][rows]
    return tuple(activity.devices_of(tables, tracks)[0]) or ("cpu",)
