"""The data pipeline: queues, times of a batch, and each rule of what holds it up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest

from stepscope.analyse import results
from stepscope.analyse.data.minddata_pipeline import minddata_pipeline_raw, minddata_pipeline_summary
from stepscope.trace import tables
from stepscope.trace.tables import Tables
from tests.unit.analyse.build import ORIGIN, Rank

MS = 1_000_000


@dataclass
class Op:
    """An operation: type, what it takes from, queue samples (None without a queue), CPU samples, workers."""

    type: str
    children: tuple[int, ...] = ()
    queue: tuple[int, ...] | None = (8, 8)
    cpu: tuple[int, ...] = (50, 50)
    workers: int = 1


def pipeline(*ops: Op, batches: list[tuple[str, float, int]] | None = None, lane: str = "dataset iterator") -> Tables:
    """Return the tables of a pipeline whose queues hold 16; batches are (name, value, ms)."""
    rank = Rank()
    for number, op in enumerate(ops):
        track = rank.track("counter", "cpu")
        row: dict[str, Any] = {"id": number, "name": f"{op.type}Op", "workers": op.workers, "interval": 10 * MS}
        rank.add("pipeline", **row, capacity=None if op.queue is None else 16, children=list(op.children), track=track)
        samples = {"output queue": op.queue or (), "cpu user": op.cpu, "cpu system": (0,) * len(op.cpu)}
        for name, values in samples.items():
            for place, value in enumerate(values):
                when = ORIGIN + place * 10 * MS
                rank.add("counters", ts=when, track=track, name=name, value=float(value), unit="")
    if batches:
        track = rank.track("counter", "cpu")
        rank.rows["tracks"][track]["name"] = lane
        for name, value, at in batches:
            rank.add("counters", ts=ORIGIN + at * MS, track=track, name=name, value=value, unit="ms")
    return rank.tables()


def summary(*ops: Op, **more: Any) -> dict[str, list[Any]]:
    return minddata_pipeline_summary(pipeline(*ops, **more))


def test_operations_without_a_queue_run_inside_the_one_they_give_to() -> None:
    raw = minddata_pipeline_raw(
        pipeline(
            Op("Batch", (1,)), Op("Rename", (2,), queue=None), Op("Zip", (3, 4), queue=None), Op("Map"), Op("Generator")
        )
    )
    assert raw.select("op_id", "parent_id", "children_id").rows() == [(0, None, [3, 4]), (3, 0, None), (4, 0, None)]
    assert raw["output_queue_usage_rate"].to_list() == [0.5, 0.5, 0.5]
    assert raw["sample_interval"].to_list() == [10, 10, 10]


def test_a_pipeline_that_gives_batches_without_a_queue_is_listed() -> None:
    raw = minddata_pipeline_raw(pipeline(Op("EpochCtrl", (1,), queue=None), Op("Map")))
    assert raw.select("op_id", "output_queue_size", "output_queue_average_size").rows() == [
        (0, None, None),
        (1, [8, 8], 8.0),
    ]


def test_figures_of_queues_and_workers() -> None:
    found = summary(Op("Batch", (1,), queue=(0, 4, 0), cpu=(10, 21), workers=4), Op("Rename", queue=None, cpu=()))
    assert found["pipeline_ops"] == ["Batch(id=0)", "Rename(id=1)"]
    assert found["queue_average_size"] == [1.33, -1]
    assert found["queue_utilization_pct"] == [8.31, -1]
    assert found["queue_empty_freq_pct"] == [66.67, -1]
    assert found["parent_id"] == [-1, 0]
    assert found["avg_cpu_pct"] == [15.5, -1]
    assert found["avg_cpu_pct_per_worker"] == [3.88, -1]


def test_the_first_batch_does_not_count() -> None:
    batches = [("pipeline time", 100.0, 1), ("queue", 3.0, 1), ("pipeline time", 4.0, 11), ("queue", 2.0, 11)]
    batches += [("batch time", 9.0, 1), ("batch time", 6.0, 11)]
    found = summary(Op("Batch"), batches=batches)
    assert found["per_pipeline_time"] == [4.0]
    assert found["per_push_queue_time"] == [-1]
    assert found["per_batch_time"] == [8.0]  # the measured 6 ms and the 10 ms between the ends of batches
    assert summary(Op("Batch"), batches=batches, lane="device queue")["per_batch_time"] == [6.0]


def test_busy_workers() -> None:
    found = summary(Op("Map", cpu=(90, 90), workers=1))
    text = "Map(id=0) is using 90.0% CPU per worker. Setting num_parallel_workers>1 might bring extra performance."
    assert found["cpu_analysis_details"] == found["bottleneck_suggestion"] == [text]
    assert found["bottleneck_warning"] == ["Map(id=0)"]


@pytest.mark.parametrize(("cpu", "workers", "said"), [(19, 2, True), (20, 2, True), (40, 2, False), (19, 1, False)])
def test_idle_workers_of_which_there_are_several(cpu: int, workers: int, said: bool) -> None:
    found = summary(Op("Map", cpu=(cpu, cpu), workers=workers))
    assert ("cpu_analysis_details" in found) is said


@pytest.mark.parametrize(("queue", "said"), [((8, 8), True), ((8, 9), False), ((0, 0), True)])
def test_a_source_that_does_not_fill_its_queue(queue: tuple[int, ...], said: bool) -> None:
    found = summary(Op("Generator", queue=queue))
    assert ("queue_analysis_details" in found) is said
    if said:
        assert found["queue_analysis_details"][0].startswith("Leaf op Generator(id=0) is using")


def test_a_device_that_waits() -> None:
    ops = [Op("DeviceQueue", (1,), queue=None), Op("Rename", (2,), queue=None), Op("Map", queue=(0, 0, 9))]
    (waits, leaf) = summary(*ops)["queue_analysis_details"]
    assert "DeviceQueue(id=0)'s input queue is empty 66.67% of the time." in waits
    assert leaf.startswith("Leaf op Map(id=2)")
    ops[2] = Op("Map", queue=(0, 9, 16))
    assert not any("empty" in text for text in summary(*ops).get("queue_analysis_details", []))


def test_a_queue_that_is_fuller_before_than_behind() -> None:
    found = summary(Op("Map", (1,), queue=(2, 2)), Op("Generator", queue=(16, 16)))
    (text,) = found["queue_analysis_details"]
    assert text.startswith("Map(id=0)'s input queue usage=100.0% is greater than output queue usage=12.5%.")
    assert "queue_analysis_details" not in summary(Op("Map", (1,), queue=(9, 9)), Op("Generator", queue=(16, 16)))


@pytest.mark.parametrize(
    "name", ["Barrier", "Concat", "EpochCtrl", "Rename", "Repeat", "Shuffle", "Skip", "Take", "Zip"]
)
def test_operations_without_workers_are_not_judged(name: str) -> None:
    found = summary(Op(name, cpu=(99, 99), queue=(0, 0), workers=9))
    assert not {"cpu_analysis_details", "queue_analysis_details", "bottleneck_warning"} & set(found)


def test_an_empty_queue_before_idle_workers_is_the_bottleneck_nearest_to_the_batches() -> None:
    idle = (5, 5)
    ops = (Op("Batch", (1,), cpu=idle), Op("Map", (2,), cpu=idle, queue=(1, 1)), Op("Generator", queue=(1, 1)))
    found = summary(*ops)
    assert found["bottleneck_warning"] == ["Batch(id=0)"]
    assert found["bottleneck_suggestion"][0].endswith("abnormal queue usage. Try increasing prefetch_size.")


def test_unknown_cpu_use_is_no_low_cpu_use() -> None:
    found = summary(Op("Map", (1,), cpu=(), workers=4), Op("Generator", cpu=(), queue=(0, 0)))
    assert not {"cpu_analysis_details", "bottleneck_warning"} & set(found)


def test_runs_without_a_pipeline_have_no_such_files() -> None:
    empty = tables.lazy(tables.complete({}))
    assert not {"minddata_pipeline_raw", "minddata_pipeline_summary"} & set(results.Results(empty))
    assert {"minddata_pipeline_raw", "minddata_pipeline_summary"} <= set(results.Results(pipeline(Op("Map"))))
    assert set(results.RESULTS) - set(results.Results(empty)) == {
        name for name, result in results.RESULTS.items() if result.optional
    }


def test_the_pipelines_end_in_dataset() -> None:
    found = results.compute("dataset", pipeline(Op("Map"), batches=[("batch time", 3.0, 1), ("batch time", 4.0, 9)]))
    assert isinstance(found, pl.DataFrame)
    assert found.rows() == [("dataset iterator", "batch", 2, 3500.0, '{"pipeline": ["Map(id=0)"]}')]
