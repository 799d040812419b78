"""The findings of jobs whose truth is known: made tables, and simulated jobs read from their files."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from stepscope.advise.finding import Finding
from stepscope.advise.job_findings import job_findings
from stepscope.cluster.job import Job
from stepscope.cluster.job_tables import conform
from tests.unit.cluster.build import data_parallel
from tests.unit.cluster.slow.made_jobs import MS, OPERATORS, Fault, job_tables


def found(fault: Fault, **shape: object) -> list[Finding]:
    return job_findings(Job(job_tables(fault, **shape)))  # type: ignore[arg-type]


def on(slow: int, **more: float) -> Fault:
    """Add ms to what a rank does."""

    def fault(rank: int, step: int, work: dict[str, float]) -> None:
        if rank == slow:
            for name, amount in more.items():
                work[name.replace("__", "::")] += amount

    return fault


def throttled(slow: int, factor: float) -> Fault:
    def fault(rank: int, step: int, work: dict[str, float]) -> None:
        if rank == slow:
            work.update({name: work[name] * factor for name in OPERATORS})

    return fault


def garbage(rank: int, step: int, work: dict[str, float]) -> None:
    if rank == 2:
        work["garbage"] += 12
        work["host_only"] += 12


def another_process(rank: int, step: int, work: dict[str, float]) -> None:
    if rank == 2:
        work["delay"] += 18
        work.update({name: work[name] * 1.25 for name in OPERATORS})


CAUSES: dict[str, tuple[Fault, str, str | None, str, float]] = {
    "operator": (on(2, aten__mm=12), "slow-rank", "aten::mm", "aten::mm takes 1.", 12),
    "data": (on(2, data_wait=9), "data-wait-rank", None, "data wait", 9),
    "host": (on(2, idle=11), "host-bound-rank", None, "host-bound", 11),
    "clocks": (throttled(2, 1.3), "slow-rank", None, "clocks throttled: every kernel 1.3", 22),
    "garbage": (garbage, "slow-rank", None, "garbage collection", 12),
    "another process": (another_process, "slow-rank", None, "another process", 18.5),
}


@pytest.mark.parametrize("steps", [2, 3, 10])
@pytest.mark.parametrize("ranks", [4, 32])
@pytest.mark.parametrize("name", CAUSES)
def test_a_slow_rank_is_named_with_its_cause_and_its_amount(name: str, ranks: int, steps: int) -> None:
    fault, cause, operator, words, added = CAUSES[name]
    [one] = found(fault, ranks=ranks, steps=steps)
    assert (one.cause, one.ranks, one.operator) == (cause, (2,), operator)
    assert words in one.evidence[0].text
    assert one.added_ns == pytest.approx(added * MS, rel=0.15)
    assert one.gain_ns is not None
    assert one.gain_ns <= one.added_ns + MS
    assert one.gain_low_ns <= one.gain_ns <= one.gain_high_ns  # type: ignore[operator]
    assert one.title.startswith(f"Rank 2 keeps the other {ranks - 1} waiting ")


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
@pytest.mark.parametrize("ranks", [2, 4, 8, 32])
def test_healthy_jobs_have_no_finding(ranks: int, device: str) -> None:
    alarms = sum(
        bool(found(lambda *_: None, ranks=ranks, steps=2 + seed % 9, device=device, seed=seed)) for seed in range(8)
    )
    assert alarms == 0


def with_rows(table: str, rows: list[dict[str, object]], fault: Fault) -> list[Finding]:
    """Return the findings of a job of four ranks to which rows of a table are added."""
    tables = job_tables(fault, ranks=4)
    more = conform(table, pl.DataFrame(rows, infer_schema_length=None))
    return job_findings(Job(replace(tables, **{table: pl.concat([getattr(tables, table), more])})))


@pytest.mark.parametrize("part", ["idle", "data_wait"])
def test_the_function_of_the_program_in_which_a_rank_is_late_is_named(part: str) -> None:
    usual = [
        {"rank": rank, "thread": "training", "function": "train (t.py:9)", "whole": True, "total": 90 * MS}
        for rank in range(4)
    ]
    own = {"rank": 2, "thread": "training", "function": "audit (t.py:3)", "whole": True, "total": 10 * MS, "looks": 30}
    [one] = with_rows("functions", [*usual, own], on(2, **{part: 11}))
    assert one.title.endswith(", in audit (t.py:3)")
    assert one.evidence[1].text == "audit (t.py:3) takes 10.0 ms a step; its peers were not seen in it"
    assert part == "data_wait" or "audit (t.py:3) out of the step" in one.remedy


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (
            {"aten::_local_scalar_dense": (10.0, 0.0), "aten::mm": (1.0, 1.0)},
            "its aten::_local_scalar_dense is called on no other rank",
        ),
        ({"aten::item": (12.0, 2.0), "aten::mm": (1.0, 1.0)}, "its aten::item takes 6.00 × as long as its peers'"),
        ({"aten::mm": (18.0, 9.0), "aten::add": (4.0, 2.0)}, "each call of an operator takes 2.00 × as long"),
        ({"aten::mm": (2.0, 1.0), "aten::add": (2.0, 1.0)}, ""),  # not enough
    ],
)
def test_the_operator_for_which_a_host_takes_longer_is_named(times: dict[str, tuple[float, float]], words: str) -> None:
    rows = [
        {
            "rank": rank,
            "step": step,
            "kind": "operator",
            "name": name,
            "count": 4,
            "total": round((slow if rank == 2 else usual) * MS),
        }
        for rank in range(4)
        for step in range(10)
        for name, (slow, usual) in times.items()
        if rank == 2 or usual
    ]
    [one] = with_rows("operators", rows, on(2, idle=11))
    assert (one.cause, one.ranks) == ("host-bound-rank", (2,))
    assert words in one.title
    assert ("on its host" in one.evidence[1].text) is bool(words)


def test_one_of_two_ranks_is_named() -> None:
    [one] = found(on(1, aten__mm=25), ranks=2, steps=5)
    assert one.title.startswith("Rank 1 keeps the other rank waiting 2")


@pytest.mark.parametrize("steps", [2, 3, 10])
def test_one_hiccup_is_no_slow_rank(steps: int) -> None:
    def hiccup(rank: int, step: int, work: dict[str, float]) -> None:
        if (rank, step) == (5, 1):
            work["idle"] += 300

    assert found(hiccup, steps=steps) == []


def test_an_operator_that_is_slow_on_one_rank_now_and_then_is_named_with_its_mean() -> None:
    def now_and_then(rank: int, step: int, work: dict[str, float]) -> None:
        if rank == 5 and step % 3 == 0:
            work["aten::mm"] += 36

    [one] = found(now_and_then, steps=30)
    assert (one.cause, one.ranks, one.operator) == ("slow-rank", (5,), "aten::mm")
    assert one.added_ns == pytest.approx(12 * MS, rel=0.1)


def test_pauses_that_only_one_rank_has_now_and_then_are_a_finding() -> None:
    def pauses(rank: int, step: int, work: dict[str, float]) -> None:
        if rank == 5 and step % 3 == 0:
            work["garbage"] += 60
            work["host_only"] += 60

    [one] = found(pauses, steps=30)
    assert (one.cause, one.ranks) == ("slow-rank", (5,))
    assert "garbage collection" in one.evidence[0].text
    assert one.added_ns == pytest.approx(20 * MS, rel=0.1)


def test_several_slow_ranks_are_named_each_with_its_own_cause() -> None:
    def both(rank: int, step: int, work: dict[str, float]) -> None:
        on(1, aten__mm=20)(rank, step, work)
        on(6, data_wait=20)(rank, step, work)

    assert {(one.cause, one.ranks) for one in found(both)} == {("slow-rank", (1,)), ("data-wait-rank", (6,))}


@pytest.mark.parametrize(
    ("hosts", "who"), [(True, "The 4 ranks of node1 keep the other 4"), (False, "Ranks 4 to 7 keep the other 4")]
)
def test_a_slow_machine_is_one_finding_with_its_ranks(hosts: bool, who: str) -> None:
    def machine(rank: int, step: int, work: dict[str, float]) -> None:
        if rank >= 4:
            work.update({name: work[name] * 1.3 for name in OPERATORS})

    tables = job_tables(machine)
    unknown = tables.ranks.with_columns(host=pl.lit(None, tables.ranks.schema["host"]))
    [one] = job_findings(Job(tables if hosts else replace(tables, ranks=unknown)))
    assert one.ranks == (4, 5, 6, 7)
    assert one.title.startswith(f"{who} waiting ")
    assert one.gain_ns is not None
    assert one.gain_ns > 0


def test_ranks_of_no_known_machine_that_do_not_follow_each_other_are_findings_of_their_own() -> None:
    def apart(rank: int, step: int, work: dict[str, float]) -> None:
        if rank in (1, 2, 6):
            work["aten::mm"] += 20

    tables = job_tables(apart)
    unknown = tables.ranks.with_columns(host=pl.lit(None, tables.ranks.schema["host"]))
    assert {one.ranks for one in job_findings(Job(replace(tables, ranks=unknown)))} == {(1, 2), (6,)}


def test_ranks_that_nobody_waits_for_are_not_blamed() -> None:
    """A rank whose steps are longer, while no other rank waits, holds nobody up."""
    tables = job_tables(on(2, aten__mm=25))
    alone = tables.steps.with_columns(dur=tables.steps["dur"] - tables.steps["communication"], communication=0)
    assert job_findings(Job(type(tables)(ranks=tables.ranks, steps=alone, operators=tables.operators))) == []


def test_a_rank_whose_capture_lacks_its_collectives_is_not_blamed_for_waiting() -> None:
    """Its communication looks as idle time of its own."""
    tables, met = job_tables(lambda *_: None, ranks=4, steps=6), data_parallel(4, steps=6).tables()
    lacks = pl.col("rank") == 2
    parts = pl.col("idle") + pl.col("communication"), pl.col("communication") * 0
    steps = tables.steps.with_columns(
        pl.when(lacks).then(part).otherwise(name).alias(name)
        for name, part in zip(("idle", "communication"), parts, strict=True)
    )
    whole = replace(tables, steps=steps, groups=met.groups, collectives=met.collectives.filter(~lacks))
    assert [finding.cause for finding in job_findings(Job(whole)) if 2 in (finding.ranks or ())] in (
        [],
        ["clock-uncalibrated"],
    )
