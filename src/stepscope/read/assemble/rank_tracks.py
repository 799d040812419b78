"""Tracks of several parts → the tracks of the rank: there are few, so their rows are compared one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from stepscope.read.common.nesting import Integers
from stepscope.trace.tables import schema

_KIND_ORDER = {"thread": 0, "stream": 1, "annotation": 2, "other": 3, "counter": 4}
#: Beginning of the name of a thread that has none.
_NUMBERED = "thread "


def merged(frames: Sequence[pl.DataFrame], rank: int | None, host: str | None) -> tuple[pl.DataFrame, list[Integers]]:
    """Return one table of tracks, of ``rank`` and ``host`` if given, and the new number of each part's tracks.

    Threads are the same when process and thread are, streams when device and stream are; other lanes, and streams
    without a number, when also their names are. The name of a thread that says more than its number wins; among those
    the first.
    """
    parts = [frame.rows(named=True) for frame in frames]
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in (row for part in parts for row in part):
        known = kept.setdefault(_identity(row), row)
        if known["name"].startswith(_NUMBERED) and not row["name"].startswith(_NUMBERED):
            kept[_identity(row)] = row
    ordered = sorted(kept, key=lambda identity: _place(kept[identity]))
    number_of = {identity: number for number, identity in enumerate(ordered)}
    said = {name: value for name, value in (("rank", rank), ("host", host)) if value is not None}
    rows = [{**kept[identity], **said, "id": number, "order": number} for identity, number in number_of.items()]
    columns = {name: pl.Series(name, [row.get(name) for row in rows], kind) for name, kind in schema("tracks").items()}
    return pl.DataFrame(columns), [_numbers(part, number_of) for part in parts]


def _identity(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a track is known by."""
    place = (row["kind"], row["device"], row.get("process"), row.get("thread"), row.get("stream"))
    by_place = (row["kind"] == "stream" and row.get("stream") is not None) or row.get("thread") is not None
    return (*place, "" if by_place else row["name"])


def _place(row: dict[str, Any]) -> tuple[tuple[bool, Any], ...]:
    """Return what tracks are sorted by; the main thread, whose number is the process's, comes before the others."""
    main = row.get("thread") is not None and row["thread"] == row.get("process")
    by_kind, last = (_KIND_ORDER[row["kind"]], row["device"], row.get("process"), not main), row["name"]
    return tuple(
        (value is None, value) for value in (*by_kind, row["order"], row.get("stream"), row.get("thread"), last)
    )


def _numbers(part: list[dict[str, Any]], number_of: dict[tuple[Any, ...], int]) -> Integers:
    numbers = np.zeros(1 + max((row["id"] for row in part), default=-1), np.int64)
    for row in part:
        numbers[row["id"]] = number_of[_identity(row)]
    return numbers
