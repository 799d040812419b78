"""Loops over tensors are known by operators on parameters without a graph, and by parts that are taken one by one."""

from __future__ import annotations

import pytest

from tests.unit.advise.rules.test_python_rules import PACKAGES, TRAIN, sampled, see
from tests.unit.advise.rules.trainings import STEP, Training

WEIGHTS = [[48, 64 + number] for number in range(20)]
OPTIMIZER = {"class": "SGD", "parameters": 20, "implementation": "foreach"}


def over_parameters(each: int, phase: str = "other", **facts: object) -> Training:
    """Steps with a product of 4 ms, 20 gradients, and a loop with so many operators of 50 µs for each."""
    training = Training(torch__state={"optimizers": [OPTIMIZER]} | facts)
    training.call("aten::mm", 4_000_000, [[64, 64], [64, 64]], "forward", sequence=1)
    for shape in WEIGHTS:
        training.call("torch::autograd::AccumulateGrad", 1000, [shape], "backward")
    for shape in WEIGHTS:
        for number in range(each):
            training.call(f"aten::mul{number}", 50_000, [shape, []], phase)
    return training


def test_a_loop_over_parameters_saves_nearly_all_its_time() -> None:
    [finding] = over_parameters(4).findings()
    assert finding.cause == "many-small-operators"
    assert "20 parameters one by one" in finding.title
    assert 0.7 * 4_000_000 < (finding.gain_ns or 0) < 4_000_000
    assert "torch._foreach_" in finding.remedy


def test_in_a_program_without_an_optimizer_it_is_the_optimizer() -> None:
    [finding] = over_parameters(4, optimizers=[]).findings()
    assert finding.cause == "per-parameter-optimizer"
    assert "fused=True" in finding.remedy


def test_an_optimizer_class_of_the_program_itself_is_one_too() -> None:
    written = {"class": "Lamb", "parameters": 20, "implementation": None}
    [finding] = over_parameters(4, "optimizer", optimizers=[written]).findings()
    assert finding.cause == "per-parameter-optimizer"
    assert "as its own optimizer Lamb" in finding.title


def test_a_loop_over_the_elements_of_a_table_is_none_over_parameters() -> None:
    training = over_parameters(0)
    for _ in range(70 * len(WEIGHTS)):
        training.call("aten::mul", 500, [WEIGHTS[0], []], "other")
    assert training.causes() == []


def test_operators_for_each_tensor_stay_as_one_call_for_all_runs_them() -> None:
    [loop] = over_parameters(4).findings()
    [optimizer] = over_parameters(4, optimizers=[]).findings()
    assert (loop.gain_ns or 0) == pytest.approx(0.75 * 4_000_000, rel=0.02)
    assert (optimizer.gain_ns or 0) == pytest.approx(0.5 * 4_000_000, rel=0.02)


def test_a_penalty_that_is_added_up_parameter_by_parameter_has_a_backward_too() -> None:
    training = over_parameters(0)
    for number, shape in enumerate(WEIGHTS):
        training.call("aten::pow", 50_000, [shape, []], "forward", sequence=100 + 3 * number)
        training.call("aten::sum", 50_000, [shape, []], "forward", sequence=101 + 3 * number)
        training.call("aten::add", 20_000, [[], [], []], "forward", sequence=102 + 3 * number)
    for number in range(60):
        training.call("autograd::engine::evaluate_function: X", 20_000, phase="backward", sequence=100 + number)
    [finding] = training.findings()
    assert "20 parameters one by one" in finding.title
    assert "weight_decay" in finding.remedy
    assert finding.gain_ns == pytest.approx(20 * (120_000 + 60_000), rel=0.05)


@pytest.mark.parametrize(("each", "phase"), [(1, "other"), (4, "optimizer"), (4, "forward")])
def test_one_operator_each_or_those_of_optimizer_and_model_are_no_loop(each: int, phase: str) -> None:
    training = Training()
    for shape in WEIGHTS:
        training.call("torch::autograd::AccumulateGrad", 1000, [shape], "backward")
    for number in range(20 * each):
        sequence = {"sequence": number} if phase == "forward" else {}
        training.call("aten::mul", 50_000, [WEIGHTS[number % 20], []], phase, **sequence)
    assert training.causes() == []


def test_exchanging_tensors_one_by_one_is_a_matter_of_collectives() -> None:
    training = over_parameters(2)
    training.call("c10d::allreduce_", 50_000, [WEIGHTS[0]], "other")
    for shape in WEIGHTS:
        training.call("aten::div_", 50_000, [shape, []], "other")
    assert training.causes() == []


def join(training: Training, parts: int) -> None:
    """Join so many numbers, which a loop has made."""
    training.call("aten::stack", 1000, [[[]] * parts, []])  # type: ignore[list-item]


def over_parts(places: list[int], *, joined: bool = True) -> Training:
    """Steps that take rows of a batch at these places, with two operators for each, and a node of the backward."""
    training = Training()
    for number, place in enumerate(places):
        concrete = ["", "0", str(place)]
        training.call("aten::select", 5000, [[64, 20], [], []], "forward", sequence=3 * number, concrete=concrete)
        training.call("aten::log_softmax", 40_000, [[20]], "forward", sequence=3 * number + 1)
        training.call("aten::nll_loss", 40_000, [[20], []], "forward", sequence=3 * number + 2)
    if joined:
        join(training, len(places))
    for number in range(3 * len(places)):
        training.call("autograd::engine::evaluate_function: X", 20_000, phase="backward", sequence=number)
    training.call("aten::mm", 1_000_000, [[64, 64], [64, 64]])
    return training


def test_a_loop_over_the_rows_of_a_batch_saves_its_forward_and_backward() -> None:
    [finding] = over_parts(list(range(48))).findings()
    assert finding.cause == "many-small-operators"
    assert "48 parts of a batch" in finding.title
    assert finding.gain_ns == pytest.approx((48 * 85_000 + 144 * 20_000) * (1 - 2 / 48), rel=0.05)


def test_a_recurrence_keeps_none_of_its_parts() -> None:
    # Given a step that needs the one before it, such as the sums over all paths of a chain
    [finding] = over_parts(list(range(48)), joined=False).findings()
    assert "small operators on tensors of the same shapes" in finding.title


def test_the_backward_of_a_loop_takes_what_the_looks_see_of_it() -> None:
    # Given nodes that take 2.9 ms of 10, and a backward that half of all looks see: the engine frees much between them
    training = over_parts(list(range(48)))
    training.run_steps()
    engine = (f"{PACKAGES}/torch/autograd/graph.py", "_engine_run_backward")
    see(training, [((engine, TRAIN), "native"), (((f"{PACKAGES}/torch/x.py", "y"),), "native")])
    [finding] = training.findings()
    assert finding.cause == "many-small-operators"
    assert finding.gain_ns == pytest.approx((48 * 85_000 + STEP / 2) * (1 - 2 / 48), rel=0.05)


@pytest.mark.parametrize(("waiting", "gain"), [(0.6, 0.3 * 4_000_000), (0.0, 1_000_000)], ids=["busy", "idle"])
def test_on_a_busy_machine_a_loop_takes_what_the_looks_see_of_its_function(waiting: float, gain: float) -> None:
    # Given a loop whose operators take a fifth of the recorded steps, and a function that is seen in three fifths
    training = over_parameters(2)
    training.run_steps(delay=round(waiting * STEP))
    see(
        training,
        [((("/home/me/clip.py", "clip"),), "native")] * 3 + [(((f"{PACKAGES}/torch/x.py", "y"),), "native")] * 2,
    )
    for look in training.rank.rows["samples"]:
        look["cpu"] = round((1 - waiting) * STEP)
    [finding] = [one for one in training.findings() if one.cause == "many-small-operators"]
    assert finding.gain_ns == pytest.approx(gain, rel=0.05)


@pytest.mark.parametrize(("place", "named"), [("update", True), ("forward", False)])
def test_a_loop_beside_the_model_is_not_in_a_function_of_its_forward(place: str, named: bool) -> None:
    # Given a loop of 4 of 10 ms without a graph, and a function in which all looks are, in the forward or not
    training = over_parameters(4)
    training.run_steps()
    module = ((f"{PACKAGES}/torch/nn/modules/module.py", "Module._call_impl"),) if place == "forward" else ()
    looks = [((("/home/me/model.py", place), *module), "native"), (((f"{PACKAGES}/torch/x.py", "y"),), "native")]
    see(training, looks)
    [finding] = [one for one in training.findings() if one.cause == "many-small-operators"]
    assert (f": {place} (" in finding.title) == named


def test_the_same_few_parts_for_each_layer_are_no_loop() -> None:
    training = over_parts([0, 1, 2] * 16)
    for _ in range(16):
        training.call("aten::linear", 300_000, [[64, 20], [20, 20]], "forward")
    assert training.causes() == []


def test_rows_that_unbind_takes_at_once_are_a_loop_too() -> None:
    training = Training()
    training.call("aten::unbind", 5000, [[64, 3, 16, 16], []])
    for _ in range(64):
        for name in ("aten::mean", "aten::sub", "aten::div"):
            training.call(name, 30_000, [[3, 16, 16], []])
    join(training, 64)
    [finding] = training.findings()
    assert "64 parts of a batch, with 3 small operators" in finding.title
    assert finding.gain_ns == pytest.approx(192 * 30_000, rel=0.1)


def test_rows_that_an_index_chooses_are_a_loop_too_whatever_their_number() -> None:
    training = Training()
    for number in range(40):
        training.call("aten::index", 40_000, [[64, 20], []], "forward", sequence=2 * number)
        training.call("aten::mean", 40_000, [[number % 7 + 1, 20], []], "forward", sequence=2 * number + 1)
    join(training, 40)
    training.call("aten::mm", 1_000_000, [[64, 64], [64, 64]])
    [finding] = training.findings()
    assert finding.cause == "many-small-operators"
    assert "40 parts" in finding.title
    assert finding.gain_ns == pytest.approx(80 * 40_000 * 0.95, rel=0.1)


def test_a_cell_for_each_time_step_is_a_loop_of_layers_not_of_parts() -> None:
    training = Training()
    for number in range(40):
        concrete = ["", "1", str(number)]
        training.call("aten::select", 5000, [[8, 40, 20], [], []], "forward", sequence=2 * number, concrete=concrete)
        training.call("aten::gru_cell", 90_000, [[8, 20], [8, 32]], "forward", sequence=2 * number + 1)
    training.call("aten::mm", 1_000_000, [[64, 64], [64, 64]])
    assert training.causes() == []


def over_experts(rows: list[int], weights: int) -> Training:
    """Steps that choose rows for 32 layers one after the other, which have so many weights of their own."""
    training = Training()
    training.call("aten::mm", 1_000_000, [[64, 64], [64, 64]])
    for number in range(32):
        data = rows[number % len(rows)]
        training.call("aten::index", 10_000, [[512, 96], []], "forward", sequence=3 * number)
        training.call("aten::linear", 60_000, [[data, 96], [96, 96], []], "forward", sequence=3 * number + 1)
        training.call(
            "aten::index_add_", 20_000, [[512, 96], [], [data], [data, 96]], "forward", sequence=3 * number + 2
        )
    for number in range(96):
        training.call("autograd::engine::evaluate_function: X", 20_000, phase="backward", sequence=number)
    for _ in range(weights):
        training.call("torch::autograd::AccumulateGrad", 1000, [[96, 96]], "backward")
    return training


def test_a_loop_over_layers_that_take_parts_of_their_own_is_told() -> None:
    [finding] = over_experts([30, 34, 27], weights=32).findings()
    assert finding.cause == "many-small-operators"
    assert "32 parts of a batch, with 3 small operators for each" in finding.title
    # What index_add_ moves of the whole stays, as far as it runs so long.
    time = 32 * 90_000 + 96 * 20_000
    assert finding.gain_ns == pytest.approx(time * (1 - 2 / 32) - 32 * 20_000, rel=0.03)


@pytest.mark.parametrize(
    ("rows", "weights"), [([32], 32), ([30, 34, 27], 1)], ids=["a chain of layers", "one layer again and again"]
)
def test_layers_that_take_what_others_give_are_no_loop_over_parts(rows: list[int], weights: int) -> None:
    assert "parts of a batch" not in " ".join(finding.title for finding in over_experts(rows, weights).findings())


def test_what_other_packages_do_for_each_parameter_is_their_caller_s() -> None:
    # Given a loop over parameters, in whose function NumPy is seen three times of four
    training = over_parameters(4)
    training.run_steps()
    statistics = ("/home/me/log.py", "statistics")
    numpy = (f"{PACKAGES}/numpy/lib/_histograms_impl.py", "histogram")
    other = ((f"{PACKAGES}/torch/x.py", "y"),)
    see(training, [((numpy, statistics), "python")] * 3 + [((statistics,), "native")] + [(other, "native")] * 6)
    [finding] = training.findings()
    assert finding.cause == "python-in-step"
    assert "statistics" in finding.title


def test_the_state_of_a_model_that_is_copied_is_told_with_its_line_and_the_python_of_it() -> None:
    # Given copies of 2 ms among 20 parameters, and half of the looks in what copies them
    training = over_parameters(2)
    training.run_steps()
    module = (f"{PACKAGES}/torch/nn/modules/module.py", "Module.load_state_dict")
    see(training, [((module, TRAIN), "native"), (((f"{PACKAGES}/torch/x.py", "y"),), "native")])
    [finding] = training.findings()
    assert finding.cause == "many-small-operators"
    assert "train.py:7" in finding.title
    assert finding.gain_ns == pytest.approx(STEP / 2, rel=0.02)


def branches(weights: list[list[int]]) -> Training:
    """Steps in which layers with these weights take data of 64 columns, each with a product that follows it."""
    training = Training()
    for number, weight in enumerate(weights):
        training.call("aten::linear", 60_000, [[8, 16, 64], weight], "forward", sequence=2 * number)
        training.call("aten::matmul", 60_000, [[8, 16, 4], [8, 4, 16]], "forward", sequence=2 * number + 1)
    for number in range(2 * len(weights)):
        training.call("autograd::engine::evaluate_function: X", 60_000, phase="backward", sequence=number)
    return training


def test_one_layer_behind_each_time_step_is_no_row_of_layers() -> None:
    # Given 24 calls of a layer whose weight has one sum of its gradients a step
    training = branches([[4, 64]] * 24)
    training.call("torch::autograd::AccumulateGrad", 1000, [[4, 64]], "backward")
    assert not any("one tensor to" in finding.title for finding in training.findings())


def test_layers_that_take_one_tensor_one_after_the_other_are_told() -> None:
    [finding] = branches([[4, 64]] * 24).findings()
    assert finding.cause == "many-small-operators"
    assert "one tensor to 24 layers of 64 × 4" in finding.title
    assert finding.gain_ns == pytest.approx(96 * 60_000 * (1 - 2 / 24), rel=0.05)


@pytest.mark.parametrize("weights", [[[64, 64]] * 24, [[4, 64], [64, 4]] * 12], ids=["a chain", "bottlenecks"])
def test_chains_of_layers_are_no_loop_over_one_tensor(weights: list[list[int]]) -> None:
    assert branches(weights).causes() == []


def networks(*layers: tuple[int, int, int], between: str = "aten::tanh") -> Training:
    """Steps with 16 times these layers: the columns that each takes, and the weight; with an operator before each."""
    training = Training()
    for number in range(16 * len(layers)):
        takes, *weight = layers[number % len(layers)]
        training.call(between, 10_000, [[8, takes]], "forward")
        training.call("aten::linear", 110_000, [[8, takes], weight], "forward", sequence=number)
    for number in range(16 * len(layers)):
        training.call("autograd::engine::evaluate_function: X", 120_000, phase="backward", sequence=number)
    return training


def test_small_networks_that_take_one_tensor_one_after_the_other_are_told() -> None:
    [finding] = networks((32, 64, 32), (64, 8, 64)).findings()
    assert finding.cause == "many-small-operators"
    assert "one tensor to 16 networks of 2 layers, the first of 32 × 64" in finding.title
    assert finding.gain_ns == pytest.approx(2 * 32 * 120_000 * (1 - 2 / 16), rel=0.05)


@pytest.mark.parametrize(
    ("layers", "between"),
    [
        ([(64, 256, 64), (256, 64, 256)], "aten::tanh"),
        ([(64, 512, 64), (256, 64, 256)], "aten::chunk"),
        ([(256, 64, 256), (64, 512, 64)], "aten::chunk"),
        ([(64, 192, 64), (64, 64, 64), (64, 256, 64), (256, 64, 256)], "aten::tanh"),
        ([(24, 64, 24), (64, 16, 64)], "aten::cat"),
    ],
    ids=["blocks", "halves", "halves, from the second layer on", "transformer", "joined with something"],
)
def test_chains_of_small_networks_are_none(layers: list[tuple[int, int, int]], between: str) -> None:
    assert networks(*layers, between=between).causes() == []


def reading(times: int, between: int) -> Training:
    """Steps with a forward of 2 ms, and reads of 2 µs with other work of so many ns between them."""
    training = Training(steps=2)
    training.call("aten::mm", 2_000_000, [[64, 64], [64, 64]], "forward")
    for _ in range(times):
        training.call("aten::item", 2_000)
        training.call("aten::mm", between, [[64, 64], [64, 64]], "forward")
    return training


@pytest.mark.parametrize(
    ("times", "between", "causes"),
    [(80, 30_000, ["python-in-step"]), (30, 30_000, []), (40, 110_000, [])],
    ids=["in a loop", "a few", "each after work of its own"],
)
def test_a_loop_that_reads_numbers_one_by_one_is_told(times: int, between: int, causes: list[str]) -> None:
    assert reading(times, between).causes() == causes


def test_its_gain_is_the_time_from_read_to_read() -> None:
    [finding] = reading(80, 30_000).findings()
    assert finding.gain_ns == pytest.approx(0.95 * 80 * 32_020, rel=0.02)
    assert "80 times a step" in finding.title


@pytest.mark.parametrize(
    ("norm", "backward", "elsewhere", "causes"),
    [
        ("p_norm dygraph", "Global_MatmulGradNode", 1, ["many-small-operators"]),
        ("p_norm dygraph", "Global_PNormGradNode", 1, []),
        ("p_norm dygraph", "", 4, []),
        ("pd_op.p_norm", "Global_MatmulGradNode", 1, []),
    ],
    ids=["no gradient goes through them", "a part of the loss", "other lines take the time", "a compiled program"],
)
def test_a_line_of_paddle_that_calls_operators_without_a_gradient_is_told(
    norm: str, backward: str, elsewhere: int, causes: list[str]
) -> None:
    # Given 40 norms a step beside the model (or 80 of a compiled program), and a line with four of so many parts of the
    # time there
    packages = f"{PACKAGES}/paddle/tensor/linalg.py"
    norms = ((packages, "p_norm"), ("/home/me/train.py", "train"))
    others = [((packages, "matmul"), (f"/home/me/part{number}.py", "train")) for number in range(elsewhere)]
    training = sampled([(frames, "native") for frames in [norms] * 4 + others * (1 if elsewhere == 1 else 2)], "paddle")
    for _ in range(40 if norm.endswith("dygraph") else 80):
        training.call(norm, 10_000)
    for _ in range(20):
        training.call("matmul dygraph", 10_000, phase="forward")
    if backward:
        training.call(backward, 10_000, phase="backward")
    assert training.causes() == causes


@pytest.mark.parametrize(("through", "causes"), [("", ["many-small-operators"]), ("composite/base.py", [])])
def test_a_line_of_mindspore_beside_the_training_is_told(through: str, causes: list[str]) -> None:
    # Given a line whose 64 operators a step take most of the time beside the training, or of what is differentiated
    norms = ((f"{PACKAGES}/mindspore/ops/function/math_func.py", "norm"), ("/home/me/train.py", "log"))
    outer = ((f"{PACKAGES}/mindspore/ops/{through}", "_Grad.__call__"),) if through else ()
    model = ((f"{PACKAGES}/mindspore/nn/cell.py", "Cell.__call__"), ("/home/me/train.py", "forward"))
    training = sampled([((*norms, *outer), "native")] * 4 + [(model, "native")] * 2, "mindspore")
    host = training.rank.thread()
    for step in range(training.steps):
        for number in range(64):
            training.rank.span(host, "runtime", step * STEP + 10_000 * number, 5_000, "RunOp", step=step)
    assert training.causes() == causes


def test_a_line_that_the_interpreter_runs_by_itself_calls_no_operators() -> None:
    # Given 64 operators a step beside the training, and a line that goes through values of NumPy meanwhile
    model = ((f"{PACKAGES}/mindspore/nn/cell.py", "Cell.__call__"), ("/home/me/train.py", "forward"))
    looks = [((("/home/me/train.py", "augment"),), "python")] * 4 + [(model, "native")] * 2
    training = sampled(looks, "mindspore")
    host = training.rank.thread()
    for step in range(training.steps):
        for number in range(64):
            training.rank.span(host, "runtime", step * STEP + 10_000 * number, 5_000, "RunOp", step=step)
    assert training.causes() == ["python-in-step"]


def test_a_loop_of_paddle_over_rows_with_a_gradient_is_told_with_its_backward() -> None:
    # Given 80 operators of a loss beside the model, on two lines of a loop, and their nodes in half of the backward
    packages = f"{PACKAGES}/paddle/tensor/math.py"
    looks = [(((packages, "multiply"), ("/home/me/train.py", "train")), "native")] * 4
    training = sampled([*looks, (((f"{PACKAGES}/paddle/nn/layer/layers.py", "Layer.__call__"),), "native")], "paddle")
    for _ in range(80):
        training.call("multiply dygraph", 10_000)
        training.call("Global_MultiplyGradNode", 10_000, phase="backward")
        training.call("Global_MatmulGradNode", 10_000, phase="backward")
    (finding,) = [one for one in training.findings() if one.cause == "many-small-operators"]
    assert "calls small operators one by one" in finding.title
    assert finding.gain_ns == pytest.approx(0.95 * 0.8 * STEP)


@pytest.mark.parametrize(("parts", "causes"), [(1, ["python-in-step"]), (0, [])], ids=["of parts", "of one result"])
def test_reads_of_mindspore_that_wait_are_a_loop_where_its_line_takes_parts(parts: int, causes: list[str]) -> None:
    # Given a line that reads values in nearly all looks, 128 operators a step without a kernel, and few with one
    packages = f"{PACKAGES}/mindspore/common/tensor.py"
    read, part = (
        ((packages, name), ("/home/me/train.py", "train")) for name in ("Tensor.__int__", "Tensor._getitem_origin")
    )
    training = sampled([*[(read, "native")] * 19, *[(part, "native")] * parts], "mindspore")
    thread = training.rank.thread(2)
    for step in range(training.steps):
        for number in range(128):
            training.rank.span(thread, "runtime", step * STEP + number * 50_000, 5_000, "RunOp", step=step)
    training.call("MatMul", 100_000, [[64, 64], [64, 64]], "forward")
    found = [one for one in training.findings() if one.cause == "python-in-step"]
    assert [one.cause for one in found] == causes
    assert all("reads them one by one" in one.title for one in found)
