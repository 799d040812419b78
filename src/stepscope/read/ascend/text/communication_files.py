"""``communication.json`` and ``communication_matrix.json`` → frames; times are ms, sizes MB of 10^6 bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.read.ascend.ascend_frames import rows_of
from stepscope.read.common.part_builder import whole_number
from stepscope.read.common.plain_text import json_of, text_of
from stepscope.read.common.source import Progress, tell_all
from stepscope.trace.ascend_columns import COMMUNICATION_MOVED, COMMUNICATION_TIMES
from stepscope.trace.losses import LossLedger

#: ns of a ms, bytes of an MB.
_MILLION = 1_000_000
_PLACE = re.compile(r"(.+)-(top1|middle|bottom[123]|total)")
_LINK = re.compile(r"(\d{1,9})-(\d{1,9})")
_STEP = re.compile(r"step_?(\d+)?")
_TOTAL = "Total Op Info"
#: No document of sums is larger.
_LARGEST = 1 << 30
#: Times and sizes beyond this are damage.
_MOST = 1 << 62


def times(path: Path, ledger: LossLedger, progress: Progress | None = None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return ``communication.json`` as rows like those of ``communications``, and the frame ``bandwidths``.

    The first have ts, dur, step, name, group, point_to_point and the times; the sums over all are left out of them.
    """
    operations, bandwidths = [], []
    tell_all(path, progress)
    for step, point_to_point, key, value in _entries(path, ledger):
        name, _, group = key.rpartition("@") if "@" in key else (key, "", "")
        said = dict(_objects(value.get("Communication Time Info", {}), ledger))
        place = {"step": step, "point_to_point": point_to_point, "name": name, "group": group}
        if name != _TOTAL:
            operations.append(place | {one.ours: _scaled(said.get(one.key), one.parts) for one in COMMUNICATION_TIMES})
        for transport, moved in _objects(value.get("Communication Bandwidth Info", {}), ledger):
            bandwidths += [{**place, "transport": transport, **row} for row in _moved(moved, ledger)]
    return pl.DataFrame(operations, schema=_OPERATIONS), rows_of("bandwidths", bandwidths)


_OPERATIONS: dict[str, pl.DataType] = {
    **{"step": pl.Int64(), "point_to_point": pl.Boolean(), "name": pl.String(), "group": pl.String()},
    **{one.ours: pl.Int64() for one in COMMUNICATION_TIMES},
}


def matrix(path: Path, ledger: LossLedger, progress: Progress | None = None) -> pl.DataFrame:
    """Return the frame ``matrix`` of ``communication_matrix.json``.

    Older versions list every operation by itself: its ``place`` is then ``one``, and its kind its name.
    """
    rows = []
    tell_all(path, progress)
    for step, point_to_point, key, value in _entries(path, ledger):
        label, _, group = key.rpartition("@") if "@" in key else (key, "", "")
        match, entry = _PLACE.fullmatch(label), {"step": step, "point_to_point": point_to_point, "group": group}
        operation, place = match.groups() if match else (label, "total" if label == _TOTAL else "one")
        for link, moved in value.items():
            ends = _LINK.fullmatch(link)
            if ends is None or not isinstance(moved, dict):
                ledger.add("value_unreadable")
                continue
            said = {"transport": moved.get("Transport Type"), "name": moved.get("Op Name", moved.get("op_name"))}
            texts = {key: text if isinstance(text, str) else None for key, text in said.items()}
            rank = {"source": int(ends[1]), "destination": int(ends[2])}
            rows.append({**entry, "operation": operation, "place": place, **rank, **texts, **_numbers(moved)})
    return rows_of("matrix", rows)


def _entries(path: Path, ledger: LossLedger) -> Iterator[tuple[int | None, bool, str, dict[str, Any]]]:
    """Yield step, whether point to point, key and value of every entry; other values are counted."""
    try:
        document = json_of(text_of(path, ledger)) if path.stat().st_size <= _LARGEST else None
    except (ValueError, RecursionError):
        document = None
    if document is None:
        ledger.add("file_unreadable")
        return
    for step, sorts in _objects(document, ledger):
        match = _STEP.fullmatch(step)
        number = whole_number(match[1]) if match and match[1] else None
        for sort, entries in _objects(sorts, ledger):
            for key, value in _objects(entries, ledger):
                if isinstance(value, dict):
                    yield number, sort == "p2p", key, value
                else:
                    ledger.add("value_unreadable")


def _objects(value: object, ledger: LossLedger) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    ledger.add("value_unreadable")
    return []


def _moved(moved: object, ledger: LossLedger) -> Iterator[dict[str, Any]]:
    """Yield the sum moved over a transport, if it is not 0, then the packets by size."""
    if not isinstance(moved, dict):
        ledger.add("value_unreadable")
        return
    whole = _numbers(moved)
    if whole["bytes"] or whole["time"]:
        yield {**whole, "large": _real(moved.get("Large Packet Ratio"))}
    for size, pair in _objects(moved.get("Size Distribution", {}), ledger):
        packet = _scaled(size, _MILLION)
        if packet is None or not (isinstance(pair, list) and len(pair) == 2):
            ledger.add("value_unreadable")
            continue
        yield {"packet": packet, "count": _scaled(pair[0], 1), "time": _scaled(pair[1], _MILLION)}


def _real(value: object) -> float | None:
    """Return a number, also one written as text; None for anything else, and for one that is too large."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not -_MOST < value < _MOST:
        return None
    return float(value)


def _scaled(value: object, factor: int) -> int | None:
    """Return a number times ``factor``, rounded; None if it is not a number, or too large."""
    number = _real(value)
    scaled = None if number is None else round(number * factor)
    return scaled if scaled is not None and abs(scaled) < _MOST else None


def _numbers(moved: dict[str, Any]) -> dict[str, float | None]:
    """Return bytes, time and bandwidth of what was moved."""
    return {
        one.ours: _real(moved.get(one.key)) if one.parts == 1 else _scaled(moved.get(one.key), one.parts)
        for one in COMMUNICATION_MOVED
    }
