"""Times, shapes and operations of recorded calls."""

from __future__ import annotations

import json

import pytest

from stepscope.advise.calls import in_order, outermost, product_flops, recorded_calls, sizes, within
from stepscope.advise.observed import Observed
from tests.unit.advise.rules.trainings import STEP, STEPS, Training


def test_times_are_those_of_a_mean_step() -> None:
    training = Training()
    training.call("aten::linear", 600_000, [[8, 64], [64, 64]])
    training.call("aten::addmm", 500_000, [[64], [8, 64], [64, 64]], inside=True, shift=50)
    calls = recorded_calls(Observed(training.rank.tables()))
    by_name = {name: (time, own) for name, time, own in calls.select("name", "time", "self").unique().iter_rows()}
    assert len(calls) == 2 * STEPS
    assert [STEPS * value for value in by_name["aten::linear"]] == pytest.approx([600_000, 100_000])
    assert outermost(calls, calls)["name"].unique().to_list() == ["aten::linear"]
    assert len(within(calls, calls.filter(calls["name"] == "aten::linear"))) == 2 * STEPS


@pytest.mark.parametrize(
    ("name", "shapes", "concrete", "flops"),
    [
        ("aten::mm", [[4, 8], [8, 16]], [], 2 * 4 * 8 * 16),
        ("aten::addmm", [[16], [4, 8], [8, 16], [], []], [], 2 * 4 * 8 * 16),
        ("aten::convolution", [[2, 3, 32, 32], [8, 3, 3, 3], [8]],
         ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]"], 2 * 2 * 16 * 16 * 8 * 27),
        ("aten::convolution_backward", [[2, 8, 16, 16], [2, 3, 32, 32], [8, 3, 3, 3]], [],
         2 * 2 * 2 * 16 * 16 * 8 * 27),
        ("aten::convolution", [[2, 8, 16, 16], [8, 3, 4, 4], [3]],
         ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "True", "[0, 0]", "1"], 2 * 2 * 16 * 16 * 8 * 3 * 16),
        ("aten::convolution_backward", [[2, 3, 32, 32], [2, 8, 16, 16], [8, 3, 4, 4]],
         ["", "", "", "[3]", "[2, 2]", "[1, 1]", "[1, 1]", "True"], 2 * 2 * 2 * 16 * 16 * 8 * 3 * 16),
        ("aten::add", [[4, 8], [4, 8]], [], 0),
        ("aten::mm", [], [], 0),
    ],
)  # fmt: skip
def test_operations_come_from_shapes(name: str, shapes: list[list[int]], concrete: list[str], flops: int) -> None:
    assert product_flops(name, json.dumps(shapes), json.dumps(concrete)) == flops


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("[[2,3],[],[4]]", ((2, 3), (), (4,))),
        ("[[[2,3],[4]],[]]", ((2, 3), (4,), ())),
        (None, ()),
        ("no JSON", ()),
        ("1000", ()),
        ('"4,5"', ()),
    ],
)
def test_shapes_of_lists_of_tensors_are_those_of_each(text: str | None, shapes: tuple[tuple[int, ...], ...]) -> None:
    assert sizes(text) == shapes


@pytest.mark.parametrize(("dur", "whole"), [(500_000, 4_000_000), (1_200_000, 5_000_000)], ids=["short", "long"])
def test_of_interrupted_steps_the_operators_take_what_they_take_on_a_core(dur: int, whole: float) -> None:
    # Given steps of 10 ms, half of which the thread waits for a core: between eight short operators, or in long ones
    training = Training()
    training.run_steps(delay=STEP // 2)
    for _ in range(8):
        training.call("aten::add_", dur, [[64, 64], [64, 64]])
    calls = recorded_calls(Observed(training.rank.tables()))
    assert float(calls["time"].sum()) == pytest.approx(whole, rel=0.01)


def test_calls_of_some_steps_are_scaled_by_what_all_recorded_steps_take() -> None:
    # Given a loop of 8 ms in one of three steps, which makes that one longer than the others
    training = Training()
    training.run_steps(delay=0)
    for number, row in enumerate(training.rank.rows["run_steps"]):
        row["dur"] = STEP if number % 3 == 0 else STEP // 5
    for number, row in enumerate(training.rank.rows["steps"]):
        row["dur"] = STEP if number % 3 == 0 else STEP // 5
    training.steps = 1
    for _ in range(8):
        training.call("aten::add", 1_000_000, [[8], [8], []])
    observed = Observed(training.rank.tables())
    time = float(in_order(observed, recorded_calls(observed))["until"].sum())
    assert time == pytest.approx(8_000_000 / 3, rel=0.2)


def test_operators_lose_no_more_to_other_processes_than_their_steps_do() -> None:
    # Given an operator of 2 ms, but for one of five steps 8 ms, and a training thread that hardly waits for a core
    training = Training(steps=5)
    training.run_steps(delay=STEP // 40)
    training.call("dot", 2_000_000, [[64, 64]])
    training.rank.rows["spans"][-1]["dur"] = 9_000_000
    calls = recorded_calls(Observed(training.rank.tables()))
    assert float(calls["time"].sum()) == pytest.approx(0.315 * STEP, rel=0.01)  # not 0.2


def test_calls_without_shapes_are_alike_at_the_same_place_of_their_steps() -> None:
    # Given three small products and a large one a step, none with shapes, and a thread that waits for a core
    training = Training(steps=5)
    training.run_steps(delay=STEP // 2)
    for dur in (10_000, 4_000_000, 10_000, 10_000):
        training.call("matmul dygraph", dur)
    calls = recorded_calls(Observed(training.rank.tables()))
    assert float(calls["time"].sum()) > 0.39 * STEP
