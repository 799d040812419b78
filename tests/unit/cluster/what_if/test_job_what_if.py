"""What a job saves without a straggler, against the same job that ran without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from stepscope.cluster.groups import parallel_groups, stages
from stepscope.cluster.job import job as open_job
from stepscope.cluster.slow_links import as_its_peers, transits
from stepscope.cluster.what_if.job_what_if import WhatIf
from tests.unit.cluster.small_jobs import (
    Collective,
    Program,
    Recv,
    Send,
    SmallJob,
    Step,
    Wait,
    Work,
    data_parallel,
    pipeline,
    spread,
)

VARIES = spread(0.02)


def analysed(job: SmallJob) -> WhatIf:
    return WhatIf(job.tables, job.meetings, job.arrivals, stages(job.tables))


def data_parallel_with(rank: int, factor: float) -> SmallJob:
    return data_parallel(8, 6, lambda r, step: 5e7 * VARIES(r, step) * (factor if r == rank else 1))


def pipeline_with(slow: Callable[[int], float], link: tuple[int, int] = (-1, -1), transit: float = 1e5) -> SmallJob:
    return pipeline(
        4, 2, 4, 8,
        lambda rank, step: 5e6 * VARIES(rank, step) * slow(rank),
        lambda a, b: transit if {a, b} == set(link) else 1e5,
    )  # fmt: skip


@pytest.mark.parametrize(
    "build", [data_parallel_with, lambda rank, by: pipeline_with(lambda r: by if r == rank else 1)]
)
@pytest.mark.parametrize("factor", [1.1, 1.3, 2.0])
def test_a_slow_rank_costs_what_the_job_saves_without_it(
    build: Callable[[int, float], SmallJob], factor: float
) -> None:
    slow, healthy = build(3, factor), build(3, 1)
    found = analysed(slow)
    truth = (slow.duration - healthy.duration) / len(found.steps)
    gain = found.of_ranks([3])
    assert gain.ns == pytest.approx(truth, rel=0.1)
    assert gain.low <= gain.ns <= gain.high
    half = found.of_ranks([3], share=0.5)
    assert 0.3 * gain.ns < half.ns < 0.7 * gain.ns


def two_orders_with(factor: float) -> SmallJob:
    """Two groups of four: one calls the gradients of all before its own second collective, the other after it.

    ``factor`` slows what rank 0 does first.
    """
    everyone, programs = list(range(8)), {}
    for rank in everyone:
        own, gradients = Collective(rank // 4, "alltoall"), Collective(2, asynchronous=True)
        program: list[Work | Collective | Send | Recv | Wait | Step] = []
        for step in range(6):
            ns = 1e7 * VARIES(rank, step)
            program += [Work(ns * (factor if rank == 0 else 1)), own, Work(2 * ns)]
            program += [gradients, own] if rank < 4 else [own, gradients]
            program += [Work(ns), Wait(), Step()]
        programs[rank] = program
    return SmallJob(programs, {0: everyone[:4], 1: everyone[4:], 2: everyone})


def test_ranks_are_compared_part_by_part_with_those_that_call_in_their_order() -> None:
    """Half of the ranks call in another order: what is slow before the first collective is not spread over the step."""
    slow, healthy = two_orders_with(2.0), two_orders_with(1.0)
    found = analysed(slow)
    truth = (slow.duration - healthy.duration) / len(found.steps)
    assert found.of_ranks([0]).ns == pytest.approx(truth, rel=0.1)


def test_the_other_ranks_cost_nothing() -> None:
    found = analysed(data_parallel_with(3, 1.3))
    others = [found.of_ranks([rank]).ns for rank in range(8) if rank != 3]
    assert max(others) <= 0.001 * found.step_ns
    healthy = analysed(data_parallel_with(3, 1))
    assert max(healthy.of_ranks([rank]).ns for rank in range(8)) < 0.02 * healthy.step_ns


def test_a_slow_stage_is_told_from_a_slow_rank() -> None:
    slow, healthy = pipeline_with(lambda rank: 1.25 if rank // 2 == 2 else 1), pipeline_with(lambda _rank: 1)
    found = analysed(slow)
    truth = (slow.duration - healthy.duration) / len(found.steps)
    assert found.of_stage(2).ns == pytest.approx(truth, rel=0.1)
    assert max(found.of_ranks([rank]).ns for rank in range(8)) < 0.2 * truth


def test_a_slow_link_costs_what_the_job_saves_without_it() -> None:
    slow, healthy = pipeline_with(lambda _rank: 1, (2, 4), 4e6), pipeline_with(lambda _rank: 1)
    found = analysed(slow)
    sorts = transits(slow.tables, slow.meetings, parallel_groups(slow.tables))
    gain = found.of_collectives(as_its_peers(sorts, ["2-4"]))
    truth = (slow.duration - healthy.duration) / len(found.steps)
    assert gain.ns == pytest.approx(truth, rel=0.1)


def test_what_the_data_cannot_tell_widens_the_interval() -> None:
    """All collectives queue on all ranks, and nothing says when they were launched."""
    slow, healthy = (
        data_parallel(4, 6, lambda r, step, by=by: 5e7 * VARIES(r, step) * (by if r == 3 else 1), transit=2e7)  # type: ignore[misc]
        for by in (1.3, 1)
    )
    gain = analysed(slow).of_ranks([3])
    assert gain.low <= (slow.duration - healthy.duration) / 6 <= gain.high


def test_the_table_holds_job_steps_operations_stages_and_ranks() -> None:
    table = analysed(pipeline_with(lambda rank: 1.3 if rank == 3 else 1)).table
    assert table["by"].unique(maintain_order=True).to_list() == ["job", "step", "operation", "stage", "rank"]
    assert set(table.filter(pl.col("by") == "operation")["key"]) == {"own work", "allreduce", "send", "recv"}
    ranks = table.filter(pl.col("by") == "rank").sort("gain_ns", descending=True)
    assert ranks["key"][0] == "3"
    assert ranks["slowdown"][0] > 1.1
    assert ranks["slowdown"][1:].max() < 1.03  # type: ignore[operator]
    job = table.row(0, named=True)
    assert job["slowdown"] == pytest.approx(job["step_ns"] / (job["step_ns"] - job["gain_ns"]), rel=0.01)


def test_a_rank_that_does_nothing_itself_in_a_step_gains_a_number() -> None:
    """It waited for its peer over the border of its step: its work of that step is 0, and that of its peer is not."""
    usual: Program = [Work(5e6), Collective(0), Step()]
    waits: Program = [Work(5e6), Collective(0), Collective(0), Step(), Step()]
    job = SmallJob({0: usual * 3, 1: [*waits, *usual]}, {0: [0, 1]})
    table = analysed(job).table
    assert set(table["by"]) == {"job", "step", "operation", "rank"}
    assert table["slowdown"].is_not_nan().all()
    assert table["gain_ns"].is_between(0, table["step_ns"]).all()


def test_collectives_that_do_not_explain_the_communication_say_nothing() -> None:
    """Of a batch of transfers, a source may record the calls, and not the work."""
    job = data_parallel(4, 4, lambda rank, step: 5e7 * VARIES(rank, step), transit=3e7)
    brief = pl.col("dur").clip(upper_bound=20_000)
    meetings = job.meetings.with_columns(brief, exposed=pl.lit(0, pl.Int64))
    arrivals = job.arrivals.with_columns(end=pl.col("arrival") + 20_000, transit=pl.lit(0, pl.Int64))
    with pytest.raises(ValueError, match="explain 0% of the communication"):
        WhatIf(job.tables, meetings, arrivals, stages(job.tables))


def test_transfers_without_partners_are_not_taken_for_work() -> None:
    """The sums of gradients meet, the transfers do not: what a stage waits for is then not known."""
    job = pipeline_with(lambda rank: 1.3 if rank // 2 == 2 else 1)
    transfer = pl.col("operation").is_in(["send", "recv"])
    meetings = job.meetings.with_columns(meeting=pl.when(~transfer).then("meeting"))
    arrivals = job.arrivals.filter(~transfer)
    with pytest.raises(ValueError, match="of the communication of the steps"):
        WhatIf(job.tables, meetings, arrivals, stages(job.tables))


def test_a_job_that_real_gpus_recorded(dlrm: Path) -> None:
    """Eight ranks wait for each other most of their time; none of them alone is to blame."""
    job = open_job(dlrm)
    found = job.what_if
    assert found is not None
    assert found.ranks.to_list() == list(range(8))
    steps = job.tables.steps["dur"]
    assert steps.min() <= found.step_ns <= steps.max()  # type: ignore[operator]
    rows = {(row["by"], row["key"]): row for row in found.table.iter_rows(named=True)}
    assert rows["operation", "alltoall"]["gain_ns"] < 0.01 * found.step_ns
    assert rows["job", ""]["gain_ns"] == pytest.approx(rows["operation", "own work"]["gain_ns"], rel=0.02)
    assert max(rows["rank", str(rank)]["gain_ns"] for rank in range(8)) < 0.5 * rows["job", ""]["gain_ns"]
