"""Slow links as findings: the pair, the group, the machine; nothing where it costs nothing."""

from __future__ import annotations

import polars as pl

from stepscope.advise.finding import Confidence, Finding
from stepscope.advise.job.slow_link import slow_link_findings
from stepscope.cluster.groups import parallel_groups, stages
from stepscope.cluster.job_tables import JobTables, conform
from stepscope.cluster.slow_links import as_its_peers, link_speeds, transits
from stepscope.cluster.what_if.job_what_if import WhatIf
from tests.unit.cluster.small_jobs import SmallJob, pipeline, spread

VARIES = spread(0.02)


def with_slow(*pairs: tuple[int, int], factor: float = 40.0) -> SmallJob:
    return pipeline(
        4, 2, 3, 8, lambda rank, step: 5e6 * VARIES(rank, step),
        lambda a, b: 1e5 * (factor if (min(a, b), max(a, b)) in pairs else 1),
    )  # fmt: skip


def findings(job: SmallJob, hosts: list[str] | None = None, device: str = "cuda:0") -> list[Finding]:
    own = job.tables
    ranks = own.ranks.with_columns(host=pl.Series(hosts or ["a"] * 8), device=pl.lit(device))
    tables = JobTables(ranks=conform("ranks", ranks), steps=own.steps, collectives=own.collectives, groups=own.groups)
    moved = transits(tables, job.meetings, parallel_groups(tables))
    what_if = WhatIf(tables, job.meetings, job.arrivals, stages(tables))
    return slow_link_findings(
        tables, link_speeds(moved), lambda links: what_if.of_collectives(as_its_peers(moved, links))
    )


def test_a_slow_pair_is_a_finding_with_its_gain() -> None:
    slow, healthy = with_slow((2, 4)), with_slow()
    [one] = findings(slow)
    truth = (slow.duration - healthy.duration) / 3
    assert (one.cause, one.link, one.ranks, one.confidence) == ("slow-link", (2, 4), (2, 4), Confidence.MEASURED)
    assert one.gain_ns is not None
    assert abs(one.gain_ns - truth) < 0.1 * truth
    assert one.title.startswith("Between ranks 2 and 4 (a) data move at ")
    assert one.evidence[0].row == {"link": "2-4"}


def test_healthy_links_are_no_finding() -> None:
    assert findings(with_slow()) == []


def test_ranks_on_the_cores_of_one_machine_have_no_link() -> None:
    assert findings(with_slow((2, 4)), device="cpu") == []
    [one] = findings(with_slow((2, 4)), ["a", "a", "a", "b", "b", "b", "b", "b"], device="cpu")
    assert one.link == (2, 4)


def test_a_slow_link_that_costs_nothing_is_no_finding() -> None:
    assert findings(with_slow((2, 4), factor=1.5)) == []


def test_all_links_of_one_machine_are_one_finding() -> None:
    hosts = ["a", "a", "b", "b", "c", "c", "d", "d"]
    [one] = findings(with_slow((4, 6), (5, 7)), hosts)
    assert one.link is None
    assert "d and other machines" in one.title
    assert one.ranks == (6, 7)


def test_without_machines_a_link_is_only_possible() -> None:
    job = with_slow((2, 4))
    moved = transits(job.tables, job.meetings, parallel_groups(job.tables)).with_columns(
        machines=pl.lit(None, pl.Int64)
    )
    tables = JobTables(steps=job.tables.steps)
    [one] = slow_link_findings(tables, link_speeds(moved), lambda _links: None)
    assert (one.confidence, one.gain_ns) == (Confidence.POSSIBLE, None)


def test_all_links_between_two_machines_are_one_finding() -> None:
    hosts = ["a", "a", "b", "b", "c", "c", "d", "d"]
    [one] = findings(with_slow((2, 4), (3, 5)), hosts)
    assert one.link is None
    assert one.title.startswith("Between b and c data move at ")
    assert one.ranks == (2, 3, 4, 5)
