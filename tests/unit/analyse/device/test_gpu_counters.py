"""Traffic of GPUs from sampled counters."""

from __future__ import annotations

from stepscope.analyse.device.gpu_counters import hbm, pcie
from tests.unit.analyse.build import ORIGIN, Rank


def lane(rank: Rank, name: str) -> int:
    track = rank.track("counter", "cpu")
    rank.rows["tracks"][track]["name"] = name
    return track


def sample(rank: Rank, track: int, name: str, *values: float) -> None:
    for place, value in enumerate(values):
        rank.add("counters", ts=ORIGIN + place, track=track, name=name, value=value, unit="")


def test_pcie_has_a_row_for_each_gpu_and_direction() -> None:
    rank = Rank()
    for number in (0, 1):
        gpu = lane(rank, f"GPU {number}")
        sample(rank, gpu, "PCIe sent", 1e6, 4e6, 1e6 + 3e6 * number)
    sample(rank, 0, "PCIe received", 5e9)
    sample(rank, lane(rank, "PCIe sent"), "PCIe sent", 1e12)  # no GPU's lane
    assert pcie(rank.tables()).rows() == [
        (0, "Rx(MB/s)", 5000.0, 5000.0, 5000.0),
        (0, "Tx(MB/s)", 1.0, 4.0, 2.0),
        (1, "Tx(MB/s)", 1.0, 4.0, 3.0),
    ]


def test_hbm_says_what_the_gpu_tells() -> None:
    rank = Rank()
    hopper, older, silent = (lane(rank, f"GPU {number}") for number in range(3))
    sample(rank, hopper, "HBM traffic", 1e12, 3e12)
    sample(rank, hopper, "HBM busy", 20.0, 60.0)
    sample(rank, hopper, "memory busy", 99.0)
    sample(rank, older, "memory busy", 10.0, 30.0)
    sample(rank, silent, "power", 100.0)
    assert hbm(rank.tables()).rows() == [
        (0, "Average", None, None, 2e6, 40.0),
        (1, "Average", None, None, None, 20.0),
    ]
