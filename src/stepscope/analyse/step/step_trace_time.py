"""Where each step goes: computing, communication, copies, waits and idle time. Definitions: ``docs/definitions.md``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analyse.intervals import EMPTY, Intervals, Times, union
from stepscope.analyse.step import activity as working
from stepscope.analyse.step import sample
from stepscope.analyse.step.activity import Windows, Work
from stepscope.analyse.units import us
from stepscope.trace.tables import Tables, shared

#: The disjoint parts of a step in order of priority: time covered by several belongs to the first.
PARTS: tuple[str, ...] = ("computing", "communication", "copy", "data wait", "host only", "idle")

#: Columns that are not known from a sample of the operators; on a rank without a device, whose work they are, none is.
_OF_THE_HOST = ("Host Only", "Idle")


@dataclass(frozen=True, eq=False)
class Split:
    """Every step's time, split into disjoint parts.

    Attributes:
        work: What the rank was doing.
        windows: The steps.
        parts: Per name of :data:`PARTS`, time in ns of each step; the parts of a step add up to it exactly.
    """

    work: Work
    windows: Windows
    parts: dict[str, Times]


@shared
def split(tables: Tables) -> Split:
    """Split every step, or the whole range without steps, into :data:`PARTS`."""
    spans = working.located(tables)
    windows, work = working.windows(tables, spans), working.work(tables, spans)
    layers = (work.computing, work.communication, work.copying, work.data, work.host)
    covered, before, parts = EMPTY, np.zeros(len(windows.start), np.int64), {}
    for name, layer in zip(PARTS, layers, strict=False):
        covered = union(covered, layer)
        now = covered.within(windows.start, windows.end)
        parts[name] = now - before
        before = now
    parts["idle"] = windows.end - windows.start - before
    return Split(work, windows, parts)


def step_trace_time(tables: Tables) -> pl.DataFrame:
    """Return one row per step, in µs: the standard columns, then the parts that Free consists of.

    A trace without steps gives one row, step 0, over its whole range. What a sample of the operators does not show is
    null.
    """
    result = split(tables)
    parts, windows, work = result.parts, result.windows, result.work
    communication = work.communication.within(windows.start, windows.end)
    bubble = work.receiving.within(windows.start, windows.end)
    exposed = parts["communication"]
    columns = {
        "Computing": parts["computing"],
        "Communication(Not Overlapped)": exposed,
        "Overlapped": communication - exposed,
        "Communication": communication,
        "Free": windows.end - windows.start - parts["computing"] - exposed,
        "Stage": _stage(work.communication, windows) - bubble,
        "Bubble": bubble,
        "Communication(Not Overlapped and Exclude Receive)": _exposed_without(work, windows),
        "Preparing": _preparing(work, windows),
        "Copy(Not Overlapped)": parts["copy"],
        "Data Wait": parts["data wait"],
        "Host Only": parts["host only"],
        "Idle": parts["idle"],
    }
    frame = pl.DataFrame({"Step": windows.number, **columns})
    unknown = () if sample.fraction(tables) == 1 else _OF_THE_HOST if work.on_device else tuple(columns)
    times = (pl.lit(None, pl.Float64).alias(name) if name in unknown else us(name) for name in columns)
    return frame.with_columns(times)


def _stage(communication: Intervals, windows: Windows) -> Times:
    """Return the time from the first to the last communication inside each window; 0 without communication."""
    first = communication.first_from(windows.start)
    last = communication.last_until(windows.end)
    some = communication.within(windows.start, windows.end) > 0
    return np.where(some, last - np.where(some, first, last), 0)


def _exposed_without(work: Work, windows: Windows) -> Times:
    """Return the time of communication other than receiving that nothing else hides."""
    hidden = union(work.computing, work.receiving)
    everything = union(hidden, work.communication)
    return everything.within(windows.start, windows.end) - hidden.within(windows.start, windows.end)


def _preparing(work: Work, windows: Windows) -> Times:
    """Return the time from the start of each window to its first work; the whole window without work."""
    busy = union(work.computing, work.communication, work.copying)
    return np.minimum(busy.first_from(windows.start), windows.end) - windows.start
