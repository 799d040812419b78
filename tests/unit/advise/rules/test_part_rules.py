"""Large parts of a device's step, and compiling, are told with what they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from stepscope.advise.observed import Observed
from stepscope.advise.rank_findings import found_in
from stepscope.analyse.step.summarise import summarise
from tests.unit.analyse.build import Rank
from tests.unit.analyse.step.test_summary import training


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({"communication": 0.21}, ["exposed-communication"]),
        ({"host only": 0.19, "communication": 0.19, "copy": 0.09, "sync": 0.09, "idle": 0.3}, []),
    ],
)  # fmt: skip
def test_parts_are_told_from_their_limits_on(shares: dict[str, float], expected: list[str]) -> None:
    tables = training().tables()
    summary = summarise(tables)
    mean = summary.steps.mean_ns
    split = tuple(
        replace(part, share=shares.get(part.name, 0.0), mean_ns=shares.get(part.name, 0.0) * mean)
        for part in summary.split
    )
    causes = [finding.cause for finding in found_in(Observed(tables, summary=replace(summary, split=split)))]
    assert sorted(causes) == sorted(expected)
    on_host = Observed(tables, summary=replace(summary, split=split, on_device=False))
    assert found_in(on_host) == []


def compiled_again() -> Iterator[Rank]:
    rank = Rank()
    host = rank.thread()
    rank.step(0, 0, 100_000)
    compiling = rank.span(host, "compile", 10_000, 60_000, "compile step")
    rank.add("arguments", span=compiling, key="function", value='"step (train.py:7)"')
    rank.add("arguments", span=compiling, key="why", value='"argument 0: float32[12, 8], before float32[16, 8]"')
    rank.span(host, "operator", 80_000, 10_000, "MatMul", step=0)
    yield rank


def test_a_first_compilation_is_no_fault_of_the_program() -> None:
    rank = Rank()
    host = rank.thread()
    rank.step(0, 0, 100_000)
    rank.span(host, "compile", 10_000, 60_000, "compile step")
    rank.span(host, "operator", 80_000, 10_000, "MatMul", step=0)
    [finding] = found_in(Observed(rank.tables()))
    assert finding.cause == "first-compilation"
    assert finding.gain_ns is None
    assert "--skip" in finding.remedy


def test_compiling_in_the_steps_is_told_with_its_reason() -> None:
    [rank] = compiled_again()
    [finding] = found_in(Observed(rank.tables()))
    assert finding.cause == "recompilation"
    assert finding.title == (
        "60.0 µs of 100 µs go into compiling step (train.py:7) again: argument 0: float32[12, 8], before float32[16, 8]"
    )
    assert finding.gain_ns == 60_000
