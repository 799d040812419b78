"""A job put together again from its recording is the recorded job."""

from __future__ import annotations

import polars as pl
import pytest

from stepscope.cluster.what_if.replay import Replay
from tests.unit.cluster.small_jobs import Collective, SmallJob, Step, Wait, Work, data_parallel, pipeline, spread

VARIES = spread(0.1)
JOBS = {
    "data parallel": lambda: data_parallel(4, 5, lambda rank, step: 5e7 * VARIES(rank, step)),
    "communication that queues": lambda: data_parallel(4, 5, lambda rank, step: 5e7 * VARIES(rank, step), transit=2e7),
    "pipeline": lambda: pipeline(4, 2, 3, 8, lambda rank, step: 5e6 * VARIES(rank, step)),
}


def recorded(job: SmallJob) -> list[float]:
    ends = pl.DataFrame(job.steps).group_by("step").agg(end=(pl.col("ts") + pl.col("dur")).max()).sort("step")["end"]
    return ends.diff().fill_null(ends[0]).to_list()


@pytest.mark.parametrize("name", JOBS)
def test_recorded_times_give_the_recorded_steps(name: str) -> None:
    job = JOBS[name]()
    job.offsets = {rank: rank * 3_600 * 10**9 for rank in job.programs}
    replay = Replay(job.tables, job.meetings, job.arrivals)
    assert replay.recorded.tolist() == pytest.approx(recorded(job), abs=2)
    ready = replay.likely_ready({})
    for early in (False, True):
        assert replay.with_ready(*ready, early=early).recorded.tolist() == pytest.approx(recorded(job), abs=2)


def test_work_is_what_the_ranks_did_themselves() -> None:
    job = data_parallel(3, 2, lambda rank, step: 1e7 * (rank + 1) + 1e6 * step)
    segments = Replay(job.tables, job.meetings, job.arrivals).segments
    work = segments.group_by("rank", "step").agg(pl.col("work").sum()).sort("rank", "step")["work"].to_list()
    assert work == pytest.approx([1e7, 1.1e7, 2e7, 2.1e7, 3e7, 3.1e7], abs=10)


@pytest.mark.parametrize("named", [True, False])
def test_a_wait_before_a_collective_that_queued_is_no_work(named: bool) -> None:
    """Begins are rounded: the second collective seems to begin 200 ns before the first one has ended."""
    programs = {
        rank: [
            Work(1e7 * (rank + 1)),
            *(Collective(0, transit=1e6, asynchronous=True) for _ in range(2)),
            Wait(),
            Step(),
        ]
        for rank in range(2)
    }
    job = SmallJob(programs, {0: [0, 1]})
    second = pl.col("meeting") == job.arrivals["meeting"].max()
    early = job.arrivals.with_columns(pl.col("arrival") - pl.when(second).then(200).otherwise(0))
    meetings = job.meetings if named else job.meetings.with_columns(group=pl.lit(None, pl.Int32))
    segments = Replay(job.tables, meetings, early).segments
    work = segments.group_by("rank").agg(pl.col("work").sum()).sort("rank")["work"].to_list()
    assert work == pytest.approx([1e7, 2e7], abs=500)


def test_another_collective_that_runs_meanwhile_is_not_waited_for() -> None:
    program = [
        Collective(0, transit=3e7, asynchronous=True),
        Work(1e7),
        Collective(1, transit=5e6),
        Work(2e7),
        Wait(),
        Step(),
    ]
    job = SmallJob({0: program, 1: program}, {0: [0, 1], 1: [0, 1]})
    replay = Replay(job.tables, job.meetings, job.arrivals)
    assert replay.work.sum() == pytest.approx(2 * 3e7, abs=10)
    assert replay.recorded.tolist() == [3.5e7]


def test_a_rank_without_a_clock_is_no_part_of_it() -> None:
    job = data_parallel(4, 3, lambda rank, step: 5e7 * VARIES(rank, step))
    unknown = pl.col("rank") == 2
    times = ("arrival", "end", "lateness", "wait", "transit", "last")
    arrivals = job.arrivals.with_columns(pl.when(~unknown).then(pl.col(*times)))
    replay = Replay(job.tables, job.meetings, arrivals)
    assert replay.ranks.to_list() == [0, 1, 3]
    assert replay.recorded.sum() <= job.duration


def test_no_known_clock_is_an_error_that_says_so() -> None:
    job = data_parallel(2, 2, lambda rank, step: 1e7)
    nothing = job.arrivals.with_columns(
        pl.lit(None).cast(pl.Int64).alias(name) for name in ("arrival", "end", "transit")
    )
    with pytest.raises(ValueError, match="no rank has a known clock"):
        Replay(job.tables, job.meetings, nothing)
