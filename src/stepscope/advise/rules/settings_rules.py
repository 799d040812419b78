"""What was switched on and left on: anomaly detection, hooks, profilers, and gradients of what no optimizer trains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from stepscope.advise.calls import each, explained_within, of_step, recorded_calls, sizes, with_backward
from stepscope.advise.claims import Claim, Depth
from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.observed import Observed
from stepscope.advise.rules.besides_rules import outside_training, read_statistics
from stepscope.advise.tensor_parts import gradients
from stepscope.analyse.quantities import count_text, duration_text
from stepscope.trace.tables import columns_of

#: Parts of the time outside of operators that a profiler in C takes: least, usual, most.
_PROFILED = (0.15, 0.35, 0.65)
#: Fewest looks that tell a time.
_LOOKS = 4
#: The operators with which autograd looks for NaN, inside the evaluation of a node.
_NAN_CHECKS = ("aten::isnan", "aten::_is_any_true")
_NODE = "autograd::engine::evaluate_function"
#: Nodes of Paddle's backward, and that which adds a gradient up; operators that update a parameter or, together, many.
_PADDLE_NODE, _PADDLE_SUM, _UPDATE, _MANY = "GradNode", "GradNodeAccumulation", r"^\w+_ dygraph$", "merged|fused"
#: The file of torch that makes weights of others, and how often is too often in a step.
_PARAMETRIZE, _OFTEN = "torch/nn/utils/parametrize.py", 3
#: Where torch makes optimizers and their state, what fills it, and the part of the step from which on it is told.
_OPTIMIZERS, _MAKE = "torch/optim/", ("__init__", "add_param_group", "_init_group")
_STATE, _RENEWED = ("aten::zeros_like", "aten::clone"), 0.03
#: The file of torch whose functions check the arguments of distributions.
_DISTRIBUTIONS = "torch/distributions/distribution.py"
#: Convolutions, of which oneDNN has fast ones for the types below, and the parts of their time that these save: least,
#: usual, most.
_CONVOLUTIONS, _OF_ONEDNN = ("aten::convolution", "aten::convolution_backward"), "float"
_BY_ONEDNN = (0.4, 0.65, 0.85)
#: Weights without an optimizer from which on they are told.
_UNTRAINED = 2


def settings_left_on(observed: Observed) -> Iterator[Claim]:
    """Yield anomaly detection and hooks of the program that cost time in each step."""
    yield from _profilers(observed)
    if observed.framework == "torch":
        yield from _anomaly(observed)
        yield from _hooks(observed)
        yield from _argument_checks(observed)
        yield from _without_onednn(observed)
        yield from _parametrized(observed)
        yield from _renewed_optimizer(observed)
    elif observed.framework == "paddle":
        yield from _untrained(observed)


def _anomaly(observed: Observed) -> Iterator[Claim]:
    state, used = observed.facts.get("torch.state"), observed.facts.get("torch.used")
    said = isinstance(state, dict) and state.get("anomaly") is True
    said |= isinstance(used, dict) and bool(used.get("anomaly_entered"))
    if not said and not (columns_of(observed.tables, "spans", "name")["name"] == _NAN_CHECKS[0]).any():
        return
    calls = recorded_calls(observed)
    nodes = calls.filter(pl.col("name").str.starts_with(_NODE))
    checks = calls.filter(pl.col("outer").is_in(nodes["row"].implode()))
    checked = checks.filter(pl.col("name").is_in([*_NAN_CHECKS, "aten::item"]))
    # A node's own code may ask for NaN; autograd does so after every node.
    seen = len(checked.filter(pl.col("name") == _NAN_CHECKS[0])) >= max(len(nodes) / 2, 1)
    if not seen and not said:
        return
    looks = observed.looks.filter(pl.col("stack").is_in(_stacks_with(observed, "traceback.py", "format_stack")))
    traced = float(looks["time"].sum())
    time = traced + float(checked["time"].sum())
    evidence = [Evidence(text="anomaly detection of autograd is on in the steps")]
    if traced:
        evidence.append(
            Evidence(text=f"the stack of each operator is written down: {duration_text(traced)} a step", value=traced,
                     unit="ns", result="python_lines")
        )  # fmt: skip
    if len(checked):
        evidence.append(
            Evidence(text=f"each gradient is searched for NaN: {duration_text(float(checked['time'].sum()))} a step",
                     value=float(checked["time"].sum()), unit="ns", result="operator_details", operator="aten::isnan")
        )  # fmt: skip
    finding = Finding(
        cause="anomaly-mode",
        title=f"{of_step(observed, time)} is autograd's anomaly detection",
        gain_ns=round(time), gain_low_ns=round(0.7 * time), gain_high_ns=round(1.4 * time),
        basis="the operators that look for NaN, and the samples in which stacks are written down",
        confidence=Confidence.MEASURED if seen else Confidence.LIKELY,
        evidence=tuple(evidence),
        remedy="Remove torch.autograd.set_detect_anomaly(True), or enter torch.autograd.detect_anomaly() only while "
        "you look for a NaN.",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, observed.explained(looks) | explained_within(calls, checked))


def _argument_checks(observed: Observed) -> Iterator[Claim]:
    """Distributions that look at every number they are given."""
    looks = observed.looks_through(_DISTRIBUTIONS, "__init__", "_validate_sample")
    time, count = float(looks["time"].sum()), int(looks["count"].sum())
    if count < _LOOKS:
        return
    error = time / count**0.5
    finding = Finding(
        cause="argument-checks",
        title=f"{of_step(observed, time)} torch.distributions checks the parameters and values it is given",
        gain_ns=round(time), gain_low_ns=round(max(time - 2 * error, 0)), gain_high_ns=round(time + 2 * error),
        basis="the samples in which a distribution checks its arguments",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"{count} samples in the checks of torch/distributions, {duration_text(time)} a step",
                     value=time, unit="ns", result="python_lines"),
        ),
        remedy="Switch the checks off when the training runs: "
        "torch.distributions.Distribution.set_default_validate_args(False), or validate_args=False for one.",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, observed.explained(looks))


def _without_onednn(observed: Observed) -> Iterator[Claim]:
    """Convolutions that torch computes by itself, for oneDNN is switched off."""
    state = observed.facts.get("torch.state")
    if observed.summary.on_device or not isinstance(state, dict) or state.get("mkldnn_enabled") is not False:
        return
    calls = recorded_calls(observed)
    slow = calls.filter(pl.col("name").is_in(_CONVOLUTIONS) & pl.col("dtypes").str.contains(_OF_ONEDNN))
    time = float(slow["time"].sum())
    low, usual, high = (round(part * time) for part in _BY_ONEDNN)
    finding = Finding(
        cause="onednn-off",
        title=f"{of_step(observed, time)} convolutions run without oneDNN, which is switched off",
        gain_ns=usual, gain_low_ns=low, gain_high_ns=high,
        basis="the operators of these convolutions, of which oneDNN saves two thirds",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"torch.backends.mkldnn.enabled is off, and {duration_text(time)} a step are convolutions "
                     "without it", value=time, unit="ns", result="operator_details",
                     operator=_CONVOLUTIONS[0]),
        ),
        remedy="Leave torch.backends.mkldnn.enabled at True, its default; a part of the program that needs it off can "
        "say so alone: with torch.backends.mkldnn.flags(enabled=False).",
        operator=_CONVOLUTIONS[0],
    )  # fmt: skip
    if time:
        yield Claim(finding, Depth.CAUSE, explained_within(calls, slow))


def _renewed_optimizer(observed: Observed) -> Iterator[Claim]:
    """An optimizer that is made in each step, and its state with it."""
    steps = observed.manifest.get("steps")
    if not isinstance(steps, dict) or not steps.get("renewed"):
        return
    through = [
        stack
        for stack, frames in observed.stacks.items()
        if any(_OPTIMIZERS in one.file and one.function.rpartition(".")[2] in _MAKE for one in frames)
    ]
    calls, looks = recorded_calls(observed), observed.looks.filter(pl.col("stack").is_in(through))
    state = calls.filter((pl.col("phase") == "optimizer") & pl.col("name").is_in(_STATE) & (pl.col("outer") < 0))
    time = max(float(state["time"].sum()), float(looks["time"].sum()))
    if observed.share(time) < _RENEWED:
        return
    finding = Finding(
        cause="renewed-optimizer",
        title=f"{of_step(observed, time)} the program makes an optimizer for each step, and its state with it",
        gain_ns=round(time), gain_low_ns=round(0.7 * time), gain_high_ns=round(1.5 * time),
        basis="the samples in which it and its state are made, at least the operators that fill the state",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"optimizers of one class step once each; making them takes {duration_text(time)} a step",
                     value=time, unit="ns", result="python_lines"),
        ),
        remedy="Make the optimizer once, before the loop; moments that begin at zero in each step average nothing. To "
        "begin anew on purpose, clear its state now and then: optimizer.state.clear().",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, explained_within(calls, state) | observed.explained(looks))


def _parametrized(observed: Observed) -> Iterator[Claim]:
    """Weights that are made of others (orthogonal, of a bounded norm), and anew each time that a layer takes them."""
    looks = observed.looks_through(_PARAMETRIZE, "get_parametrized", "forward")
    if looks["count"].sum() < _LOOKS:
        return
    calls = recorded_calls(observed)
    learned = gradients(calls)
    forward = calls.filter((pl.col("outer") < 0) & (pl.col("phase") == "forward"))
    alike = forward.group_by("name", "shapes").agg(pl.len(), pl.col("time").sum()).sort("time", descending=True)
    of = each(alike["shapes"], lambda text: learned.get((sizes(text) or ((),))[0]), pl.Int64())
    alike = alike.with_columns(often=pl.col("len") / of).filter(pl.col("often") >= _OFTEN)
    if alike.is_empty():
        return
    often, made = float(alike["often"][0]), forward.join(alike, on=["name", "shapes"], how="semi")
    ran = with_backward(calls, made)
    time = float(looks["time"].sum()) + float(ran["time"].sum()) - float(made["time"].sum())
    gain = time * (1 - 1 / often)
    finding = Finding(
        cause="repeated-parametrization",
        title=f"{of_step(observed, time)} weights with a parametrization are made anew, {often:.0f} times a step",
        gain_ns=round(gain), gain_low_ns=round(0.7 * gain), gain_high_ns=round(time),
        basis="the samples in the parametrizations and their nodes of the backward, of which one of each stays",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{int(looks['count'].sum())} samples in torch/nn/utils/parametrize.py, "
                     f"{duration_text(time)} a step with the backward", value=time, unit="ns", result="python_lines"),
        ),
        remedy="Make them once a step: with torch.nn.utils.parametrize.cached(): around the forward.",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, {**explained_within(calls, ran), **observed.explained(looks)})


def _hooks(observed: Observed) -> Iterator[Claim]:
    hooks = _own_hooks(observed)
    if not hooks:
        return
    found: dict[int, tuple[str, int, str]] = {}
    for stack, frames in observed.stacks.items():
        for frame in frames:
            hook = hooks.get((frame.file, frame.function.rpartition(".")[2]))
            if frame.own and hook is not None:
                found[stack] = (frame.file, hook[0], frame.function)
    looks = observed.looks.filter(pl.col("stack").is_in(list(found)))
    if looks["count"].sum() < _LOOKS:
        return
    read = _read_in(observed, looks)
    time = max(float(looks["time"].sum()), float(read["time"].sum()))
    places = list(dict.fromkeys(found.values()))
    named = ", ".join(
        f"{function.rpartition('.')[2]} ({observed.place(file, line)})" for file, line, function in places[:2]
    )
    many = sum(hooks[file, function.rpartition(".")[2]][1] for file, _, function in places)
    error = time / max(int(looks["count"].sum()), 1) ** 0.5
    finding = Finding(
        cause="hooks-left-on",
        title=f"{of_step(observed, time)} runs in hooks of the model: {named}",
        gain_ns=round(time), gain_low_ns=round(max(time - 2 * error, 0)), gain_high_ns=round(time + 2 * error),
        basis="the samples in which a hook runs, what it calls included; at least the operators of what it reads",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"{count_text(many, 'place')} with such a hook, "
                     f"{duration_text(time)} a step", value=time, unit="ns", result="python_lines",
                     source=f"{places[0][0]}:{places[0][1]}"),
        ),
        remedy="Remove the hook when it is not needed: keep what register_forward_hook returns and call its remove(); "
        "or let it do its work only every hundredth step.",
        operator=named,
    )  # fmt: skip
    explained = explained_within(recorded_calls(observed), read) | observed.explained(looks)
    yield Claim(finding, Depth.CAUSE, explained)


def _read_in(observed: Observed, hooks: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that compute numbers which hooks read: all, if the looks see less native work beside."""
    beside = observed.looks.filter(outside_training() & (pl.col("state") == "native"))
    beside = beside.filter(~pl.col("stack").is_in(hooks["stack"].implode()))
    read = read_statistics(observed)
    return read if beside["time"].sum() < hooks["time"].sum() else read.clear()


def _profilers(observed: Observed) -> Iterator[Claim]:
    """A profiler or tracer of Python that was on when the window opened."""
    python = observed.facts.get("python")
    said = python if isinstance(python, dict) else {}
    on = [(name, said[name]) for name in ("profile", "trace") if said.get(name)]
    if not on:
        return
    name, place = on[0]
    said_of = place if isinstance(place, dict) else {"function": place}
    named = str(said_of.get("function") or place)
    own = observed.looks.filter(pl.col("stack").is_in(_stacks_through(observed, said_of)))
    python = observed.looks.filter(pl.col("state") == "python")
    seen = float(own["time"].sum())
    time = max(float(python["time"].sum()), _outside_operators(observed)) - seen
    low, gain, high = (seen + part * max(time, 0.0) for part in _PROFILED)
    shown = f"the profiler's own frames take {duration_text(seen)}" if seen else "part of which is the profiler's"
    finding = Finding(
        cause="profiler-left-on",
        title=f"{named} is called at every Python call by sys.set{name}; "
        f"{of_step(observed, seen + max(time, 0.0))} are outside of operators",
        gain_ns=round(gain), gain_low_ns=round(low), gain_high_ns=round(min(high, observed.step_ns)),
        basis=f"the time outside of operators, {shown}",
        confidence=Confidence.LIKELY,
        evidence=(Evidence(text=f"sys.get{name}() is {named} on the training thread when recording begins"),),
        remedy="Remove the profiler, debugger or coverage tool from the training: profiler.disable(), "
        f"sys.set{name}(None); cProfile runs while python -m cProfile or Profile.enable() is on.",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, observed.explained(python) | observed.explained(own))


def _untrained(observed: Observed) -> Iterator[Claim]:
    """Gradients of Paddle for more weights than optimizers update, such as those of a network below a new head.

    Operators of Paddle have no shapes: which weights are trained is not known. The backward comes to those of the last
    layers first, and what lies behind as many sums of gradients as there are updates is for nothing.
    """
    calls, steps = recorded_calls(observed), observed.summary.steps.count
    spans = columns_of(observed.tables, "spans", "name", "step").drop_nulls("step")
    backwards = (spans["name"].cast(pl.String) == "Gradient Backward").sum()
    named = calls.filter((pl.col("phase") == "optimizer") & pl.col("name").str.contains(_UPDATE))
    nodes = calls.filter(pl.col("name").str.contains(_PADDLE_NODE, literal=True) & (pl.col("outer") < 0))
    sums = pl.col("name").str.ends_with(_PADDLE_SUM)
    many, trained = int(nodes.select(sums.sum()).item() or 0), len(named)
    if not steps or backwards != steps or named["name"].str.contains(_MANY).any():
        return
    if not trained or trained % steps or many < trained + _UNTRAINED * steps:
        return
    ordered = nodes.sort("step", "ts").with_columns(before=sums.cast(pl.Int64).cum_sum().over("step"))
    chosen = ordered.filter(pl.col("before") >= trained // steps).drop("before")
    backward = sum(one.share for one in observed.summary.phases if one.name == "backward") * observed.step_ns
    time = backward * float(chosen["time"].sum()) / max(float(nodes["time"].sum()), 1.0)
    finding = Finding(
        cause="teacher-with-gradients",
        title=f"{of_step(observed, time)} the backward computes gradients that no optimizer uses",
        gain_ns=round(time), gain_low_ns=round(0.5 * time), gain_high_ns=round(1.2 * time),
        basis="the part of the backward behind as many sums of gradients as optimizers update weights",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"gradients of {many / steps:.0f} weights are added up in a step, and optimizers update "
                     f"{trained // steps}", value=many / steps, result="operator_details"),
        ),
        remedy="Run the network that is not trained under paddle.no_grad(); or turn its gradients off: "
        "for weight in backbone.parameters(): weight.stop_gradient = True.",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, explained_within(calls, chosen))


def _outside_operators(observed: Observed) -> float:
    """Return the time on a core outside of the framework's operators, ns per step; 0 if that is unknown."""
    busy = observed.part("computing")
    if busy is None or observed.summary.on_device or observed.summary.sampled < 1:
        return 0.0
    waits = observed.looks.filter(~pl.col("state").is_in(["python", "native", "collecting"]))
    return max(observed.step_ns - busy - float(waits["time"].sum()), 0.0)


def _stacks_through(observed: Observed, place: dict[str, Any]) -> list[int]:
    """Return the stacks through a function of Python code; none for one in C, which has no file."""
    file, function = place.get("file"), str(place.get("function") or "").rpartition(".")[2]
    return [
        stack
        for stack, frames in observed.stacks.items()
        if file and any(frame.file == file and frame.function.rpartition(".")[2] == function for frame in frames)
    ]


def _own_hooks(observed: Observed) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the hooks of the facts by file and name of the function: the line it begins at, and how many have it."""
    state, used = observed.facts.get("torch.state"), observed.facts.get("torch.used")
    listed: list[dict[str, Any]] = []
    if isinstance(state, dict):
        listed += state.get("global_hooks") or []
        for model in state.get("models") or []:
            listed += model.get("hooks") or []
    if isinstance(used, dict):
        listed += used.get("tensor_hooks") or []
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for hook in listed:
        file, line, name = hook.get("file"), hook.get("line"), str(hook.get("function") or "")
        if file and line is not None:
            _, before = found.get((file, name.rpartition(".")[2]), (0, 0))
            many = int(hook.get("count") or hook.get("registered") or 1)
            found[file, name.rpartition(".")[2]] = (int(line), before + many)
    return found


def _stacks_with(observed: Observed, file: str, function: str) -> list[int]:
    """Return the stacks in which a function of Python's own library runs, which the program itself did not call."""
    found = []
    for stack, frames in observed.stacks.items():
        own = next((place for place, frame in enumerate(frames) if frame.own), len(frames))
        if any(frame.file.endswith(f"/{file}") and frame.function.endswith(function) for frame in frames[:own]):
            found.append(stack)
    return found
