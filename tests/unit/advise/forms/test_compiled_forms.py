"""Costly forms of programs that XLA compiles: what the graph of their instructions tells, and what looks like it."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.advise.finding import Finding
from stepscope.advise.observed import Observed
from stepscope.advise.rank_findings import found_in
from tests.unit.analyse.build import Rank

STEP, STEPS = 10_000_000, 3
Row = dict[str, Any]


def row(name: str, opcode: str, shape: str, takes: str = "", **more: Any) -> Row:
    """An instruction; ``inside`` names the one that it is a part of, and ``ran`` how long it takes in a step, in ns."""
    return {"name": name, "opcode": opcode, "shape": shape, "takes": takes, **more}


def found(*programs: list[Row], rounds: int = 1) -> list[Finding]:
    """Return what is found where these programs run in each step."""
    rank = Rank()
    rank.add("metadata", key="profiler", value='"xplane"')
    thread, number = rank.thread(), 0
    for step in range(STEPS):
        rank.step(step, step * STEP, STEP)
    for program_id, rows in enumerate(programs):
        ids = {one["name"]: number + place for place, one in enumerate(rows)}
        number += len(rows)
        for one in rows:
            said = {key: one[key] for key in ("name", "opcode", "shape", "takes", "phase", "bytes") if key in one}
            inside = ids.get(one.get("inside", ""))
            rank.add("instructions", id=ids[one["name"]], program=f"jit_{program_id}", program_id=program_id,
                     computation="main", parent=inside, source="train.py:7", **said)  # fmt: skip
    at = 0
    for program_id, rows in enumerate(programs):
        first = sum(map(len, programs[:program_id]))
        for place, one in enumerate(rows):
            for _ in range(rounds if one.get("inside") else 1):
                each = one.get("ran", 0) // (rounds if one.get("inside") else 1)
                for step in range(STEPS if each else 0):
                    span = rank.span(thread, "operator", step * STEP + at, each, one["name"], step=step,
                                     phase=one.get("phase", "forward"))  # fmt: skip
                    rank.add("operators", span=span, instruction=first + place)
                at += each
    return found_in(Observed(rank.tables()))


def sorts(*takers: Row) -> list[Row]:
    """A program that sorts rows with their places, and what takes the sorted numbers."""
    whole = "f32[128,1024]"
    return [
        row("x", "parameter", whole),
        row("sort.0", "sort", f"({whole}, u32[128,1024])", "x", ran=4_000_000),
        row("values", "get-tuple-element", whole, "sort.0"),
        row("places", "get-tuple-element", "u32[128,1024]", "sort.0"),
        row("back", "scatter", whole, "places"),
        *takers,
    ]


FUSED = row("fusion.1", "fusion", "f32[128,16]", "values")
GIVEN = row("param", "parameter", "f32[128,1024]", "values", inside="fusion.1")


def test_of_sorted_numbers_a_slice_is_used() -> None:
    [finding] = found(sorts(FUSED, GIVEN, row("slice", "slice", "f32[128,16]", "param", inside="fusion.1")))
    assert finding.cause == "unused-results"
    assert "131,072 numbers are sorted, of which 2,048 are used: train.py:7" in finding.title
    assert finding.gain_ns == pytest.approx(0.9 * 4_000_000)
    assert "top_k" in finding.remedy


@pytest.mark.parametrize(
    "takers",
    [
        [FUSED, GIVEN, row("all", "multiply", "f32[128,1024]", "param", inside="fusion.1")],
        [row("slice", "slice", "f32[128,512]", "values")],
        [row("slice", "slice", "f32[128,16]", "values"), row("sum", "reduce", "f32[128]", "values")],
        [],
    ],
)
def test_sorted_numbers_that_are_used_are_needed(takers: list[Row]) -> None:
    assert found(sorts(*takers)) == []


def loop(size: int) -> list[Row]:
    """A loop whose rounds copy an array of so many bytes."""
    return [
        row("loop", "while", "(s32[], f32[64,32,192])", "start", ran=5_000_000),
        row("copy.1", "copy", "f32[64,32,192]", "buffer", inside="loop", bytes=size, ran=3_000_000),
    ]


def test_an_array_is_copied_in_each_round_of_a_loop() -> None:
    [finding] = found(loop(3_145_728), rounds=64)
    assert finding.cause == "costly-form"
    assert "each round of a loop copies f32[64,32,192]: train.py:7" in finding.title
    assert finding.gain_ns == pytest.approx(0.9 * 3_000_000, rel=0.01)


def test_small_copies_and_few_rounds_are_not_told() -> None:
    assert found(loop(1024), rounds=64) == []
    assert found(loop(3_145_728), rounds=2) == []


def gradients(*outputs: str) -> list[Row]:
    """A program that computes gradients of a backbone and a head; the backbone's take 3 ms."""
    return [
        row("w", "parameter", "f32[64,64]"),
        row("h", "parameter", "f32[64,100]"),
        row("loss", "reduce", "f32[]", "w, h", ran=2_000_000),
        row("head", "dot", "f32[64,100]", "h", phase="backward", ran=1_000_000),
        row("through", "dot", "f32[256,64]", "h", phase="backward", ran=1_000_000),
        row("backbone", "dot", "f32[64,64]", "through", phase="backward", ran=2_000_000),
        row("copied", "copy", "f32[64,64]", "backbone"),
        row("out", "tuple", "", ", ".join(outputs)),
    ]


UPDATE = [row("head", "parameter", "f32[64,100]"), row("new", "subtract", "f32[64,100]", "head", ran=100_000)]


def test_gradients_that_no_program_takes_save_what_is_for_them_alone() -> None:
    [finding] = found(gradients("loss", "head", "copied"), UPDATE)
    assert finding.cause == "teacher-with-gradients"
    assert "0 computes 1 gradients that no program takes, such as f32[64,64]" in finding.title
    assert finding.gain_ns == pytest.approx(3_000_000)


def test_gradients_that_a_program_takes_are_needed() -> None:
    norms = [row("gradient", "parameter", "f32[64,64]"), row("norm", "reduce", "f32[]", "gradient", ran=50_000)]
    assert found(gradients("loss", "head", "copied"), UPDATE, norms) == []
    assert found(gradients("loss", "head"), UPDATE) == []
    assert found(gradients("loss", "head", "copied")) == []  # a loop of numpy may take them


def test_new_weights_that_no_other_program_takes_are_no_gradients() -> None:
    counts = [row("steps", "parameter", "s32[]"), row("more", "add", "s32[]", "steps", ran=50_000)]
    assert found(gradients("loss", "head", "copied"), counts) == []


def test_a_damaged_program_may_go_in_a_circle() -> None:
    circle = [
        row("a", "bitcast", "f32[64,64]", "b", ran=1_000_000),
        row("b", "bitcast", "f32[64,64]", "a"),
        row("sort", "sort", "(f32[64,64], s32[64,64])", "a", ran=1_000_000),
        row("c", "get-tuple-element", "f32[64,64]", "sort, c"),
        row("out", "tuple", "", "a"),
    ]
    assert found(circle, UPDATE) == []


def on_data(*takes: str, opcode: str = "sort") -> list[Row]:
    """A program that takes arrays of these shapes, and 4 ms."""
    given = [row(f"x{place}", "parameter", shape) for place, shape in enumerate(takes)]
    return [*given, row("made", opcode, "s32[5000]", ", ".join(one["name"] for one in given), ran=4_000_000)]


TRAINS = [
    row("w", "parameter", "f32[64,64]"),
    row("x", "parameter", "s32[100]"),
    row("dw", "dot", "f32[64,64]", "w, x", phase="backward", ran=2_000_000),
    row("out", "tuple", "", "dw"),
]


def test_a_program_on_data_alone_is_told() -> None:
    [finding] = found(TRAINS, on_data("u32[2]", "s32[5000]"))
    assert finding.cause == "inputs-in-step"
    assert "go into 1, a program on data alone, in which no parameter has a part: train.py:7" in finding.title
    assert finding.gain_ns == pytest.approx(0.95 * 4_000_000)


@pytest.mark.parametrize(
    "programs",
    [
        [on_data("f32[64,64]")],
        [on_data("s32[5000]", opcode="dot")],
        [on_data("s32[5000]", opcode="xor")],
        [[row("w", "parameter", "f32[64,64]"), row("ema", "add", "f32[64]", "w", ran=100_000)], on_data("f32[64]")],
    ],
)
def test_a_program_that_may_take_part_in_the_model_is_not(programs: list[list[Row]]) -> None:
    assert found(TRAINS, *programs) == []


def test_without_a_program_that_trains_nothing_is_told_of_the_others() -> None:
    assert found(on_data("s32[5000]")) == []
