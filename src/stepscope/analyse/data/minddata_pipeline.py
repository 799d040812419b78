"""The data pipeline: its operations, how full their queues are, and how busy their workers.

Columns, units and rounding are those of MindSpore's deliverables ``minddata_pipeline_raw`` and
``minddata_pipeline_summary``; −1 stands for what is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from stepscope.analyse.data.pipeline_bottleneck import Pipeline, bottlenecks
from stepscope.trace.tables import Tables, columns_of

_MS = 1_000_000
#: Lanes of what is measured at the end of the pipeline: at the iterator, or at the queue of a device.
ITERATOR, DEVICE_QUEUE = "dataset iterator", "device queue"
#: Time of a batch, by its counter, in the order of MindSpore's numbers for them.
BATCH_TIMES = ("pipeline time", "push time", "batch time")

_RAW_SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "op_id": pl.Int64, "op_type": pl.String, "num_workers": pl.Int64, "output_queue_size": pl.List(pl.Int64),
    "output_queue_average_size": pl.Float64, "output_queue_length": pl.Int64, "output_queue_usage_rate": pl.Float64,
    "sample_interval": pl.Int64, "parent_id": pl.Int64, "children_id": pl.List(pl.Int64),
}  # fmt: skip


@dataclass(frozen=True)
class PipelineOperation:
    """One operation of the pipeline with its samples.

    Attributes:
        id: Its number.
        type: Name as the source gave it: ``MapOp``.
        workers: Its threads or processes; None where not known.
        capacity: Most elements in its output queue; None where it has none.
        interval: Time between samples, ns; None where not known.
        children: Numbers of the operations it takes from.
        queue: Lengths of the output queue; empty where it has none.
        cpu: CPU use of each sample in %, all workers together; empty where not known.
    """

    id: int
    type: str
    workers: int | None
    capacity: int | None
    interval: int | None
    children: tuple[int, ...]
    queue: list[int] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its name without the ending that all have: ``Map``."""
        return self.type.removesuffix("Op")

    @property
    def label(self) -> str:
        """Name and number: ``Map(id=2)``."""
        return f"{self.name}(id={self.id})"


def operations(tables: Tables) -> list[PipelineOperation]:
    """Return the operations of the pipeline, in order of their numbers."""
    rows = tables["pipeline"].sort("id").unique("id", keep="first", maintain_order=True).collect()
    lanes = rows["track"].to_list()
    samples = tables["counters"].filter(pl.col("track").is_in(lanes)).collect()
    values: dict[tuple[int, str], list[float]] = {
        (int(track), str(name)): group["value"].to_list()
        for (track, name), group in samples.with_columns(pl.col("name").cast(pl.String)).group_by(
            "track", "name", maintain_order=True
        )
    }
    return [_operation(row, values) for row in rows.with_columns(pl.col("name").cast(pl.String)).iter_rows(named=True)]


def _operation(row: dict[str, Any], values: dict[tuple[int, str], list[float]]) -> PipelineOperation:
    track = row["track"]
    user, system = (values.get((track, name), []) for name in ("cpu user", "cpu system"))
    return PipelineOperation(
        id=row["id"],
        type=row["name"],
        workers=row["workers"],
        capacity=row["capacity"],
        interval=row["interval"],
        children=tuple(row["children"]),
        queue=[int(size) for size in values.get((track, "output queue"), [])],
        cpu=[one + other for one, other in zip(user, system, strict=False)],
    )


def minddata_pipeline_raw(tables: Tables) -> pl.DataFrame:
    """Return one row per operation with an output queue, from the one that gives the batches towards the source.

    An operation without a queue runs inside the one it gives to: its children count as that one's.
    """
    by_id = {one.id: one for one in operations(tables)}
    rows: list[dict[str, Any]] = []
    open_ones: list[tuple[int, int | None]] = [(one, None) for one in _roots(by_id)]
    seen: set[int] = set()
    while open_ones:
        number, parent = open_ones.pop(0)
        if number in seen:
            continue
        seen.add(number)
        children = _queued(by_id, by_id[number].children)
        rows.append(_raw_row(by_id[number], parent, children))
        open_ones += [(child, number) for child in children]
    return pl.DataFrame(rows, schema=_RAW_SCHEMA)


def _roots(by_id: dict[int, PipelineOperation]) -> list[int]:
    """Return the operations that no other takes from; in a damaged file that may be none."""
    given = {child for one in by_id.values() for child in one.children}
    return [number for number in by_id if number not in given] or list(by_id)[:1]


def _queued(by_id: dict[int, PipelineOperation], children: Sequence[int]) -> list[int]:
    """Return the nearest operations with a queue, in the order in which their level is reached."""
    found: list[int] = []
    open_ones, seen = list(children), set()
    while open_ones:
        number = open_ones.pop(0)
        one = by_id.get(number)
        if one is None or number in seen:
            continue
        seen.add(number)
        if one.capacity is None:
            open_ones += one.children
        else:
            found.append(number)
    return found


def _raw_row(one: PipelineOperation, parent: int | None, children: list[int]) -> dict[str, Any]:
    mean = sum(one.queue) / len(one.queue) if one.queue else None
    return {
        "op_id": one.id,
        "op_type": one.type,
        "num_workers": one.workers,
        "output_queue_size": one.queue if one.capacity is not None else None,
        "output_queue_average_size": mean,
        "output_queue_length": one.capacity,
        "output_queue_usage_rate": mean / one.capacity if mean is not None and one.capacity else None,
        "sample_interval": None if one.interval is None else one.interval // _MS,
        "parent_id": parent,
        "children_id": children or None,
    }


def minddata_pipeline_summary(tables: Tables) -> dict[str, list[Any]]:
    """Return a list per line of MindSpore's summary, one entry per operation in order of numbers.

    ``per_pipeline_time``, ``per_push_queue_time`` and ``per_batch_time`` (ms) and the sentences of the analysis have as
    many entries as there is to say. Empty without a pipeline.
    """
    found = operations(tables)
    if not found:
        return {}
    parents = {child: one.id for one in found for child in one.children}
    queues = [_queue_figures(one) for one in found]
    cpu = [round(sum(one.cpu) / len(one.cpu), 2) if one.cpu else -1 for one in found]
    workers = [one.workers if one.workers is not None else -1 for one in found]
    pipeline = Pipeline(
        ids=[one.id for one in found],
        names=[one.name for one in found],
        workers=workers,
        children=[list(one.children) for one in found],
        mean=[figures[0] for figures in queues],
        use=[figures[1] for figures in queues],
        empty=[figures[2] for figures in queues],
        cpu=[round(use / count, 2) if use >= 0 and count > 0 else -1 for use, count in zip(cpu, workers, strict=True)],
    )
    return {
        "op_ids": pipeline.ids,
        "op_names": pipeline.names,
        "pipeline_ops": pipeline.labels,
        "num_workers": workers,
        "queue_average_size": pipeline.mean,
        "queue_utilization_pct": pipeline.use,
        "queue_empty_freq_pct": pipeline.empty,
        "children_ids": pipeline.children,
        "parent_id": [parents.get(one.id, -1) for one in found],
        "avg_cpu_pct": cpu,
        **{key: [value] for key, value in _batch_times(tables).items()},
        "avg_cpu_pct_per_worker": pipeline.cpu,
        **bottlenecks(pipeline),
    }


def _queue_figures(one: PipelineOperation) -> tuple[float, float, float]:
    """Return mean length, use in % of the capacity, and how often the queue was empty in %; −1 without a queue."""
    if not one.queue:
        return -1, -1, -1
    mean = round(sum(one.queue) / len(one.queue), 2)
    use = round(100 * mean / one.capacity, 2) if one.capacity else -1
    return mean, use, round(100 * one.queue.count(0) / len(one.queue), 2)


def batches(tables: Tables) -> tuple[str, pl.DataFrame]:
    """Return the lane on which batches were measured, and its samples: ts, name, value; an empty name without any.

    A device's queue tells more than the iterator where both were measured.
    """
    lanes: dict[str, list[int]] = {}
    for track, kind, name in columns_of(tables, "tracks", "id", "kind", "name").iter_rows():
        if kind == "counter":
            lanes.setdefault(name, []).append(track)
    lane = next((name for name in (DEVICE_QUEUE, ITERATOR) if name in lanes), "")
    if not lane:
        return lane, pl.DataFrame(schema={"ts": pl.Int64, "name": pl.String, "value": pl.Float64})
    samples = tables["counters"].filter(pl.col("track").is_in(lanes[lane]))
    return lane, samples.select("ts", pl.col("name").cast(pl.String), "value").collect()


def _batch_times(tables: Tables) -> dict[str, float]:
    """Return the mean times of a batch in ms, the first batch left out; −1 without one.

    MindSpore averages for the iterator, as time of a batch, the measured times together with the differences between
    the ends of batches; so it stands here.
    """
    lane, samples = batches(tables)
    times = {name: samples.filter(pl.col("name") == name)["value"].to_list()[1:] for name in BATCH_TIMES}
    if lane == ITERATOR:
        ends = samples.filter(pl.col("name") == "queue")["ts"]
        times["batch time"] += [round(value / _MS) for value in ends.diff().drop_nulls().to_list()]
    means = [round(sum(times[name]) / len(times[name]), 3) if times[name] else -1 for name in BATCH_TIMES]
    return dict(zip(("per_pipeline_time", "per_push_queue_time", "per_batch_time"), means, strict=True))
