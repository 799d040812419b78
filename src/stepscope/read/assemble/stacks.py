"""Python stacks and modules of operators, from the Python spans around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from stepscope.read.assemble.timeline import RankTimeline
from stepscope.read.common.dense import or_null
from stepscope.read.common.nesting import Integers, looked_up
from stepscope.read.common.torch_events import parse_frame
from stepscope.trace.tables import FRAME

_MODULE = "nn.Module: "
_CALL_COLUMNS = ("call_ts", "call_thread")
_LINE = (1 << 31) - 1


def attach(
    timeline: RankTimeline, operators: pl.DataFrame, stacks: pl.DataFrame, *, brief: bool = False
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return ``operators`` and ``stacks``, with the Python spans that contain an operator where the source gave none.

    An operator that runs on another thread than the one that called it takes those around its call, at ``call_ts`` on
    ``call_thread``; the result is without these columns. In brief they get their modules only.
    """
    called = operators[list(_CALL_COLUMNS)] if set(_CALL_COLUMNS) <= set(operators.columns) else None
    operators = operators[[name for name in operators.columns if name not in _CALL_COLUMNS]]
    python = timeline.of_kinds("python")
    if not python.any() or not operators.height:
        return operators, stacks
    around = timeline.nearest(python)[operators["span"].to_numpy()]
    if called is not None:
        around = np.where(around >= 0, around, _around_calls(timeline, python, called))
    modules = _paths(timeline, python & (timeline.named({_MODULE: 0}) >= 0), around)
    operators = operators.with_columns(module=operators["module"].cast(pl.String).fill_null(modules))
    if brief:
        return operators, stacks
    without = operators["stack"].is_null().to_numpy()
    first = max(stacks["id"].to_list(), default=-1) + 1
    wanted = np.flatnonzero(without & (around >= 0))
    lines, _ = timeline.integers("calling_line")
    places, place_of = np.unique(
        _place(around[wanted], lines[operators["span"].to_numpy()[wanted]]), return_inverse=True
    )
    numbers, frames = _chains(timeline, python, lines, places, first)
    stack = np.full(operators.height, -1, np.int64)
    stack[wanted] = numbers[place_of]
    own = or_null("stack", stack)
    return operators.with_columns(stack=operators["stack"].fill_null(own)), pl.concat([stacks, frames])


def _around_calls(timeline: RankTimeline, python: Any, called: pl.DataFrame) -> Integers:  # noqa: ANN401 - a mask
    """Return for each call the innermost Python span around it; −1 without one."""
    threads = timeline.tracks.filter(pl.col("thread").is_not_null()).unique("thread", keep="first")
    numbers = dict(threads.select("thread", "id").iter_rows())
    track = called["call_thread"].replace_strict(numbers, default=-1, return_dtype=pl.Int64).fill_null(-1).to_numpy()
    found = np.full(called.height, -1, np.int64)
    known = np.flatnonzero((track >= 0) & called["call_ts"].is_not_null().to_numpy())
    if len(known):
        at = timeline.at(track[known], called["call_ts"].fill_null(0).to_numpy()[known])
        found[known] = looked_up(timeline.nearest(python), at)
    return _between(found)


def _between(found: Integers) -> Integers:
    """Give what has none the value that its neighbours on both sides have: calls run in the order they were made."""
    given = pl.Series(found).replace(-1, None)
    before, after = given.forward_fill(), given.backward_fill()
    filled: Integers = pl.select(pl.when(before == after).then(before)).to_series().fill_null(-1).to_numpy()
    return filled


def _place(span: Integers, line: Integers) -> Integers:
    """Return one number for a line of a Python call, that of its span and a line of 31 bits; line 0: it is unknown."""
    return span << 31 | line


def _chains(
    timeline: RankTimeline,
    python: Any,  # noqa: ANN401 - a mask
    lines: Integers,
    wanted: Integers,
    first: int,
) -> tuple[Integers, pl.DataFrame]:
    """Return for each wanted place the id of its stack, and the stacks; equal stacks are one.

    Each frame has the line that calls the frame inside it.
    """
    parent = timeline.parent
    above = timeline.nearest(python)
    codes = timeline.codes
    stack_of: dict[int, int] = {-1: -1}
    interned: dict[tuple[int, int, int], int] = {}
    span_of: dict[int, int] = {}
    path: list[int] = []
    for place in wanted.tolist():
        at = place
        while at not in stack_of:
            path.append(at)
            span = at >> 31
            at = int(_place(above[parent[span]], lines[span])) if parent[span] >= 0 else -1
            at = max(at, -1)  # no Python call is around it
        while path:
            below = path.pop()
            code = int(codes[below >> 31])
            stack_of[below] = interned.setdefault((stack_of[at], code, below & _LINE), len(interned))
            span_of[code] = below >> 31
            at = below
    used = [stack_of[place] for place in wanted.tolist()]
    texts = timeline.spans["name"][pl.Series(list(span_of.values()), dtype=pl.UInt32)].to_list()
    frame_of = dict(zip(span_of, map(parse_frame, texts), strict=True))
    return np.array(used, np.int64) + first, _table(frame_of, list(interned), set(used), first)


def _table(
    frame_of: Mapping[int, dict[str, Any]], links: list[tuple[int, int, int]], used: set[int], first: int
) -> pl.DataFrame:
    """Return the table ``stacks`` of chains given as (outer chain, number of the innermost frame, its line or 0)."""
    rows = []
    for number in sorted(used):
        frames, place = [], number
        while place >= 0:
            place, code, line = links[place]
            frame = frame_of[code]
            frames.append({**frame, "line": line} if line and frame["file"] is not None else frame)
        rows.append({"id": number + first, "frames": frames})
    return pl.DataFrame(rows, schema={"id": pl.Int64, "frames": pl.List(FRAME)})


def _paths(timeline: RankTimeline, is_module: Any, around: Integers) -> pl.Series:  # noqa: ANN401 - a mask
    """Return for each place the modules around it, outermost first; null without modules."""
    parent, nearest = timeline.parent, timeline.nearest(is_module)
    names = timeline.spans["name"]
    path_of: dict[int, str] = {}

    def path(span: int) -> str:
        chain = []
        place = span
        while place >= 0 and place not in path_of:
            chain.append(place)
            place = int(nearest[parent[place]]) if parent[place] >= 0 else -1
        text = path_of.get(place, "")
        for inner in reversed(chain):
            own = names[inner].removeprefix(_MODULE)
            text = f"{text}/{own}" if text else own
            path_of[inner] = text
        return path_of[span]

    modules = looked_up(nearest, around)
    return pl.Series([path(span) if span >= 0 else None for span in modules.tolist()], dtype=pl.String)
