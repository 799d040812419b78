"""A batch of messages: the host's calls say who sends what to whom, the one kernel after them when it happened."""

from __future__ import annotations

import polars as pl
import pytest

from stepscope.cluster.rank_summary import decode, encode, job_tables
from stepscope.cluster.reduction.rank_reduction import reduce
from tests.unit.analyse.build import ORIGIN, Rank


class Batches:
    """A rank whose host runs ahead of its device."""

    def __init__(self) -> None:
        self.rank = Rank()
        self.host, self.stream = self.rank.thread(), self.rank.stream(20)
        self.rank.step(4, 0, 5_000)

    def call(self, ts: int, operation: str, source: int, destination: int, group: str = "pp") -> None:
        span = self.rank.span(self.host, "collective", ts, 10, "record_param_comms", step=4)
        ends = {"source": source, "destination": destination, "transport": "nccl"}
        self.rank.add("collectives", span=span, operation=operation, group=group, group_size=4, bytes_in=64, **ends)

    def kernel(self, launched: int, ts: int, name: str = "ncclDevKernel_SendRecv") -> None:
        launch = self.rank.span(self.host, "runtime", launched, 5, "cudaLaunchKernelExC", step=4)
        batch = "nccl" in name
        work = self.rank.span(self.stream, "collective" if batch else "kernel", ts, 500, name, step=4)
        self.rank.add("kernels", span=work, device=0, launch=launch)
        if batch:
            self.rank.add("collectives", span=work, operation="coalesced", transport="nccl")

    @property
    def found(self) -> pl.DataFrame:
        manifest = {"rank": 1, "world_size": 4, "source": "import"}
        return job_tables([decode(encode(reduce(self.rank.tables(), manifest)))]).collectives.sort("launch", "ts")


@pytest.fixture
def batches() -> Batches:
    job = Batches()
    job.call(100, "send", 1, 2)
    job.call(120, "recv", 2, 1)
    job.kernel(150, 1_000)
    return job


def test_messages_happen_when_their_kernel_does(batches: Batches) -> None:
    batches.call(200, "send", 1, 2)
    batches.kernel(230, 2_000)
    found = batches.found
    assert found["operation"].to_list() == ["send", "recv", "send"]
    assert found["launched"].to_list() == [True] * 3
    assert found["launch"].to_list() == [ORIGIN + 100, ORIGIN + 120, ORIGIN + 200]
    assert found.select("ts", "dur").rows() == [(ORIGIN + ts, 500) for ts in (1_000, 1_000, 2_000)]
    assert found.select("source", "destination").rows() == [(1, 2), (2, 1), (1, 2)]


def test_two_kernels_after_the_calls_are_nobodys(batches: Batches) -> None:
    batches.kernel(160, 1_600)
    assert sorted(batches.found["operation"]) == ["coalesced", "coalesced", "recv", "send"]
    assert batches.found.filter(pl.col("operation") != "coalesced")["launched"].to_list() == [False, False]


def test_calls_before_another_kernel_are_of_none(batches: Batches) -> None:
    """The kernel of the calls is lost."""
    batches.call(300, "send", 1, 2)
    batches.kernel(330, 2_000, "gemm")
    batches.kernel(360, 2_600)
    found = batches.found
    assert found.filter(launch=ORIGIN + 300)["launched"].to_list() == [False]
    assert found.filter(launch=ORIGIN + 100)["launched"].to_list() == [True]


def test_calls_of_two_groups_are_not_one_batch(batches: Batches) -> None:
    batches.call(300, "send", 1, 2)
    batches.call(310, "send", 1, 3, group="other")
    batches.kernel(330, 2_000)
    assert batches.found.filter(pl.col("launched") & (pl.col("launch") > ORIGIN + 200))["operation"].to_list() == [
        "coalesced"
    ]


def test_without_known_launches_no_kernel_has_calls(batches: Batches) -> None:
    for kernel in batches.rank.rows["kernels"]:
        kernel["launch"] = None
    assert sorted(batches.found["operation"]) == ["coalesced", "recv", "send"]
