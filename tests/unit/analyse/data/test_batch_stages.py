"""What making a batch takes, and how many workers would do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepscope.analyse.data.batch_stages import batch_stages
from tests.unit.analyse.build import ORIGIN, Rank

STEP, MS = 10_000_000, 1_000_000


def training(cpu: int, cores: int, wait: int = 6 * MS) -> Rank:
    """Twenty steps of 10 ms that wait for a batch of 30 ms, 24 of which are samples and 4 collation."""
    rank = Rank()
    host = rank.thread()
    for number in range(20):
        at = number * STEP
        rank.add("run_steps", number=number, ts=ORIGIN + at, dur=STEP, data_wait=wait, recorded=False)
        times: dict[str, Any] = {"sample_dur": 24 * MS, "sample_cpu": cpu, "collate_dur": 4 * MS, "collate_cpu": 0}
        rank.add("batches", ts=ORIGIN + at, dur=30 * MS, dataset="Photos", process=number % 3, samples=32, **times)
    span = rank.span(host, "data", 0, wait, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
    rank.add("arguments", span=span, key="cores", value=json.dumps(cores))
    return rank


@pytest.mark.parametrize(
    ("cpu", "cores", "needed"),
    [(24 * MS, 16, 8), (24 * MS, 4, 4), (2 * MS, 4, 8)],
    ids=["enough cores", "no more than cores", "waits for files"],
)
def test_workers_that_make_batches_as_fast_as_steps_use_them(cpu: int, cores: int, needed: int) -> None:
    rows = batch_stages(training(cpu, cores).tables())
    # 30 ms ÷ the 4 ms of a step without its wait
    assert rows["Stage"].to_list() == ["batch", "samples", "collation", "other"]
    assert rows["Mean(us)"].to_list() == [30_000, 24_000, 4_000, 2_000]
    assert rows["Share(%)"].to_list() == [100, 80, 13.33, 6.67]
    assert rows["CPU(us)"].to_list() == [cpu / 1000, cpu / 1000, 0, None]
    assert (rows["Rest of Step(us)"][0], rows["Workers Needed"][0]) == (4000, needed)
    assert (rows["Batches"][0], rows["Processes"][0]) == (20, 3)


def test_without_times_of_steps_the_workers_stay_unknown() -> None:
    rank = training(24 * MS, 4)
    rank.rows["run_steps"].clear()
    assert batch_stages(rank.tables()).row(0, named=True)["Workers Needed"] is None
