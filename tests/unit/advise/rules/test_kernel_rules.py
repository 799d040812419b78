"""On a CPU, attention and pairs of rows in pieces are known by the order of their operators."""

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


PAIRS = [128, 200, 48]


def pairs(training: Training, *between: str) -> None:
    training.call("aten::sub", 800_000, [[128, 1, 48], [200, 48], []], "forward", sequence=1)
    for number, name in enumerate(between):
        training.call(name, 700_000, [PAIRS, []], "forward", sequence=2 + number)
    training.call("aten::sum", 500_000, [PAIRS, [], [], []], "forward", sequence=8)
    training.call("autograd::engine::evaluate_function: SubBackward0", 1_000_000, phase="backward", sequence=1)


def test_sums_over_pairs_of_rows_that_are_broadcast_are_a_product_of_matrices() -> None:
    training = Training()
    pairs(training, "aten::pow")
    [finding] = training.findings()
    assert finding.cause == "pairwise-broadcast"
    assert finding.gain_ns == pytest.approx(0.9 * 3_000_000)
    assert "128 × 200 × 48 from 128 × 1 × 48 and 200 × 48" in finding.title


@pytest.mark.parametrize("name", ["aten::cosine_similarity", "aten::pairwise_distance"])
def test_so_are_similarities_of_tensors_that_are_broadcast(name: str) -> None:
    training = Training()
    training.call(name, 3_000_000, [[64, 1, 48], [1, 64, 48]], "forward")
    assert training.causes() == ["pairwise-broadcast"]


def test_what_lies_between_pairs_and_their_sum_may_need_each_number() -> None:
    training = Training()
    pairs(training, "aten::tanh")
    assert training.causes() == []


def test_rows_that_meet_one_other_row_are_no_pairs() -> None:
    training = Training()
    training.call("aten::mul", 2_000_000, [PAIRS, [200, 1]], "forward")
    training.call("aten::sum", 2_000_000, [PAIRS, [], [], []], "forward")
    assert training.causes() == []
