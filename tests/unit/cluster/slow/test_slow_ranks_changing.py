"""Ranks whose steps vary, or change while they are recorded: what they should take, the quiet steps and peers say."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.advise.finding import Finding
from stepscope.advise.job_findings import job_findings
from stepscope.cluster.job import Job
from tests.unit.cluster.slow.made_jobs import MS, Fault, job_tables


def found(fault: Fault, **job: float) -> list[Finding]:
    return job_findings(Job(job_tables(fault, **job)))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(3))
def test_a_rank_of_two_that_waits_for_data_now_short_now_long_is_named(seed: int) -> None:
    waits = [0.0, 0.0, 117.0, 201.0, 145.0, 126.0, 197.0]

    def slow_loader(rank: int, step: int, work: dict[str, float]) -> None:
        work["data_wait"] += waits[step] if rank == 1 else 0.0

    [one] = found(slow_loader, ranks=2, steps=len(waits), seed=seed)
    assert (one.cause, one.ranks) == ("data-wait-rank", (1,))


@pytest.mark.parametrize("seed", range(3))
def test_two_ranks_that_wait_for_data_now_short_now_long_are_not_named(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def both(rank: int, step: int, work: dict[str, float]) -> None:
        work["data_wait"] += rng.exponential(20.0)

    assert found(both, ranks=2, steps=12, seed=seed) == []


def became_slower(by: float, since: int, until: int = 1_000) -> Fault:
    def fault(rank: int, step: int, work: dict[str, float]) -> None:
        # All operators alike: what each rank should take differs by more than this.
        if rank == 5 and since <= step < until:
            for name in [name for name in work if name.startswith("aten::")]:
                work[name] *= 1 + by

    return fault


@pytest.mark.parametrize("seed", range(3))
def test_a_rank_that_becomes_a_little_slower_is_named_where_ranks_differ_as_much(seed: int) -> None:
    job = {"device": "cpu", "steps": 17, "spread": 0.02, "seed": seed}
    assert [one.ranks for one in found(became_slower(0.07, 4), **job)] == [(5,)]  # type: ignore[arg-type]
    assert found(became_slower(0.0, 4), **job) == []  # type: ignore[arg-type]


def test_a_rank_that_was_slower_in_two_steps_is_not_named() -> None:
    assert found(became_slower(0.3, 6, 8), steps=17) == []


def test_a_rank_that_was_faster_at_first_is_not_named() -> None:
    assert found(became_slower(-0.06, 0, 4), steps=17, device="cpu", spread=0.02) == []  # type: ignore[arg-type]


def test_what_a_rank_takes_longer_is_that_of_the_steps_in_which_it_does() -> None:
    [one] = found(became_slower(0.2, 3), steps=17)
    assert one.added_ns == pytest.approx(0.2 * 74 * MS, rel=0.15)
