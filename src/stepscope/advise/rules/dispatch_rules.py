"""Many small operators: the time goes into calling them, not into what they compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import inf, sqrt
from typing import Any, NamedTuple

import polars as pl

from stepscope.advise.calls import (
    CELLS,
    explained_calls,
    in_order,
    multiplying,
    of_step,
    outermost,
    recorded_calls,
    sizes,
    trained_parameters,
    within,
)
from stepscope.advise.claims import Claim, Depth
from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.observed import Observed
from stepscope.advise.rules.python_rules import READS, converting
from stepscope.advise.trainers import trainer_says
from stepscope.analyse.operators.gradient_use import evaluated
from stepscope.analyse.operators.operator_calls import operator_names
from stepscope.analyse.quantities import duration_text
from stepscope.trace.tables import Tables, columns_of

#: How often a step calls an operator with the same parameters, from which on it is a loop.
_REPEATS = 8
#: A call that takes longer, ns, is not dominated by the call itself.
_SMALL_NS = 150_000
#: A call of a whole model that takes longer, ns, is not dominated by calling its operators.
_LAYER_NS = 1_000_000
#: A call of JAX, or the Python between two, that takes longer, ns, is not that of a single operator: under `grad`,
#: which traces each operator, one takes a few hundred microseconds.
_DISPATCH_NS = 1_000_000
#: A call that takes this many times the median of its like was interrupted.
_INTERRUPTED = 4
#: Parts of the time of operators outside of jit that go away inside: least, usual, most. The first are of the time that
#: samples of the stacks tell, the others of recorded calls, which recording lengthens.
_JITTED, _JITTED_CALLS = (0.6, 0.9, 1.0), (0.5, 0.7, 1.0)
#: The time in JAX's own code, such as that of `grad`, counts up to this multiple of the time of such calls; all of it
#: counts where the steps were found so: then nothing of them is compiled.
_BESIDE_CALLS, UNJITTED = 2.0, "gradients computed outside of jit"
#: Operators outside of jit from which on they are many.
_OUTSIDE = 16
#: Operators that take parameters; the first input is the data. MindSpore calls one for the weight and one for the bias.
_OF_MINDSPORE = ("MatMul", "BiasAdd", "Conv2D", "MatMulExt", "DenseExt", "Conv2DExt")
_PRODUCTS = ("aten::matmul", "aten::mm")
_PARAMETRIC = ("aten::linear", "aten::conv1d", "aten::conv2d", "aten::conv3d", *_PRODUCTS, *_OF_MINDSPORE)
#: Layers of torch that loop over time steps themselves; what they call is not repeated by the program.
_RECURRENT = ("aten::gru", "aten::lstm", "aten::rnn_tanh", "aten::rnn_relu")
_ACCUMULATES = ("torch::autograd::AccumulateGrad", "GradNodeAccumulation")
_NODE = "autograd::engine::evaluate_function: "
#: Where a framework has its layers, and how it compiles a function.
_WORDS = {
    "torch": ("torch.nn", "torch.compile(model)"),
    "mindspore": ("mindspore.nn", "mindspore.jit"),
    "paddle": ("paddle.nn", "paddle.jit.to_static(model)"),
}
#: Operators that draw from a distribution; where nearly each call of a model has one, this decides the next input.
_DRAWS, _EACH_DRAWS = ("aten::multinomial", "aten::normal", "aten::bernoulli"), 0.8
#: What one call with all samples costs in calls with one sample.
_BATCHED = 2.0
#: Backwards of a step, each with a part of its batch, from which on they are many.
_PARTS = 4
#: Parts of the time of a loop over time steps that one fused operator, or a compiled function, saves.
_FUSED = (0.4, 0.65, 0.9)
#: The same where the loop calls torch's own cells: on a CPU, the layer runs their operators, too, and only makes the
#: products with the input at once. But for the LSTM, whose layer is one operator of oneDNN.
_OF_CELLS, _LSTM_CELL = (0.05, 0.15, 0.4), "aten::lstm_cell"
#: Operators of each time step that stay in the forward of such a layer on a CPU: most, usual, least.
_STAYS = (7.0, 4.5, 2.0)
#: Parts of the time of an optimizer that foreach saves on a CPU, which has no operator for a list of tensors: it calls
#: those for one tensor from C++.
_FOREACH = (0.2, 0.4, 0.6)
#: Bytes read and written per byte of parameters by a fused step of an optimizer: parameter, gradient, states.
_TRAFFIC = 7
#: Bytes a second of one core, at least and at most, where the machine's own speed is unknown.
_SLOW_COPY, _FAST_COPY = 4e9, 2e10
#: What a fused step takes at least, ns; for each tensor, about as long as so many operators of the loop: most, least;
#: and how many the loop has, where that was not recorded.
_CALL_NS = 50_000
_FOR_EACH, _OPERATORS = (4.0, 2.0), 12
#: Part of the step that the other optimizer saves for sure: a loop is what torch itself chooses on a CPU.
_SURE = 0.1
#: Looks at the training thread that tell how long a phase takes.
_LOOKS = 30
#: Fewest tensors of an optimizer that make a loop.
_TENSORS = 8

#: Phase of what is beside the model and its loader.
_BESIDE = ~pl.col("phase").is_in(["forward", "backward", "evaluation", "data"]).fill_null(value=False)
#: How the manifest says that steps end with gradients, because the program updates its parameters itself.
_UPDATES_ITSELF = "no optimizer of "
#: Functions of frameworks that compute gradients, and how their optimizers are used.
_DIFFERENTIATE = r"(?:^|\.)(?:grad|new_graph|end_graph|backward)$"
#: Operators for each parameter that take as long as the step of such an optimizer: Paddle's is Python for each of them.
_AS_LONG = {"mindspore": 2.0, "paddle": 8.0}
_OPTIMIZERS = {
    "mindspore": "optimizer = mindspore.nn.Adam(net.trainable_params()), then optimizer(gradients) in the step",
    "paddle": "optimizer = paddle.optimizer.Adam(parameters=model.parameters()), then optimizer.step() and "
    "optimizer.clear_grad() in the step",
}
#: Parameters that make a loop, operators for each of them that are more than one call, and looks that tell the time.
_OF_PARAMETERS, _ON_EACH, _UPDATE_LOOKS = 16, 2, 4

#: Operators of a step, called one by one, from which on they are many.
_EAGER = 64
#: Looks that bound the Python of a forward, and part of the step from which on they are told.
_EAGER_LOOKS, _TOLD = 10, 0.07
#: Parts of PyNative's time beside the operators that a compiled step saves: least, usual, most.
_PYNATIVE = (0.4, 0.65, 0.95)
#: Parts of a forward between its operators that to_static saves. It is Python; recording lengthens each operator.
_DYNAMIC = (0.3, 0.6, 1.0)


def dispatch(observed: Observed) -> Iterator[Claim]:
    """Yield loops over samples or time steps, and optimizers that update tensor by tensor."""
    yield from _optimizer(observed)
    if observed.framework == "jax":
        yield from _outside_of_jit(observed)
        return
    loops = list(_layers(observed) if observed.framework == "paddle" else _loops(observed))
    yield from loops or _one_by_one(observed)
    if observed.framework == "torch" and not loops:
        yield from _accumulated(observed)


def _outside_of_jit(observed: Observed) -> Iterator[Claim]:
    """Operators of JAX that are dispatched one by one, outside of any jitted function of the program."""
    steps = max(observed.summary.steps.count, 1)
    small = _dispatched(observed.tables, steps)
    each = len(small) / steps
    computing = observed.part("computing") or 0.0  # a jitted function computes it, too
    state = observed.facts.get("jax.state")
    written = [
        f"PjitFunction({one.get('function')})" for one in (state if isinstance(state, dict) else {}).get("jit") or ()
    ]
    of_jax, own = (small.filter(chosen) for chosen in (~pl.col("name").is_in(written), pl.col("name").is_in(written)))
    time = min(float(of_jax["spent"].sum()) / steps, observed.step_ns - computing)
    # What the program calls itself is in its own lines, and a part of the step: both contain the same waits for a core.
    called = float(own["until"].sum()) / max(observed.summary.steps.total_ns, 1) * observed.step_ns
    if each < _OUTSIDE or not time + called:
        return
    largest = small["name"].value_counts(sort=True)["name"].to_list()[:3]
    low, middle, high = _JITTED_CALLS
    if observed.looks["count"].sum() >= _LOOKS:
        part = float(observed.looks.filter("in_framework")["time"].sum()) / float(observed.looks["time"].sum())
        most = inf if UNJITTED in str(observed.manifest.get("steps")) else _BESIDE_CALLS * time
        time = min(max(part * observed.step_ns - computing, 0.0), most)
        low, middle, high = _JITTED
    mostly_own = called - computing > time
    time = min(time + max(called - computing, 0.0), observed.step_ns - computing)
    named = ", ".join(name.removeprefix("PjitFunction(").rstrip(")") for name in largest)
    finding = Finding(
        cause="many-small-operators",
        title=f"{of_step(observed, time)} "
        + (f"the program calls {each:.0f} compiled functions one by one" if mostly_own
           else f"JAX dispatches {each:.0f} operators one by one, outside of jit") + f": {named}",
        gain_ns=round(middle * time), gain_low_ns=round(low * time), gain_high_ns=round(high * time),
        basis="the time in JAX's own code less what is computed, or from each call of a single operator to the next "
        "one; the arguments of the function that replaces them stay",
        confidence=Confidence.MEASURED,
        evidence=(Evidence(text=f"{each:.0f} calls a step, {named} most of all", value=each, result="api_statistic"),),
        remedy="Put the whole update into one jitted function: @jax.jit def train_step(state, batch): …, with "
        + ("jax.vmap over the samples or jax.lax.scan over the pieces inside of it." if mostly_own
           else "jax.tree.map over the weights inside of it."),
        operator=named,
    )  # fmt: skip
    inside = pl.col("in_framework") | (pl.col("leaf") == pl.col("file")) & pl.lit(called > computing)
    seen = observed.explained(observed.looks.filter(inside.fill_null(value=False)))
    scale = min(time / max(sum(seen.values()), 1.0), 1.0) if called > computing else 1.0
    yield Claim(finding, Depth.CAUSE, {name: scale * ns for name, ns in seen.items()} or {"dispatch": time})


def _dispatched(tables: Tables, steps: int) -> pl.DataFrame:
    """Return the short calls of jitted functions that come several times a step, and what each of them ``spent``, ns.

    A call lasts ``until`` the next one begins: between them is the Python that JAX needs to get there. Of what calls of
    a function spent, those that were interrupted count as a multiple of the median.
    """
    spans = columns_of(tables, "spans", "track", "name", "ts", "dur", "step", "depth").drop_nulls("step")
    spans = spans.with_columns(pl.col("name").cast(pl.String)).filter(pl.col("name").str.starts_with("PjitFunction("))
    spans = spans.filter(pl.col("depth") == pl.col("depth").min().over("name")).sort("track", "ts")
    often = (pl.len().over("name") >= 2 * steps) & (pl.col("dur").median().over("name") <= _DISPATCH_NS)
    until = pl.col("ts").shift(-1).over("track", "step") - pl.col("ts")
    near = (until - pl.col("dur") <= _DISPATCH_NS) & often.shift(-1).over("track", "step")
    spans = spans.with_columns(until=pl.when(near).then(until).otherwise(pl.col("dur"))).filter(often)
    return spans.with_columns(spent=pl.min_horizontal("until", _INTERRUPTED * pl.col("until").median().over("name")))


def _layers(observed: Observed) -> Iterator[Claim]:
    """A layer of Paddle that is called many times for one backward."""
    steps = max(observed.summary.steps.count, 1)
    columns = ("name", "ts", "dur", "step", "kind", "phase", "depth")
    spans = columns_of(observed.tables, "spans", *columns).drop_nulls("step")
    spans = spans.filter(~pl.Series(evaluated(observed.tables, spans["ts"].to_numpy())))
    spans = spans.with_columns(pl.col("name", "kind", "phase").cast(pl.String))
    outer = spans.filter((pl.col("kind") == "phase") & (pl.col("phase") == "forward") & (pl.col("depth") == 0))
    backwards = len(spans.filter(pl.col("name") == "Gradient Backward")) / steps
    called = outer.group_by("name").agg(pl.len().alias("calls"), pl.col("dur").median()).sort("calls", descending=True)
    if called.is_empty() or not backwards:
        return
    repeats = float(called["calls"][0]) / steps / backwards
    models = called.filter(~pl.col("name").str.ends_with("Loss"))
    # A loop over samples calls all of the model; one over time steps a cell, and what comes behind it once.
    samples = min(models["calls"].to_list(), default=0) / steps >= backwards * repeats / 2
    if repeats < _REPEATS or float(called["dur"][0]) > _LAYER_NS:
        return
    phases = {part.name: part.share * observed.step_ns for part in observed.summary.phases}
    time = phases.get("forward", 0.0) + phases.get("backward", 0.0)
    finding = _loop(observed, time, repeats, samples=samples, calls=float(called["calls"].sum()) / steps)
    yield Claim(
        finding,
        Depth.CAUSE,
        {"phase forward": phases.get("forward", 0.0), "phase backward": phases.get("backward", 0.0)},
    )


def _optimizer(observed: Observed) -> Iterator[Claim]:
    state = observed.facts.get("torch.state")
    optimizers = state.get("optimizers") or [] if isinstance(state, dict) else []
    loops = [
        one for one in optimizers if one.get("implementation") == "for-loop" and ("fused" in one or "foreach" in one)
    ]
    tensors = sum(int(one.get("parameters") or 0) for one in loops)
    if not loops or len(loops) < len(optimizers) or tensors < _TENSORS or observed.summary.on_device:
        return
    phase = next((part for part in observed.summary.phases if part.name == "optimizer"), None)
    if phase is None or not phase.share:
        return
    # Waits for a core fall into the phase; the range of a step that calls a closure contains forward and backward.
    time = min(
        phase.share * observed.step_ns,
        _usual(observed, "Optimizer.step#"),
        _sampled(observed, pl.col("phase") == "optimizer"),
    )
    moved = _TRAFFIC * sum(int(one.get("parameter_bytes") or 0) for one in loops)
    stay, fused = _fused_part(observed, tensors), all("fused" in one for one in loops)
    low, high = (
        time * (1 - part) - 1e9 * moved / speed - _CALL_NS
        for part, speed in zip(stay, (_SLOW_COPY, _FAST_COPY), strict=True)
    )
    gain = (low + high) / 2
    if not fused:
        low, gain, high = (part * time for part in _FOREACH)
    if observed.share(low) < (_SURE if fused else _SURE / 2):
        return
    name = str(loops[0].get("class"))
    change = f"torch.optim.{name}(model.parameters(), …, {'fused' if fused else 'foreach'}=True)"
    change = trainer_says(observed, "fused optimizer", change) if name in {"Adam", "AdamW"} else change
    finding = Finding(
        cause="per-parameter-optimizer",
        title=f"{of_step(observed, time)} {name} updates {tensors} tensors one by one",
        gain_ns=round(gain), gain_low_ns=round(max(low, 0.0)), gain_high_ns=round(max(high, gain)),
        basis="the optimizer's phase of the step less one pass over parameters, gradients and states, and what a fused "
        "step still does for each tensor"
        if fused else "the optimizer's phase of the step, of which two fifths are Python that foreach replaces",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"torch runs {name} as a loop over {tensors} tensors", value=float(tensors)),
            Evidence(text=f"the optimizer takes {duration_text(time)} a step", value=time, unit="ns",
                     result="step_trace_time"),
        ),
        remedy=f"Update all tensors in one call: {change}.",
        operator=f"Optimizer.step#{name}.step",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, {"phase optimizer": time})


def _fused_part(observed: Observed, tensors: int) -> tuple[float, float]:
    """Return the parts of an optimizer's loop that a fused step does for each tensor, too: most and least."""
    calls = recorded_calls(observed)
    each = len(calls.filter((pl.col("phase") == "optimizer") & (pl.col("outer") < 0))) / tensors
    each /= max(observed.summary.steps.count, 1)
    most, least = (min(stay / (each if each >= 1 else _OPERATORS), 1.0) for stay in _FOR_EACH)
    return most, least


def _usual(observed: Observed, name: str) -> float:
    """Return the time per step of spans whose names begin so, ns, with the median of all; infinite without any."""
    spans = columns_of(observed.tables, "spans", "name", "dur", "step").drop_nulls("step")
    found = spans.filter(pl.col("name").cast(pl.String).str.starts_with(name))["dur"]
    steps = max(observed.summary.steps.count, 1)
    return float(found.median() or 0) * len(found) / steps if len(found) else inf  # type: ignore[arg-type]


def _sampled(observed: Observed, mine: pl.Expr, least: int = _LOOKS) -> float:
    """Return what some looks take per step at most, ns: two errors above; infinite where there are less of all."""
    looks = observed.looks
    chosen, count = looks.filter(mine), float(looks["count"].sum())
    if count < least:
        return inf
    each = float(looks["time"].sum()) / count
    return float(chosen["time"].sum()) + 2 * each * sqrt(max(float(chosen["count"].sum()), 1.0))


def _loops(observed: Observed) -> Iterator[Claim]:
    names, parameters = operator_names(observed.tables), trained_parameters(observed)
    if not parameters and not any(name.startswith(_ACCUMULATES) for name in names):
        return
    calls, steps = recorded_calls(observed), observed.summary.steps.count
    accumulated = calls.filter(pl.any_horizontal(pl.col("name").str.starts_with(name) for name in _ACCUMULATES))
    learned = Counter(shape for text in accumulated["shapes"].to_list() for shape in sizes(text)[:1] if len(shape) > 1)
    layers = within(calls, calls.filter(pl.col("name").is_in(_RECURRENT)))["row"]
    with_weights = calls.filter(
        pl.col("name").is_in(_PARAMETRIC) & (pl.col("phase") != "backward") & ~pl.col("row").is_in(layers.implode())
    )
    with_weights = outermost(calls, with_weights)  # a layer calls a product
    called: Counter[tuple[int, ...]] = Counter()
    single = 0
    for text in with_weights["shapes"].to_list():
        inputs = sizes(text)
        if len(inputs) > 1 and (parameters or inputs[1] in learned):
            called[inputs[1]] += 1
            single += bool(inputs[0]) and inputs[0][0] == 1
    weights, total = steps * parameters or sum(learned[shape] for shape in called), sum(called.values())
    if not weights or total < _REPEATS * weights or total < _REPEATS * steps or _in_graphs(observed):
        return
    # With layers that are called once beside the loop, the mean is too low: most calls are those of the loop.
    often = sorted(count / max(learned[shape], steps) for shape, count in called.items() for _ in range(count))
    repeats = max(often[len(often) // 2] if learned else 0.0, total / weights)
    if float(with_weights["time"].sum()) * steps / total > _SMALL_NS:
        return
    of_loop = _repeated(calls, repeats, steps)
    samples = single > total / 2
    if len(calls.filter(pl.col("name").is_in(_DRAWS) & (pl.col("phase") != "data"))) >= _EACH_DRAWS * repeats * steps:
        return  # an agent acts by what its model says, and only then knows the next state
    alone = with_weights.filter(pl.col("phase") == "other").height > total / 2
    if alone:  # without gradients no phase has them
        if not samples:
            return  # each call may need what the one before it gave, such as the actions of an agent
        line = in_order(observed, calls)
        time = float(line.filter(pl.col("row").is_in(of_loop["row"].implode()))["until"].sum())
    else:
        time = _time_of(observed, calls, of_loop)
    cells = len(calls.filter(pl.col("name").is_in(CELLS))) >= repeats * steps and not observed.summary.on_device
    saved = _OF_CELLS if cells and not (calls["name"] == _LSTM_CELL).any() else _FUSED
    if not (cells or parameters or observed.summary.on_device):  # of torch on a processor it was measured
        each = len(outermost(calls, of_loop).filter(pl.col("phase") == "forward")) / max(called.values())
        low, usual, high = (min(max(1 - stay / max(each, 1.0), _OF_CELLS[1]), _FUSED[2]) for stay in _STAYS)
        saved = (low, usual, high)
    yield Claim(
        _loop(observed, time, repeats, samples=samples, calls=total / steps, saved=saved),
        Depth.CAUSE,
        explained_calls(of_loop),
    )


def _accumulated(observed: Observed) -> Iterator[Claim]:
    """A batch that is taken in many small parts, each with a backward of its own, before the optimizer's one step."""
    state, steps = observed.facts.get("torch.state"), max(observed.summary.steps.count, 1)
    said = state if isinstance(state, dict) else {}
    trained = trained_parameters(observed, ("torch",))
    names = columns_of(observed.tables, "spans", "name", "step").drop_nulls("step")["name"].cast(pl.String)
    updates = int(names.str.starts_with("Optimizer.step#").sum())
    if not trained or updates > steps * len(said.get("optimizers") or []) or observed.summary.on_device:
        return
    calls = recorded_calls(observed)
    # torch.autograd.grad ends in these nodes, too, and sums nothing.
    parts = len(calls.filter(pl.col("name") == _NODE + _ACCUMULATES[0])) / steps / trained
    layers = calls.filter(pl.col("name").is_in(_PARAMETRIC) & (pl.col("phase") == "forward"))
    layers = outermost(calls, layers)
    if parts < _PARTS or len(layers) < parts * steps or float(layers["time"].sum()) * steps / len(layers) > _SMALL_NS:
        return
    of_parts = _repeated(calls, parts, steps)
    beside = in_order(observed, calls).filter(pl.col("phase") == "other").join(of_parts, on="row", how="semi")
    time = _time_of(observed, calls, of_parts.filter(pl.col("phase") != "other")) + float(beside["until"].sum())
    gain = time * (1 - _BATCHED / parts) - multiplying(observed, of_parts)
    if observed.share(gain) < _TOLD:
        return
    rows = max((inputs[0][0] for text in layers["shapes"].unique() if (inputs := sizes(text)) and inputs[0]), default=0)
    finding = Finding(
        cause="many-small-operators",
        title=f"{of_step(observed, time)} a batch goes through the model in {parts:.0f} parts, each with a backward of "
        "its own; their operators are too small for the time that calling them takes",
        gain_ns=round(gain), gain_low_ns=round(0.6 * gain), gain_high_ns=round(time * (1 - 1 / parts)),
        basis="forward and backward of the parts, of which two stay and what their products compute",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{parts:.0f} sums of gradients a step for each of {trained} parameters, of {rows} rows each",
                     value=parts, result="operator_details"),
        ),
        remedy="Take larger parts: fewer steps of accumulation (gradient_accumulation_steps) with as many times larger "
        "batches give the same gradients, as far as the memory allows."
        if rows > 1 else
        "Take all samples at once: one backward of their mean loss gives the same gradients; those of each sample "
        "come from torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, x, y).",
    )  # fmt: skip
    own = ~pl.col("phase").is_in(["forward", "backward", "optimizer", "data"]).fill_null(value=False)
    seen = observed.explained(observed.looks.filter(own & pl.col("file").is_not_null()))
    scale = min(float(beside["until"].sum()) / max(sum(seen.values()), 1.0), 1.0)
    explains = explained_calls(of_parts) | {name: scale * ns for name, ns in seen.items()}
    yield Claim(finding, Depth.CAUSE, explains)


def _time_of(observed: Observed, calls: pl.DataFrame, chosen: pl.DataFrame) -> float:
    """Return what some calls take of forward and backward, ns per step, with the Python around them."""
    phases = {part.name: part.share * observed.step_ns for part in observed.summary.phases}
    of_model = calls.filter(pl.col("phase").is_in(["forward", "backward"]) & (pl.col("outer") < 0))
    part = float(outermost(calls, chosen)["time"].sum()) / max(float(of_model["time"].sum()), 1.0)
    return min(part, 1.0) * (phases.get("forward", 0.0) + phases.get("backward", 0.0))


def _repeated(calls: pl.DataFrame, repeats: float, steps: int) -> pl.DataFrame:
    """Return the calls that run about as often as the loop does, in forward and backward or without gradients."""
    model = calls.filter(pl.col("phase").is_in(["forward", "backward", "other"]))
    counts = model.group_by("name", "shapes").agg((pl.len() / steps).alias("often"))
    often = counts.filter(pl.col("often") >= 0.7 * repeats).select("name", "shapes")
    return model.join(often, on=["name", "shapes"], how="semi", nulls_equal=True, maintain_order="left")


def _loop(
    observed: Observed, time: float, repeats: float, *, samples: bool, calls: float, saved: tuple[float, ...] = _FUSED
) -> Finding:
    facts: dict[str, Any]
    nn, compiled = _WORDS.get(observed.framework, _WORDS["torch"])
    if samples:
        gain = time * (1 - min(_BATCHED / repeats, 0.9))
        vmap = "; torch.func.vmap does so for functions of one sample" if observed.framework == "torch" else ""
        facts = {
            "cause": "sample-loop",
            "title": f"{of_step(observed, time)} the model is called {repeats:.0f} times a step, with a sample each",
            "gain_low_ns": round(0.7 * gain), "gain_ns": round(gain), "gain_high_ns": round(time),
            "basis": "forward and backward of the repeated calls, of which one call with the whole batch stays",
            "remedy": "Call the model once with the whole batch: loss = loss_fn(model(x), y) instead of a loop over "
            f"samples{vmap}. Where a sample needs the result of the one before it, take several ones side by side.",
        }  # fmt: skip
    else:
        low, middle, high = (part * time for part in saved)
        # The backward of x[:, t] makes a gradient of the size of x for each t.
        unbind = " (and take its parts by x.unbind(1), not by x[:, t])" if observed.framework == "torch" else ""
        facts = {
            "cause": "many-small-operators",
            "title": f"{of_step(observed, time)} a loop calls the same layers "
            f"{repeats:.0f} times a step; the operators are too small for the time that calling them takes",
            "gain_low_ns": round(low), "gain_ns": round(middle), "gain_high_ns": round(high),
            "basis": "forward and backward of the repeated calls, of which a fused or compiled function saves most",
            "remedy": f"Use the framework's own layer for the loop ({nn}.LSTM, {nn}.GRU), move what does not "
            f"depend on the step before it out of the loop{unbind}, or compile the function: {compiled}.",
        }  # fmt: skip
    evidence = Evidence(
        text=f"{calls:.0f} calls of layers a step, {repeats:.0f} for each of their weights", value=calls,
        result="operator_details",
    )  # fmt: skip
    return Finding(**facts, confidence=Confidence.LIKELY, evidence=(evidence,))


def _in_graphs(observed: Observed) -> bool:
    """Return whether a compiled graph of MindSpore, which was recorded with what calls it, runs most operators."""
    spans = columns_of(observed.tables, "spans", "name", "kind", "step").drop_nulls("step")
    names = spans.filter(pl.col("kind").cast(pl.String) == "runtime")["name"].cast(pl.String)
    return int((names == "KernelLaunch").sum()) > int((names == "RunOp").sum())


class _Eager(NamedTuple):
    """Operators that are called one by one: by what, how many a step, time beside them, ns a step, and its text."""

    mode: str
    many: float
    time: float
    saved: tuple[float, float, float]
    basis: str
    remedy: str


def _one_by_one(observed: Observed) -> Iterator[Claim]:
    """Yield operators that PyNative or Paddle's dynamic graph dispatches one by one, and a compiled step would not."""
    if observed.summary.on_device or not observed.step_ns:
        return
    if observed.framework == "mindspore" and observed.looks["count"].sum() >= _LOOKS:
        yield from _pynative(observed)
    elif observed.framework == "paddle":
        yield from _dynamic(observed)


def _pynative(observed: Observed) -> Iterator[Claim]:
    """Gradients in PyNative: the training thread dispatches each operator, which a compiled step calls by itself."""
    steps = max(observed.summary.steps.count, 1)
    spans = columns_of(observed.tables, "spans", "name", "kind", "step").drop_nulls("step")
    names = spans.filter(pl.col("kind").cast(pl.String) == "runtime")["name"].cast(pl.String)
    many = float((names == "RunOp").sum()) / steps
    if many < _EAGER or (names == "RunGrad").sum() < steps:
        return
    reads = pl.col("stack").is_in(converting(observed, READS))
    looks = observed.looks.filter(pl.col("in_framework") & ~reads & (pl.col("phase") != "data").fill_null(value=True))
    time = float(looks["time"].sum()) - float(recorded_calls(observed)["self"].sum())
    remedy = (
        "Compile the step: @mindspore.jit on the function that calls value_and_grad and the optimizer, or "
        "mindspore.set_context(mode=mindspore.GRAPH_MODE). Shapes must stay the same from step to step."
    )
    basis = "the time in MindSpore's own code less that of the operators, most of which a compiled step does not have"
    yield from _eager_claim(observed, looks, _Eager("PyNative", many, time, _PYNATIVE, basis, remedy))


def _dynamic(observed: Observed) -> Iterator[Claim]:
    """A forward of Paddle whose operators are called from Python; to_static runs it as one program."""
    steps = max(observed.summary.steps.count, 1)
    calls = recorded_calls(observed).filter((pl.col("phase") == "forward") & (pl.col("outer") < 0))
    many, time = len(calls) / steps, float(calls["time"].sum())
    if many < _EAGER or time / many > _SMALL_NS:
        return
    whole = sum(part.share for part in observed.summary.phases if part.name == "forward") * observed.step_ns
    python = (pl.col("phase") == "forward") & pl.col("in_framework") & (pl.col("state") == "python")
    between = min(whole - time, _sampled(observed, python, _EAGER_LOOKS))
    basis = "the forward less its operators: Python that a program does not have; its operators stay"
    remedy = "Compile the model: model = paddle.jit.to_static(model)."
    yield from _eager_claim(
        observed, observed.looks.filter(python), _Eager("the dynamic graph", many, between, _DYNAMIC, basis, remedy)
    )


def _eager_claim(observed: Observed, looks: pl.DataFrame, found: _Eager) -> Iterator[Claim]:
    low, gain, high = (part * found.time for part in found.saved)
    if observed.share(gain) < _TOLD:
        return
    finding = Finding(
        cause="many-small-operators",
        title=f"{of_step(observed, found.time)} {found.mode} calls {found.many:.0f} operators one by one, which a "
        "compiled function would not",
        gain_ns=round(gain), gain_low_ns=round(low), gain_high_ns=round(high),
        basis=found.basis,
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{found.many:.0f} operators a step, {duration_text(found.time)} beside what they compute",
                     value=found.many, result="operator_details"),
        ),
        remedy=found.remedy,
    )  # fmt: skip
    seen = observed.explained(looks)
    scale = min(found.time / max(sum(seen.values()), 1.0), 1.0)
    yield Claim(finding, Depth.PLACE, {name: scale * ns for name, ns in seen.items()} or {"dispatch": found.time})


def updates_itself(observed: Observed) -> tuple[int, float] | None:
    """Return the parameters that a program of MindSpore or Paddle updates itself, in a loop, and operators of each."""
    steps = observed.manifest.get("steps") or {}
    if observed.framework not in _OPTIMIZERS or _UPDATES_ITSELF not in str(steps.get("rule")):
        return None
    calls, parameters = recorded_calls(observed), trained_parameters(observed)
    many = len(calls.filter((pl.col("outer") < 0) & _BESIDE)) / max(observed.summary.steps.count, 1)
    return None if parameters < _OF_PARAMETERS or many < _ON_EACH * parameters else (parameters, many / parameters)


def written_update(observed: Observed) -> Iterator[Claim]:
    """Yield the update of a program of MindSpore or Paddle that has no optimizer: operators for each parameter."""
    found = updates_itself(observed)
    if found is None:
        return
    (parameters, each), stay = found, _AS_LONG[observed.framework]
    asks = pl.col("leaf_function").str.contains(_DIFFERENTIATE) | pl.col("stack").is_in(converting(observed, READS))
    looks = observed.looks.filter(_BESIDE & pl.col("file").is_not_null() & ~asks.fill_null(value=False))
    time = float(looks["time"].sum())
    gain = time * max(1 - stay / each, 0.0)
    if looks["count"].sum() < _UPDATE_LOOKS or observed.share(gain) < _TOLD:
        return
    finding = Finding(
        cause="per-parameter-optimizer",
        title=f"{of_step(observed, time)} the program updates {parameters} parameters one by one, without an optimizer "
        f"of {observed.framework}{observed.most_seen(looks)}",
        gain_ns=round(gain), gain_low_ns=round(0.5 * gain), gain_high_ns=round(time),
        basis=f"the samples of such lines, of which {stay:.0f} of {each:.0f} operators for each parameter stay",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{each * parameters:,.0f} operators a step outside of forward and backward, {each:.0f} a "
                     "parameter", value=each * parameters, result="operator_details"),
        ),
        remedy=f"Use an optimizer of {observed.framework}, which calls fewer operators for each parameter: "
        f"{_OPTIMIZERS[observed.framework]}.",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, observed.explained(looks))
