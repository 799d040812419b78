"""The stages of a pipeline: their work, their waiting, and a slow stage told from a slow rank."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

from stepscope.cluster.groups import stages
from stepscope.cluster.pipeline import pipeline_stages
from tests.unit.cluster.small_jobs import SmallJob, data_parallel, pipeline, spread

VARIES = spread(0.01)


def analysed(job: SmallJob) -> pl.DataFrame:
    return pipeline_stages(job.tables.steps, job.meetings, stages(job.tables))


def of(slow: Callable[[int], float], count: int = 4, replicas: int = 2) -> SmallJob:
    return pipeline(count, replicas, 3, 8, lambda rank, step: 5e6 * VARIES(rank, step) * slow(rank))


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_a_slow_stage(stage: int, replicas: int) -> None:
    found = analysed(of(lambda rank: 1.3 if rank // replicas == stage else 1, replicas=replicas))
    assert found.filter("slow")["stage"].to_list() == [stage]
    slow = found.row(stage, named=True)
    assert slow["work_ns"] / slow["others_ns"] == pytest.approx(1.3, rel=0.05)
    assert slow["ranks"] == list(range(stage * replicas, (stage + 1) * replicas))


@pytest.mark.parametrize("replicas", [2, 4])
def test_one_slow_rank_makes_no_slow_stage(replicas: int) -> None:
    for factor in (1.1, 1.3, 2.0):
        found = analysed(of(lambda rank, by=factor: by if rank == 1 else 1, replicas=replicas))  # type: ignore[misc]
        assert not found["slow"].any()


def test_one_of_three_stages_is_slow_however_much_longer_it_is() -> None:
    for factor in (1.2, 3.0):
        found = analysed(of(lambda rank, by=factor: by if rank == 2 else 1, count=3, replicas=1))  # type: ignore[misc]
        assert found["slow"].to_list() == [False, False, True]


def test_a_stage_that_becomes_slow_while_it_is_recorded_is_slow() -> None:
    job = of(lambda _rank: 1, replicas=1)
    later = (pl.col("rank") == 2) & (pl.col("step") > pl.col("step").min())
    changed = job.tables.steps.with_columns(
        computing=(pl.col("computing") * pl.when(later).then(1.7).otherwise(1.0)).cast(pl.Int64)
    )
    found = pipeline_stages(changed, job.meetings, stages(job.tables))
    assert found["slow"].to_list() == [False, False, True, False]


@pytest.mark.parametrize(("factor", "slow"), [(2.5, True), (1.0, False)])
def test_a_host_works_for_a_step_within_it_though_steps_differ_in_length(factor: float, slow: bool) -> None:
    job = of(lambda rank: factor if rank == 2 else 1, count=3, replicas=1)
    place = pl.col("rank") + pl.col("step")
    cut = job.tables.steps.with_columns((pl.col("dur") * (1 + 0.05 * (place % 3))).cast(pl.Int64))
    assert not pipeline_stages(cut, job.meetings, stages(job.tables))["slow"].any()
    on_hosts = pipeline_stages(cut, job.meetings, stages(job.tables), range(3))
    assert on_hosts["slow"].to_list() == [False, False, slow]


def test_no_stage_is_slow_where_the_work_of_one_was_not_recorded() -> None:
    job = of(lambda rank: 1.3 if rank == 2 else 1, replicas=1)
    unrecorded = job.tables.steps.with_columns(computing=pl.when(pl.col("rank") == 0).then(0).otherwise("computing"))
    assert not pipeline_stages(unrecorded, job.meetings, stages(job.tables))["slow"].any()


def test_stages_of_a_healthy_job_are_alike() -> None:
    assert not analysed(of(lambda _rank: 1))["slow"].any()
    assert not analysed(of(lambda _rank: 1, count=2, replicas=1))["slow"].any()


def test_steps_of_a_host_that_runs_ahead_make_no_stage_slow() -> None:
    """Of a step that is not equally long on all stages, it is chance how much work lies in it."""
    job = of(lambda _rank: 1, count=2)
    late, first = pl.col("rank") >= 2, pl.col("step") == pl.col("step").min()
    ahead = pl.when(first & late).then(0.3).when(first).then(0.1).when(late).then(1.0).otherwise(0.6)
    cut = job.tables.steps.with_columns((pl.col("dur", "computing") * ahead).cast(pl.Int64))
    found = pipeline_stages(cut, job.meetings, stages(job.tables))
    assert found["work_ns"][1] > 1.5 * found["work_ns"][0]
    assert not found["slow"].any()
    last = pl.col("step") == pl.col("step").max()
    whole = cut.with_columns(
        pl.when(last).then(job.tables.steps[name]).otherwise(name).alias(name) for name in ("dur", "computing")
    )
    found = pipeline_stages(whole, job.meetings, stages(job.tables))
    assert found["work_ns"][1] == pytest.approx(found["work_ns"][0], rel=0.05)
    assert not found["slow"].any()


def test_the_bubble_is_that_of_the_schedule() -> None:
    """Of a pipeline of p stages and m microbatches with equal work, the bubble is (p − 1) / (m + p − 1)."""
    job = pipeline(4, 1, 3, 8, lambda _rank, _step: 5e6, lambda _a, _b: 1.0)
    bubbles = analysed(job)["bubble"].to_list()
    assert bubbles == pytest.approx([3 / 11] * 4, abs=0.06)


def test_no_pipeline_no_stages() -> None:
    assert analysed(data_parallel(4, 2, lambda _rank, _step: 1e7)).is_empty()
