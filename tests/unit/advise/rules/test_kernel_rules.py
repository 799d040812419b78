"""On a CPU, attention and pairs of rows in pieces are known by the order of their operators."""

from __future__ import annotations

import pytest

from stepscope.trace.schema import SPEEDS
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


def test_where_the_speed_of_products_is_known_one_call_takes_its_operations() -> None:
    # Given a machine whose products reach 300 GFLOP/s: 4 times two products of 8 × 512 × 16 × 512, 4,096 rows of scores
    speeds = [{"framework": "torch", "one_core": {"float32": {"flops_per_s": 300e9}}}]
    training = Training(**{SPEEDS: speeds})
    attention(training)
    [finding] = training.findings()
    fused = (1.35 * 4 * 2 * 2 * 8 * 512 * 16 * 512 + 27_000 * 4 * 4096) / 300
    assert finding.gain_ns == pytest.approx(7_200_000 - fused)
    assert finding.gain_low_ns == pytest.approx(7_200_000 - 1.3 * fused)
    # and one whose products reach 100: nothing is saved
    slow = [{"framework": "torch", "one_core": {"float32": {"flops_per_s": 100e9}}}]
    training = Training(**{SPEEDS: slow})
    attention(training)
    assert training.causes() == []


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


def scores(takes: str, *after: str, whole: int = 512) -> Training:
    """Steps that multiply all rows with all rows, take the diagonal of that, and do more with all of it."""
    training = Training()
    training.call("aten::mm", 1_000_000, [[whole, 48], [48, whole]], "forward", sequence=1)
    training.call(takes, 10_000, [[whole, whole]], "forward", sequence=2)
    for name in after:
        training.call(name, 100_000, [[whole, whole], [], []], "forward", sequence=3)
    training.call("autograd::engine::evaluate_function: DiagonalBackward0", 200_000, phase="backward", sequence=2)
    training.call("autograd::engine::evaluate_function: MmBackward0", 2_000_000, phase="backward", sequence=1)
    return training


@pytest.mark.parametrize("takes", ["aten::diag", "aten::diagonal", "aten::trace"])
def test_a_product_of_which_only_the_diagonal_is_used_saves_its_forward_and_backward(takes: str) -> None:
    [finding] = scores(takes).findings()
    assert finding.cause == "unused-results"
    assert finding.gain_ns == pytest.approx(0.95 * 3_210_000)
    assert "512 × 512" in finding.title


def test_a_product_that_is_used_otherwise_too_is_needed() -> None:
    assert scores("aten::diagonal", "aten::_log_softmax").causes() == []
    assert scores("aten::sum").causes() == []


def hardest(takes: str, used: int, behind: str = "aten::mean") -> Training:
    """Steps that sort 60,000 numbers, take a begin of them, and go on with so many."""
    training = Training()
    training.call("aten::sort", 2_000_000, [[60_000], [], []], "forward", sequence=1)
    training.call(takes, 10_000, [[60_000], [], [], [], []], "forward", sequence=2)
    training.call(behind, 10_000, [[used], []], "forward", sequence=3)
    training.call("autograd::engine::evaluate_function: SortBackward0", 500_000, phase="backward", sequence=1)
    return training


def test_of_sorted_numbers_few_are_used() -> None:
    [finding] = hardest("aten::slice", 4_000).findings()
    assert finding.cause == "unused-results"
    assert finding.gain_ns == pytest.approx(0.8 * 2_510_000)
    assert "60,000 numbers are sorted, of which 4,000 are used" in finding.title
    assert "topk" in finding.remedy


def test_sorted_numbers_that_are_used_are_needed() -> None:
    assert hardest("aten::slice", 50_000).causes() == []
    assert hardest("aten::cumsum", 60_000).causes() == []


def test_rows_that_are_sorted_each_by_itself_are_no_begin_of_sorted_numbers() -> None:
    training = Training()
    training.call("aten::sort", 2_000_000, [[8000, 8], [], []], "forward", sequence=1)
    training.call("aten::slice", 10_000, [[8000, 8], [], [], [], []], "forward", sequence=2)
    training.call("aten::mean", 10_000, [[400, 8], []], "forward", sequence=3)
    assert training.causes() == []


def rows_of(layers: list[str], taken: int, *whole: str) -> Training:
    """Steps whose layers compute 8,000 rows of 32 numbers, of which some are taken, and what takes all of them."""
    training = Training()
    for number, name in enumerate(layers):
        shapes = [[8000, 32], [32, 32], [32]] if name == "aten::linear" else [[8000, 32]]
        training.call(name, 1_000_000, shapes, "forward", sequence=number)
    training.call("aten::index", 50_000, [[8000, 32], []], "forward", sequence=9)
    training.call("aten::mul", 10_000, [[taken, 32], [taken, 32]], "forward", sequence=10)
    for name in whole:
        training.call(name, 10_000, [[8000, 32], []], "forward", sequence=11)
    training.call("autograd::engine::evaluate_function: IndexBackward0", 500_000, phase="backward", sequence=9)
    return training


def test_of_the_rows_that_layers_compute_few_are_used() -> None:
    [finding] = rows_of(["aten::linear", "aten::relu", "aten::linear"], 400).findings()
    assert finding.cause == "unused-results"
    assert finding.gain_ns == pytest.approx(0.95 * 3_550_000)


@pytest.mark.parametrize(
    ("layers", "taken", "whole"),
    [
        (["aten::linear"], 4000, ()),
        (["aten::linear"], 400, ("aten::sum",)),
        (["aten::linear"], 1500, ("aten::index", "aten::add")),
        (["aten::linear", "aten::batch_norm"], 400, ()),
        ([], 400, ()),
    ],
    ids=["half of them", "all of them elsewhere", "others elsewhere", "statistics of all rows", "no layer"],
)
def test_rows_that_something_needs_are_none(layers: list[str], taken: int, whole: tuple[str, ...]) -> None:
    assert rows_of(layers, taken, *whole).causes() == []
