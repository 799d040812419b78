"""Loops over samples and over tensors are told by how often a step uses a weight, and by torch's own choice."""

from __future__ import annotations

import json

import pytest

from stepscope.advise.observed import Observed
from stepscope.advise.rank_findings import found_in
from stepscope.collect.jax.jax_steps import BY_GRADIENTS
from tests.unit.advise.rules.test_python_rules import PACKAGES, TRAIN, sampled
from tests.unit.advise.rules.trainings import STEP, STEPS, Training
from tests.unit.analyse.build import ORIGIN

WEIGHT = [64, 64]


def looped(batch: int, calls: int, sums: int = 1, dur: int = 100_000, layer: str = "") -> Training:
    training = Training()
    if layer:
        training.call(layer, calls * dur, phase="forward")
    for number in range(calls):
        where = {"inside": True, "shift": number * dur} if layer else {}
        training.call("aten::linear", dur, [[batch, 64], WEIGHT], "forward", sequence=number, **where)
    for number in range(calls):
        name = "autograd::engine::evaluate_function: AddmmBackward0"
        training.call(name, dur, phase="backward", sequence=number)
    for _ in range(sums):
        training.call("torch::autograd::AccumulateGrad", 1000, [WEIGHT], "backward")
    training.call("aten::add_", 1000, [WEIGHT, WEIGHT], "optimizer")
    return training


@pytest.mark.parametrize(
    ("batch", "calls", "sums", "dur", "causes"),
    [
        (1, 32, 1, 100_000, ["sample-loop"]),
        (16, 32, 1, 100_000, ["many-small-operators"]),
        (1, 4, 1, 1_000_000, []),
        (1, 32, 32, 100_000, []),
        (16, 12, 1, 400_000, []),
    ],
    ids=["samples", "time steps", "few calls", "accumulated gradients", "large operators"],
)
def test_loops_are_told_by_how_often_a_weight_is_used(
    batch: int, calls: int, sums: int, dur: int, causes: list[str]
) -> None:
    assert looped(batch, calls, sums, dur).causes() == causes


def test_a_loop_is_as_long_as_its_own_weights_are_used_often() -> None:
    # Given a layer that is called 32 times, beside three that are called once, all of them of a model that is known
    training = looped(16, 32)
    for width in (8, 16, 24):
        training.call("aten::linear", 1_000, [[16, 64], [width, 64]], "forward")
        training.call("torch::autograd::AccumulateGrad", 1000, [[width, 64]], "backward")
    training.rank.add("metadata", key="torch.state", value='{"models": [{"trainable_parameters": 4}]}')
    [finding] = training.findings()
    assert "calls the same layers 32 times a step" in finding.title


@pytest.mark.parametrize(
    ("parts", "dur", "optimizers", "causes"),
    [
        (16, 100_000, 1, ["many-small-operators"]),
        (3, 100_000, 1, []),
        (8, 400_000, 1, []),
        (16, 100_000, 0, []),
    ],
    ids=["small parts", "few parts", "large parts", "an update for each"],
)
def test_a_batch_in_many_small_parts_is_told_where_one_update_takes_them_all(
    parts: int, dur: int, optimizers: int, causes: list[str]
) -> None:
    # Given a layer that a step calls with each part, and as many backwards, before one step of an optimizer
    training = Training(torch__state={"models": [{"trainable_parameters": 1}], "optimizers": [{}] * optimizers})
    for part in range(parts):
        training.call("aten::linear", dur, [[2, 64], WEIGHT], "forward", sequence=part)
        name = "autograd::engine::evaluate_function: AddmmBackward0"
        training.call(name, dur, phase="backward", sequence=part)
        training.call("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 1000, phase="backward")
        training.call("torch::autograd::AccumulateGrad", 1000, [WEIGHT], "backward", inside=True)
    training.call("Optimizer.step#Adam.step", 10_000, phase="optimizer")
    found = training.findings()
    assert [finding.cause for finding in found] == causes
    assert all(f"in {parts} parts" in finding.title for finding in found)
    assert all(finding.gain_ns == pytest.approx(2 * (parts - 2) * dur, rel=0.05) for finding in found)


def test_gradients_of_each_sample_are_parts_with_what_is_done_to_them() -> None:
    # Given torch.autograd.grad for each of 16 samples, which sums nothing, and a clipping of each gradient
    training = Training(torch__state={"models": [{"trainable_parameters": 1}], "optimizers": [{}]})
    for part in range(16):
        training.call("aten::linear", 100_000, [[1, 64], WEIGHT], "forward", sequence=part)
        training.call("autograd::engine::evaluate_function: AddmmBackward0", 100_000, phase="backward", sequence=part)
        training.call("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 1000, phase="backward")
        training.call("aten::linalg_vector_norm", 200_000, [WEIGHT])
    training.call("Optimizer.step#SGD.step", 10_000, phase="optimizer")
    [finding] = training.findings()
    assert "16 parts" in finding.title
    assert finding.gain_ns == pytest.approx(16 * 400_000 * (1 - 2 / 16), rel=0.05)
    assert "torch.func.vmap" in finding.remedy


@pytest.mark.parametrize("layer", ["aten::gru", "aten::lstm", "aten::rnn_tanh", "aten::rnn_relu"])
def test_a_recurrent_layer_of_the_framework_is_not_a_loop_of_the_program(layer: str) -> None:
    assert looped(16, 32, layer=layer).causes() == []


@pytest.mark.parametrize(
    ("optimizer", "causes"),
    [
        ({"implementation": "for-loop", "fused": None}, ["per-parameter-optimizer"]),
        ({"implementation": "fused", "fused": True}, []),
        ({"implementation": "for-loop"}, []),
        ({"implementation": "for-loop", "foreach": False}, ["per-parameter-optimizer"]),
        ({"implementation": "for-loop", "fused": None, "parameter_bytes": 4_000_000_000}, []),
    ],
    ids=["loop", "fused", "has no other step", "has foreach", "bound by memory"],
)
def test_an_optimizer_that_goes_through_its_tensors_is_told(optimizer: dict[str, object], causes: list[str]) -> None:
    said = {"class": "AdamW", "parameters": 82, "parameter_bytes": 100_000, **optimizer}
    training = Training(torch__state={"optimizers": [said]})
    training.call("aten::mm", 5_000_000, [[64, 64], [64, 64]], "forward")
    training.call("aten::add_", 3_000_000, [[64, 64], [64, 64]], "optimizer")
    assert training.causes() == causes


@pytest.mark.parametrize(("each", "gain"), [(12, (1 - 3 / 12) * 6_000_000), (3, None)])
def test_a_fused_step_does_something_for_each_tensor_too(each: int, gain: float | None) -> None:
    # Given loops over 20 tensors in 6 of 10 ms, with many operators for each, as Adam's, and with few, as SGD's
    said = {"class": "Adam", "parameters": 20, "parameter_bytes": 100, "implementation": "for-loop", "fused": None}
    training = Training(torch__state={"optimizers": [said]})
    training.call("aten::mm", 3_000_000, [[64, 64], [64, 64]], "forward")
    for number in range(20 * each):
        training.call(f"aten::mul{number % each}_", 6_000_000 // (20 * each), [[64, 64]], "optimizer")
    found = training.findings()
    assert [finding.gain_ns for finding in found] == ([] if gain is None else [pytest.approx(gain, rel=0.03)])


@pytest.mark.parametrize(("seen", "causes"), [(12, ["per-parameter-optimizer"]), (0, [])])
def test_the_samples_bound_an_optimizer_whose_thread_waited_for_a_core(seen: int, causes: list[str]) -> None:
    # Given an optimizer that takes 3 of 10 ms in the recorded steps, and in so many of 40 looks at all steps
    said = {"class": "AdamW", "parameters": 82, "parameter_bytes": 100_000, "implementation": "for-loop", "fused": None}
    training = Training(torch__state={"optimizers": [said]})
    training.run_steps()
    training.call("aten::mm", 5_000_000, [[64, 64], [64, 64]], "forward")
    training.call("aten::add_", 3_000_000, [[64, 64], [64, 64]], "optimizer")
    packages = "/venv/lib/python3.11/site-packages/torch"
    for stack, (file, function) in enumerate([("nn/modules/module.py", "_call_impl"), ("optim/adam.py", "step")]):
        frames = [(f"{packages}/{file}", function), ("/home/me/train.py", "train")]
        listed = [{"file": path, "line": 7, "function": name} for path, name in frames]
        training.rank.add("stacks", id=stack, frames=listed)
    for number in range(40):
        look = {"count": 1, "process": 100, "thread": 100, "name": "MainThread", "state": "native", "worker": None}
        at, spent = ORIGIN + number * STEP, STEP - 1000
        training.rank.add("samples", ts=at, dur=spent, cpu=spent, stack=int(number < seen), **look)
    assert training.causes() == causes


def test_time_steps_that_multiply_with_parameters_are_a_loop_of_layers() -> None:
    # Given h = tanh(x[:, t] @ W + h @ W), in which each step needs the one before it
    training = Training()
    for number in range(40):
        concrete = ["", "1", str(number)]
        at = 4 * number
        training.call("aten::select", 5000, [[16, 40, 64], [], []], "forward", sequence=at, concrete=concrete)
        training.call("aten::matmul", 60_000, [[16, 64], WEIGHT], "forward", sequence=at + 1)
        training.call("aten::mm", 50_000, [[16, 64], WEIGHT], "forward", inside=True, shift=1000)
        for name in ("add", "sigmoid", "mul", "mul", "add", "tanh"):
            training.call(f"aten::{name}", 10_000, [[16, 64]], "forward", sequence=at + 2)
    training.call("torch::autograd::AccumulateGrad", 1000, [WEIGHT], "backward")
    [finding] = training.findings()
    assert finding.cause == "many-small-operators"
    assert "the same layers 40 times" in finding.title
    assert "torch.nn.LSTM" in finding.remedy


def test_an_agent_that_draws_each_action_from_its_model_is_no_loop_over_samples() -> None:
    training = looped(1, 32, 1, 100_000)
    assert training.causes() == ["sample-loop"]
    for _ in range(32):
        training.call("aten::multinomial", 5000, [[1, 4], [], [], []])
    assert training.causes() == []


@pytest.mark.parametrize(("batch", "causes"), [(1, ["sample-loop"]), (32, [])])
def test_without_gradients_only_samples_that_are_taken_one_by_one_are_a_loop(batch: int, causes: list[str]) -> None:
    training = Training()
    training.call("aten::linear", 100_000, [[256, 64], WEIGHT], "forward", sequence=0)
    training.call("torch::autograd::AccumulateGrad", 1000, [WEIGHT], "backward")
    for _ in range(64):
        training.call("aten::linear", 90_000, [[batch, 64], WEIGHT])
    found = training.findings()
    assert [finding.cause for finding in found] == causes
    assert all(finding.gain_ns == pytest.approx(64 * 90_000, rel=0.1) for finding in found)


@pytest.mark.parametrize(("batch", "causes"), [(1, ["sample-loop"]), (32, ["many-small-operators"])])
def test_loops_of_mindspore_are_told_by_the_number_of_its_parameters(batch: int, causes: list[str]) -> None:
    def trained(calls: int, launches: str = "LaunchTask") -> list[str]:
        state = {"models": [{"trainable_parameters": 2}]}
        training = Training(mindspore__state=state)
        thread = training.rank.thread()
        for number in range(training.steps):
            training.rank.span(thread, "runtime", number * STEP, 100, launches, step=number)
        for _ in range(calls):
            training.call("MatMul", 100_000, [[batch, 64], WEIGHT], "forward")
            training.call("BiasAdd", 20_000, [[batch, 64], [64]], "forward")
        for _ in range(calls):
            training.call("MatMul", 150_000, [[64, batch], [batch, 64]], "backward")
        return training.causes()

    assert trained(16) == causes
    assert trained(16, "KernelLaunch") == []  # nobody calls the operators of a compiled graph one by one
    assert trained(4) == []


@pytest.mark.parametrize(
    ("behind", "cause"),
    [("Linear", "many-small-operators"), ("CrossEntropyLoss", "sample-loop")],
    ids=["cell", "model"],
)
def test_a_loop_of_paddle_over_time_steps_has_layers_behind_it(behind: str, cause: str) -> None:
    training = Training()
    training.rank.rows["metadata"].clear()
    training.rank.add("metadata", key="profiler", value='"paddle.profiler"')
    thread = training.rank.thread(2)
    for step in range(STEPS):
        for number in range(16):
            at = step * STEP + number * 300_000
            training.rank.span(thread, "phase", at, 200_000, "Cell", step=step, phase="forward")
        training.rank.span(thread, "phase", step * STEP + 5_000_000, 9000, behind, step=step, phase="forward")
        training.rank.span(
            thread, "phase", step * STEP + 6_000_000, 9000, "Gradient Backward", step=step, phase="backward"
        )
    assert training.causes() == [cause]


@pytest.mark.parametrize(("dur", "between"), [(60_000, 30_000), (300_000, 50_000)], ids=["operators", "under grad"])
def test_operators_of_jax_outside_of_jit_are_told_with_the_python_between_them(dur: int, between: int) -> None:
    training = Training()
    training.rank.rows["metadata"].clear()
    training.rank.add("metadata", key="profiler", value='"xplane"')
    thread = training.rank.thread(2)
    for step in range(STEPS):
        at = step * STEP
        for number in range(20):
            interrupted = 5 * STEP // 100 if number == 7 else 0
            training.rank.span(thread, "runtime", at, dur + interrupted, "PjitFunction(multiply)", step=step)
            at += dur + interrupted + between
    [finding] = training.findings()
    assert finding.cause == "many-small-operators"
    assert finding.gain_ns == pytest.approx(0.7 * 20 * (dur + between), rel=0.2)


@pytest.mark.parametrize(
    ("calls", "by", "part"),
    [
        (20, "runs of compiled programs that update what they are given", 0.9),
        (16, "runs of compiled programs that update what they are given", 2 * 15.9 * 0.023),
        (16, BY_GRADIENTS, 0.9),
    ],
    ids=["all of it", "as far as the calls reach", "nothing is compiled"],
)
def test_the_python_of_jax_around_its_operators_goes_away_with_them(calls: int, by: str, part: float) -> None:
    # Given so many calls of 200 µs in a step of 10 ms, and JAX's own code in nine of ten looks at the thread
    training = Training()
    training.rank.rows["metadata"].clear()
    training.rank.add("metadata", key="profiler", value='"xplane"')
    training.run_steps()
    thread = training.rank.thread(2)
    for step in range(STEPS):
        for number in range(calls):
            training.rank.span(
                thread, "runtime", step * STEP + number * 230_000, 200_000, "PjitFunction(mul)", step=step
            )
    for stack, file in enumerate(
        ["/venv/lib/python3.11/site-packages/jax/_src/interpreters/ad.py", "/home/me/train.py"]
    ):
        training.rank.add("stacks", id=stack, frames=[{"file": file, "line": 7, "function": "train"}])
    for number in range(40):
        look = {"count": 1, "process": 100, "thread": 100, "name": "MainThread", "state": "python", "worker": None}
        at, spent = ORIGIN + number * STEP, STEP - 1000
        training.rank.add("samples", ts=at, dur=spent, cpu=spent, stack=int(number % 10 == 0), **look)
    found = found_in(Observed(training.rank.tables(), {"steps": {"by": by}}))
    told = next(finding for finding in found if finding.cause == "many-small-operators")
    assert told.gain_ns == pytest.approx(0.9 * part * STEP, rel=0.05)


def pynative(operators: int, gradients: int) -> Training:
    """Return a MindSpore training with so many operators and gradients of PyNative in a step."""
    inside = (f"{PACKAGES}/mindspore/ops/operations/math_ops.py", "Primitive.__call__")
    differentiates = (f"{PACKAGES}/mindspore/ops/composite/base.py", "_Grad.__call__.<locals>.after_grad")
    training = sampled([((inside, ("/home/me/train.py", "forward"), differentiates, TRAIN), "native")], "mindspore")
    host = training.rank.thread()
    for step in range(training.steps):
        for name, count in (("RunOp", operators), ("RunGrad", gradients)):
            for number in range(count):
                training.rank.span(host, "runtime", step * STEP + 10_000 * number, 5_000, name, step=step)
    return training


@pytest.mark.parametrize(
    ("operators", "gradients", "causes"),
    [(100, 1, ["many-small-operators"]), (20, 1, []), (100, 0, [])],
    ids=["many", "few", "the step is compiled"],
)
def test_a_step_in_pynative_is_told_by_the_operators_it_dispatches(
    operators: int, gradients: int, causes: list[str]
) -> None:
    assert pynative(operators, gradients).causes() == causes


def test_the_gain_of_a_compiled_step_is_of_the_time_beside_its_operators() -> None:
    [finding] = pynative(100, 1).findings()
    computing = 1_000_000  # of the one operator that `sampled` adds to each step
    assert finding.gain_high_ns == pytest.approx(0.95 * (STEP - computing), rel=0.02)
    assert "@mindspore.jit" in finding.remedy


@pytest.mark.parametrize(
    ("operators", "each", "state", "causes"),
    [
        (100, 20_000, "python", ["many-small-operators"]),
        (20, 20_000, "python", []),
        (20, 300_000, "python", []),
        (100, 79_000, "python", []),
        (100, 20_000, "native", []),
    ],
    ids=["many", "few", "large", "no time between them", "no Python between them"],
)
def test_a_forward_of_paddle_is_told_by_the_time_between_its_operators(
    operators: int, each: int, state: str, causes: list[str]
) -> None:
    # Given a forward of 8 of 10 ms whose operators take so long, and samples of it in that state
    layer = (f"{PACKAGES}/paddle/nn/layer/layers.py", "Layer.__call__")
    training = sampled([((layer, TRAIN), state)], "paddle")
    for step in range(training.steps):
        training.rank.span(0, "phase", step * STEP + 1_000_100, 8_000_000, "Net", step=step, phase="forward")
    for _ in range(operators):
        training.call("add dygraph", each, phase="forward")
    assert training.causes() == causes


@pytest.mark.parametrize(
    ("framework", "each", "optimizer", "gain"),
    [
        ("mindspore", 10, False, 0.8 * 0.6),
        ("mindspore", 1, False, None),
        ("mindspore", 10, True, None),
        ("paddle", 16, False, 0.5 * 0.6),
        ("paddle", 8, False, None),
    ],
    ids=["ten operators a parameter", "one", "an optimizer", "more than Paddle's optimizer takes", "as long as that"],
)
def test_a_program_that_updates_its_parameters_itself_is_told(
    framework: str, each: int, optimizer: bool, gain: float | None
) -> None:
    # Given 20 parameters, so many operators for each of them, in six of ten looks, and a gradient in the others
    place = {"mindspore": "mindspore/ops/math.py", "paddle": "paddle/tensor/math.py"}[framework]
    update = ((f"{PACKAGES}/{place}", "multiply"), ("/home/me/train.py", "train"))
    differentiate = ((f"{PACKAGES}/{framework}/autograd.py", "Engine.grad"), ("/home/me/train.py", "loss"))
    training = sampled([*[(update, "native")] * 3, *[(differentiate, "native")] * 2], framework)
    state = {"models": [{"trainable_parameters": 20}], "optimizers": []}
    training.rank.add("metadata", key=f"{framework}.state", value=json.dumps(state))
    for _ in range(20 * each):
        training.call({"mindspore": "Mul", "paddle": "multiply dygraph"}[framework], 10_000)
    rule = "each step of the optimizer" if optimizer else f"the program has no optimizer of {framework}"
    found = found_in(Observed(training.rank.tables(), {"steps": {"rule": rule}}))
    told = [one for one in found if one.cause == "per-parameter-optimizer"]
    assert told == found[: len(told)]
    assert not any("small operators" in one.title for one in found)
    assert [one.gain_ns for one in told] == ([] if gain is None else [pytest.approx(gain * STEP, rel=0.05)])
    assert all("updates 20 parameters one by one" in one.title for one in told)


@pytest.mark.parametrize("written", [["act"], []], ids=["the program's own", "JAX's"])
def test_jitted_functions_that_the_program_calls_itself_count_by_their_part_of_the_step(written: list[str]) -> None:
    # Given 20 calls of 400 µs a step in the program's own lines, where no frame of JAX is seen
    training = sampled([((TRAIN,), "native")], "jax")
    training.rank.add("metadata", key="jax.state", value=json.dumps({"jit": [{"function": name} for name in written]}))
    thread = training.rank.thread(2)
    for step in range(training.steps):
        for number in range(20):
            at = step * STEP + number * 500_000
            training.rank.span(thread, "runtime", at, 400_000, "PjitFunction(act)", step=step)
    found = [one for one in training.findings() if one.cause == "many-small-operators"]
    assert [one.gain_ns for one in found] == ([pytest.approx(0.9 * 20 * 500_000, rel=0.2)] if written else [])
    assert all("the program calls 20 compiled functions one by one: act" in one.title for one in found)


@pytest.mark.parametrize(("cell", "part"), [("aten::gru_cell", 0.15), ("aten::lstm_cell", 0.65)])
def test_a_layer_of_lstm_is_one_operator_and_saves_most_of_its_cells(cell: str, part: float) -> None:
    training = looped(16, 32)
    for _ in range(32):
        training.call(cell, 1000, phase="forward")
    assert sum(finding.gain_ns or 0 for finding in training.findings()) == pytest.approx(part * 8_809_000, rel=0.01)
