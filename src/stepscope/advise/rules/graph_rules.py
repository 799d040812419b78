"""Work of autograd that nobody needs: forwards without use, gradients that no optimizer takes, graphs of old steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import takewhile
from math import log

import polars as pl

from stepscope.advise.calls import elements, explained_calls, of_step, outermost, recorded_calls, sizes, within
from stepscope.advise.claims import Claim, Depth
from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.observed import Observed
from stepscope.analyse.quantities import bytes_text, count_text, duration_text, percent_text
from stepscope.trace.tables import columns_of

_NODE = "autograd::engine::evaluate_function"
_ACCUMULATES = "torch::autograd::AccumulateGrad"
#: Operators with parameters among their inputs.
_PARAMETRIC = (
    "aten::linear", "aten::addmm", "aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::convolution",
    "aten::embedding", "aten::embedding_bag", "aten::_embedding_bag", "aten::batch_norm", "aten::layer_norm",
    "aten::group_norm", "aten::lstm", "aten::gru",
)  # fmt: skip
#: Functions of torch.utils.checkpoint that run a forward again; part of the memory up to which that is needless.
_RECOMPUTES = ("unpack_hook", "recompute_fn")
_FREE = 0.5
#: Looks that tell the time of an evaluation.
_LOOKS = 10
#: Operators of a group that repeats a part of the model, forward or backward.
_REPEATS = 4


def graphs(observed: Observed) -> Iterator[Claim]:
    """Yield what autograd computes in each step although nobody needs it."""
    if observed.framework != "torch" or observed.summary.on_device:
        return
    calls = recorded_calls(observed)
    backward = calls.filter(pl.col("name").str.starts_with(_NODE) & (pl.col("outer") < 0))
    if backward.is_empty():
        return
    yield from _old_graph(observed, calls, backward)
    yield from _repeated_backward(observed, calls, backward)
    if observed.summary.compiling is None:  # a compiler runs operators to see what they do
        yield from _unused_forward(observed, calls)
    yield from _unused_gradients(observed, calls, backward)
    yield from _recomputed(observed, calls)


def _old_graph(observed: Observed, calls: pl.DataFrame, backward: pl.DataFrame) -> Iterator[Claim]:
    """Nodes of the backward that belong to forwards of earlier steps."""
    forward = calls.filter(pl.col("phase") == "forward")
    first = forward.group_by("step").agg(pl.col("sequence").min().alias("first"))
    old = backward.join(first, on="step").filter(pl.col("sequence") < pl.col("first"))
    old = old.filter(~pl.col("name").str.contains(_ACCUMULATES, literal=True))
    steps = observed.summary.steps.count
    if len(old) < 4 * steps or old["step"].n_unique() < steps:
        return
    inside = within(calls, old)
    time = float(old["time"].sum())
    finding = Finding(
        cause="growing-graph",
        title=f"{of_step(observed, time)} the backward goes through graphs of earlier "
        "steps",
        gain_ns=round(time), gain_low_ns=round(0.8 * time), gain_high_ns=round(1.4 * time),
        basis="the nodes of the backward whose forward ran in an earlier step; it grows with every step",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"{len(old) // steps} of {len(backward) // steps} nodes of a step's backward belong to "
                     "forwards of earlier steps", value=len(old) / steps, result="operator_details"),
        ),
        remedy="Cut the graph where the state is carried into the next step: state = state.detach(); then "
        "backward() needs no retain_graph=True. Add losses up as numbers: total += loss.item().",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, explained_calls(inside))


def _repeated_backward(observed: Observed, calls: pl.DataFrame, backward: pl.DataFrame) -> Iterator[Claim]:
    """Nodes of the backward that a step evaluates more than once: a graph that was kept for another loss."""
    nodes = backward.filter((pl.col("sequence") > 0) & ~pl.col("name").str.contains(_ACCUMULATES, literal=True))
    visits = nodes.sort("ts").with_columns(visit=pl.int_range(pl.len()).over("step", "sequence", "name"))
    again = visits.filter(pl.col("visit") > 0).drop("visit")
    steps = observed.summary.steps.count
    if len(again) < _REPEATS * steps or again["step"].n_unique() < steps:
        return
    if (calls["name"].str.starts_with("aten::") & (calls["phase"] == "backward") & (calls["sequence"] >= 0)).any():
        return  # the first one records a graph of its own: gradients of gradients need both
    most = int(visits["visit"].to_numpy().max()) + 1
    # Sums of gradients have no number: as many of them come again. What the engine does between nodes goes with them.
    sums = float(backward.filter(pl.col("name").str.contains(_ACCUMULATES, literal=True))["time"].sum())
    part = (float(again["time"].sum()) + sums * len(again) / len(nodes)) / max(float(backward["time"].sum()), 1.0)
    time = part * next((one.share * observed.step_ns for one in observed.summary.phases if one.name == "backward"), 0.0)
    finding = Finding(
        cause="repeated-backward",
        title=f"{of_step(observed, time)} the backward goes through the same graph again, {most} times a step",
        gain_ns=round(time), gain_low_ns=round(0.8 * time), gain_high_ns=round(1.3 * time),
        basis="the part of the backward in nodes that the same step has evaluated before; one backward of the sum of "
        "the losses evaluates each once",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"{len(again) // steps} of {len(nodes) // steps} nodes of a step's backward were evaluated "
                     "before in the step", value=len(again) / steps, result="operator_details"),
        ),
        remedy="Add the losses up and call backward() once: (loss_a + loss_b).backward() instead of "
        "loss_a.backward(retain_graph=True); loss_b.backward().",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, explained_calls(within(calls, again)))


def _unused_forward(observed: Observed, calls: pl.DataFrame) -> Iterator[Claim]:
    """Forwards whose graph is recorded and never used: no node of a backward belongs to them."""
    taken = calls.filter(pl.col("phase") == "backward")["sequence"].drop_nulls().unique()
    recorded = calls.filter(
        pl.col("sequence").is_not_null() & (pl.col("sequence") >= 0) & (pl.col("phase") == "other")
        & pl.col("name").str.starts_with("aten::") & ~pl.col("sequence").is_in(taken.implode())
    )  # fmt: skip
    unused = outermost(calls, recorded)
    parametric = recorded.filter(pl.col("name").is_in(_PARAMETRIC))
    used = calls.filter(pl.col("name").is_in(_PARAMETRIC) & (pl.col("phase") == "forward"))
    steps = observed.summary.steps.count
    keys = set(zip(used["name"].to_list(), _weights(used), strict=True))
    again = [key for key in zip(parametric["name"].to_list(), _weights(parametric), strict=True) if key in keys]
    within_steps = parametric["step"].n_unique()
    if len(parametric) < _REPEATS * max(within_steps, 1):
        return
    first, last = (
        parametric.group_by("step").agg(pl.col("ts").min()),
        parametric.group_by("step").agg(pl.col("ts").max()),
    )
    bounds = first.join(last, on="step", suffix="_last")
    unused = unused.join(bounds, on="step").filter(
        (pl.col("ts") >= pl.col("ts_last").clip(0, 0)) & (pl.col("time") > 0)
    )
    time = float(unused["time"].sum())
    repeated = len(again) >= 0.8 * len(parametric)
    what = "a second forward of the model" if repeated else "a forward"
    if within_steps < steps:  # not part of the step: it is scored on other data, now and then
        if repeated:
            yield _evaluation(observed, time, within_steps, explained_calls(within(calls, unused)))
        return
    finding = Finding(
        cause="unneeded-forward",
        title=f"{of_step(observed, time)} is {what} with gradients that no backward "
        "uses",
        gain_ns=round(time), gain_low_ns=round(0.5 * time), gain_high_ns=round(1.1 * time),
        basis="the operators that record a graph which no backward uses; under torch.no_grad() alone the smaller gain",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"{len(unused) // steps} operators a step, {duration_text(time)}, belong to no backward",
                     value=time, unit="ns", result="operator_details", operator=str(parametric["name"][0])),
        ),
        remedy="Use the result of the first forward: predictions = logits.detach().argmax(1). If another forward is "
        "needed, run it under torch.no_grad(), and not in every step.",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, explained_calls(within(calls, unused)))


def _evaluation(observed: Observed, time: float, steps: int, explains: dict[str, float]) -> Claim:
    every = observed.summary.steps.count / steps
    looks = _evaluating(observed, time)
    if looks["count"].sum() >= _LOOKS:  # they are of all steps, and see the Python between the operators
        time, explains = float(looks["time"].sum()), explains | observed.explained(looks)
    finding = Finding(
        cause="frequent-evaluation",
        title=f"{of_step(observed, time)} the model is evaluated, every {every:.0f} steps, and records a graph for it "
        "that no backward uses",
        gain_ns=round(0.95 * time), gain_low_ns=round(0.5 * time), gain_high_ns=round(1.3 * time),
        basis="the operators of such forwards in the recorded steps, of which a twentieth stays",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{steps} of {observed.summary.steps.count} recorded steps have forwards of the same layers "
                     "that belong to no backward", value=float(steps), result="operator_details"),
        ),
        remedy="Evaluate less often: if step % 500 == 0: evaluate(); under torch.no_grad() and model.eval().",
    )  # fmt: skip
    return Claim(finding, Depth.CAUSE, explains)


def _evaluating(observed: Observed, time: float) -> pl.DataFrame:
    """Return the looks in the program's function that calls the model and no backward, for about that time a step."""
    found: dict[str, list[int]] = defaultdict(list)
    for stack, frames in observed.stacks.items():
        outer = list(takewhile(lambda frame: not frame.file.endswith("torch/nn/modules/module.py"), reversed(frames)))
        for name in {f"{frame.file} {frame.function}" for frame in outer if frame.own and frame.function != "<module>"}:
            found[name].append(stack)
    functions = [observed.looks.filter(pl.col("stack").is_in(stacks)) for stacks in found.values()]
    training = pl.col("phase").is_in(["backward", "optimizer"])
    apart = [looks for looks in functions if looks.filter(training).is_empty() and (looks["phase"] == "forward").any()]
    near = [looks for looks in apart if time / 4 <= float(looks["time"].sum()) <= 4 * time]
    return min(near, key=lambda looks: abs(log(float(looks["time"].sum()) / time)), default=observed.looks.clear())


def _weights(calls: pl.DataFrame) -> list[tuple[tuple[int, ...], ...]]:
    """Return the shapes of the inputs of calls but for the data, whose sizes depend on the batch."""
    rows = calls.select("name", "shapes").iter_rows()
    return [tuple(shape for shape in sizes(text)[1 + (name == "aten::addmm") :] if shape) for name, text in rows]


def _unused_gradients(observed: Observed, calls: pl.DataFrame, backward: pl.DataFrame) -> Iterator[Claim]:
    """Gradients of parameters that no optimizer takes, such as those of a teacher."""
    sums = calls.filter(pl.col("name") == _ACCUMULATES)
    shapes = Counter(shape for text in sums["shapes"].to_list() for shape in sizes(text)[:1])
    updates = calls.filter(pl.col("phase") == "optimizer")
    updated = {shape for text in updates["shapes"].unique().to_list() for shape in sizes(text)}
    unused = {shape for shape in shapes if len(shape) > 1 and shape not in updated}
    steps = observed.summary.steps.count
    if not unused or not any(len(shape) > 1 for shape in updated) or updates["step"].n_unique() < steps:
        return
    with_weights = calls.filter(pl.col("name").is_in(_PARAMETRIC) & (pl.col("phase") == "forward"))
    foreign = [any(shape in unused for shape in sizes(text)[1:]) for text in with_weights["shapes"].to_list()]
    mine = with_weights.filter(pl.Series([not one for one in foreign], dtype=pl.Boolean))["sequence"].drop_nulls()
    theirs = (
        with_weights.filter(pl.Series(foreign, dtype=pl.Boolean))
        .group_by("step")
        .agg(pl.col("sequence").min().alias("low"), pl.col("sequence").max().alias("high"))
    )
    between = backward.join(theirs, on="step").filter(pl.col("sequence").is_between(pl.col("low"), pl.col("high")))
    between = between.filter(~pl.col("sequence").is_in(mine.implode()))
    lost = sums.filter(
        pl.Series([bool(set(sizes(text)[:1]) & unused) for text in sums["shapes"].to_list()], dtype=pl.Boolean)
    )
    time = float(between["time"].sum()) + float(lost["time"].sum())
    if not len(between):
        return
    count = sum(shapes[shape] for shape in unused) // steps
    part = sum(elements(shape) * shapes[shape] for shape in unused) / sum(elements(s) * shapes[s] for s in shapes)
    finding = Finding(
        cause="teacher-with-gradients",
        title=f"{of_step(observed, time)} the backward computes gradients that no "
        "optimizer uses",
        gain_ns=round(time), gain_low_ns=round(0.8 * time), gain_high_ns=round(1.25 * time),
        basis="the nodes of the backward between the operators with these parameters, and the sums of gradients",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"{count_text(count, 'parameter')} with a gradient whose shape no optimizer updates, "
                     f"{percent_text(part)} of the elements", value=float(count), result="operator_details"),
        ),
        remedy="Run the network that is not trained under torch.no_grad(): with torch.no_grad(): target = teacher(x); "
        "or teacher.requires_grad_(False) and detach() what it returns.",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, explained_calls(within(calls, pl.concat([between.select(calls.columns), lost]))))


def _recomputed(observed: Observed, calls: pl.DataFrame) -> Iterator[Claim]:
    """Forwards that the backward runs again (checkpointing), in a process that leaves most of the memory free."""
    layers = calls.filter(pl.col("name").is_in(_PARAMETRIC))
    first = layers.filter(pl.col("phase") == "forward").select("name", "shapes").unique()
    recorded = (pl.col("phase") == "backward") & (pl.col("sequence") >= 0) & pl.col("name").str.starts_with("aten::")
    again = calls.filter(recorded.fill_null(value=False))
    repeated = again.join(first, on=["name", "shapes"], how="semi", nulls_equal=True)
    looks = observed.looks_through("torch/utils/checkpoint.py", *_RECOMPUTES)
    used, most = _memory(observed)
    steps = observed.summary.steps.count
    if len(repeated) < steps or repeated["step"].n_unique() < steps or not used or used > _FREE * most:
        return
    time = max(float(outermost(calls, again)["time"].sum()), float(looks["time"].sum()))
    finding = Finding(
        cause="recomputation",
        title=f"{of_step(observed, time)} the backward computes parts of the forward again to save memory, of which "
        f"the process uses {bytes_text(used)} of {bytes_text(most)}",
        gain_ns=round(time), gain_low_ns=round(0.8 * time), gain_high_ns=round(1.3 * time),
        basis="the operators of the forward that the backward repeats, or the samples of it",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"{len(repeated) // steps} operators with parameters a step run again in the backward",
                     value=len(repeated) / steps, result="operator_details", operator=str(repeated["name"][0])),
            Evidence(text=f"the process has at most {bytes_text(used)} in memory", value=float(used), unit="bytes"),
        ),
        remedy="Keep what the forward computes: take torch.utils.checkpoint out, or gradient_checkpointing=False; or "
        "checkpoint only as many blocks as the memory needs.",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, {**explained_calls(within(calls, again)), **observed.explained(looks)})


def _memory(observed: Observed) -> tuple[int, int]:
    """Return the most memory that the process had, and what it may have, in bytes; 0 where that is unknown."""
    machine = observed.facts.get("machine")
    known = [machine.get(name) for name in ("memory_limit", "memory_bytes")] if isinstance(machine, dict) else []
    counters = columns_of(observed.tables, "counters", "name", "value")
    resident = counters.filter(pl.col("name").cast(pl.String) == "process memory")["value"].drop_nulls()
    return int(resident.max() or 0), int(min(filter(None, known), default=0))  # type: ignore[arg-type]
