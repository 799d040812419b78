"""Each step in one table: its parts in rows, its phases in columns. Definition: ``docs/definitions.md``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analyse.intervals import EMPTY, Intervals, Times
from stepscope.analyse.step import sample
from stepscope.analyse.step.phase_times import SHOWN, phase_intervals
from stepscope.analyse.step.step_trace_time import PARTS, Split, split
from stepscope.trace.tables import Tables

#: Name of the row that holds the whole step.
WHOLE = "step"
#: Parts that a sample of the operators does not tell apart on a rank with a device.
_OF_HOST = ("sync", "host only", "idle")
_TITLES = {name: f"{name.capitalize()}(us)" for name in SHOWN}
_SCHEMA: dict[str, type[pl.DataType]] = {
    "Step": pl.Int64, "Part": pl.String, **dict.fromkeys(_TITLES.values(), pl.Float64), "Total(us)": pl.Float64,
    "Share(%)": pl.Float64,
}  # fmt: skip


def step_anatomy(tables: Tables) -> pl.DataFrame:
    """Return one row per part of a step: its time in each phase, in µs; first of all steps together, without a number.

    The row ``step`` is the whole. Rows and columns add up to it to the nanosecond; what is not known is null.
    """
    parts = split(tables)
    windows = parts.windows
    if not len(windows.start):
        return pl.DataFrame(schema=_SCHEMA)
    times = _times(tables, parts)
    unknown = _unknown(tables, parts)
    whole = windows.end - windows.start
    steps: list[int | None] = [None, *windows.number.tolist()]
    columns: dict[str, list[object]] = {name: [] for name in _SCHEMA}
    for part in (*PARTS, WHOLE):
        known = part not in unknown
        total = whole if part == WHOLE else parts.parts[part]
        own = {name: times[part, name] for name in SHOWN} if times and known else {}
        columns["Step"] += steps
        columns["Part"] += [part] * len(steps)
        for name, title in _TITLES.items():
            columns[title] += _us(own[name]) if own else [None] * len(steps)
        columns["Total(us)"] += _us(total) if known else [None] * len(steps)
        columns["Share(%)"] += _shares(total, whole) if known else [None] * len(steps)
    order = np.arange(len(columns["Step"])).reshape(-1, len(steps)).T.ravel()
    return pl.DataFrame(columns, schema=_SCHEMA)[order]


def _times(tables: Tables, parts: Split) -> dict[tuple[str, str], Times]:
    """Return the time in ns of each part in each phase, by step, and of the whole; empty if no phase is known."""
    phases = phase_intervals(tables, parts.work, on_device=parts.work.on_device)
    if not phases or sample.fraction(tables) < 1:
        return {}
    windows = parts.windows
    edges = np.unique(
        np.concatenate(
            [
                *(edge for layer in (*parts.layers.values(), *phases.values()) for edge in (layer.start, layer.end)),
                windows.start,
                windows.end,
            ]
        )
    )
    begin, end = edges[:-1], edges[1:]
    part = _first(list(parts.layers.values()), begin)
    phase = _first([phases.get(name, EMPTY) for name in SHOWN[:-1]], begin)
    found: dict[tuple[str, str], Times] = {}
    for place, name in enumerate(SHOWN):
        of_phase = phase == place
        for number, row in enumerate(PARTS):
            mine = np.flatnonzero(of_phase & (part == number))
            found[row, name] = Intervals(begin[mine], end[mine]).within(windows.start, windows.end)
        found[WHOLE, name] = np.sum([found[row, name] for row in PARTS], axis=0, dtype=np.int64)
    return found


def _first(layers: list[Intervals], instants: Times) -> npt.NDArray[np.int8]:
    """Return which of the sets is the first that covers each instant; their number where none does."""
    found = np.full(len(instants), len(layers), np.int8)
    for place in reversed(range(len(layers))):
        layer = layers[place]
        if len(layer):
            at = np.searchsorted(layer.start, instants, side="right") - 1
            found[(at >= 0) & (instants < layer.end[at])] = place
    return found


def _unknown(tables: Tables, parts: Split) -> frozenset[str]:
    """Return the parts of which the time is not known."""
    if sample.fraction(tables) == 1:
        return parts.unknown
    return parts.unknown | frozenset(_OF_HOST if parts.work.on_device else PARTS)


def _us(times: Times) -> list[object]:
    """Return the sum over all steps and each step's time, in µs."""
    return [round(time / 1000, 3) for time in (int(times.sum()), *times.tolist())]


def _shares(times: Times, whole: Times) -> list[object]:
    pairs = [(int(times.sum()), int(whole.sum())), *zip(times.tolist(), whole.tolist(), strict=True)]
    return [100 * time / all_of_it if all_of_it else None for time, all_of_it in pairs]
