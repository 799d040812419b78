"""Steps that a program named itself, by ranges that repeat: ``step_7``, ``Iteration 7``, ``train_step``."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import polars as pl

from stepscope.read.common.distinct import combinations
from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import PartBuilder, whole_number

_STEP = re.compile(
    r"(?P<stem>(?:(?:profiler|train(?:ing)?|global)[ _-]?)?(?:step|iteration|iter|batch))"
    r"[ _#:=-]{0,3}(?P<number>\d+)?",
    re.IGNORECASE,
)
#: Writers round to µs at most, which is a small part of a step; one that takes begin and duration from two clocks is
#: wrong by a smaller part.
_ROUNDED_NS, _SMALL, _TWO_CLOCKS = 1_000, 10, 1_000


class NamedSteps(NamedTuple):
    """The ranges that are steps: their rows, in order of time, and their numbers."""

    rows: Integers
    numbers: Integers


def rounded(dur: Integers) -> Integers:
    """Return how far steps may seem to last into the next one, ns: begin and duration are measured one by one."""
    return np.minimum(dur // _SMALL, np.maximum(_ROUNDED_NS, dur // _TWO_CLOCKS))


def named_steps(names: pl.Series, track: Integers, ts: Integers, dur: Integers) -> NamedSteps:
    """Return which ranges are the steps of the program; none if no name says it.

    The ranges of one word on one track are steps if none begins before the one before it ends, and either their names
    have numbers or there are several. Of several words, one with numbers comes first, then the one with the most time.

    Args:
        names: Name of each range, categorical.
        track: Track of each range.
        ts: Start of each range, ns.
        dur: Duration of each range, ns.
    """
    distinct, which = combinations(names)
    said = [_STEP.fullmatch(name or "") for (name,) in distinct]
    best, found = (False, -1), NamedSteps(np.empty(0, np.int64), np.empty(0, np.int64))
    candidates = np.flatnonzero(np.array([match is not None for match in said], np.bool_)[which])
    groups: dict[tuple[int, str, bool], list[int]] = {}
    for row in candidates[np.argsort(ts[candidates], kind="stable")].tolist():
        match = said[which[row]]
        if match is not None:
            groups.setdefault((int(track[row]), match["stem"].lower(), match["number"] is not None), []).append(row)
    for (_, _, numbered), listed in groups.items():
        rows = np.array(listed)
        apart = (ts[rows][1:] >= (ts[rows] + dur[rows] - rounded(dur[rows]))[:-1]).all()
        worth = (numbered, int(dur[rows].sum()))
        if apart and (numbered or len(rows) > 1) and worth > best:
            matches = (said[which[row]] for row in listed)
            numbers = [whole_number(match["number"]) for match in matches if match] if numbered else range(len(rows))
            best, found = worth, NamedSteps(rows, np.array(numbers, np.int64))
    return found


def add_named_steps(part: PartBuilder, spans: pl.DataFrame) -> pl.DataFrame:
    """Add the steps that ranges among spans name; return the spans with ``step`` as their kind, and of no others.

    Args:
        part: Takes the steps.
        spans: Columns ``name`` (categorical), ``kind`` (text), ``track``, ``ts`` and ``dur``.
    """
    kind = spans["kind"]
    places = np.flatnonzero(kind.is_in(["annotation", "step"]).to_numpy())
    track, ts, dur = (spans[name].to_numpy()[places] for name in ("track", "ts", "dur"))
    steps = named_steps(spans["name"][places], track, ts, dur)
    marked = np.zeros(spans.height, np.bool_)
    marked[places[steps.rows]] = True
    if marked.any():
        part.add_steps({"number": steps.numbers, "ts": ts[steps.rows], "dur": dur[steps.rows]}, "declared")
    words = pl.Series(["annotation", "step"])[pl.Series(marked).cast(pl.UInt32)]
    return spans.with_columns(kind.zip_with(~kind.is_in(["annotation", "step"]), words).alias("kind"))
