"""Tracks of several parts → the tracks of the rank: there are few, so their rows are compared one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from stepscope.read.common.nesting import Integers
from stepscope.trace.tables import schema, taken, together, with_series

_KIND_ORDER = {"thread": 0, "stream": 1, "annotation": 2, "other": 3, "counter": 4}
#: Beginning of the name of a thread that has none.
_NUMBERED = "thread "


def merged(frames: Sequence[pl.DataFrame], rank: int | None, host: str | None) -> tuple[pl.DataFrame, list[Integers]]:
    """Return one table of tracks, of ``rank`` and ``host`` if given, and the new number of each part's tracks.

    Threads are the same when process and thread are, streams of different parts when device and stream are: one part
    has several streams of a number where a device has several contexts. Other lanes, and streams without a number, are
    the same when also their names are. The name of a thread that says more than its number wins; among those the first.
    """
    behind = np.cumsum([0, *(frame.height for frame in frames)]).tolist()
    parts = [_identified(frame.rows(named=True), first) for frame, first in zip(frames, behind, strict=False)]
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    for identity, row in (pair for part in parts for pair in part):
        known = kept.setdefault(identity, row)
        if known["name"].startswith(_NUMBERED) and not row["name"].startswith(_NUMBERED):
            kept[identity] = row
    ordered = sorted(kept, key=lambda identity: _place(kept[identity]))
    number_of = {identity: number for number, identity in enumerate(ordered)}
    said = {name: value for name, value in (("rank", rank), ("host", host)) if value is not None}
    chosen = pl.Series([kept[identity]["row"] for identity in ordered], dtype=pl.UInt32)
    rows = taken(together("tracks", frames), chosen)
    kinds, number = schema("tracks"), range(len(ordered))
    columns = [pl.Series(name, number, kinds[name]) for name in ("id", "order")]
    columns += [pl.Series(name, [value], kinds[name]).new_from_index(0, rows.height) for name, value in said.items()]
    return with_series(rows, columns), [_numbers(part, number_of) for part in parts]


def _identified(part: list[dict[str, Any]], first: int) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return what each track of a part is known by, and its values, with its row among those of all parts."""
    streams = Counter[tuple[str, int]]()
    identified = []
    for place, row in enumerate(part):
        row["row"] = first + place
        kind, stream = row["kind"], row.get("stream")
        last: Any = "" if row.get("thread") is not None else row["name"]
        if kind == "stream" and stream is not None:
            last = streams[row["device"], stream]
            streams[row["device"], stream] += 1
        identified.append(((kind, row["device"], row.get("process"), row.get("thread"), stream, last), row))
    return identified


def _place(row: dict[str, Any]) -> tuple[tuple[bool, Any], ...]:
    """Return what tracks are sorted by; the main thread, whose number is the process's, comes before the others."""
    main = row.get("thread") is not None and row["thread"] == row.get("process")
    by_kind, last = (_KIND_ORDER[row["kind"]], row["device"], row.get("process"), not main), row["name"]
    return tuple(
        (value is None, value) for value in (*by_kind, row["order"], row.get("stream"), row.get("thread"), last)
    )


def _numbers(part: list[tuple[tuple[Any, ...], dict[str, Any]]], number_of: dict[tuple[Any, ...], int]) -> Integers:
    numbers = np.zeros(1 + max((row["id"] for _, row in part), default=-1), np.int64)
    for identity, row in part:
        numbers[row["id"]] = number_of[identity]
    return numbers
