"""What groups are for, from their names or from what they do; the stages of a pipeline."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from stepscope.cluster.groups import parallel_groups, stages
from stepscope.cluster.job_tables import JobTables, conform
from tests.unit.cluster.small_jobs import Collective, Recv, Send, SmallJob, Step, Wait, Work, data_parallel, pipeline


def named(*names: str) -> JobTables:
    job = data_parallel(2, 1, lambda _rank, _step: 1e6)
    groups = pl.DataFrame({"id": range(len(names)), "ranks": [[0, 1]] * len(names), "description": names})
    return replace(job.tables, groups=conform("groups", groups))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mesh_tp", "tp"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("mesh_dp_cp", "dp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("mesh_dp_shard", "dp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("EMBEDDING_GROUP", "unknown"),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", "unknown"),
    ],
)
def test_the_programs_name_decides(name: str, kind: str) -> None:
    groups = parallel_groups(named("default_pg", name)).filter(pl.col("group") == 1)
    assert groups["kind"].to_list() == [kind, kind]
    assert groups["place"].to_list() == [0, 1]


def test_the_group_of_all_ranks_that_reduces_gradients_is_data_parallel() -> None:
    assert parallel_groups(named("default_pg"))["kind"].to_list() == ["dp", "dp"]


def test_without_names_membership_and_use_decide() -> None:
    """Tensor parallel neighbours sum each layer; every second rank sums gradients; experts exchange tokens."""
    groups = {0: [0, 1], 1: [2, 3], 2: [0, 2], 3: [1, 3], 4: [0, 1, 2, 3]}
    programs = {
        rank: [
            *[Work(1e6), Collective(rank // 2), Work(1e6), Collective(4, "alltoall")] * 6,
            Collective(2 + rank % 2),
            Step(),
        ]
        for rank in range(4)
    }
    kinds = parallel_groups(SmallJob(programs, groups).tables).unique("group").sort("group")["kind"].to_list()
    assert kinds == ["tp", "tp", "dp", "dp", "ep"]


@pytest.mark.parametrize(("count", "replicas"), [(2, 1), (2, 4), (4, 2), (8, 1)])
def test_stages_follow_the_activations(count: int, replicas: int) -> None:
    tables = pipeline(count, replicas, 2, count, lambda _rank, _step: 1e6).tables
    assert stages(tables)["stage"].to_list() == [rank // replicas for rank in range(count * replicas)]


def test_stages_follow_the_activations_where_recvs_wait_on_the_device_from_early_on() -> None:
    tables = pipeline(4, 2, 2, 4, lambda _rank, _step: 1e6).tables
    early = pl.when(pl.col("operation") == "recv").then(pl.col("ts").min().over("rank", "step")).otherwise("ts")
    waiting = tables.collectives.with_columns(ts=early, launch="ts", dur=pl.col("ts") + pl.col("dur") - early)
    found = stages(replace(tables, collectives=conform("collectives", waiting)))
    assert found["stage"].to_list() == [rank // 2 for rank in range(8)]


def test_stages_of_a_pipeline_that_goes_round_twice() -> None:
    """With two parts of the model in each stage, the last stage sends to the first."""
    last = 3
    programs = {}
    for rank in range(last + 1):
        program: list[Send | Recv | Work | Wait | Step] = []
        for way in ("forward", "forward", "backward", "backward"):
            before, after = ((rank - 1) % 4, (rank + 1) % 4) if way == "forward" else ((rank + 1) % 4, (rank - 1) % 4)
            number = len([one for one in program if isinstance(one, Work)])
            first = (number == 0 and rank == 0) or (number == 2 and rank == last)
            final = (number == 1 and rank == last) or (number == 3 and rank == 0)
            program += [] if first else [Recv(before)]
            program += [Work(1e6)]
            program += [] if final else [Send(after)]
        programs[rank] = [*program, Wait(), Step()]
    assert stages(SmallJob(programs, {}).tables)["stage"].to_list() == [0, 1, 2, 3]


def test_a_ring_is_no_pipeline() -> None:
    programs = {
        rank: [*[Send((rank + 1) % 4), Recv((rank - 1) % 4), Work(1e6)] * 3, Wait(), Step()] for rank in range(4)
    }
    tables = SmallJob(programs, {}).tables
    assert stages(tables)["stage"].n_unique() < 2
    world = pl.DataFrame({"id": [0], "ranks": [[0, 1, 2, 3]], "description": ["default_pg"]})
    moved = tables.collectives.with_columns(group=pl.lit(0))
    known = replace(tables, groups=conform("groups", world), collectives=conform("collectives", moved))
    assert stages(known)["stage"].n_unique() < 2


def test_a_ring_of_two_is_no_pipeline() -> None:
    """One rank sends first and the other receives first, so that none waits for ever; both ways end at once."""
    programs = {
        0: [*[Send(1), Recv(1), Work(1e6)] * 3, Wait(), Step()],
        1: [*[Recv(0), Send(0), Work(1e6)] * 3, Wait(), Step()],
    }
    assert stages(SmallJob(programs, {}).tables)["stage"].n_unique() < 2


def test_a_job_without_groups_has_none() -> None:
    assert parallel_groups(JobTables()).is_empty()
    assert stages(JobTables()).is_empty()
