"""The idle time of devices as rules see it: by reason, call, operator and line, in time per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analyse.idle.gaps import Gaps, gaps, launches
from stepscope.analyse.idle.idle_pieces import REASON, REASONS, idle_pieces
from stepscope.analyse.idle.line_of_code import lines_of_spans
from stepscope.analyse.idle.thread_time import nearest_around
from stepscope.analyse.intervals import Times, unite
from stepscope.analyse.step.activity import Rows, device_rows, of_kinds, span_codes, span_kinds, texts_of
from stepscope.analyse.step.device_waits import allocating, waiting
from stepscope.read.common.dense import distinct_rows
from stepscope.trace.tables import Tables, codes, columns_of

#: Reasons for which a device idles while its host prepares work, and launches none.
HOST_REASONS = ("host preparing", "launch latency", "python", "nothing known")
#: Work that begins so soon after the return of its launch, ns, found no other before it.
_PROMPT = 20_000
#: A gap of a device, ns, in which the host does more than to call operators.
_LONG_GAP = 1_000_000

_KEYS = ("reason", "called", "copied", "asked", "allocates", "long")


@dataclass(frozen=True, eq=False)
class IdleRow:
    """Idle time with one reason, call, copy, operator and line; ns per step of a mean device.

    Attributes:
        reason: One of :data:`~stepscope.analyse.idle.idle_pieces.REASONS`.
        call: Name of the call, wait or collective that is the reason; None for none.
        copy: Name of the work that the call launched.
        operator: Name of the innermost operator around it.
        line: The program's own line, ``file:line function``.
        allocates: Whether the call takes memory from the driver or gives it back.
        long: Whether the device idles for a millisecond or more.
        time: The idle time.
        ahead: The part of it in which the host, after it waited, runs ahead of the device again.
        calls: Number of calls per step.
        spans: Rows of ``spans`` of the calls, and perhaps a -1.
    """

    reason: str
    call: str | None
    copy: str | None
    operator: str | None
    line: str | None
    allocates: bool
    long: bool
    time: float
    ahead: float
    calls: float
    spans: Rows

    @property
    def place(self) -> str:
        """Call, operator and line as a title shows them; or that there are none."""
        inside = f" in {self.operator}" if self.operator and self.call else self.operator or ""
        return f"{self.call or ''}{inside}{f' ({self.line})' if self.line else ''}" or "outside of operators and calls"


def idle_rows(tables: Tables, *, after_waits: bool) -> list[IdleRow]:
    """Return the idle time of all devices in the order in which its reasons, calls and lines first occur.

    Idle time of unknown reason after which no work comes waits for nothing and is left out. A recording without steps
    begins with work that later steps do not repeat, such as loading a library: the longest wait of each row is left
    out.

    Args:
        tables: The tables of a rank.
        after_waits: Whether the time that the host needs to run ahead again belongs to the call that waited.
    """
    found, pieces = gaps(tables), idle_pieces(tables)
    if not len(pieces.gap):
        return []
    usual, steps = _in_usual_steps(tables, pieces.start)
    many = max(steps or len(found.windows.start), 1) * max(len(found.devices), 1)
    long = (found.end - found.start)[pieces.gap] >= _LONG_GAP
    since = np.full(len(pieces.gap), -1, np.int64)
    if after_waits:
        host = np.isin(pieces.reason, [REASON[name] for name in HOST_REASONS]) & ~long
        since = np.where(host, _drained_by(tables, found)[pieces.gap], -1)
    reason = np.where(since >= 0, REASON["synchronising call"], pieces.reason)
    owner = np.where(since >= 0, since, pieces.name)
    around = nearest_around(tables, since, of_kinds(span_kinds(tables), "operator"))
    operator = np.where(since >= 0, around, pieces.operator)
    copy = _launched_by(tables)[owner]
    time = pieces.end - pieces.start
    _, call, alike = np.unique(owner, return_inverse=True, return_counts=True)
    columns = {
        "reason": reason, "called": _names(tables, owner), "copied": _names(tables, copy),
        "asked": _names(tables, operator), "allocates": np.append(allocating(tables), False)[owner], "long": long,
        "time": time, "ahead": (since >= 0) * time,
        "calls": (owner >= 0) / alike[call],  # a call in several pieces is one
        "owner": owner, "copy": copy, "operator": operator,
    }  # fmt: skip
    kept = np.flatnonzero(usual & ((reason != REASON["nothing known"]) | (found.next[pieces.gap] >= 0)))
    line = lines_of_spans(tables, np.where(operator >= 0, operator, owner)[kept])
    columns = {name: values[kept] for name, values in columns.items()}
    return _summed(tables, columns, line, many, once=not found.windows.declared)


def _in_usual_steps(tables: Tables, times: Times) -> tuple[npt.NDArray[np.bool_], int]:
    """Return which times lie outside of steps that work fills from before the recording, and the number of the others.

    Without other steps, all times do, and the number is 0.
    """
    steps = columns_of(tables, "steps", "ts", "dur", "launched_before")
    filled = (steps["launched_before"].fill_null(0) > 0).to_numpy()
    others = len(steps) - int(filled.sum())
    if not filled.any() or not others:
        return np.ones(len(times), np.bool_), 0
    begin = steps["ts"].to_numpy()[filled]
    within = unite(begin, begin + steps["dur"].to_numpy()[filled])
    return within.before(times + 1) == within.before(times), others


def _names(tables: Tables, rows: Rows) -> Rows:
    return np.where(rows >= 0, span_codes(tables).name[rows].astype(np.int64), -1)


def _summed(
    tables: Tables, pieces: Mapping[str, npt.NDArray[Any]], line: pl.Series, many: int, *, once: bool
) -> list[IdleRow]:
    """Return the sums of pieces of idle time by :data:`_KEYS` and line, in ns, divided by ``many``.

    With ``once`` without the longest piece of each.
    """
    keys = [pieces[name].astype(np.int64) for name in _KEYS]
    if line.null_count() < len(line):
        keys += codes(line.cast(pl.Categorical))
    first, row = distinct_rows(keys)
    time, ahead, calls = (np.bincount(row, pieces[name], len(first)) for name in ("time", "ahead", "calls"))
    longest = np.zeros(len(first))
    if once:
        np.maximum.at(longest, row, pieces["time"])
    reasons = [REASONS[reason] for reason in pieces["reason"][first].tolist()]
    texts = (texts_of(tables, pieces[name][first]) for name in ("owner", "copy", "operator"))
    said = (pieces[name][first].tolist() for name in ("allocates", "long"))
    figures = ((values / many).tolist() for values in (time - longest, ahead, calls))
    owners = np.split(pieces["owner"][np.argsort(row, kind="stable")], np.cumsum(np.bincount(row)))[: len(first)]
    columns = (reasons, *texts, line.gather(first).to_list(), *said, *figures, (np.unique(one) for one in owners))
    return [IdleRow(*values) for values in zip(*columns, strict=True)]


def _launched_by(tables: Tables) -> Rows:
    """Return, by row of ``spans``, the row of the last work that it launched, and a -1 behind the last; -1 for none."""
    launched = launches(tables)
    found = np.full(len(launched), -1, np.int64)
    work = np.flatnonzero(launched >= 0)
    found[launched[work]] = work
    return found


def _drained_by(tables: Tables, found: Gaps) -> Rows:
    """Return, by gap, the row of the call that waited for the device and after which it has had no queue; -1 for none.

    The host that waited has to run ahead of the device again. Until then each piece of work begins as it is launched.
    """
    waits = np.flatnonzero((waiting(tables) | allocating(tables)) & ~of_kinds(span_kinds(tables), "kernel"))
    work, spans = device_rows(tables), columns_of(tables, "spans", "track", "ts", "dur")
    launch = launches(tables)[work]
    track, start, dur = (spans[name].to_numpy() for name in spans.columns)
    threads = np.unique(track[launch[launch >= 0]])
    waits = waits[np.isin(track[waits], threads)]
    if not len(waits) or not len(found.start):
        return np.full(len(found.start), -1, np.int64)
    order = np.argsort(start[work], kind="stable")
    work, launch = work[order], launch[order]
    queued = np.append(0, np.cumsum((launch >= 0) & (start[work] > start[launch] + dur[launch] + _PROMPT)))
    ended = start[waits] + dur[waits]
    order = np.argsort(ended, kind="stable")
    waits, ended = waits[order], ended[order]
    last = np.searchsorted(ended, found.end, side="right") - 1
    ahead = queued[np.searchsorted(start[work], found.end)] - queued[np.searchsorted(start[work], ended[last])]
    return np.where((last >= 0) & (ahead == 0), waits[last], -1)


def waited(tables: Tables, idle: Sequence[IdleRow]) -> tuple[float, float]:
    """Return what a step saves without the calls of such idle time, ns: no more than the host stands in them.

    The second number is the part of it in which the host would run ahead.
    """
    calls = np.unique(np.concatenate([row.spans for row in idle] or [np.empty(0, np.int64)]))
    calls = calls[calls >= 0]
    spans, windows = columns_of(tables, "spans", "ts", "dur"), gaps(tables).windows
    start, dur = (spans[name].to_numpy()[calls] for name in ("ts", "dur"))
    within = unite(start, start + dur).within(windows.start, windows.end)
    saved = min(sum(row.time for row in idle), float(within.sum()) / max(len(windows.start), 1))
    return saved, max(saved - sum(row.time - row.ahead for row in idle), 0.0)


def places(idle: Sequence[IdleRow]) -> list[tuple[str, float, float]]:
    """Return the places of idle time, the ns and the number of calls per step of each: most time first."""
    by: dict[tuple[str | None, ...], tuple[str, float, float]] = {}
    for row in idle:
        key = (row.call, row.operator, row.line)
        place, time, calls = by.get(key, (row.place, 0.0, 0.0))
        by[key] = (place, time + row.time, calls + row.calls)
    return sorted(by.values(), key=lambda one: -one[1])
