"""Every launcher's variables are understood, and ranks of one job find the same key."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from stepscope.collect.ranks import JobRank, find_job, find_job_rank


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, JobRank()),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, JobRank(3, 8, 1, "torchrun")),
        ({"RANK": "3", "WORLD_SIZE": "8"}, JobRank(3, 8, 3, "torchrun")),
        (
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "1",
            },
            JobRank(1, 2, 0, "Open MPI"),
        ),
        (
            {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_STEP_NUM_TASKS": "6", "SLURM_LOCALID": "1"},
            JobRank(5, 6, 1, "SLURM"),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}, JobRank(1, 2, 0, "MPICH")),
        (
            {"MV2_COMM_WORLD_RANK": "3", "MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_LOCAL_RANK": "1"},
            JobRank(3, 4, 1, "MVAPICH"),
        ),
        ({"RANK_ID": "1", "RANK_SIZE": "2", "DEVICE_ID": "7"}, JobRank(1, 2, 7, "MindSpore")),
        ({"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2"}, JobRank(1, 2, 1, "Paddle")),
    ],
)
def test_the_place_of_every_launcher(environment: dict[str, str], place: JobRank) -> None:
    assert find_job_rank(environment) == place


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "2"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"RANK": "one", "WORLD_SIZE": "2"},
        {"RANK": "²", "WORLD_SIZE": "3"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7"},
    ],
    ids=["no size", "rank too large", "negative", "a word", "a digit outside ASCII", "a script of sbatch"],
)
def test_nonsense_in_the_environment_is_no_rank(environment: dict[str, str]) -> None:
    assert find_job_rank(environment) == JobRank()


def test_the_job_that_the_user_names_wins() -> None:
    named = {"STEPSCOPE_RUN_ID": "a", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}
    assert find_job(named) == find_job({"STEPSCOPE_RUN_ID": "a"})
    assert find_job(named) != find_job({"STEPSCOPE_RUN_ID": "b"})
    assert find_job(named).certain


def test_a_restarted_elastic_job_is_another_job() -> None:
    first = {"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "0"}
    assert find_job(first) == find_job(dict(first))
    assert find_job(first) != find_job({**first, "TORCHELASTIC_RESTART_COUNT": "1"})


def test_without_a_name_the_children_of_one_process_are_one_job() -> None:
    # Given two processes that nobody but their parent connects
    code = "from stepscope.collect.ranks import find_job; print(find_job({'TORCHELASTIC_RUN_ID': 'none'}).digest)"
    digests = {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(2)}
    # Then they agree, and differ from this process, whose parent is another one
    assert len(digests) == 1
    assert find_job({}).digest.encode() not in digests.pop()
    assert not find_job({}).certain
    assert os.getppid() != os.getpid()


@pytest.mark.parametrize(
    "address",
    [
        {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
        {"MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": "8118"},
        {"PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:6070,10.0.0.2:6070"},
    ],
    ids=["torch", "mindspore", "paddle"],
)
def test_the_address_at_which_ranks_meet_names_their_job(address: dict[str, str]) -> None:
    parent = find_job({}).digest
    assert len({find_job({**address, "RANK": rank}).digest for rank in "012"} | {parent}) == 2
    assert not find_job(address).certain
    assert find_job({**address, "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}).certain
