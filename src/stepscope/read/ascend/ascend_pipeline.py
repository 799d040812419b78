"""The data pipeline of an NPU's capture: MindSpore's raw files, or the table that it made of them → frames.

The raw files are those that MindSpore writes on every device, so they are read where those of a CPU are. Their times
are ms of the monotonic clock; where the capture says when that clock began they are put on the epoch, else their first
is put at the first event, and ``clock_unknown`` is counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import polars as pl

from stepscope.errors import InputError
from stepscope.read.ascend.ascend_frames import Frames, conform
from stepscope.read.ascend.text import csv_rows
from stepscope.read.common import minddata_files
from stepscope.read.common.minddata_files import DataPipeline
from stepscope.read.common.source import Capture
from stepscope.trace.losses import LossLedger

_MS = 1_000_000
_QUEUE = "output queue"
_SPANS = ("host", "tasks", "communications")


def added(frames: Frames, capture: Capture, shift: int | None, ledger: LossLedger) -> Frames:
    """Return frames with the operations of the data pipeline, and the samples of them.

    Args:
        frames: The other frames of the capture.
        capture: The files.
        shift: ns from the monotonic clock to the epoch; None if the capture does not give it.
        ledger: Counts losses.
    """
    files = minddata_files.MindDataFiles(*(capture.of(sort) for sort in ("queues", "queue_cpu", "batches")))
    found = DataPipeline()
    try:
        if capture.of("queues", "queue_cpu", "batches"):
            found = minddata_files.read(files, ledger)
        if not found.operations.height:
            found = _with_table(found, capture, ledger)
    except InputError:
        ledger.add("file_unreadable")
    counters = found.counters
    if counters.height and shift is None:
        ledger.add("clock_unknown", counters.height)
        first = min((int(frames[name]["ts"].min()) for name in _SPANS if frames[name].height), default=0)  # type: ignore[arg-type]
        shift = first - int(counters["ms"].min()) * _MS  # type: ignore[arg-type]
    samples = counters.select("name", "value", "unit", ts=pl.col("ms") * _MS + (shift or 0), group="lane")
    return {
        **frames,
        "operations": conform("operations", found.operations),
        "counters": pl.concat([frames["counters"], conform("counters", samples)]),
    }


def _with_table(found: DataPipeline, capture: Capture, ledger: LossLedger) -> DataPipeline:
    """Return the operations of ``minddata_pipeline_raw_{rank}.csv``, and the lengths of their queues."""
    operations, samples = [found.operations], [found.counters]
    for path in capture.of("pipeline"):
        for rows in csv_rows.read(path, ledger):
            made = _operations(rows)
            operations.append(made.select(found.operations.columns))
            samples += [_samples(one) for one in made.to_dicts() if one["sizes"]]
    return replace(found, operations=pl.concat(operations), counters=pl.concat(samples))


def _operations(rows: csv_rows.AscendRows) -> pl.DataFrame:
    name = rows.text("op_type").cast(pl.String).fill_null("unknown")
    number = rows.integer("op_id")
    frame = pl.DataFrame(
        {
            "id": number,
            "name": name,
            "workers": rows.integer("num_workers"),
            "capacity": rows.integer("output_queue_length"),
            "interval": rows.integer("sample_interval") * _MS,
            "children": pl.Series(list(map(_numbers, rows.raw("children_id").to_list())), dtype=pl.List(pl.Int64)),
            "sizes": pl.Series(list(map(_numbers, rows.raw("output_queue_size").to_list())), dtype=pl.List(pl.Int64)),
        }
    )
    lane = pl.format("{}(id={})", pl.col("name").str.strip_suffix("Op"), "id")
    # 0 means “no queue”.
    capacity = pl.when(pl.col("capacity") > 0).then("capacity").alias("capacity")
    return frame.with_columns(capacity, lane=lane).drop_nulls("id")


def _samples(row: Mapping[str, object]) -> pl.DataFrame:
    """Return the lengths of a queue, from 0 ms on."""
    sizes, interval = cast("list[int]", row["sizes"]), row["interval"]
    step = interval // _MS if isinstance(interval, int) and interval > 0 else 1
    return pl.DataFrame(
        {
            "lane": [row["lane"]] * len(sizes),
            "ms": [place * step for place in range(len(sizes))],
            "name": [_QUEUE] * len(sizes),
            "value": list(map(float, sizes)),
            "unit": [""] * len(sizes),
        },
        schema={"lane": pl.String, "ms": pl.Int64, "name": pl.String, "value": pl.Float64, "unit": pl.String},
    )


def _numbers(text: str | None) -> list[int]:
    try:
        found = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    return [one for one in found if type(one) is int and 0 <= one < 1 << 31] if isinstance(found, list) else []
