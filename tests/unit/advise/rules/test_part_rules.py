"""Large parts of a device's step, and compiling, are told with what they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from stepscope.advise.observed import Observed
from stepscope.advise.rank_findings import found_in
from stepscope.analyse.step.summarise import summarise
from tests.unit.advise.rules.trainings import STEP, Training
from tests.unit.analyse.build import ORIGIN, Rank
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
    assert finding.remedy.startswith("Record later steps: ")
    [finding] = found_in(Observed(rank.tables(), {"door": "run"}))
    assert finding.remedy.startswith("Record later steps (`stepscope run --skip 10`): ")


def test_compiling_in_the_steps_is_told_with_its_reason() -> None:
    [rank] = compiled_again()
    [finding] = found_in(Observed(rank.tables()))
    assert finding.cause == "recompilation"
    assert finding.title == (
        "60.0 µs of 100 µs go into compiling step (train.py:7) again: argument 0: float32[12, 8], before float32[16, 8]"
    )
    assert finding.gain_ns == 60_000


@pytest.mark.parametrize(
    ("compiled", "cause", "gain"),
    [
        ([1], "first-compilation", None),
        ([1, 3, 5], "first-compilation", None),
        (range(0, 40, 2), "recompilation", 3_000_000),
        (range(40), "recompilation", 6_000_000),
    ],
    ids=["once", "in the first steps", "every other step", "every step"],
)
def test_the_gain_of_a_recompilation_is_that_of_the_whole_run(
    compiled: Sequence[int], cause: str, gain: int | None
) -> None:
    # Given two recorded steps of 40, in one of which or in both 6 of 10 ms are compilation
    training = Training(steps=2)
    training.run_steps()
    training.call("matmul", 100_000, [[64, 64], [64, 64]], "forward")
    host = training.rank.thread(2)
    for number in set(compiled) & {0, 1}:
        span = training.rank.span(host, "compile", number * STEP + 200_000, 6_000_000, "compile step", step=number)
        training.rank.add("arguments", span=span, key="why", value='"argument 0: float32[9, 8], before float32[8, 8]"')
    for number in compiled:
        training.rank.add("run_events", name="compile", ts=ORIGIN + number * STEP + 200_000, dur=6_000_000)
    [finding] = training.findings()
    assert (finding.cause, finding.gain_ns) == (cause, gain)


@pytest.mark.parametrize(
    ("compiled", "function", "causes"),
    [
        (range(10, 40, 5), "train_step", ["recompilation"]),
        (range(10, 40, 5), None, []),
        ([10, 12], "train_step", []),
        ([2, 4, 6], "train_step", []),
    ],
    ids=["now and then", "other functions", "twice", "early"],
)
def test_compiling_in_steps_that_were_not_recorded_is_told_if_it_goes_on(
    compiled: Sequence[int], function: str | None, causes: list[str]
) -> None:
    training = Training(steps=2)
    training.run_steps()
    training.call("matmul", 100_000, [[64, 64], [64, 64]], "forward")
    for number in compiled:
        at, what = ORIGIN + number * STEP + 200_000, function or f"function_{number}"
        training.rank.add("run_events", name="compile", ts=at, dur=8_000_000)
        why = f"argument 0: float32[{number}, 8], before float32[{number - 5}, 8]"
        training.rank.add(
            "compilations", name=f"compile jit({what})", ts=at, dur=8_000_000, function=what, arguments="", why=why
        )
    found = training.findings()
    assert [finding.cause for finding in found] == causes
    if found:
        assert found[0].gain_ns == pytest.approx(len(compiled) * 8_000_000 / 40, rel=0.2)
        assert found[0].title.endswith("compiling train_step again: argument 0: float32[35, 8], before float32[30, 8]")
