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


#: Rank → operator → calls in a step, and what one takes.
Calls = dict[int, dict[str, tuple[int, int]]]


def findings(job: SmallJob, calls: Calls | None = None) -> list[Finding]:
    operators = pl.DataFrame(
        [
            {"rank": rank, "step": 0, "kind": "kernel", "name": name, "count": count, "total": count * each}
            for rank, operators in (calls or {}).items()
            for name, (count, each) in operators.items()
        ]
    )
    tables: JobTables = replace(job.tables, operators=conform("operators", operators))
    own = stages(tables)
    what_if = WhatIf(tables, job.meetings, job.arrivals, own)
    return slow_stage_findings(
        tables,
        pipeline_stages(tables.steps, job.meetings, own),
        lambda stage, has_more: what_if.balanced() if has_more else what_if.of_stage(stage),
    )


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


def test_layers_that_a_stage_gives_away_are_computed_by_the_others() -> None:
    """A stage with twice as many layers makes twice as many calls; repaired, each stage has a quarter of all."""
    job, even = with_slow(2, 2.0, 2), pipeline(4, 2, 3, 8, lambda rank, step: 1.25 * 5e6 * VARIES(rank, step))
    usual = {"mm": (100, 1_000)}
    [one] = findings(job, dict.fromkeys(range(8), usual) | {rank: {"mm": (200, 1_000)} for rank in (4, 5)})
    assert one.gain_ns == pytest.approx((job.duration - even.duration) / 3, rel=0.1)


def test_what_its_operators_take_tells_a_stage_of_one_rank_from_its_rank() -> None:
    """A slow rank takes longer for each call; a stage with more to do has more calls, or some larger ones."""
    job, usual = with_slow(1, 1.3, 1), {"mm": (100, 1_000), "add": (50, 100), "gelu": (50, 200)}
    others = dict.fromkeys(range(4), usual)
    slower = {name: (count, each * 13 // 10) for name, (count, each) in usual.items()}
    assert findings(job, others | {1: slower})[0].cause == "slow-rank"
    more = {name: (count * 13 // 10, each) for name, (count, each) in usual.items()}
    assert findings(job, others | {1: more})[0].cause == "slow-stage"
    assert findings(job, others | {1: usual | {"mm": (100, 1_400)}})[0].cause == "slow-stage"
    assert findings(job)[0].cause == "slow-stage"
