"""Anomaly detection and profilers are told by what torch and Python say, and by the operators that they run."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.advise.observed import Observed
from stepscope.advise.rank_findings import found_in
from tests.unit.advise.rules.trainings import STEP, STEPS, Training
from tests.unit.analyse.build import ORIGIN


def half_seen(training: Training, inside: dict[str, Any]) -> None:
    """Let the samples of all steps see one half of each step in a frame that the program's main function calls."""
    training.run_steps()
    program = {"file": "/home/me/train.py", "line": 9, "function": "main"}
    for stack, frames in enumerate(([inside, program], [program])):
        training.rank.add("stacks", id=stack, frames=frames)
    for number in range(40):
        for stack, at in ((0, 0), (1, STEP // 2)):
            training.rank.add(
                "samples", ts=ORIGIN + number * STEP + at, dur=STEP // 2, cpu=STEP // 2, count=2, process=7, thread=7,
                name="MainThread", state="python", stack=stack,
            )  # fmt: skip


NODE = "autograd::engine::evaluate_function: MulBackward0"


def searching(*, checks: bool, **facts: Any) -> Training:
    training = Training(**facts)
    for number in range(4):
        training.call(NODE, 500_000, phase="backward", sequence=number)
        if checks:
            training.call("aten::isnan", 300_000, [[64, 64]], "backward", inside=True, shift=100)
    return training


@pytest.mark.parametrize("facts", [{}, {"torch__state": {"anomaly": True}}])
def test_anomaly_detection_is_told_by_its_search_for_nan(facts: dict[str, object]) -> None:
    [finding] = searching(checks=True, **facts).findings()
    assert finding.cause == "anomaly-mode"
    assert finding.gain_ns == pytest.approx(1_200_000)


def test_a_backward_without_it_has_no_finding() -> None:
    assert searching(checks=False, torch__state={"anomaly": False}).causes() == []


def test_a_profiler_in_c_costs_a_part_of_what_is_outside_of_operators() -> None:
    training = Training(python={"profile": {"function": "Profile", "file": None, "line": None}, "trace": None})
    training.call("aten::mm", 4_000_000, [[64, 64], [64, 64]], "forward")
    [finding] = training.findings()
    assert finding.cause == "profiler-left-on"
    assert finding.gain_ns == pytest.approx(0.35 * 6_000_000, rel=0.01)
    assert "Profile is called at every Python call by sys.setprofile" in finding.title


def test_a_tracer_in_python_costs_the_time_of_its_own_frames() -> None:
    tracer = {"function": "Tracer.trace", "file": "/home/me/debug.py", "line": 3}
    training = Training(python={"profile": None, "trace": tracer})
    training.run_steps()
    training.call("aten::mm", 5_000_000, [[64, 64], [64, 64]], "forward")
    program = {"file": "/home/me/train.py", "line": 9, "function": "main"}
    inside = {"file": "/home/me/debug.py", "line": 4, "function": "Tracer.trace"}
    for stack, frames in enumerate(([inside, program], [program])):
        training.rank.add("stacks", id=stack, frames=frames)
    for number in range(40):
        for stack, state, at, dur in ((0, "python", 0, 5_000_000), (1, "native", 5_000_000, 5_000_000)):
            training.rank.add(
                "samples", ts=ORIGIN + number * STEP + at, dur=dur, cpu=dur, count=2, process=7, thread=7,
                name="MainThread", state=state, stack=stack,
            )  # fmt: skip
    found = {finding.cause: finding.gain_ns for finding in training.findings()}
    assert found == {"profiler-left-on": pytest.approx(5_000_000, rel=0.01)}


@pytest.mark.parametrize("where", ["torch__state", "torch__used"])
def test_hooks_of_the_model_cost_what_runs_in_them(where: str) -> None:
    # Given a hook that the program registered on 12 layers, or on tensors, in which half of each step is seen
    hook = {"function": "Monitor.look", "file": "/home/me/monitor.py", "line": 20, "count": 12}
    fact: Any = {"models": [{"hooks": [hook]}]} if where == "torch__state" else {"tensor_hooks": [hook]}
    training = Training(**{where: fact})
    half_seen(training, {"file": "/home/me/monitor.py", "line": 24, "function": "Monitor.look"})
    found = {finding.cause: finding for finding in training.findings()}
    assert found["hooks-left-on"].gain_ns == pytest.approx(STEP / 2, rel=0.01)
    assert found["hooks-left-on"].title.endswith("runs in hooks of the model: look (monitor.py:20)")
    assert found["hooks-left-on"].evidence[0].text.startswith("12 places with such a hook")
    # Then what runs in the hook is told as the hook, and not again as Python of that line
    assert all("monitor.py" not in other.title for cause, other in found.items() if cause != "hooks-left-on")


@pytest.mark.parametrize("renewed", [True, False])
def test_an_optimizer_that_is_made_in_each_step_costs_what_fills_its_state(renewed: bool) -> None:
    training = Training()
    training.call("aten::mm", 5_000_000, [[64, 64], [64, 64]], "forward")
    for _ in range(4):
        training.call("aten::zeros_like", 500_000, [[512, 512]], "optimizer")
    found = found_in(Observed(training.rank.tables(), {"steps": {"renewed": renewed}}))
    told = [finding.gain_ns for finding in found if finding.cause == "renewed-optimizer"]
    assert told == ([pytest.approx(2_000_000, rel=0.01)] if renewed else [])


def test_numbers_that_a_hook_reads_are_the_hook() -> None:
    # Given a hook in half of each step, and operators of 6 ms outside of the training that compute what is read
    hook = {"function": "watch", "file": "/home/me/train.py", "line": 20, "count": 12}
    training = Training(torch__state={"models": [{"hooks": [hook]}]})
    half_seen(training, {"file": "/home/me/train.py", "line": 21, "function": "watch"})
    training.call("aten::std", 5_990_000, [[512, 512]], "other")
    training.call("aten::item", 10_000, [[]], "other")
    found = {finding.cause: finding.gain_ns for finding in training.findings()}
    assert found["hooks-left-on"] == pytest.approx(6_000_000, rel=0.01)
    assert "statistics-in-step" not in found


@pytest.mark.parametrize(("updates", "gain"), [(2, 4_000_000), (6, None)])
def test_gradients_of_paddle_for_weights_that_no_optimizer_updates_are_told(updates: int, gain: int | None) -> None:
    # Given a backward through a head and two layers below it with two weights each, and an optimizer of two or six
    training = Training()
    training.rank.rows["metadata"].clear()
    training.rank.add("metadata", key="profiler", value='"paddle.profiler"')
    thread = training.rank.thread(2)
    for step in range(STEPS):
        training.rank.span(thread, "phase", step * STEP, 6_000_000, "Gradient Backward", step=step, phase="backward")
    for _ in range(3):
        training.call("Global_MatmulGradNode", 1_900_000, phase="backward")
        for _ in range(2):
            training.call("Global_GradNodeAccumulation", 50_000, phase="backward")
    for _ in range(updates):
        training.call("adam_ dygraph", 10_000, phase="optimizer")
    found = {finding.cause: finding.gain_ns for finding in training.findings()}
    assert found == ({} if gain is None else {"teacher-with-gradients": pytest.approx(gain, rel=0.05)})


@pytest.mark.parametrize(("function", "told"), [("Distribution.__init__", True), ("Distribution.sample", False)])
def test_checks_of_distributions_cost_what_the_samples_see_in_them(function: str, told: bool) -> None:
    training = Training()
    half_seen(training, {"file": "/lib/torch/distributions/distribution.py", "line": 70, "function": function})
    found = {finding.cause: finding for finding in training.findings()}
    assert ("argument-checks" in found) is told
    if told:
        assert found["argument-checks"].gain_ns == pytest.approx(STEP / 2, rel=0.01)


@pytest.mark.parametrize(
    ("state", "kind", "told"),
    [
        ({"mkldnn_enabled": False}, "float", True),
        ({"mkldnn_enabled": True}, "float", False),
        ({"mkldnn_enabled": False}, "double", False),
        ({"mkldnn_enabled": False}, "", False),
        ({}, "float", False),
    ],
)
def test_convolutions_without_onednn_are_told_if_it_is_switched_off(
    state: dict[str, object], kind: str, told: bool
) -> None:
    training = Training(torch__state=state)
    shapes, types = [[8, 64, 8, 8], [64, 64, 3, 3]], {"dtypes": [kind, kind]} if kind else {}
    training.call("aten::convolution", 2_000_000, shapes, "forward", **types)
    training.call("aten::convolution_backward", 4_000_000, shapes, "backward", **types)
    found = {finding.cause: finding.gain_ns for finding in training.findings()}
    assert found.get("onednn-off") == (pytest.approx(0.65 * 6_000_000) if told else None)


@pytest.mark.parametrize("often", [1, 8])
def test_weights_that_are_made_anew_are_told_from_three_times_a_step_on(often: int) -> None:
    # Given a weight that an operator makes of its parameter, once or eight times a step, with a node of the backward
    training = Training()
    for number in range(often):
        training.call("aten::linalg_solve", 200_000, [[96, 96], [96, 96]], "forward", sequence=number)
        training.call("aten::linear", 20_000, [[32, 96], [96, 96]], "forward", sequence=100 + number)
    for number in range(often):
        training.call("autograd::engine::evaluate_function: X", 100_000, phase="backward", sequence=number)
    training.call("torch::autograd::AccumulateGrad", 1000, [[96, 96]], "backward")
    half_seen(training, {"file": "/lib/torch/nn/utils/parametrize.py", "line": 303, "function": "X.forward"})
    found = {finding.cause: finding for finding in training.findings()}
    assert ("repeated-parametrization" in found) is (often > 1)
    if often > 1:
        assert found["repeated-parametrization"].gain_ns == pytest.approx((STEP / 2 + 800_000) * 7 / 8, rel=0.01)
        assert "8 times a step" in found["repeated-parametrization"].title
