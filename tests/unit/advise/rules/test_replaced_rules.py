"""Operators that one cheaper operator replaces are known by the shapes of their inputs and by their order."""

from __future__ import annotations

import pytest

from tests.unit.advise.rules.trainings import Training

ROWS, WORDS, WIDTH = [64, 24], 1000, 64


def one_hot(training: Training, phase: str = "other") -> None:
    shape = [*ROWS, WORDS]
    training.call("aten::fill_", 500_000, [shape, []], phase)
    training.call("aten::scatter_", 100_000, [shape, [], [*ROWS, 1], []], phase)


def test_a_product_with_one_hot_rows_saves_all_of_it() -> None:
    # Given one-hot rows of 1536 × 1000, their product with a matrix, and that of its gradient
    training = Training()
    one_hot(training)
    training.call("aten::mm", 2_000_000, [[1536, WORDS], [WORDS, WIDTH]], "forward", sequence=1)
    training.call("aten::mm", 3_000_000, [[WIDTH, 1536], [1536, WORDS]], "backward")
    training.call("aten::mm", 4_000_000, [[1536, 128], [128, WIDTH]], "forward", sequence=2)
    # Then what an embedding moves is all that stays
    [finding] = training.findings()
    assert finding.cause == "one-hot-product"
    assert "1,000 numbers" in finding.title
    assert finding.gain_ns == pytest.approx(5_600_000, rel=0.15)


def test_one_hot_targets_of_a_loss_are_in_no_product_of_the_forward() -> None:
    training = Training()
    one_hot(training)
    training.call("aten::mm", 4_000_000, [[1536, WIDTH], [WIDTH, WORDS]], "forward", sequence=1)
    training.call("aten::mm", 4_000_000, [[1536, WORDS], [WORDS, WIDTH]], "backward")
    assert training.causes() == []


def attention(training: Training, *, inside: bool = False) -> None:
    where = {"inside": inside, "phase": "forward"}
    for number in range(4):
        at = 2_000_000 * number
        training.call("aten::bmm", 400_000, [[8, 512, 16], [8, 16, 512]], **where, shift=at)
        training.call("aten::div", 500_000, [[2, 4, 512, 512], []], **where, shift=at + 500_000)
        training.call("aten::_softmax", 500_000, [[2, 4, 512, 512], [], []], **where, shift=at + 1_000_000)
        training.call("aten::bmm", 400_000, [[8, 512, 512], [8, 512, 16]], **where, shift=at + 1_500_000)


def test_attention_in_pieces_saves_what_lies_between_its_products() -> None:
    training = Training()
    attention(training)
    [finding] = training.findings()
    assert finding.cause == "attention-not-fused"
    assert finding.gain_low_ns == pytest.approx(0.7 * 4_000_000)
    assert finding.gain_ns == pytest.approx(0.9 * 4_000_000 + 0.4 * 3_200_000)
    assert "scaled_dot_product_attention" in finding.remedy


def test_what_torch_itself_computes_in_pieces_is_not_told() -> None:
    training = Training()
    training.call("aten::scaled_dot_product_attention", 8_000_000, [[2, 4, 512, 16]] * 3, "forward")
    attention(training, inside=True)
    assert training.causes() == []
