"""The path through the ranks that decides how long the steps of a job take, on jobs whose path is known."""

from __future__ import annotations

import polars as pl
import pytest

from stepscope.cluster.groups import stages
from stepscope.cluster.what_if.critical_path import PATH_SCHEMA, critical_path, unknown_path
from stepscope.cluster.what_if.replay import Replay
from tests.unit.cluster.small_jobs import Collective, Program, SmallJob, Step, Work, data_parallel, pipeline, spread

VARIES = spread(0.1)
MS = 1e6


def path_of(job: SmallJob) -> pl.DataFrame:
    return critical_path(Replay(job.tables, job.meetings, job.arrivals), job.arrivals)


def test_the_path_goes_through_the_last_rank_to_arrive() -> None:
    """Rank 1 is last at the first collective of a step, rank 0 at the second."""
    works = {0: (10 * MS, 30 * MS), 1: (25 * MS, 20 * MS), 2: (11 * MS, 27 * MS)}
    programs: dict[int, Program] = {
        rank: [Work(first), Collective(0, transit=2 * MS), Work(second), Collective(0, "allgather", transit=MS), Step()]
        for rank, (first, second) in works.items()
    }
    job = SmallJob(programs, {0: [0, 1, 2]}, offsets={1: 3_600 * 10**9})
    path = path_of(job)
    shown = path.select("rank", "part", "operation", pl.col("dur_ns", "margin_ns") / MS).rows()
    assert shown == [
        (1, "own work", None, 25.0, None),
        (1, "communication", "allreduce", 2.0, 14.0),
        (0, "own work", None, 30.0, None),
        (0, "communication", "allgather", 1.0, 3.0),
    ]
    assert path["place"].to_list() == [1, 2, 3, 4]
    assert path["begin_ns"].diff().drop_nulls().to_list() == path["dur_ns"][:-1].to_list()
    assert path["reason"].null_count() == 4


@pytest.mark.parametrize(
    "job",
    [
        data_parallel(4, 3, lambda rank, step: 5e7 * VARIES(rank, step)),
        data_parallel(4, 3, lambda rank, step: 5e7 * VARIES(rank, step), transit=2e7),
        pipeline(3, 2, 3, 4, lambda rank, step: 5e6 * VARIES(rank, step)),
    ],
    ids=["data parallel", "communication that queues", "pipeline"],
)
def test_the_pieces_of_a_step_add_up_to_it(job: SmallJob) -> None:
    replay = Replay(job.tables, job.meetings, job.arrivals)
    ready = replay.likely_ready(dict(stages(job.tables).iter_rows()))
    for one in (replay, replay.with_ready(*ready, early=True)):
        path = critical_path(one, job.arrivals)
        sums = path.group_by("step").agg(pl.col("dur_ns").sum()).sort("step")["dur_ns"].to_list()
        assert sums == pytest.approx(one.recorded.tolist(), abs=2)
        assert path["begin_ns"].diff().drop_nulls().to_list() == path["dur_ns"][:-1].to_list()
        assert (path["dur_ns"] > 0).all()


def test_a_slow_rank_has_all_own_work_of_the_path() -> None:
    job = data_parallel(8, 6, lambda rank, step: 5e7 * (1.3 if rank == 3 else 1) * VARIES(0, step))
    work = path_of(job).filter(pl.col("part") == "own work")
    assert set(work["rank"]) == {3}


def test_communication_that_queues_is_on_the_path() -> None:
    """Gradients take longer to sum than to compute: the path goes from one all-reduce to the next."""
    path = path_of(data_parallel(4, 3, lambda rank, step: 5e7 * VARIES(rank, step), transit=2e7))
    parts = path.group_by("part").agg(pl.col("dur_ns").sum())
    share = dict(parts.select("part", pl.col("dur_ns") / pl.col("dur_ns").sum()).rows())
    assert share["communication"] > 0.5
    first, *queued = path.filter((pl.col("part") == "communication") & (pl.col("step") == 0)).rows(named=True)
    assert first["rank"] is not None
    assert len(queued) == 3
    assert {(row["rank"], row["margin_ns"]) for row in queued} == {(None, None)}


def test_a_rank_without_a_clock_that_may_be_last_leaves_the_step_unknown() -> None:
    job = data_parallel(4, 3, lambda rank, step: 5e7 * VARIES(rank, step) * (1.5 if rank == 2 and step == 1 else 1))
    unknown = pl.col("rank") == 2
    why = "a rank whose clock is not known may be the last to arrive"
    times = ("arrival", "end", "lateness", "wait", "transit", "last")
    arrivals = job.arrivals.with_columns(pl.when(~unknown).then(pl.col(*times)))
    there = pl.col("step") != 1
    arrivals = arrivals.with_columns(
        pl.when(there).then(pl.col("wait", "transit", "last")),
        reason=pl.when(~there & ~unknown).then(pl.lit(why)).otherwise("reason"),
    )
    path = critical_path(Replay(job.tables, job.meetings, arrivals), arrivals)
    row = path.filter(pl.col("step") == 1)
    assert row["reason"].to_list() == [why]
    assert row.drop("step", "reason").null_count().sum_horizontal().item() == row.width - 2
    assert path.filter(there)["reason"].null_count() == len(path) - 1 > 1


def test_a_job_whose_waits_are_not_known_has_a_reason_for_each_step() -> None:
    path = unknown_path(pl.Series([3, 4, 3], dtype=pl.Int32), "no rank has a known clock")
    assert path.schema == pl.Schema(PATH_SCHEMA)
    assert path["step"].to_list() == [3, 4]
    assert set(path["reason"]) == {"no rank has a known clock"}
