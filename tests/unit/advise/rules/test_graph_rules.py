"""Forwards and gradients that nobody needs are told by sequence numbers and by the shapes that optimizers update."""

from __future__ import annotations

import pytest

from tests.unit.advise.rules.trainings import Training

NODE = "autograd::engine::evaluate_function: "
WEIGHT, OTHER = [64, 64], [96, 64]


def forward(training: Training, weight: list[int], first: int, phase: str = "forward", count: int = 4) -> None:
    for number in range(count):
        training.call("aten::linear", 500_000, [[8, 64], weight], phase, sequence=first + number)


def backward(training: Training, weight: list[int], first: int, count: int = 4) -> None:
    for number in reversed(range(count)):
        training.call(f"{NODE}AddmmBackward0", 600_000, phase="backward", sequence=first + number)
    training.call(f"{NODE}torch::autograd::AccumulateGrad", 20_000, phase="backward")
    training.call("torch::autograd::AccumulateGrad", 10_000, [weight], "backward", inside=True, shift=5)


def update(training: Training, weight: list[int]) -> None:
    training.call("aten::add_", 10_000, [weight, weight, []], "optimizer")


def test_a_training_in_which_all_is_used_has_no_finding() -> None:
    training = Training()
    forward(training, WEIGHT, 10)
    backward(training, WEIGHT, 10)
    update(training, WEIGHT)
    assert training.causes() == []


def test_a_second_forward_saves_its_operators() -> None:
    training = Training()
    forward(training, WEIGHT, 10)
    backward(training, WEIGHT, 10)
    forward(training, WEIGHT, 30, "other")
    update(training, WEIGHT)
    [finding] = training.findings()
    assert finding.cause == "unneeded-forward"
    assert finding.gain_ns == pytest.approx(2_000_000)
    assert "a second forward of the model" in finding.title


def test_an_evaluation_without_gradients_is_no_unneeded_forward() -> None:
    training = Training()
    forward(training, WEIGHT, 10)
    backward(training, WEIGHT, 10)
    for _ in range(4):
        training.call("aten::linear", 500_000, [[8, 64], WEIGHT])
    update(training, WEIGHT)
    assert training.causes() == []


def test_gradients_of_a_teacher_save_its_part_of_the_backward() -> None:
    training = Training()
    forward(training, OTHER, 10)
    forward(training, WEIGHT, 20)
    backward(training, WEIGHT, 20)
    backward(training, OTHER, 10)
    update(training, WEIGHT)
    [finding] = training.findings()
    assert finding.cause == "teacher-with-gradients"
    assert finding.gain_ns == pytest.approx(4 * 600_000 + 10_000)


def test_a_graph_of_earlier_steps_saves_its_nodes() -> None:
    training = Training()
    forward(training, WEIGHT, 10)
    backward(training, WEIGHT, 10)
    for number in range(6):
        training.call(f"{NODE}MulBackward0", 500_000, phase="backward", sequence=-5000 + number)
    update(training, WEIGHT)
    [finding] = training.findings()
    assert finding.cause == "growing-graph"
    assert finding.gain_ns == pytest.approx(3_000_000)


def test_a_second_backward_through_the_same_graph_saves_its_nodes() -> None:
    training = Training()
    forward(training, WEIGHT, 10)
    backward(training, WEIGHT, 10)
    backward(training, WEIGHT, 10)
    update(training, WEIGHT)
    [finding] = training.findings()
    assert finding.cause == "repeated-backward"
    assert finding.gain_ns == pytest.approx(4 * 600_000 + 20_000, rel=0.01)
    assert "2 times a step" in finding.title


def test_backwards_through_graphs_of_their_own_are_not_repeated() -> None:
    training = Training()
    for first in (10, 20):  # a discriminator with real and with made images
        forward(training, WEIGHT, first)
        backward(training, WEIGHT, first)
    update(training, WEIGHT)
    assert training.causes() == []
