"""Scoring: hand-made findings against hand-made truths."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tests.simulator.evaluate import clock_error
from tests.simulator.faults import ACCEPTED, SLOW
from tests.simulator.host_clocks import EPOCH
from tests.simulator.scoring import BLAMES, ClockError, FindingDict, judge, report, report_clocks


def truth(sort: str | None, ranks: tuple[int, ...] = (3,), **more: Any) -> dict[str, Any]:
    shape = {"seed": 1, "kind": "3d", "ranks": 8, "pipeline": 2}
    said = {"sort": sort, "ranks": ranks, "stage": -1, "gain_ns": 100.0, "added_ns": 200.0}
    return {"shape": shape, "fault": {**said, "causes": ACCEPTED[sort], **more} if sort else None}


def finding(cause: str, *ranks: int, **more: Any) -> dict[str, Any]:
    return {"cause": cause, "ranks": ranks, **more}


@pytest.mark.parametrize(
    ("sort", "ranks", "findings", "cause", "named"),
    [
        ("clocks", (3,), [finding("slow-rank", 3)], True, True),
        ("clocks", (3,), [finding("slow-rank", 2)], True, False),
        ("clocks", (3,), [finding("slow-link", 3)], False, False),
        ("clocks", (3,), [finding("slow-rank", 2), finding("slow-rank", 3)], True, False),
        ("clocks", (3,), [finding("slow-rank", *range(8))], True, False),
        ("clocks", (3,), [], False, False),
        ("host", (3,), [finding("host-bound-rank", 3)], True, True),
        ("host", (3,), [finding("slow-rank", 3)], True, True),
        ("loader", (3,), [finding("slow-rank", 3)], False, False),
        ("link", (1, 5), [finding("slow-link", link=[1, 5])], True, True),
        ("link", (1, 5), [finding("slow-link", link=[1, 4])], True, False),
        ("network", (0, 1, 2, 3), [finding("slow-link", 0, 1, 2, 3)], True, True),
        ("network", (0, 1, 2, 3), [finding("slow-link", 4)], True, False),
        ("stage", (4, 5, 6, 7), [finding("slow-stage", stage=-1)], True, True),
        ("stage", (4, 5, 6, 7), [finding("slow-stage", 4, 5, 6, 7, stage=9)], True, True),
        ("stage", (4, 5, 6, 7), [finding("slow-stage", 0, 1, 2, 3, stage=0)], True, False),
        ("missing", (3,), [finding("missing-rank", 3)], True, True),
        ("hung", (3,), [finding("hung-collective", 3)], True, True),
        ("hung", (3,), [finding("hung-collective", 0, 1, 2, 4, 5, 6, 7)], True, False),
    ],
)
def test_judged(sort: str, ranks: tuple[int, ...], findings: list[FindingDict], cause: bool, named: bool) -> None:
    verdict = judge(truth(sort, ranks), findings)
    assert (verdict.cause, verdict.named) == (cause, named)


@pytest.mark.parametrize("sort", [None, "hiccup"])
def test_who_is_healthy_must_not_be_blamed(sort: str | None) -> None:
    assert judge(truth(sort), []).named
    assert judge(truth(sort), [finding("small-collectives")]).named
    assert not judge(truth(sort), [finding("small-collectives"), finding("slow-rank", 3)]).named


def test_a_rank_that_is_its_stage_may_be_called_either() -> None:
    one = truth("clocks")
    one["shape"]["pipeline"] = 8
    assert judge(one, [finding("slow-stage", 3)]).named


def test_amounts_are_compared_where_the_rank_is_named() -> None:
    verdict = judge(truth("clocks"), [finding("slow-rank", 3, gain_ns=110, added_ns=None)])
    assert verdict.gain_error == pytest.approx(0.1)
    assert verdict.added_error is None
    assert judge(truth("clocks"), [finding("slow-rank", 2, gain_ns=110)]).gain_error is None


def test_every_fault_has_causes_that_blame() -> None:
    assert {cause for causes in ACCEPTED.values() for cause in causes} == BLAMES
    assert set(SLOW) < set(ACCEPTED)


def test_the_report_counts() -> None:
    verdicts = [
        judge(truth("clocks"), [finding("slow-rank", 3, gain_ns=120)]),
        judge(truth("loader"), []),
        judge(truth(None), [finding("slow-rank", 1)]),
    ]
    lines = report(verdicts)
    assert lines[0] == "faults named with rank and cause: 1 of 2 (50%)"
    assert "gain: median error 20%, worst 20% of 1" in lines
    assert "healthy jobs without blame: 0 of 1 (0%)" in lines
    assert lines[-2:] == [
        "  seed 1 3d: loader, but found: nothing",
        "  seed 1 3d: healthy, but found: slow-rank [1]",
    ]


def test_clock_errors_are_counted() -> None:
    lines = report_clocks([ClockError((0.0, 300.0), (150.0, 150.0), (0.0, 200.0), 1, 200.0)])
    assert lines == [
        "clocks: stated of 2 ranks, not of 1",
        "  against the reference: 50.00% within what is stated; error 150 ns, largest 300 ns, or 1.5 jitters",
        "  jobs in which no clock is more wrong than the jitter: 0 of 1 (0%)",
        "  against the median: 50.00% within what is stated; error 150 ns, largest 150 ns, or 0.8 jitters",
        "  jobs in which no clock is more wrong than the jitter: 1 of 1 (100%)",
    ]


def test_times_are_compared_on_the_clock_of_the_job() -> None:
    said = {"offset_ns": 1_000, "drift_ppm": 0.0, "jump_at_ns": None, "jump_ns": 0}
    ranks = [said, {**said, "offset_ns": 5_000}, {**said, "offset_ns": -7_000}]
    shape = {"steps": 2, "noise": {"jitter_ns": 100.0}}
    clocks = pl.DataFrame(
        {
            "rank": [0, 1, 2],
            "offset_ns": [0, -4_000, 8_030],
            "drift_ppm": [None, None, None],
            "anchor": [EPOCH] * 3,
            "uncertainty_ns": [0, 50, 20],
        },
        schema_overrides={"drift_ppm": pl.Float64},
    )
    error = clock_error({"shape": shape, "ranks": ranks, "step_ns": 1e6}, clocks)
    assert error.to_reference == (0.0, 0.0, 30.0)
    assert error.unstated == 0
