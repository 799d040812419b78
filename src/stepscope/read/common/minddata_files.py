"""MindSpore's data pipeline: its operations, and what was sampled of them → tables.

``pipeline_profiling_{rank}.json`` has the operations and the lengths of their output queues at every sample,
``minddata_cpu_utilization_{rank}.json`` the times of the samples and the CPU use, ``dataset_iterator_profiling`` or
``device_queue_profiling_{rank}.txt`` a few numbers for each batch. All times are those of the monotonic clock, in ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.read.common.part_builder import LARGEST_TIME
from stepscope.read.common.plain_text import document_of, lines_of
from stepscope.trace.losses import LossLedger

_MS = 1_000_000
_LARGEST_MS = LARGEST_TIME // _MS
# type subtype batch value time: what a line of the batches' file measures.
_BATCH_LINE = r"^(?<sort>\d+) (?<part>\d+) (?<batch>\d+) (?<value>\d+) (?<time>\d+)\s*$"
_BATCH_TIMES = ("pipeline time", "push time", "batch time")
_LANES = {"dataset_iterator": "dataset iterator", "device_queue": "device queue"}
_HOST_LANE = "data pipeline host"
#: Group in the file → name of the counter, by its name in the file; machine and process.
_HOST_COUNTERS = {
    "device_info": {
        "user_utilization": ("machine user", "%"),
        "sys_utilization": ("machine system", "%"),
        "idle_utilization": ("machine idle", "%"),
        "io_utilization": ("machine waits for I/O", "%"),
        "runnable_process": ("runnable processes", ""),
        "context_switch_count": ("context switches", ""),
    },
    "process_info": {"user_utilization": ("process user", "%"), "sys_utilization": ("process system", "%")},
}
_COUNTERS: dict[str, pl.DataType | type[pl.DataType]] = {
    "lane": pl.String,
    "ms": pl.Int64,
    "name": pl.String,
    "value": pl.Float64,
    "unit": pl.String,
}
_PIPELINE: dict[str, pl.DataType | type[pl.DataType]] = {
    "id": pl.Int64,
    "name": pl.String,
    "workers": pl.Int64,
    "capacity": pl.Int64,
    "interval": pl.Int64,
    "children": pl.List(pl.Int64),
    "lane": pl.String,
}


@dataclass(frozen=True)
class MindDataFiles:
    """The files of one pipeline; each may be missing."""

    pipeline: Sequence[Path] = ()
    cpu: Sequence[Path] = ()
    batches: Sequence[Path] = ()


@dataclass(frozen=True)
class DataPipeline:
    """What the files say; times are in ms of the monotonic clock.

    Attributes:
        operations: The table ``pipeline``, with the name of the counter lane in place of its track.
        counters: The table ``counters`` with columns lane and ms in place of track and ts.
    """

    operations: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_PIPELINE))
    counters: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_COUNTERS))


def read(files: MindDataFiles, ledger: LossLedger, *, begin_ms: int = 0) -> DataPipeline:
    """Read the files of one pipeline.

    Args:
        files: Its files.
        ledger: Counts losses.
        begin_ms: When sampling began, for a pipeline whose samples have no times of their own.
    """
    pipeline = _merged(files.pipeline, ledger)
    cpu = _merged(files.cpu, ledger)
    interval = _integer(pipeline.get("sampling_interval"))
    times = _integers(cpu.get("time_stamp"))
    rows = [row for item in _objects(pipeline.get("op_info"), ledger) if (row := _operation(item, interval, ledger))]
    lanes = {row["id"]: row["lane"] for row in rows}
    samples = [
        *(_queue_samples(row, times, interval, begin_ms) for row in rows if row["sizes"]),
        *_cpu_samples(cpu, lanes, times, ledger),
        *_host_samples(cpu, times),
    ]
    return DataPipeline(
        pl.DataFrame([{name: row[name] for name in _PIPELINE} for row in rows], schema=_PIPELINE),
        pl.concat([pl.DataFrame(schema=_COUNTERS), *samples, *(_batches(path, ledger) for path in files.batches)]),
    )


def _merged(paths: Sequence[Path], ledger: LossLedger) -> dict[str, Any]:
    """Return the document of the first file; there is one for each rank."""
    return document_of(paths[0], ledger) if paths else {}


def _objects(value: object, ledger: LossLedger) -> list[dict[str, Any]]:
    items = value if isinstance(value, list) else []
    ledger.add("value_unreadable", sum(not isinstance(item, dict) for item in items))
    return [item for item in items if isinstance(item, dict)]


def _operation(item: Mapping[str, Any], interval: int | None, ledger: LossLedger) -> dict[str, Any] | None:
    """Return the row of an operation with the lengths of its queue; None where it has no number or type."""
    number, name = _integer(item.get("op_id")), item.get("op_type")
    if number is None or not isinstance(name, str):
        ledger.add("event_damaged")
        return None
    queue = _object(_object(item.get("metrics")).get("output_queue"))
    return {
        "id": number,
        "name": name,
        "workers": _integer(item.get("num_workers")),
        "capacity": _integer(queue.get("length")),
        "interval": None if interval is None else interval * _MS,
        "children": _integers(item.get("children")),
        "lane": f"{name.removesuffix('Op')}(id={number})",
        "sizes": _numbers(queue.get("size")),
    }


def _queue_samples(row: Mapping[str, Any], times: Sequence[int], interval: int | None, begin_ms: int) -> pl.DataFrame:
    """Return the lengths of an operation's queue; they have no times of their own, the CPU's samples do."""
    count, first = len(row["sizes"]), times[0] if times else begin_ms
    when = times if len(times) == count else [first + place * (interval or 1) for place in range(count)]
    return _samples(row["lane"], "output queue", "", when, row["sizes"])


def _cpu_samples(
    cpu: Mapping[str, Any], lanes: Mapping[int, str], times: Sequence[int], ledger: LossLedger
) -> Iterable[pl.DataFrame]:
    for item in _objects(cpu.get("op_info"), ledger):
        lane = lanes.get(_integer(item.get("op_id")) or 0, "") if _integer(item.get("op_id")) is not None else ""
        metrics = _object(item.get("metrics"))
        if lane:
            for name, counter in (("user_utilization", "cpu user"), ("sys_utilization", "cpu system")):
                yield _aligned(lane, counter, "%", times, _numbers(metrics.get(name)))


def _host_samples(cpu: Mapping[str, Any], times: Sequence[int]) -> Iterable[pl.DataFrame]:
    for group, counters in _HOST_COUNTERS.items():
        said = _object(cpu.get(group))
        for name, (counter, unit) in counters.items():
            yield _aligned(_HOST_LANE, counter, unit, times, _numbers(said.get(name)))


def _aligned(lane: str, name: str, unit: str, times: Sequence[int], values: list[float]) -> pl.DataFrame:
    """Return samples that end with the last time: some are written twice for each time, some lack the first."""
    if len(values) == 2 * len(times):
        values = values[::2]
    count = min(len(times), len(values))
    return _samples(lane, name, unit, times[len(times) - count :], values[len(values) - count :])


def _samples(lane: str, name: str, unit: str, ms: Sequence[int], values: Sequence[float]) -> pl.DataFrame:
    frame = pl.DataFrame({"ms": pl.Series(ms, dtype=pl.Int64), "value": pl.Series(values, dtype=pl.Float64)})
    return frame.select(
        lane=pl.lit(lane), ms="ms", name=pl.lit(name), value="value", unit=pl.lit(unit, dtype=pl.String)
    )


def _batches(path: Path, ledger: LossLedger) -> pl.DataFrame:
    """Return the samples of a file of batches, in its order: times in ms, and the length of the last queue."""
    lane = next((lane for name, lane in _LANES.items() if path.name.startswith(name)), path.stem)
    lines = lines_of(path, ledger).to_frame().select(pl.col("line").str.extract_groups(_BATCH_LINE).alias("at"))
    parsed = lines.unnest("at").select(pl.all().cast(pl.Int64, strict=False))
    is_time = (pl.col("sort") == 0) & pl.col("part").is_between(0, len(_BATCH_TIMES) - 1)
    possible = pl.col("time").is_between(0, _LARGEST_MS) & pl.col("value").is_not_null()
    sound = parsed.filter(possible & (is_time | (pl.col("sort") == 1)))
    ledger.add("event_damaged", parsed.height - sound.height)
    part = pl.col("part").replace_strict(dict(enumerate(_BATCH_TIMES)), default=None, return_dtype=pl.String)
    queue = pl.col("sort") == 1
    return sound.select(
        lane=pl.lit(lane),
        ms="time",
        name=pl.when(queue).then(pl.lit("queue")).otherwise(part),
        value=pl.col("value").cast(pl.Float64),
        unit=pl.when(queue).then(pl.lit("")).otherwise(pl.lit("ms")),
    )


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _integer(value: object) -> int | None:
    sound = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_MS
    return value if sound else None  # type: ignore[return-value]


def _integers(value: object) -> list[int]:
    return [item for item in value if _integer(item) is not None] if isinstance(value, list) else []


def _numbers(value: object) -> list[float]:
    items = value if isinstance(value, list) else []
    return [
        float(item)
        for item in items
        if isinstance(item, int | float) and not isinstance(item, bool) and abs(item) < LARGEST_TIME
    ]
