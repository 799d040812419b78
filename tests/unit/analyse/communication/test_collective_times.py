"""communication.json and communication_matrix.json: structure and arithmetic of the Ascend deliverables."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepscope.analyse.communication.collective_times import LINKS, communication, communication_matrix
from tests.unit.analyse.build import ORIGIN, Rank

ALLREDUCE = {"operation": "allreduce", "group": "0", "transport": "nccl"}


def four_reductions() -> Rank:
    """Four all-reduces of 8 MB in 1, 2, 4 and 8 ms in step 5, then a receive."""
    rank = Rank()
    stream = rank.stream()
    rank.step(5, 0, 100_000_000)
    for place, milliseconds in enumerate((2, 1, 8, 4)):
        span = rank.span(stream, "collective", place * 10_000_000, milliseconds * 1_000_000, "nccl", step=5)
        rank.add("collectives", span=span, bytes_in=8_000_000, bytes_out=8_000_000, **ALLREDUCE)
    span = rank.span(stream, "collective", 60_000_000, 500_000, "recv", step=5)
    rank.add("collectives", span=span, operation="recv", bytes_in=0, bytes_out=1_000_000, source=1, destination=0)
    return rank


def test_an_operation_has_times_and_bandwidth_of_its_transport() -> None:
    step = communication(four_reductions().tables())["step5"]
    assert list(step["collective"]) == [*(f"allreduce__{n}@0" for n in range(4)), "Total Op Info"]
    assert list(step["p2p"]) == ["recv__0@"]
    first = step["collective"]["allreduce__0@0"]
    assert first["Communication Time Info"] == {
        "Start Timestamp(us)": ORIGIN / 1000,
        "Elapse Time(ms)": 2.0,
        "Transit Time(ms)": None,
        "Wait Time(ms)": None,
        "Synchronization Time(ms)": None,
        "Idle Time(ms)": None,
        "Wait Time Ratio": None,
        "Synchronization Time Ratio": None,
    }
    assert list(first["Communication Bandwidth Info"]) == [*LINKS, "NCCL"]
    assert first["Communication Bandwidth Info"]["HCCS"]["Transit Size(MB)"] == 0
    assert first["Communication Bandwidth Info"]["NCCL"] == {
        "Transit Size(MB)": 8.0,
        "Transit Time(ms)": 2.0,
        "Bandwidth(GB/s)": 4.0,
        "Large Packet Ratio": 0,
        "Size Distribution": {"8.0": [1, 2.0]},
    }
    total = step["collective"]["Total Op Info"]
    assert total["Communication Time Info"]["Elapse Time(ms)"] == 15.0
    assert "Start Timestamp(us)" not in total["Communication Time Info"]
    assert total["Communication Bandwidth Info"]["NCCL"]["Size Distribution"] == {"8.0": [4, 15.0]}


def test_ratios_and_idle_follow_from_transit_and_wait() -> None:
    rank = Rank()
    span = rank.span(rank.stream(), "collective", 0, 10_000_000)
    rank.add("collectives", span=span, transit=3_000_000, wait=1_000_000, synchronisation=0, **ALLREDUCE)
    (entry, _) = communication(rank.tables())["step0"]["collective"].values()
    times = entry["Communication Time Info"]
    assert (times["Wait Time Ratio"], times["Synchronization Time Ratio"], times["Idle Time(ms)"]) == (0.25, 0.0, 6.0)
    moved = entry["Communication Bandwidth Info"]["NCCL"]
    assert (moved["Transit Size(MB)"], moved["Transit Time(ms)"], moved["Bandwidth(GB/s)"]) == (None, 3.0, None)


def test_the_matrix_orders_operations_by_bandwidth() -> None:
    step = communication_matrix(four_reductions().tables())["step5"]
    names = {key.split("@")[0]: links["0-*"].get("Op Name") for key, links in step["collective"].items()}
    assert names == {
        "allreduce-top1": "allreduce__1",
        "allreduce-middle": "allreduce__3",
        "allreduce-bottom1": "allreduce__2",
        "allreduce-bottom2": "allreduce__3",
        "allreduce-bottom3": "allreduce__0",
        "allreduce-total": None,
    }
    assert step["collective"]["allreduce-total@0"]["0-*"]["Bandwidth(GB/s)"] == pytest.approx(32 / 15, abs=1e-4)
    assert step["p2p"]["recv-total@"] == {
        "1-0": {
            "Transport Type": "OTHER",
            "Transit Size(MB)": 1.0,
            "Transit Time(ms)": 0.5,
            "Bandwidth(GB/s)": 2.0,
        }
    }


def test_operations_outside_every_step_are_kept() -> None:
    rank = Rank()
    rank.step(1, 0, 1_000)
    rank.add("collectives", span=rank.span(rank.stream(), "collective", 5_000, 1_000, "ncclKernel"), **ALLREDUCE)
    assert list(communication(rank.tables())) == ["step-1"]


@pytest.mark.parametrize("function", [communication, communication_matrix])
def test_the_documents_are_json(function: Any) -> None:
    document = function(four_reductions().tables())
    assert json.loads(json.dumps(document, allow_nan=False)) == document
