"""How long batches take to make, what of that is most, and how many workers make them as fast as they are used."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepscope.analyse.data.batch_production import batch_production
from tests.unit.analyse.build import ORIGIN, Rank

STEP, MS = 10_000_000, 1_000_000


def training(cores: int | None, each: int = 1, **stages: float) -> dict[str, Any]:
    """Return the row of 40 steps of 10 ms that wait 4 ms for their batches; stages are in ms."""
    rank = Rank()
    if cores is not None:
        rank.add("metadata", key="machine", value=json.dumps({"cores": cores, "cpu_quota": None}))
    for number in range(40):
        at = ORIGIN + number * STEP
        rank.add("run_steps", number=number, ts=at, dur=STEP, delay=0, data_wait=4 * MS, recorded=False)
        for batch in range(each):
            lost = 50 if number % 10 == 0 else 0  # another process had the core
            sample, cpu, collate = (stages.get(name, 0.0) for name in ("sample", "cpu", "collate"))
            rank.add(
                "batches", ts=at, dur=round((sample + collate + lost) * MS), dataset="Photos", process=200 + batch,
                samples=8, sample_dur=round((sample + lost) * MS), sample_cpu=round(cpu * MS),
                collate_dur=round(collate * MS), collate_cpu=round(collate * MS),
            )  # fmt: skip
    [row] = batch_production(rank.tables()).rows(named=True)
    return row


@pytest.mark.parametrize(
    ("cores", "stages", "bottleneck", "needed"),
    [
        (16, {"sample": 12, "cpu": 9, "collate": 1}, "Samples Computing", 3),
        (2, {"sample": 12, "cpu": 9, "collate": 1}, "Samples Computing", 1),
        (None, {"sample": 12, "cpu": 9, "collate": 1}, "Samples Computing", 3),
        (2, {"sample": 12, "cpu": 1, "collate": 1}, "Samples Waiting", 3),
        (16, {"sample": 2, "cpu": 2, "collate": 20}, "Collation Computing", 4),
        (16, {"sample": 1, "cpu": 1, "collate": 0.5}, "Samples Computing", 1),
        (16, {"sample": 6.5, "cpu": 1, "each": 2}, "Samples Waiting", 3),
    ],
)
def test_the_workers_that_a_loader_needs(
    cores: int | None, stages: dict[str, Any], bottleneck: str, needed: int
) -> None:
    row = training(cores, **stages)
    made = stages.get("each", 1) * (stages["sample"] + stages.get("collate", 0))
    assert (row["Bottleneck"], row["Workers Needed"], row["Cores"]) == (bottleneck, needed, cores)
    assert row["Production/Step(us)"] == pytest.approx(1000 * made)
    assert (row["Rest of Step(us)"], row["Processes"]) == (6000.0, stages.get("each", 1))


def test_without_steps_the_number_of_workers_is_unknown() -> None:
    rank = Rank()
    times = {"sample_dur": 3 * MS, "sample_cpu": MS, "collate_dur": MS, "collate_cpu": MS}
    rank.add("batches", ts=ORIGIN, dur=4 * MS, dataset="Photos", process=1, samples=8, **times)
    [row] = batch_production(rank.tables()).rows(named=True)
    unknown = ("Batches/Step", "Production/Step(us)", "Rest of Step(us)", "Workers Needed", "Cores")
    assert [row[name] for name in unknown] == [None] * 5
    assert row["Bottleneck"] == "Samples Waiting"
