"""Captures whose recorder read the system clock while it was set → the time line of the journal, which did not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from stepscope.read.common.nesting import Integers
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import CLOCK_SET

#: Nanoseconds around the recording in which its work lies.
_AROUND = 1_000_000_000
#: Columns with times, besides ``ts`` with its ``dur``: of arrows, and of what a program asked for (`dispatches`).
_TIMES = ("from_ts", "to_ts", "end")


def align(parts: Sequence[dict[str, pl.DataFrame]], ledger: LossLedger) -> bool:
    """Move the times of captures onto the time line of the journal, if the system clock was set while it recorded.

    Marks of steps that a capture shares with the journal say where its times belong, whatever its recorder made of the
    change: Kineto stretches them. A capture without such marks read the clock at each event: its times are those of the
    journal, or differ by what the clock was set by; the recording's beginning and end tell which.

    Returns:
        Whether that is possible; if not, no work can be put into a step.
    """
    facts = [values(part["metadata"], CLOCK_SET) for part in parts]
    journals = [(part, json.loads(said[0])) for part, said in zip(parts, facts, strict=True) if said]
    if not journals:
        return True
    (journal, was_set), *_ = journals
    aligned = True
    for part in parts:
        if "arrows" not in part:
            continue
        shared = part["steps"].join(journal["steps"], on="number", suffix="_true").sort("ts_true")
        backward = (shared["ts"].diff() <= 0).any()  # Kineto makes every duration 0 where its times run backward
        for name, frame in part.items():
            part[name] = _moved(frame, shared, was_set)
        work = part["spans"]["ts"]
        within = work.is_between(was_set["begin"] - _AROUND, was_set["end"] + _AROUND)
        if backward or not within.any() or within.mean() < 0.99:  # type: ignore[operator]
            ledger.add("clock_not_aligned")
            aligned = False
    return aligned


def values(metadata: pl.DataFrame, key: str) -> list[str]:
    """Return the values of a fact in the table ``metadata``, which has few rows."""
    facts = zip(metadata["key"].to_list(), metadata["value"].to_list(), strict=True)
    return [value for name, value in facts if name == key]


def _moved(frame: pl.DataFrame, shared: pl.DataFrame, was_set: dict[str, Any]) -> pl.DataFrame:
    times = [name for name in ("ts", *_TIMES) if name in frame.columns]
    if not times or not frame.height:
        return frame
    moved = {name: _true(frame[name].to_numpy(), shared, was_set) for name in times}
    if "ts" in moved and "dur" in frame.columns:
        end = _true((frame["ts"] + frame["dur"]).to_numpy(), shared, was_set)
        moved["dur"] = np.maximum(end - moved["ts"], 0)
    return frame.with_columns(pl.Series(name, values, dtype=frame[name].dtype) for name, values in moved.items())


def _true(times: Integers, shared: pl.DataFrame, was_set: dict[str, Any]) -> Integers:
    """Return the journal's times of times of a capture."""
    if shared.height > 1:
        marks, true = shared["ts"].to_numpy(), shared["ts_true"].to_numpy()
        # The sides continue in the slope of all marks. Differences are small enough for floats to hold them exactly.
        slope = float(true[-1] - true[0]) / float(marks[-1] - marks[0] or 1)
        from_first = (times - marks[0]).astype(np.float64)
        inside = np.interp(from_first, (marks - marks[0]).astype(np.float64), (true - true[0]).astype(np.float64))
        outside = np.where(times < marks[0], from_first, np.maximum(times - marks[-1], 0)) * slope
        moved: Integers = true[0] + np.rint(inside + outside).astype(np.int64)
        return moved
    found = times.copy()
    for shift in was_set["shifts"]:
        outside_now = (found < was_set["begin"] - _AROUND) | (found > was_set["end"] + _AROUND)
        candidate = times - shift
        fits = (candidate >= was_set["begin"] - _AROUND) & (candidate <= was_set["end"] + _AROUND)
        found = np.where(outside_now & fits, candidate, found)
    return found
