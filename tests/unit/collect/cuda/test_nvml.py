"""Which GPUs a rank samples; what they say needs one: ``tests/gpu``."""

from __future__ import annotations

import pytest

from stepscope.collect.cuda.nvml import of_rank
from stepscope.collect.ranks import JobRank


@pytest.mark.parametrize(
    ("gpus", "place", "own"),
    [
        ("ab", JobRank(), {0: "a", 1: "b"}),
        ("ab", JobRank(rank=3, world_size=4, local_rank=1), {1: "b"}),
        # The launcher shows each rank its own GPU only
        ("b", JobRank(rank=1, world_size=2, local_rank=1), {0: "b"}),
        ("", JobRank(rank=1, world_size=2, local_rank=1), {}),
    ],
)
def test_ranks_of_one_machine_sample_a_gpu_each(gpus: str, place: JobRank, own: dict[int, str]) -> None:
    assert of_rank(gpus, place) == own
