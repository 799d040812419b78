"""The figures of the steps and findings as metrics, for loggers of trainings and for monitoring.

Prometheus's text format is version 0.0.4 of its exposition formats; OpenTelemetry's is OTLP 1 in JSON.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import stepscope
from stepscope.advise.finding import Finding
from stepscope.analyse.memory.memory_record import step_memory
from stepscope.analyse.step import sample
from stepscope.analyse.step.phase_times import phase_times
from stepscope.analyse.step.run_steps import steps_of_run
from stepscope.analyse.step.step_trace_time import split
from stepscope.analyse.step.summary import Summary
from stepscope.errors import UsageError
from stepscope.report.whole_files import write_whole
from stepscope.run import RankRun
from stepscope.trace.tables import Tables

#: What a name ends with → its unit in UCUM, which OpenTelemetry writes.
_UNITS = {"seconds": "s", "bytes": "By"}
#: Others read the file: a monitoring service under its own user.
_MODE = 0o644


class Metric(NamedTuple):
    """One figure, in seconds, bytes or a number.

    Attributes:
        name: Its name, which ends with the unit.
        value: The figure.
        help: What it is.
        label: What it is of, as name and value; None for the step as a whole.
    """

    name: str
    value: float
    help: str
    label: tuple[str, str] | None = None


def metrics_of(summary: Summary, findings: Sequence[Finding]) -> Iterator[Metric]:
    """Yield what is known of the recorded steps of a rank, and what its findings would save."""
    steps = summary.steps
    yield Metric("steps", steps.count, "Recorded steps.")
    if steps.count:
        yield Metric("step_seconds", steps.p50_ns / 1e9, "Median time of a step.")
        if "data wait" not in summary.not_recorded:
            wait_ns = summary.data_wait.total_ns / steps.count
            yield Metric("data_wait_seconds", wait_ns / 1e9, "Waits for the next batch in the mean step.")
        for name, parts in (("part", summary.split), ("phase", summary.phases)):
            for part in parts:
                text = f"Time of a {name} of the mean step."
                yield Metric(f"step_{name}_seconds", part.mean_ns / 1e9, text, (name, part.name))
    for peak in summary.memory:
        if peak.allocated is not None:
            yield Metric("memory_peak_bytes", peak.allocated, "Most memory allocated.", ("device", peak.device))
    yield Metric("findings", len(findings), "Findings: causes of slow steps.")
    gains = {finding.cause: finding.gain_ns for finding in reversed(findings)}  # of each cause the largest
    for cause, gain_ns in gains.items():
        if gain_ns is not None and steps.count:
            yield Metric(
                "finding_gain_seconds", gain_ns / 1e9, "What its repair would save of a step.", ("cause", cause)
            )


def step_figures(tables: Tables) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the number of each recorded step, and what is known of it, as loggers take it: in seconds and bytes.

    ``stepscope/step/seconds``, ``…/part_seconds/computing`` and the other parts, whose sum it is,
    ``…/phase_seconds/forward`` and the other phases, ``…/data_wait_seconds``, ``…/memory_peak_bytes/cuda:0``. What is
    unknown of a step is left out.
    """
    found = split(tables)
    windows = found.windows
    if not windows.declared:
        return
    columns: dict[str, list[int | None]] = {}
    if sample.fraction(tables) == 1:
        parts = {name: times for name, times in found.parts.items() if name not in found.unknown}
        columns |= {f"part_seconds/{name}": times.tolist() for name, times in parts.items()}
        phases = phase_times(tables, windows, found.work)
        columns |= {f"phase_seconds/{name}": times.tolist() for name, times in phases.items()}
    waits = dict(steps_of_run(tables).select("number", "data_wait").iter_rows())
    columns["data_wait_seconds"] = [waits.get(number) for number in windows.number.tolist()]
    columns |= {f"memory_peak_bytes/{device}": peaks for device, peaks in step_memory(tables, windows).items()}
    times = (windows.end - windows.start).tolist()
    for place, (number, time_ns) in enumerate(zip(windows.number.tolist(), times, strict=True)):
        figures = {"seconds": time_ns / 1e9}
        for name, values in columns.items():
            if (value := values[place]) is not None:
                figures[name] = value / 1e9 if "seconds" in name else float(value)
        yield number, {f"stepscope/step/{name}": value for name, value in figures.items()}


def flat(metrics: Iterable[Metric]) -> dict[str, float]:
    """Return metrics by one name each, as loggers of trainings take them: ``stepscope/step_part_seconds/idle``."""
    return {"/".join(("stepscope", one.name, *(one.label or ())[1:])): one.value for one in metrics}


def write_metrics(path: Path, rank: RankRun, findings: Sequence[Finding]) -> None:
    """Write the figures of a rank, and what is found of its run, into a file that appears complete or not at all.

    Args:
        path: The file; its name ends with ``.prom`` for Prometheus or ``.json`` for OpenTelemetry.
        rank: The rank; each figure says which.
        findings: Those of the run.

    Raises:
        UsageError: Its name ends otherwise.
        OutputError: It cannot be written.
    """
    formats = {".prom": _prometheus, ".json": _otlp}
    if path.suffix not in formats:
        message = f"--metrics {path}: the name says neither Prometheus nor OpenTelemetry."
        raise UsageError(message, "Let it end with .prom (text format of Prometheus) or .json (OTLP).")
    text = formats[path.suffix](list(metrics_of(rank.summary, findings)), str(rank.rank))
    write_whole(path, text.encode())
    path.chmod(_MODE)


def _labels(metric: Metric, rank: str) -> dict[str, str]:
    return {"rank": rank, **dict([metric.label] if metric.label else [])}


def _prometheus(metrics: Sequence[Metric], rank: str) -> str:
    lines = []
    for name, text in {one.name: one.help for one in metrics}.items():
        lines += [f"# HELP stepscope_{name} {text}", f"# TYPE stepscope_{name} gauge"]
        for one in (one for one in metrics if one.name == name):
            labels = _labels(one, rank).items()
            # JSON escapes what Prometheus does: backslash, quote and line feed.
            said = ",".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in labels)
            lines.append(f"stepscope_{name}{{{said}}} {one.value!r}")
    return "\n".join([*lines, ""])


def _otlp(metrics: Sequence[Metric], rank: str) -> str:
    now = str(time.time_ns())
    gauges = []
    for name, text in {one.name: one.help for one in metrics}.items():
        points = [
            {"attributes": _attributes(_labels(one, rank)), "timeUnixNano": now, "asDouble": float(one.value)}
            for one in metrics
            if one.name == name
        ]
        unit = _UNITS.get(name.rpartition("_")[2], "1")
        gauges.append({"name": f"stepscope.{name}", "description": text, "unit": unit, "gauge": {"dataPoints": points}})
    scope = {"scope": {"name": "stepscope", "version": stepscope.__version__}, "metrics": gauges}
    resource = {"attributes": _attributes({"service.name": "stepscope"})}
    return json.dumps({"resourceMetrics": [{"resource": resource, "scopeMetrics": [scope]}]}, indent=1) + "\n"


def _attributes(labels: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in labels.items()]
