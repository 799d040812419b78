"""Gaps: the time inside steps in which a device, or the threads of a rank without one, do no work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.analyse.intervals import Intervals, Times, all_of, joined, union, unite
from stepscope.analyse.operators.operator_calls import rows_of
from stepscope.analyse.step.activity import Rows, Windows, device_rows, devices_of, of_kinds, on_tracks, span_kinds
from stepscope.analyse.step.step_trace_time import split
from stepscope.trace.schema import ANY_WORK
from stepscope.trace.tables import Tables, columns_of, has_rows, shared

#: Kinds of spans on host threads that are the work of a rank without a device.
_ON_THREADS = ("operator", "collective")


@dataclass(frozen=True, eq=False)
class Gaps:
    """The gaps, in order of device and step; those of different devices may overlap each other.

    Attributes:
        devices: Names of the devices; ``cpu`` alone on a rank without one.
        windows: The steps.
        device: Number of the device of each gap.
        step: Place of its step in ``windows``.
        start: Where it begins inside the step, in ns.
        end: Where it ends inside the step.
        began: When the work before it ended, which may lie before the step.
        next: Row of ``spans`` of the work that ends it, which may lie behind the step; -1 for none.
        launch: Row of ``spans`` of the call that launched that work; -1 if unknown.
        thread: Track of the thread that launched it, or that does it; -1 if unknown.
    """

    devices: list[str]
    windows: Windows
    device: Rows
    step: Rows
    start: Times
    end: Times
    began: Times
    next: Rows
    launch: Rows
    thread: Rows


_NONE = np.empty(0, np.int64)
#: Of a rank of which it is not known what counts as work.
NO_GAPS = Gaps([], Windows(_NONE, _NONE, _NONE, declared=False), *[_NONE] * 8)


@shared
def gaps(tables: Tables) -> Gaps:
    """Return the gaps; none if the source did not record all that counts as work, or a host between its operators."""
    parts = split(tables)
    if (set(ANY_WORK) if parts.work.on_device else {"idle"}) & parts.unknown:
        return NO_GAPS
    spans = columns_of(tables, "spans", "track", "ts", "dur")
    if parts.work.on_device:
        rows = device_rows(tables)
        devices, device = devices_of(tables, spans["track"][rows])
    else:
        kinds = of_kinds(span_kinds(tables), *_ON_THREADS)
        rows = np.flatnonzero(on_tracks(tables, "thread") & kinds)
        devices, device = ["cpu"] if len(parts.windows.start) else [], np.zeros(len(rows), np.int64)
    start, dur = spans["ts"].to_numpy()[rows], spans["dur"].to_numpy()[rows]
    found = []
    for number in range(len(devices)):
        mine = np.flatnonzero(device == number)
        if parts.work.on_device:
            busy = unite(start[mine], start[mine] + dur[mine])
        else:
            busy = union(parts.work.computing, parts.work.communication)
        found.append(_between(busy, parts.windows, number, mine[np.argsort(start[mine], kind="stable")], start))
    columns = [joined(column) for column in zip(*found, strict=True)] if found else [_NONE] * 6
    following = np.append(rows, -1)[columns[5]]
    launch = launches(tables)[following] if parts.work.on_device and len(rows) else all_of(-1, len(following))
    thread = launch if parts.work.on_device else following
    tracks = np.append(spans["track"].to_numpy().astype(np.int64), -1)
    device, step, begin, end, began, _ = columns
    return Gaps(devices, parts.windows, device, step, begin, end, began, following, launch, tracks[thread])


def _between(
    busy: Intervals, windows: Windows, device: int, ordered: Rows, start: Times
) -> tuple[Rows, Rows, Times, Times, Times, Rows]:
    """Return device, step, start, end, unclipped start and place of the next work of the gaps of one device."""
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    began, ends = np.append(low, busy.end), np.append(busy.start, high)
    first = np.searchsorted(ends, windows.start, side="right")
    count = np.maximum(np.searchsorted(began, windows.end, side="left") - first, 0)
    step = np.repeat(np.arange(len(count)), count)
    free = np.arange(len(step)) - np.repeat(np.cumsum(count) - count, count) + first[step]
    begin, end = np.maximum(began[free], windows.start[step]), np.minimum(ends[free], windows.end[step])
    kept = np.flatnonzero(end > begin)
    step, free, begin, end = step[kept], free[kept], begin[kept], end[kept]
    place = np.searchsorted(start[ordered], ends[free], side="left")
    following = np.where(place < len(ordered), np.append(ordered, -1)[place], -1)
    return all_of(device, len(step)), step, begin, end, began[free], following


@shared
def launches(tables: Tables) -> Rows:
    """Return the row of the call that launched each row of ``spans``, and a -1 behind the last; -1 if unknown."""
    ids = columns_of(tables, "spans", "id")["id"]
    if not has_rows(tables, "kernels"):
        return all_of(-1, len(ids) + 1)
    kernels = columns_of(tables, "kernels", "span", "launch")
    work, call = rows_of(ids, kernels["span"]), rows_of(ids, kernels["launch"])
    known = (work >= 0) & (call >= 0)
    found = np.full(len(ids) + 1, -1, np.int64)
    found[work[known]] = call[known]
    return found
