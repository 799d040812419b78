"""Results of which a part is used: logits of targets that the loss ignores."""

from __future__ import annotations

import pytest

from tests.unit.advise.rules.trainings import Training

WORDS, WIDTH = 8000, 64


def steps_of(counted: list[list[int]], head: str = "aten::linear", loss: str = "aten::cross_entropy_loss") -> Training:
    """Steps of a language model: layers, a head, views and a cast of its logits, and the loss."""
    training = Training(torch__targets=counted)
    training.call("aten::linear", 1_000_000, [[8, 64, WIDTH], [WIDTH, WIDTH], [WIDTH]], "forward", sequence=1)
    training.call(head, 2_000_000, [[8, 64, WIDTH], [WORDS, WIDTH], [WORDS]], "forward", sequence=2)
    training.call("aten::to", 300_000, [[8, 64, WORDS]], "forward", sequence=3)
    training.call("aten::slice", 20_000, [[8, 64]], "forward")
    training.call(loss, 700_000, [[512, WORDS], [512]], "forward", sequence=4)
    training.call("autograd::engine::evaluate_function: NllLossBackward0", 500_000, phase="backward", sequence=4)
    training.call("autograd::engine::evaluate_function: AddmmBackward0", 1_000_000, phase="backward", sequence=2)
    training.call("autograd::engine::evaluate_function: MmBackward0", 900_000, phase="backward", sequence=1)
    return training


@pytest.mark.parametrize("loss", ["aten::cross_entropy_loss", "aten::nll_loss_nd"])
def test_the_head_saves_the_part_that_the_loss_ignores(loss: str) -> None:
    [finding] = steps_of([[10, 99, 99], [WORDS, 2048, 1536]], loss=loss).findings()
    assert finding.cause == "unused-results"
    assert "logits of 512 targets are computed for 8,000 classes, and the loss ignores 75 %" in finding.title
    assert finding.gain_ns == pytest.approx(0.97 * 0.75 * 4_500_000)


@pytest.mark.parametrize("counted", [[], [[WORDS, 2048, 0]], [[10, 2048, 2048]], [[WORDS, 0, 1]]])
def test_logits_that_the_loss_takes_are_needed(counted: list[list[int]]) -> None:
    assert steps_of(counted).causes() == []


def test_logits_that_no_product_makes_are_not_told() -> None:
    assert steps_of([[WORDS, 2048, 1536]], head="aten::clone").causes() == []


def states_of(takes: str, said: list[str], *layers: tuple[str, list[list[int]]]) -> Training:
    """Steps in which layers go over all states of 64 sequences, and an operator takes a part."""
    training = Training()
    for number, (name, shapes) in enumerate(layers):
        training.call(name, 1_000_000, shapes, "forward", sequence=number)
    training.call(takes, 10_000, [[64, 96, 72], [], []], "forward", sequence=8, concrete=said)
    training.call("aten::mse_loss", 10_000, [[64, 72], [64, 72]], "forward", sequence=9)
    training.call("autograd::engine::evaluate_function: AddmmBackward0", 900_000, phase="backward", sequence=0)
    return training


LINEAR = ("aten::linear", [[64, 96, 48], [72, 48], [72]])
GELU = ("aten::gelu", [[64, 96, 72], []])
ADDED = ("aten::add", [[64, 96, 72], [64, 96, 72], []])


def test_of_the_states_of_a_sequence_one_is_used() -> None:
    [finding] = states_of("aten::select", ["", "1", "-1"], LINEAR, GELU).findings()
    assert finding.cause == "unused-results"
    assert "layers compute 6,144 rows, of which 64 are used" in finding.title
    assert finding.gain_ns == pytest.approx((1 - 1 / 96) * 2_910_000, rel=1e-3)


@pytest.mark.parametrize(
    ("said", "layers"),
    [
        (["", "2", "0"], (LINEAR, GELU)),  # one number of each state
        (["", "-1", "0"], (LINEAR, GELU)),
        (["", "1", "0"], (LINEAR, ADDED)),  # the last layer of a transformer adds to what the others are taken for
    ],
)
def test_states_that_are_used_are_needed(said: list[str], layers: tuple[tuple[str, list[list[int]]], ...]) -> None:
    assert states_of("aten::select", said, *layers).causes() == []
