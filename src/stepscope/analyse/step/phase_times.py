"""How long the phases of a step take: data, forward, backward, optimizer, … Definition: ``docs/definitions.md``."""

from __future__ import annotations

import numpy as np

from stepscope.analyse.intervals import EMPTY, Intervals, Times, subtract, union, unite
from stepscope.analyse.step.activity import (
    Windows,
    Work,
    device_rows,
    not_recorded,
    of_kinds,
    on_tracks,
    span_codes,
    span_kinds,
)
from stepscope.analyse.step.announced import announced
from stepscope.trace.schema import PHASES
from stepscope.trace.tables import Tables, columns_of, has_rows

#: Phases that the program or a library announces (the table ``run_events``); they contain work of the others.
_ANNOUNCED: tuple[str, ...] = ("evaluation", "checkpoint")
#: The phases in order of priority: what several do at once belongs to the first. The rest of a step is ``other``.
_PHASES: tuple[str, ...] = (*_ANNOUNCED, "backward", "forward", "optimizer", "communication", "data")
#: Those that contain operators of no known phase.
_LASTING = frozenset({"backward", "forward", "optimizer"})
#: The order in which they are shown.
SHOWN: tuple[str, ...] = ("data", "forward", "backward", "optimizer", "communication", *_ANNOUNCED, "other")
#: Kinds of spans on host threads that show what a rank without a device works on. Of the ranges that a library names,
#: the optimizer's have a phase: all of its step counts, its own code before the first operator, too.
_ON_THREADS = ("operator", "phase", "collective", "annotation")


def phase_times(tables: Tables, windows: Windows, work: Work) -> dict[str, Times]:
    """Return the time of each phase in each step, in ns, by the names of :data:`SHOWN`; empty if no phase is known.

    The phases of a step add up to it exactly. Where the source did not record what computed, none is known.
    """
    if "computing" in not_recorded(tables):
        return {}
    parts = phase_intervals(tables, work, on_device=work.on_device)
    if not parts:
        return {}
    found = {name: part.within(windows.start, windows.end) for name, part in parts.items()}
    found["other"] = windows.end - windows.start - sum(found.values())
    return {name: found[name] for name in SHOWN}


def phase_intervals(tables: Tables, work: Work, *, on_device: bool) -> dict[str, Intervals]:
    """Return when each phase but ``other`` lasts, as disjoint sets; empty if no phase is known.

    A phase of the model or the optimizer lasts from one piece of its work to the next one of the step, if no other
    phase works between: what runs between two operators of the forward pass, and the gap between them, is forward.
    Work of no known phase between two pieces of the optimizer stays ``other``: it may be a pass without gradients.

    Args:
        tables: Tables of the rank.
        work: What the rank was doing.
        on_device: Whether the streams of devices show the phases, or the host threads.
    """
    spans = columns_of(tables, "spans", "track", "ts", "dur")
    if on_device:
        rows = device_rows(tables)
    else:
        threads = on_tracks(tables, "thread")
        rows = np.flatnonzero(threads & of_kinds(span_kinds(tables), *_ON_THREADS))
    start, phase = spans["ts"].to_numpy()[rows], span_codes(tables).phase[rows]
    end = start + spans["dur"].to_numpy()[rows]
    covered, parts = EMPTY, []
    for name in _PHASES:
        if name in _ANNOUNCED:
            layer = _announced(tables, name)
        else:
            mine = phase == PHASES.index(name)
            begin = start[mine]
            if name == "optimizer" and not on_device:
                begin = _behind_closures(begin, end[mine], covered)
            layer = work.data if name == "data" else unite(begin, end[mine])
        parts.append(subtract(layer, covered))
        covered = union(covered, layer)
    if not any(len(part) for name, part in zip(_PHASES, parts, strict=True) if name != "data"):
        return {}
    others = np.sort(start[phase == PHASES.index("other")])
    steps = np.sort(columns_of(tables, "steps", "ts")["ts"].to_numpy())
    return dict(zip(_PHASES, _extended(parts, steps, others), strict=True))


def _behind_closures(start: Times, end: Times, model: Intervals) -> Times:
    """Return where the optimizer's own part of its spans begins: behind the forward and backward of a closure."""
    if not len(model):
        return start
    last = np.searchsorted(model.end, end, side="right") - 1
    inside = (last >= 0) & (model.start[last] >= start)
    return np.where(inside, model.end[last], start)


def _announced(tables: Tables, name: str) -> Intervals:
    if not has_rows(tables, "run_events"):
        return EMPTY
    events = announced(tables, name)
    start = events["ts"].to_numpy()
    return unite(start, start + events["dur"].to_numpy())


def _extended(parts: list[Intervals], steps: Times, others: Times) -> list[Intervals]:
    """Let each interval of a set of :data:`_LASTING` last until the next one of all sets, if that is of the same.

    Args:
        parts: Disjoint sets, one for each of :data:`_PHASES`.
        steps: Starts of the steps in order; no interval is extended over one.
        others: Starts of work of the phase ``other`` in order; no interval of the optimizer is extended over one.
    """
    start = np.concatenate([part.start for part in parts])
    end = np.concatenate([part.end for part in parts])
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.argsort(start, kind="stable")
    start, end, owner = start[order], end[order], owner[order]
    lasting = np.array([name in _LASTING for name in _PHASES])[owner[:-1]] & (owner[1:] == owner[:-1])
    lasting &= _between(end[:-1], start[1:], steps) == 0
    of_optimizer = owner[:-1] == _PHASES.index("optimizer")
    lasting &= ~of_optimizer | (_between(end[:-1], start[1:], others) == 0)
    same = np.flatnonzero(lasting)
    end[same] = start[same + 1]
    return [unite(start[mine], end[mine]) for mine in (owner == number for number in range(len(parts)))]


def _between(begin: Times, end: Times, at: Times) -> Times:
    """Return how many of the sorted times lie in each gap, the first of it included."""
    return np.searchsorted(at, end) - np.searchsorted(at, begin)
