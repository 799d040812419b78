"""On a CPU, attention in pieces is known by the order of its operators."""

from __future__ import annotations

import pytest

from tests.unit.advise.rules.trainings import Training


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
