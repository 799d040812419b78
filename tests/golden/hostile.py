"""A rank in which everything is hostile: names, numbers of processes and threads, times that cross, broken JSON."""

from __future__ import annotations

from typing import Any

import polars as pl

from stepscope.report.protocol import Source
from stepscope.trace import tables

ORIGIN = 1_763_000_000_123_456_789

#: What somebody could call an operator, a file, a process group, a user range. A lone surrogate cannot be in a table;
#: the readers replace it, so here stands what they make of it.
NAMES: tuple[str, ...] = (
    "=cmd|' /C calc'!A0",
    "+1+cmd",
    "-2+3",
    "@SUM(A1)",
    "\tstarts with a tab",
    "\rstarts with a return",
    "\uff1dfull width",
    "</script><img src=x onerror=alert(1)>",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b31m",
    "nul\x00inside",
    "two\nlines\r\nand a third",
    "quote \" backslash \\ comma , apostrophe ' percent %s {} ${x}",
    "[bold red]markup[/bold red] [link=http://x]x[/link] [/]",
    "right to left \u202egnp.exe\u202c mark",
    "emoji 👩‍👩‍👧 汉字 é",
    "replaced \ufffd",
    "line separator \u2028 paragraph \u2029",
    "<b>bold</b> & &amp; | pipe | ` tick `",
    "'; DROP TABLE spans; --",
    "",
    " ",
    "x" * 1_000_000,
)


def frames() -> tables.Frames:
    """Return the tables."""
    rows = {
        "tracks": _tracks(),
        "spans": _spans(),
        "operators": [_operator(span, name) for span, name in enumerate(NAMES)],
        "kernels": [_kernel(100), _kernel(101)],
        "collectives": [{"span": 101, "operation": name, "group": NAMES[7]} for name in NAMES[:1]],
        "arguments": [
            {"span": 0, "key": name, "value": value}
            for name, value in zip(NAMES[:4], ('"fine"', "not json", "NaN", '{"a": "</script>"}'), strict=True)
        ],
        "flows": [_flow(100, 101), _flow(101, 100), _flow(0, 5), _flow(0, 6), _flow(7, 7), _flow(0, 999_999)],
        "counters": [
            {"ts": ORIGIN + at, "track": track, "name": name, "value": value, "unit": NAMES[7]}
            for track in (5, 6)
            for name in NAMES[:8]
            for at, value in ((0, 1.5), (10, float("nan")), (20, float("inf")), (30, -1e300))
        ],
        "allocations": [
            {"ts": ORIGIN, "device": NAMES[7], "address": 1 << 40, "bytes": -1, "allocated": 5, "reserved": None}
        ],
        "steps": [
            {"number": number, "ts": ORIGIN + at, "dur": 60, "source": "declared"}
            for number, at in ((0, 0), (1, 50), (1, 110), (-3, 200))
        ],
        "metadata": [{"key": name, "value": name} for name in NAMES] + [{"key": "traceEvents", "value": "[]"}],
        "losses": [{"what": "file_cut", "count": 1, "severity": "data_loss", "source": NAMES[8], "advice": NAMES[12]}],
    }
    built = {name: pl.DataFrame(part, infer_schema_length=None) for name, part in rows.items()}
    built["spans"] = built["spans"].with_columns(depth=pl.lit(0))
    return tables.complete(built)


def source() -> Source:
    """Return the tables, and results and a manifest with the same names in them."""
    cells = {"Name": list(NAMES), "Time(us)": [-float(place) for place in range(len(NAMES))]}
    results = {
        "op_statistic": pl.DataFrame(cells).with_columns(Shapes=pl.lit([1, 2])),
        "communication": {name: {"inner": name, "lone": "\ud800", "nan": float("nan")} for name in NAMES},
    }
    manifest = {"command": [*NAMES, "lone \udc80 surrogate"], "host": NAMES[8]}
    return Source(tables.lazy(frames()), results, manifest)


def _tracks() -> list[dict[str, Any]]:
    """Numbers that viewers mistake: thread 0, thread = other process, far too large, negative, twice; equal names."""
    host = {"kind": "thread", "rank": 3, "host": NAMES[8], "device": "cpu", "stream": None}
    device = {"kind": "stream", "rank": 3, "host": NAMES[8], "process": None, "thread": None}
    numbered = [
        {**host, "process": 7, "thread": 0, "name": "same"},
        {**host, "process": 7, "thread": 7, "name": "same"},
        {**host, "process": 7, "thread": 9, "name": NAMES[7]},
        {**host, "process": 9, "thread": 9, "name": NAMES[8]},
        {**host, "process": 0, "thread": 2**40, "name": NAMES[9]},
        {**host, "process": None, "thread": -5, "name": NAMES[11], "kind": "counter"},
        {**device, "device": "cuda:0", "stream": 0, "name": "same"},
        {**device, "device": "cuda:0", "stream": 7, "name": "same"},
        {**device, "device": "cuda:0", "stream": 7, "name": "same", "kind": "annotation"},
        {**device, "device": NAMES[7], "stream": 7, "name": "same"},
    ]
    return [{"id": place, "order": place, **track} for place, track in enumerate(numbered)]


def _spans() -> list[dict[str, Any]]:
    rows = [_span(place, place % 5, 3 * place, 10 + place % 3, name) for place, name in enumerate(NAMES)]
    # A launch and its kernel, and an arrow back in time between them.
    rows += [_span(100, 1, 300, 10, "cudaLaunchKernel", "runtime"), _span(101, 7, 305, 10, "kernel", "kernel")]
    identifier = 200
    for track in (0, 1, 6, 7, 8, 9):
        # All pairs of start and length in a small range: every way to nest, touch, cross, and to have no length.
        for start in range(5):
            for length in range(5):
                rows.append(_span(identifier, track, 1000 + start, length, f"{start}+{length}", "annotation"))
                identifier += 1
    return rows


def _span(number: int, track: int, at: int, dur: int, name: str, kind: str = "operator") -> dict[str, Any]:
    return {"id": number, "track": track, "ts": ORIGIN + at, "dur": dur, "name": name, "kind": kind}


def _operator(span: int, name: str) -> dict[str, Any]:
    return {"span": span, "shapes": name[:1000], "dtypes": '["ok"]', "module": name[:1000], "external": -span}


def _kernel(span: int) -> dict[str, Any]:
    numbers = {"device": 0, "stream": -1, "grid": [1, -2, 3], "bytes": -(2**63)}
    return {"span": span, **numbers, "occupancy": float("nan"), "bandwidth": float("inf")}


def _flow(begin: int, end: int) -> dict[str, Any]:
    return {"from": begin, "to": end, "kind": "launch"}
