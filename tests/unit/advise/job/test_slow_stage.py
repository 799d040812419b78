"""Slow stages as findings; a stage of one rank that has no more to do is a slow rank."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from stepscope.advise.finding import Finding
from stepscope.advise.job.slow_stage import slow_stage_findings
from stepscope.cluster.groups import stages
from stepscope.cluster.job_tables import JobTables, conform
from stepscope.cluster.pipeline import pipeline_stages
from stepscope.cluster.what_if.job_what_if import WhatIf
from tests.unit.cluster.small_jobs import SmallJob, pipeline, spread

VARIES = spread(0.005)


def findings(job: SmallJob, calls: dict[int, int] | None = None) -> list[Finding]:
    same = {"step": 0, "kind": "kernel", "name": "mm", "total": 1}
    operators = pl.DataFrame([{"rank": rank, "count": count, **same} for rank, count in (calls or {}).items()])
    tables: JobTables = replace(job.tables, operators=conform("operators", operators))
    own = stages(tables)
    what_if = WhatIf(tables, job.meetings, job.arrivals, own)
    return slow_stage_findings(tables, pipeline_stages(tables.steps, job.meetings, own), what_if.of_stage)


def with_slow(stage: int, factor: float, replicas: int) -> SmallJob:
    return pipeline(
        4, replicas, 3, 8, lambda rank, step: 5e6 * VARIES(rank, step) * (factor if rank // replicas == stage else 1)
    )


def test_a_slow_stage_is_a_finding_with_its_gain() -> None:
    slow, healthy = with_slow(2, 1.3, 2), with_slow(2, 1.0, 2)
    [one] = findings(slow)
    assert (one.cause, one.stage, one.ranks) == ("slow-stage", 2, (4, 5))
    assert one.gain_ns == pytest.approx((slow.duration - healthy.duration) / 3, rel=0.1)
    assert one.added_ns == pytest.approx(0.3 * 8 * 3 * 5e6, rel=0.05)
    assert findings(healthy) == []


def test_the_number_of_calls_tells_a_stage_of_one_rank_from_its_rank() -> None:
    job = with_slow(1, 1.3, 1)
    assert findings(job, dict.fromkeys(range(4), 100))[0].cause == "slow-rank"
    assert findings(job, {0: 100, 1: 130, 2: 100, 3: 100})[0].cause == "slow-stage"
    assert findings(job)[0].cause == "slow-stage"
