"""Which GPUs a rank samples; what they say needs one: ``tests/gpu``."""

from __future__ import annotations

import pytest

from stepscope.collect.cuda.nvml import of_rank
from stepscope.collect.ranks import Place


@pytest.mark.parametrize(
    ("gpus", "place", "own"),
    [
        ("ab", Place(), {0: "a", 1: "b"}),
        ("ab", Place(rank=3, world_size=4, local_rank=1), {1: "b"}),
        # The launcher shows each rank its own GPU only
        ("b", Place(rank=1, world_size=2, local_rank=1), {0: "b"}),
        ("", Place(rank=1, world_size=2, local_rank=1), {}),
    ],
)
def test_ranks_of_one_machine_sample_a_gpu_each(gpus: str, place: Place, own: dict[int, str]) -> None:
    assert of_rank(gpus, place) == own
