"""The work of a rank by Ascend's arithmetic: tasks, the lane *Overlap Analysis*, and steps.

The work is that of the device; on a rank without one, that of the operators and communication calls of host threads.
Ascend adds up whole events by the step in which they start; ``docs/ascend-definitions.md`` compares that with
stepscope's own arithmetic.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from stepscope.analyse.device import kernel_details
from stepscope.analyse.intervals import EMPTY, Intervals, Times, subtract, union
from stepscope.analyse.operators import operator_calls
from stepscope.analyse.step import activity as working
from stepscope.analyse.step.activity import Located, Windows, Work
from stepscope.analyse.step.step_trace_time import unknown_columns
from stepscope.analyse.units import us
from stepscope.report.ascend.calls import Call, calls, communication_matrix, recorded_matrix
from stepscope.report.ascend.variant import Variant
from stepscope.trace.ascend_columns import COLUMNS
from stepscope.trace.tables import Tables

_STEPS = "step_trace_time.csv"
_FOREVER = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class RankWork:
    """The work of one rank, computed when asked for.

    Args:
        tables: Its tables.
    """

    tables: Tables

    @cached_property
    def calls(self) -> list[Call]:
        """Its communication, in order of start."""
        return calls(self.tables)

    @cached_property
    def recorded_by_npu(self) -> bool:
        """Whether an NPU's profiler recorded tasks."""
        return bool(self.tables["tasks"].select(pl.len()).collect().item())

    def fact(self, key: str) -> Any:  # noqa: ANN401 - any JSON value
        """Return a fact that the reader noted of the capture; None if it is not there."""
        rows = self.tables["metadata"].filter(pl.col("key") == key).select("value").collect()
        return json.loads(rows.item()) if len(rows) else None

    def recorded_columns(self, file: str) -> list[str] | None:
        """Return the columns that the capture's own file of that name has; None if the capture has no such file."""
        found: list[str] | None = (self.fact(COLUMNS) or {}).get(file)
        return found

    def with_device(self, file: str, variant: Variant) -> bool:
        """Return whether a file begins with the device: as that of the capture does, else as the variant's."""
        columns = self.recorded_columns(file)
        return variant.device_columns if columns is None else "Device_id" in columns

    @cached_property
    def communication_known(self) -> bool:
        """Whether communication has more than times: at some levels, an NPU's profiler records no more than these."""
        if not self.recorded_by_npu:
            return bool(self.calls)
        times = self.tables["collectives"].select(pl.col("transit", "wait").is_not_null().any()).collect().row(0)
        return any(times) or any(call.transfers for call in self.calls) or bool(recorded_matrix(self.tables))

    @cached_property
    def matrix(self) -> dict[str, Any]:
        """Its communication by link: as recorded, else computed from ``calls``."""
        stepless = not self.windows.declared
        return recorded_matrix(self.tables) or communication_matrix(self.calls, stepless=stepless)

    @cached_property
    def pieces(self) -> pl.DataFrame:
        """Its tasks and copies; communication is in ``calls``."""
        rows = kernel_details.pieces(self.tables).filter(pl.col("kind") != "collective").collect()
        if not self.work.on_device:
            rows = rows.join(_waiting(self.tables), on="id", how="anti", maintain_order="left")
        texts = ("name", "device_name", "shapes", "dtypes", "operator_name")
        return rows.with_columns(pl.col(texts).cast(pl.String))

    @cached_property
    def computing(self) -> pl.DataFrame:
        """The tasks that compute."""
        return self.pieces.filter(pl.col("kind") != "memcpy")

    @cached_property
    def located(self) -> Located:
        """The spans on host threads and device streams."""
        return working.located(self.tables)

    @cached_property
    def work(self) -> Work:
        """Its work as sets of time."""
        return working.work(self.tables, self.located)

    @cached_property
    def windows(self) -> Windows:
        """Its steps; without any, one step 0 that is never over."""
        found = working.windows(self.tables, self.located)
        if found.declared or not len(found.start):
            return found
        return Windows(np.zeros(1, np.int64), np.zeros(1, np.int64), np.full(1, _FOREVER), declared=False)

    @cached_property
    def overlap(self) -> dict[str, Intervals]:
        """The lanes of *Overlap Analysis*; Free are the gaps between the first and the last work.

        What nothing covers is unknown where work may be missing.
        """
        computing, communication = self.work.computing, self.work.communication
        busy = union(computing, communication)
        partial = working.not_recorded(self.tables) & {"computing", "communication"}
        whole = EMPTY if partial or not len(busy) else Intervals(busy.start[:1], busy.end[-1:])
        return {
            "Computing": computing,
            "Communication": communication,
            "Communication(Not Overlapped)": EMPTY if partial else subtract(communication, computing),
            "Free": subtract(whole, busy),
        }

    def step_trace_time(self, variant: Variant) -> pl.DataFrame:
        """Return one row per step in µs: what the capture states, else Ascend's arithmetic; none without any work."""
        columns = self.recorded_columns(_STEPS) or []
        device = [pl.lit(self._device).alias("Device_id")] if "Device_id" in columns else []
        frame = self._stated_steps()
        frame = self._computed_steps(variant) if frame is None else frame
        return frame.select(*device, pl.all())

    @cached_property
    def _device(self) -> int | None:
        """Return the number of the device that did the work; None if no file says it."""
        number = self.tables["tracks"].select(pl.col("device").cast(pl.String).str.extract(r"^\w+:(\d+)$")).collect()
        known = number.to_series().drop_nulls()
        return int(known[0]) if len(known) else None

    def _stated_steps(self) -> pl.DataFrame | None:
        """Return the steps as the profiler of an NPU stated them, if it did so for all that are here."""
        rows = working.stated(self.tables, "step_trace_time") if self.recorded_by_npu else []
        steps = self.windows.number.tolist() if self.windows.declared else [None]
        chosen = [row for row in rows if row["Step"] in steps]
        if not rows or len(chosen) != len(steps):
            return None
        frame = pl.DataFrame(chosen, infer_schema_length=None)
        return frame.with_columns(pl.col("Step").fill_null(0).cast(pl.Int64), pl.exclude("Step").cast(pl.Float64))

    def _computed_steps(self, variant: Variant) -> pl.DataFrame:
        """Return the steps by Ascend's arithmetic."""
        steps, lanes = self.windows, self.overlap
        communication = _begun(lanes["Communication"], steps)
        exposed = _begun(lanes["Communication(Not Overlapped)"], steps)
        waited = [(call.operation.start, call.end) for call in self.calls if _is_bubble(call, variant)]
        bubble = _begun(Intervals(*np.array(waited, np.int64).reshape(-1, 2).T), steps)
        columns = {
            "Computing": _begun(lanes["Computing"], steps),
            "Communication(Not Overlapped)": exposed,
            "Overlapped": communication - exposed,
            "Communication": communication,
            "Free": _begun(lanes["Free"], steps)
            if variant.stage_of_work
            else lanes["Free"].within(steps.start, steps.end),
            "Stage": self._stage(variant) - bubble,
            "Bubble": bubble,
            "Communication(Not Overlapped and Exclude Receive)": exposed - bubble,
            "Preparing": self._preparing(),
        }
        frame = pl.DataFrame({"Step": steps.number, **columns})
        unknown = unknown_columns(self.tables, self.work, columns, without=frozenset({"copy"}))
        nothing = pl.lit(None, pl.Float64)
        return frame.with_columns(nothing.alias(name) if name in unknown else us(name) for name in columns)

    def _stage(self, variant: Variant) -> Times:
        """Return the time from the start of the first to the end of the last event that begins in each step."""
        events = [(call.operation.start, call.end) for call in self.calls]
        if variant.stage_of_work:
            lanes = (self.overlap["Computing"], self.overlap["Communication"], self.overlap["Free"])
            events = [pair for lane in lanes for pair in zip(lane.start.tolist(), lane.end.tolist(), strict=True)]
        events.sort()
        start, end = (np.array([pair[side] for pair in events], np.int64) for side in (0, 1))
        first, last = np.searchsorted(start, self.windows.start), np.searchsorted(start, self.windows.end)
        stages = [end[i:j].max() - start[i] if j > i else 0 for i, j in zip(first, last, strict=True)]
        return np.array(stages, np.int64)

    def _preparing(self) -> Times:
        """Return the time from each step's start to the first work begun in it; 0 if there was no work.

        Without steps it counts from the first event on the host.
        """
        steps = self.windows
        first = union(self.overlap["Computing"], self.overlap["Communication"]).start
        place = np.searchsorted(first, steps.start)
        begun = np.append(first, _FOREVER)[place]
        if steps.declared:
            origin = steps.start
        else:
            hosts = self.located.ts[~self.located.on_stream]
            origin = np.full(len(steps.start), hosts.min(initial=_FOREVER))
        return np.where((begun < steps.end) & (origin < begun), begun - origin, 0)


def _is_bubble(call: Call, variant: Variant) -> bool:
    """Return whether an operation waits for another stage: torch_npu counts those that receive, MindSpore sends too."""
    return call.type.startswith("hcom_receive") if variant.stage_of_work else call.operation.point_to_point


def _waiting(tables: Tables) -> pl.DataFrame:
    """Return the ids of the host's waits for data and communication calls, and of all that lies inside them."""
    columns = ("id", "parent", "depth", "kind", "phase")
    threads = tables["spans"].filter(pl.col("track").is_in(working.track_ids(tables, "thread"))).select(columns)
    spans = operator_calls.in_order(threads.collect())
    calls_out = (spans["kind"] == "operator") & (spans["phase"] == "communication").fill_null(value=False)
    waits = (spans["kind"].is_in(["data", "collective"]) | calls_out).to_numpy()
    return spans.filter(pl.Series(waits | (operator_calls.nearest(spans, waits) >= 0))).select("id")


def _begun(lane: Intervals, steps: Windows) -> Times:
    """Return the whole length of a lane's events that begin in each step."""
    total = np.concatenate(([0], np.cumsum(lane.end - lane.start)))
    first, last = np.searchsorted(lane.start, steps.start), np.searchsorted(lane.start, steps.end)
    return np.asarray(total[last] - total[first], np.int64)
