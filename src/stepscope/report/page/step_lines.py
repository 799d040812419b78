"""Steps as lines below each other: which part of a step takes most of each piece of the time since it began."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.analyse.intervals import EMPTY, union
from stepscope.analyse.step.step_trace_time import PARTS, Split

#: Pieces of the longest step; lines, at most: of more steps as many, evenly among them.
_PIECES, _LINES = 120, 40
#: What no known part covers, where the source did not record all parts.
UNKNOWN = "not known"


def step_lines(of: Split) -> dict[str, Any] | None:
    """Return the lines of the steps as runs of pieces; None without steps.

    ``parts`` are names; each of ``lines`` has the place of its step, and pairs of a part's place and how many pieces it
    takes, one after the other. A piece lasts ``piece`` ns, the last one of a step what is left.
    """
    windows = of.windows
    if not windows.declared or not len(windows.start):
        return None
    steps = np.unique(np.linspace(0, len(windows.start) - 1, min(len(windows.start), _LINES)).round().astype(np.int64))
    start, end = windows.start[steps, None], windows.end[steps, None]
    piece = max(-(-int((end - start).max()) // _PIECES), 1)
    begins = start + piece * np.arange(_PIECES)
    inside = begins < end
    begin, behind = begins[inside], np.minimum(begins + piece, end)[inside]
    covered, before, times = EMPTY, np.zeros(len(begin), np.int64), []
    known = [name for name in PARTS[:-1] if name not in of.unknown]
    for name in known:
        covered = union(covered, of.layers[name])
        now = covered.within(begin, behind)
        times.append(now - before)
        before = now
    times.append(behind - begin - before)
    part = np.full(inside.shape, -1, np.int64)
    part[inside] = np.argmax(times, axis=0)
    return {
        "parts": [*known, UNKNOWN if PARTS[-1] in of.unknown else PARTS[-1]],
        "piece": piece,
        "pieces": _PIECES,
        "lines": [{"step": int(step), "runs": _runs(line[line >= 0])} for step, line in zip(steps, part, strict=True)],
    }


def _runs(line: np.ndarray[Any, np.dtype[np.int64]]) -> list[tuple[int, int]]:
    """Return pairs of a value and how often it stands there, one after the other."""
    edges = np.flatnonzero(np.diff(line, prepend=-1, append=-1))
    return list(zip(line[edges[:-1]].tolist(), np.diff(edges).tolist(), strict=True))
