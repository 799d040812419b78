"""A small rank with a thread, a stream, two steps, and a kernel that an operator launched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from stepscope.report.protocol import Result, Source
from stepscope.trace import tables

#: Not a whole microsecond, so that rounding would show.
ORIGIN = 1_763_000_000_123_456_789
WEEK = 7 * 24 * 3600 * 10**9

TRACKS = [
    {"id": 0, "kind": "thread", "device": "cpu", "process": 4037, "thread": 4040, "name": "main", "order": 0},
    {"id": 1, "kind": "stream", "device": "cuda:0", "stream": 7, "name": "stream 7", "order": 1},
    {"id": 2, "kind": "counter", "device": "cpu", "process": 4037, "name": "host", "order": 2},
]
SPANS = [
    # id, track, ts, dur, name, kind, correlation
    (0, 0, 0, 5_000, "ProfilerStep#4", "step", None),
    (1, 0, 1_000, 3_001, "aten::mm", "operator", None),
    (2, 0, 1_500, 400, "cudaLaunchKernel", "runtime", 9),
    (3, 1, 2_500, 1_000, "sgemm", "kernel", 9),
]


def rows(**more: Any) -> dict[str, Any]:
    """Return the tables' rows; times count from ORIGIN."""
    spans = [
        dict(zip(("id", "track", "ts", "dur", "name", "kind", "correlation"), span, strict=True)) for span in SPANS
    ]
    return {
        "tracks": [{"rank": 2, "host": "", **track} for track in TRACKS],
        "spans": [{**span, "ts": ORIGIN + span["ts"], "depth": 0} for span in spans],
        "operators": [{"span": 1, "shapes": "[[8,3],[3,4]]", "dtypes": '["float","float"]', "external": 77}],
        "kernels": [{"span": 3, "device": 0, "stream": 7, "grid": [4, 1, 1], "operator": 1, "bandwidth": 1.5}],
        "flows": [{"from": 2, "to": 3, "kind": "launch"}],
        "counters": [{"ts": ORIGIN + 10, "track": 2, "name": "cpu", "value": 12.5, "unit": "%"}],
        "allocations": [{"ts": ORIGIN + 20, "device": "cuda:0", "bytes": 512, "allocated": 2048, "reserved": None}],
        "steps": [
            {"number": 4, "ts": ORIGIN, "dur": 5_000, "source": "declared"},
            {"number": 5, "ts": ORIGIN + 5_000, "dur": 1_000, "source": "declared"},
        ],
        "metadata": [{"key": "distributedInfo", "value": '{"backend": "nccl", "rank": 0}'}],
        **more,
    }


def source(results: Mapping[str, Result] | None = None, **more: Any) -> Source:
    """Return a source; ``more`` replaces tables by their rows."""
    frames = {name: pl.DataFrame(part, infer_schema_length=None) for name, part in rows(**more).items() if part}
    return Source(tables.lazy(tables.complete(frames)), results or {}, {"rank": 2})
