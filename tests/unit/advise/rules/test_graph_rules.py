"""Forwards and gradients that nobody needs are told by sequence numbers and by the shapes that optimizers update."""

from __future__ import annotations

import json

import pytest

from tests.unit.advise.rules.test_python_rules import TRAIN, sampled
from tests.unit.advise.rules.trainings import STEP, Training
from tests.unit.analyse.build import ORIGIN

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


def test_a_second_forward_of_two_layers_is_one() -> None:
    training = Training()
    forward(training, WEIGHT, 10, count=2)
    backward(training, WEIGHT, 10, count=2)
    forward(training, WEIGHT, 30, "other", count=2)
    update(training, WEIGHT)
    assert training.causes() == ["unneeded-forward"]


@pytest.mark.parametrize(("cut", "causes"), [([8, 64], []), ([8, 10], ["unneeded-forward"])])
def test_what_a_layer_takes_cut_off_from_its_graph_is_needed(cut: list[int], causes: list[str]) -> None:
    # Given a forward that belongs to no backward, and the layers of another network on what it gives or on other data
    training = Training()
    forward(training, OTHER, 30, "other")
    training.call("aten::detach", 1000, [cut])
    forward(training, WEIGHT, 10)
    backward(training, WEIGHT, 10)
    update(training, WEIGHT)
    assert training.causes() == causes


def test_a_preview_is_not_needed_because_a_later_forward_of_the_same_layers_is_cut_off() -> None:
    # Given a generator that shows samples in each step, before it makes those that a discriminator takes
    training = Training()
    forward(training, WEIGHT, 30, "other")
    forward(training, WEIGHT, 10)
    training.call("aten::detach", 1000, [[8, 64]])
    forward(training, OTHER, 20)
    backward(training, OTHER, 20)
    backward(training, WEIGHT, 10)
    update(training, WEIGHT)
    assert "unneeded-forward" in training.causes()


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


def adversarial(*, attached: bool, clears: int = 1) -> Training:
    """A discriminator's backward that goes through the generator or not, then the generator's own."""
    training, half = Training(), {"count": 2}
    training.call("Optimizer.zero_grad#Adam.zero_grad", 1000, phase="optimizer")
    forward(training, OTHER, 10, **half)
    forward(training, WEIGHT, 20, **half)
    backward(training, WEIGHT, 20, **half)
    if attached:
        backward(training, OTHER, 10, **half)
    update(training, WEIGHT)
    for _ in range(clears):
        training.call("Optimizer.zero_grad#Adam.zero_grad", 1000, phase="optimizer")
    forward(training, OTHER, 30, **half)
    backward(training, OTHER, 30, **half)
    update(training, OTHER)
    return training


def test_gradients_that_are_cleared_before_an_optimizer_takes_them_are_told() -> None:
    [finding] = adversarial(attached=True).findings()
    assert finding.cause == "teacher-with-gradients"
    assert finding.gain_ns == pytest.approx(2 * 600_000 + 10_000)
    assert "set to zero before an optimizer takes them" in finding.title
    assert "detach()" in finding.remedy


@pytest.mark.parametrize(("attached", "clears"), [(False, 1), (True, 0)], ids=["cut", "added to the next gradients"])
def test_gradients_that_an_optimizer_takes_are_needed(attached: bool, clears: int) -> None:
    assert adversarial(attached=attached, clears=clears).causes() == []


def test_of_a_frozen_network_that_passes_gradients_on_only_those_of_its_weights_are_for_nothing() -> None:
    # Given a loss network behind the one that is trained, whose layers make a gradient of their input, too
    training = Training()
    forward(training, WEIGHT, 10)
    forward(training, OTHER, 20)
    for number in reversed(range(4)):
        training.call(f"{NODE}AddmmBackward0", 600_000, phase="backward", sequence=20 + number)
        for shift in (10, 300_000):
            training.call("aten::mm", 250_000, [[8, 64], OTHER], "backward", inside=True, shift=shift)
    training.call("torch::autograd::AccumulateGrad", 10_000, [OTHER], "backward")
    backward(training, WEIGHT, 10)
    update(training, WEIGHT)
    [finding] = training.findings()
    assert finding.cause == "teacher-with-gradients"
    assert finding.gain_ns == pytest.approx(4 * 300_000, rel=0.02)


def test_a_network_that_is_not_trained_may_begin_with_an_embedding() -> None:
    # Given layers behind an embedding that no optimizer updates either: what they pass to it is for nothing, too
    table = [1000, 64]
    training = Training()
    training.call("aten::embedding", 100_000, [table, [8]], "forward", sequence=9)
    forward(training, OTHER, 10)
    forward(training, WEIGHT, 20)
    backward(training, WEIGHT, 20)
    for number in reversed(range(4)):
        training.call(f"{NODE}AddmmBackward0", 300_000, phase="backward", sequence=10 + number)
        for shift in (10, 150_000):
            training.call("aten::mm", 100_000, [[8, 64], OTHER], "backward", inside=True, shift=shift)
    training.call(f"{NODE}EmbeddingBackward0", 200_000, phase="backward", sequence=9)
    training.call("aten::embedding_dense_backward", 150_000, [[8, 64], [8]], "backward", inside=True, shift=10)
    for weight in (OTHER, table):
        training.call("torch::autograd::AccumulateGrad", 10_000, [weight], "backward")
    update(training, WEIGHT)
    [finding] = training.findings()
    assert finding.cause == "teacher-with-gradients"
    assert finding.gain_ns == pytest.approx(4 * 300_000 + 200_000 + 20_000)


def test_products_inside_of_layers_have_the_weight_of_the_layer() -> None:
    # Given a teacher whose layers call a product with their weight turned, which has the node of the backward
    training = Training()
    for number in range(4):
        training.call("aten::linear", 500_000, [[8, 64], OTHER, [96]], "forward", sequence=10 + 2 * number)
        turned = [[96], [8, 64], OTHER[::-1]]
        training.call("aten::addmm", 400_000, turned, "forward", inside=True, shift=50, sequence=11 + 2 * number)
    forward(training, WEIGHT, 20)
    backward(training, WEIGHT, 20)
    for number in reversed(range(4)):
        training.call(f"{NODE}AddmmBackward0", 300_000, phase="backward", sequence=11 + 2 * number)
        training.call(f"{NODE}TBackward0", 10_000, phase="backward", sequence=10 + 2 * number)
    training.call("torch::autograd::AccumulateGrad", 10_000, [OTHER], "backward")
    update(training, WEIGHT)
    [finding] = training.findings()
    assert finding.cause == "teacher-with-gradients"
    assert finding.gain_ns == pytest.approx(4 * 310_000 + 10_000)


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


def test_a_graph_that_gradients_of_gradients_need_is_not_repeated() -> None:
    # Given a first backward with create_graph=True, whose operators record nodes for the second
    training = Training()
    forward(training, WEIGHT, 10)
    backward(training, WEIGHT, 10)
    training.call("aten::mm", 50_000, [WEIGHT, WEIGHT], "backward", sequence=20, inside=True)
    backward(training, WEIGHT, 10)
    update(training, WEIGHT)
    assert training.causes() == []


def test_backwards_through_graphs_of_their_own_are_not_repeated() -> None:
    training = Training()
    for first in (10, 20):  # a discriminator with real and with made images
        forward(training, WEIGHT, first)
        backward(training, WEIGHT, first)
    update(training, WEIGHT)
    assert training.causes() == []


def test_evaluations_that_record_a_graph_are_no_second_forward() -> None:
    # Given forwards of other sizes that belong to no backward, in one of three steps
    training = Training()
    forward(training, WEIGHT, 10)
    backward(training, WEIGHT, 10)
    update(training, WEIGHT)
    training.steps = 1
    for number in range(8):
        training.call("aten::linear", 500_000, [[256, 64], WEIGHT], "other", sequence=30 + number)
    training.steps = 3
    [finding] = training.findings()
    assert finding.cause == "frequent-evaluation"
    assert "every 3 steps" in finding.title
    assert finding.gain_ns == pytest.approx(0.95 * 4_000_000 / 3, rel=0.01)


@pytest.mark.parametrize(
    ("steps", "acts", "first", "causes"),
    [
        (1, None, "aten::linear", ["frequent-evaluation"]),
        (3, None, "aten::linear", []),
        (1, "aten::multinomial", "aten::linear", []),
        (1, "aten::_local_scalar_dense", "aten::linear", []),
        (1, "aten::multinomial", "aten::embedding", ["frequent-evaluation"]),
    ],
    ids=["scores", "a target in each step", "an agent that draws", "an agent that chooses", "text that is written"],
)
def test_forwards_without_gradients_in_some_steps_are_evaluations(
    steps: int, acts: str | None, first: str, causes: list[str]
) -> None:
    training = Training()
    training.call("aten::embedding", 1000, [[50, 64], [8]], "forward", sequence=9)
    for weight, number in ((WEIGHT, 10), (OTHER, 20)):
        forward(training, weight, number, count=2)
        backward(training, weight, number, count=2)
        update(training, weight)
    training.steps = steps
    for _ in range(8):
        shapes = [[8, 64], WEIGHT] if first == "aten::linear" else [[50, 64], [1]]
        training.call(first, 400_000, shapes)
        training.call("aten::linear", 100_000, [[1, 64], OTHER])
        if acts:
            training.call(acts, 1000, [[1, 64]])
    training.steps = 3
    found = training.findings()
    assert [finding.cause for finding in found] == causes
    assert all(finding.gain_ns == pytest.approx(0.95 * 4_000_000 / 3, rel=0.05) for finding in found)
    for number in range(3):  # what the program announces is told by the times of all steps, and once
        training.rank.add("run_events", name="evaluation", ts=ORIGIN + number * STEP, dur=1000)
    assert training.causes() == []


@pytest.mark.parametrize(
    ("samples", "read", "causes"),
    [
        (16, "aten::resolve_neg", ["frequent-evaluation"]),
        (16, "aten::item", ["frequent-evaluation"]),
        (1, "aten::item", []),
        (16, "aten::mul", []),
        (16, "aten::multinomial", []),
    ],
    ids=["images that are written", "scores", "an agent", "a target", "many agents"],
)
def test_forwards_that_each_step_reads_are_evaluations(samples: int, read: str, causes: list[str]) -> None:
    training = Training()
    training.call("aten::embedding", 1000, [[50, 64], [8]], "forward", sequence=9)
    weights = [[64, 64], [96, 64], [32, 96], [16, 32]]
    for number, weight in enumerate(weights):
        forward(training, weight, 10 * number + 10, count=1)
        backward(training, weight, 10 * number + 10, count=1)
        update(training, weight)
    for weight in weights:
        training.call("aten::linear", 700_000, [[samples, weight[1]], weight])
    training.call(read, 1000, [[samples, 16]])
    found = training.findings()
    assert [finding.cause for finding in found] == causes
    assert all("in each step" in finding.title for finding in found)


def test_an_evaluation_that_few_steps_of_the_run_have_is_not_too_often() -> None:
    # Given one recorded step of three with an evaluation of 4 of 10 ms, and no other step of 40 that takes longer
    training = Training()
    training.run_steps()
    training.rank.rows["run_steps"][1]["dur"] = STEP + 4_000_000
    forward(training, WEIGHT, 10)
    backward(training, WEIGHT, 10)
    update(training, WEIGHT)
    training.steps = 1
    for _ in range(8):
        training.call("aten::linear", 500_000, [[256, 64], WEIGHT])
    training.steps = 3
    assert training.causes() == []


@pytest.mark.parametrize(("used", "causes"), [(1 << 30, ["recomputation"]), (14 << 30, [])])
def test_a_forward_that_the_backward_repeats_is_told_where_memory_is_left(used: int, causes: list[str]) -> None:
    # Given four layers that a node of the backward calls again, in a machine of 16 GiB
    training = Training(machine={"memory_bytes": 16 << 30, "memory_limit": None})
    training.rank.add("counters", track=0, ts=ORIGIN, name="process memory", value=float(used), unit="bytes")
    forward(training, WEIGHT, 10)
    training.call(f"{NODE}CheckpointBackward", 3_000_000, phase="backward", sequence=14)
    for number in range(4):
        at = {"inside": True, "shift": 500_000 * number, "sequence": 50 + number}
        training.call("aten::linear", 500_000, [[8, 64], WEIGHT], "backward", **at)
    backward(training, WEIGHT, 10)
    update(training, WEIGHT)
    assert training.causes() == causes


def test_what_recompute_of_paddle_repeats_is_told() -> None:
    training = sampled([((TRAIN,), "native")], "paddle")
    machine = {"memory_bytes": 16 << 30, "memory_limit": None}
    training.rank.add("metadata", key="machine", value=json.dumps(machine))
    training.rank.add("counters", track=0, ts=ORIGIN, name="process memory", value=float(1 << 30), unit="bytes")
    training.call("matmul dygraph", 2_000_000, phase="forward")
    training.call("Global_GradNodePyLayer_RecomputeFunction", 5_000_000, phase="backward")
    training.call("matmul dygraph", 2_000_000, phase="forward", inside=True, shift=100_000)
    training.call("Global_MatmulGradNode", 2_500_000, phase="backward", inside=True, shift=2_200_000)
    [found] = [one for one in training.findings() if one.cause == "recomputation"]
    assert found.gain_ns == pytest.approx(2_500_000, rel=0.05)
    assert "recompute(block, x)" in found.remedy


def prepared(training: Training, name: str = "aten::index", dur: int = 3_000_000, rows: int = 20_000) -> None:
    """Let each step prepare its data in these operators, and train on them."""
    training.call("aten::randperm", 100_000)
    training.call(name, dur, [[rows, 64], []], sequence=9)
    forward(training, WEIGHT, 10, count=2)
    backward(training, WEIGHT, 10, count=2)
    update(training, WEIGHT)


def test_work_on_data_alone_in_each_step_is_told() -> None:
    training = Training()
    prepared(training)
    [finding] = training.findings()
    assert finding.cause == "inputs-in-step"
    assert finding.gain_ns == pytest.approx(0.95 * 3_100_000, rel=0.01)
    assert "aten::index" in finding.evidence[0].text


@pytest.mark.parametrize(("second", "parts"), [([20_000, 64], 2), ([8, 64], 1)])
def test_what_is_made_again_for_each_layer_counts_each_time(second: list[int], parts: int) -> None:
    # Given rows that are joined before the first layer, and rows of this shape or another between two layers
    training = Training()
    for number, shape in enumerate(([20_000, 64], second)):
        training.call("aten::cat", 2_000_000, [shape, shape, []], sequence=9 + number)
        training.call("aten::linear", 500_000, [[8, 64], WEIGHT], "forward", sequence=20 + number)
    backward(training, WEIGHT, 20, count=2)
    update(training, WEIGHT)
    [finding] = training.findings()
    assert finding.cause == "inputs-in-step"
    assert finding.gain_ns == pytest.approx(0.95 * parts * 2_000_000, rel=0.01)


def test_a_permutation_of_all_rows_in_each_step_is_told() -> None:
    training = Training()
    training.call("aten::randperm", 3_000_000, [[], [], [], [], []])
    forward(training, WEIGHT, 10, count=2)
    backward(training, WEIGHT, 10, count=2)
    update(training, WEIGHT)
    [finding] = training.findings()
    assert finding.cause == "inputs-in-step"
    assert "torch.randperm(n).split(batch)" in finding.remedy


@pytest.mark.parametrize(("dur", "told"), [(3_000_000, True), (800_000, False)])
def test_a_permutation_of_all_rows_in_each_step_of_paddle_is_told(dur: int, told: bool) -> None:
    training = sampled([((TRAIN,), "native")], "paddle")
    training.call("randperm dygraph", dur)
    training.call("matmul dygraph", 2_000_000, phase="forward")
    assert ("inputs-in-step" in training.causes()) == told


@pytest.mark.parametrize(
    ("name", "dur", "rows"),
    [("aten::index", 500_000, 20_000), ("aten::randn_like", 3_000_000, 20_000), ("aten::lerp_", 3_000_000, 64)],
    ids=["a small part", "random numbers", "averages of a parameter"],
)
def test_what_the_step_needs_of_its_data_is_not_told(name: str, dur: int, rows: int) -> None:
    training = Training()
    prepared(training, name, dur, rows)
    assert training.causes() == []


@pytest.mark.parametrize(
    ("before", "causes"),
    [("aten::arange", ["inputs-in-step"]), ("aten::argmax", []), ("aten::linear", [])],
    ids=["a table of positions", "what a layer gives", "another network"],
)
def test_work_between_layers_is_on_data_if_it_begins_with_nothing(before: str, causes: list[str]) -> None:
    training = Training()
    training.call("aten::linear", 500_000, [[8, 64], WEIGHT], "forward", sequence=10)
    training.call(before, 10_000, [[], []] if before == "aten::arange" else [[8, 64], OTHER])
    training.call("aten::sin", 2_500_000, [[5000, 96]], sequence=11)
    training.call("aten::linear", 500_000, [[8, 64], WEIGHT], "forward", sequence=11)
    backward(training, WEIGHT, 10, count=2)
    update(training, WEIGHT)
    assert training.causes() == causes


@pytest.mark.parametrize(
    ("before", "behind"),
    [("aten::add", "aten::item"), ("aten::detach", "aten::add")],
    ids=["a number is read", "results are cut off"],
)
def test_scores_of_the_last_step_are_no_work_on_data(before: str, behind: str) -> None:
    training = Training()
    training.call(before, 1000, [[512, 1000], []])
    training.call("aten::sort", 2_500_000, [[512, 1000], []])
    training.call(behind, 1000, [[], []])
    forward(training, WEIGHT, 10, count=2)
    backward(training, WEIGHT, 10, count=2)
    update(training, WEIGHT)
    assert training.causes() == []
