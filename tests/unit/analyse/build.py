"""Tables of a rank built by hand."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import polars as pl

from stepscope.trace import tables
from stepscope.trace.tables import Tables

ORIGIN = 1_763_000_000_000_000_000


class Rank:
    """Collects rows; times are in ns after :data:`ORIGIN`."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def thread(self, number: int = 1) -> int:
        return self.track("thread", "cpu", thread=number)

    def stream(self, number: int = 7, device: str = "cuda:0") -> int:
        return self.track("stream", device, stream=number)

    def track(self, kind: str, device: str, **place: int) -> int:
        track = len(self.rows["tracks"])
        row = {"id": track, "kind": kind, "rank": 0, "host": "h", "device": device, "name": "", "order": track}
        self.rows["tracks"].append(row | place)
        return track

    def span(self, track: int, kind: str, ts: int, dur: int, name: str = "x", **more: Any) -> int:
        row = {"id": len(self.rows["spans"]), "track": track, "ts": ORIGIN + ts, "dur": dur, "name": name, "kind": kind}
        self.rows["spans"].append(row | more)
        return int(row["id"])

    def step(self, number: int, ts: int, dur: int) -> None:
        self.rows["steps"].append({"number": number, "ts": ORIGIN + ts, "dur": dur, "source": "declared"})

    def add(self, table: str, **row: Any) -> None:
        self.rows[table].append(row)

    def tables(self) -> Tables:
        """Nest the spans by definition (the shortest other span of the track around each) and complete the tables."""
        for row in self.rows["spans"]:
            around = [other for other in self.rows["spans"] if _contains(other, row)]
            row["depth"] = len(around)
            row["parent"] = max(around, key=lambda other: len(self._around(other)))["id"] if around else None
        frames = {name: pl.DataFrame(rows, infer_schema_length=None) for name, rows in self.rows.items() if rows}
        return tables.lazy(tables.complete(frames))

    def _around(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        return [other for other in self.rows["spans"] if _contains(other, row)]


def _contains(outer: dict[str, Any], inner: dict[str, Any]) -> bool:
    """Whether ``outer`` is around ``inner``; of two equal spans the one added first is the outer one."""
    if outer is inner or outer["track"] != inner["track"]:
        return False
    around = outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    equal = outer["ts"] == inner["ts"] and outer["dur"] == inner["dur"]
    return bool(around and (not equal or outer["id"] < inner["id"]))
