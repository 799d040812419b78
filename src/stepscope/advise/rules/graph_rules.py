"""Work of autograd that nobody needs: forwards without use, gradients that no optimizer takes, graphs of old steps."""

from __future__ import annotations

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import takewhile
from math import log

import numpy as np
import polars as pl

from stepscope.advise.calls import (
    ACCUMULATES,
    PARAMETRIC,
    READS,
    elements,
    explained_calls,
    explained_within,
    in_order,
    of_step,
    outermost,
    recorded_calls,
    sizes,
    texts,
    within,
)
from stepscope.advise.claims import Claim, Depth
from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.forms.inputs_in_step import on_inputs, permutations, stacked_rows
from stepscope.advise.observed import Observed
from stepscope.analyse.quantities import bytes_text, count_text, duration_text
from stepscope.trace.tables import columns_of

_NODE = "autograd::engine::evaluate_function"
#: Functions of torch.utils.checkpoint that run a forward again; part of the memory up to which that is needless.
_RECOMPUTES, _RECOMPUTES_OF_PADDLE = ("unpack_hook", "recompute_fn"), "RecomputeFunction$"
_FREE = 0.5
#: Looks that tell the time of an evaluation.
_LOOKS = 10
#: Operators that draw from a distribution or read a number: an agent acts so. What comes less often than every so many
#: steps is the user's choice.
_ACTS = ("aten::multinomial", "aten::normal", "aten::bernoulli", "aten::_local_scalar_dense")
_OFTEN = 25
#: From so many evaluations on that the program announces, their recorded times tell what they take.
_ANNOUNCED = 3
_TO_NUMPY, _FROM_NUMPY = "aten::resolve_neg", "aten::lift_fresh"
#: Operators of a group that repeats a part of the model, forward or backward; those of a forward with the same weights.
_REPEATS, _AGAIN = 4, 2


def graphs(observed: Observed) -> Iterator[Claim]:
    """Yield what autograd computes in each step although nobody needs it."""
    if observed.framework not in ("torch", "paddle") or observed.summary.on_device:
        return
    calls = recorded_calls(observed)
    if observed.framework == "paddle":
        yield from _recomputed_by_paddle(observed, calls)
        yield from permutations(observed, calls)
        return
    backward = calls.filter(pl.col("name").str.starts_with(_NODE) & (pl.col("outer") < 0))
    if backward.is_empty():
        return
    yield from _old_graph(observed, calls, backward)
    yield from _repeated_backward(observed, calls, backward)
    if observed.summary.compiling is None:  # a compiler runs operators to see what they do
        yield from _unused_forward(observed, calls)
        yield from _beside_training(observed, calls)
        yield from on_inputs(observed, calls)
        yield from stacked_rows(observed, calls)
    yield from _unused_gradients(observed, calls, backward)
    yield from _recomputed(observed, calls)


def _old_graph(observed: Observed, calls: pl.DataFrame, backward: pl.DataFrame) -> Iterator[Claim]:
    """Nodes of the backward that belong to forwards of earlier steps."""
    forward = calls.filter(pl.col("phase") == "forward")
    first = forward.group_by("step").agg(pl.col("sequence").min().alias("first"))
    old = backward.join(first, on="step").filter(pl.col("sequence") < pl.col("first"))
    old = old.filter(~pl.col("name").str.contains(ACCUMULATES, literal=True))
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
    nodes = backward.filter((pl.col("sequence") > 0) & ~pl.col("name").str.contains(ACCUMULATES, literal=True))
    visits = nodes.sort("ts").with_columns(visit=pl.int_range(pl.len()).over("step", "sequence", "name"))
    again = visits.filter(pl.col("visit") > 0).drop("visit")
    steps = observed.summary.steps.count
    if len(again) < _REPEATS * steps or again["step"].n_unique() < steps:
        return
    if (calls["name"].str.starts_with("aten::") & (calls["phase"] == "backward") & (calls["sequence"] >= 0)).any():
        return  # the first one records a graph of its own: gradients of gradients need both
    most = int(visits["visit"].to_numpy().max()) + 1
    # Sums of gradients have no number: as many of them come again. What the engine does between nodes goes with them.
    sums = float(backward.filter(pl.col("name").str.contains(ACCUMULATES, literal=True))["time"].sum())
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
    yield Claim(finding, Depth.CAUSE, explained_within(calls, again))


def _unused_forward(observed: Observed, calls: pl.DataFrame) -> Iterator[Claim]:
    """Forwards whose graph is recorded and never used: no node of a backward belongs to them."""
    taken = calls.filter(pl.col("phase") == "backward")["sequence"].drop_nulls().unique()
    recorded = calls.filter(
        pl.col("sequence").is_not_null() & (pl.col("sequence") >= 0) & (pl.col("phase") == "other")
        & pl.col("name").str.starts_with("aten::") & ~pl.col("sequence").is_in(taken.implode())
    )  # fmt: skip
    unused = outermost(calls, recorded)
    parametric = recorded.filter(pl.col("name").is_in(PARAMETRIC))
    used = calls.filter(pl.col("name").is_in(PARAMETRIC) & (pl.col("phase") == "forward"))
    steps = observed.summary.steps.count
    keys = set(zip(used["name"].to_list(), _weights(used), strict=True))
    again = [key for key in zip(parametric["name"].to_list(), _weights(parametric), strict=True) if key in keys]
    within_steps, repeated = parametric["step"].n_unique(), len(again) >= 0.8 * len(parametric)
    if len(parametric) < (_AGAIN if repeated else _REPEATS) * max(within_steps, 1):
        return
    if _detached(calls, parametric, used):
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
    what = "a second forward of the model" if repeated else "a forward"
    if within_steps < steps:  # not part of the step: it is scored on other data, now and then
        if repeated:
            yield _evaluation(observed, time, within_steps, explained_within(calls, unused), graph=True)
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
    yield Claim(finding, Depth.CAUSE, explained_within(calls, unused))


def _beside_training(observed: Observed, calls: pl.DataFrame) -> Iterator[Claim]:
    """Forwards without gradients of the layers that are trained, in some of the steps: scores, or text that is written.

    Where the program announces its evaluations, the times of all of them are known, and another rule tells them.
    Where each forward is drawn from or read, an agent acts by it, and trains on what it sees then; unless what is drawn
    are tokens, which the model itself takes next.
    """
    announced = columns_of(observed.tables, "run_events", "name").filter(pl.col("name").cast(pl.String) == "evaluation")
    if len(announced) >= _ANNOUNCED:
        return
    layers = calls.filter(pl.col("name").is_in(PARAMETRIC))
    used = layers.filter(pl.col("phase") == "forward")
    keys = set(zip(used["name"].to_list(), _weights(used), strict=True))
    apart = layers.filter((pl.col("phase") == "other") & (pl.col("sequence").fill_null(-1) < 0))
    again = [key in keys for key in zip(apart["name"].to_list(), _weights(apart), strict=True)]
    apart = apart.filter(pl.Series(again, dtype=pl.Boolean))
    steps, within_steps = observed.summary.steps.count, apart["step"].n_unique()
    always = within_steps == steps
    if not within_steps or len(apart) < _REPEATS * within_steps or (always and not _read_each_step(calls, apart, used)):
        return
    bounds = apart.group_by("step").agg(begin=pl.col("ts").min(), end=pl.col("ts").max())
    line = in_order(observed, calls).join(bounds, on="step").filter(pl.col("ts").is_between("begin", "end"))
    acts = len(calls.join(bounds, on="step").filter(
        pl.col("ts").is_between("begin", "end") & pl.col("name").is_in(_ACTS)
    ))  # fmt: skip
    forwards = min(Counter(zip(apart["name"].to_list(), _weights(apart), strict=True)).values())
    if acts >= forwards / 2 and not apart["name"].str.contains("embedding").any():
        return
    time = float(line["until"].sum())
    if not always and _seldom(observed, time * steps / within_steps):
        return
    yield _evaluation(observed, time, within_steps, explained_within(calls, line), graph=False)


def _read_each_step(calls: pl.DataFrame, apart: pl.DataFrame, used: pl.DataFrame) -> bool:
    """Return whether each step reads what one forward without gradients gives, or takes it to NumPy, as scores do.

    An agent that acts has fewer samples than the training, draws, or trains on what NumPy makes of it. What a target
    or a teacher gives goes into the loss unread.
    """
    once = max(Counter(zip(apart["name"].to_list(), _weights(apart), strict=True)).values()) <= apart["step"].n_unique()
    ends = apart.group_by("step").agg(end=pl.col("ts").max())
    behind = calls.join(ends, on="step").filter(pl.col("ts") > pl.col("end"))
    layers = behind.filter(pl.col("name").is_in(PARAMETRIC)).group_by("step").agg(next=pl.col("ts").min())
    behind = behind.join(layers, on="step", how="left").filter(pl.col("ts") < pl.col("next").fill_null(2**62))
    reads = behind.filter(pl.col("name").is_in([*READS, _TO_NUMPY]))
    returns = behind.filter(pl.col("name").is_in([*_ACTS[:-1], _FROM_NUMPY]))
    every = reads["step"].n_unique() == apart["step"].n_unique()
    return once and _samples(apart) >= _samples(used) and every and returns.is_empty()


def _samples(layers: pl.DataFrame) -> int:
    """Return the most samples that a layer takes: the first size of its data. An embedding takes its weight first."""
    data = [sizes(shapes)["embedding" in name :][:1] for name, shapes in layers.select("name", "shapes").iter_rows()]
    return max((shape[0] for first in data for shape in first if shape), default=0)


def _seldom(observed: Observed, each: float) -> bool:
    """Return whether fewer steps of the run than one of 25 are longer than the others by half of this time, ns."""
    quiet = observed.run_steps["quiet"].to_numpy()
    return len(quiet) > 0 and bool((quiet > np.median(quiet) + each / 2).mean() < 1 / _OFTEN)


def _detached(calls: pl.DataFrame, unused: pl.DataFrame, used: pl.DataFrame) -> bool:
    """Return whether layers that a backward reaches take what a forward without one gives, cut off by ``detach()``.

    A discriminator takes what a generator makes so. If a forward of the same layers that a backward uses comes between
    the two, that one made what is cut.
    """
    cuts = calls.filter((pl.col("name") == "aten::detach") & (pl.col("phase") == "other"))
    columns = ("step", "ts", "shapes", "name")
    last = pl.concat(
        [one.select(columns).with_columns(lost=pl.lit(lost)) for one, lost in ((unused, True), (used, False))]
    )
    made = last.filter(pl.Series(_weights(last)).is_in(_weights(unused))) if len(last) else last
    cuts = (
        cuts.select("step", "ts", of="shapes")
        .sort("ts")
        .join_asof(made.sort("ts").select("step", "ts", "lost"), on="ts", by="step", check_sortedness=False)
    )
    cut = cuts.filter("lost").select("step", "of", at="ts")
    taken = cut.join(used.select("step", "ts", "shapes"), on="step").filter(pl.col("ts") > pl.col("at"))
    fed = {step for step, of, text in taken.select("step", "of", "shapes").iter_rows() if sizes(of)[0] in sizes(text)}
    return fed == set(unused["step"].to_list())


def _evaluation(observed: Observed, time: float, steps: int, explains: dict[str, float], *, graph: bool) -> Claim:
    every = observed.summary.steps.count / steps
    often = f"every {every:.0f} steps" if every > 1 else "in each step"
    looks = _evaluating(observed, time)
    if looks["count"].sum() >= _LOOKS:  # they are of all steps, and see the Python between the operators
        time, explains = float(looks["time"].sum()), explains | observed.explained(looks)
    finding = Finding(
        cause="frequent-evaluation",
        title=f"{of_step(observed, time)} the model is evaluated, {often}, "
        + ("and records a graph for it that no backward uses" if graph else "beside its training"),
        gain_ns=round(0.95 * time), gain_low_ns=round(0.5 * time), gain_high_ns=round(1.3 * time),
        basis="the operators of such forwards in the recorded steps, of which a twentieth stays",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{steps} of {observed.summary.steps.count} recorded steps have forwards of the same layers "
                     "that belong to no backward", value=float(steps), result="operator_details"),
        ),
        remedy="Evaluate less often: if step % 500 == 0: evaluate(); under torch.no_grad() and model.eval()."
        if graph else
        "Evaluate, or write samples, less often: if step % 500 == 0: evaluate().",
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

    def weights(name: str, text: str | None) -> tuple[tuple[int, ...], ...]:
        found = sizes(text)
        return found[:1] if "embedding" in name else tuple(filter(None, found[1 + (name == "aten::addmm") :]))

    return [weights(*row) for row in calls.select("name", "shapes").iter_rows()]


def _unused_gradients(observed: Observed, calls: pl.DataFrame, backward: pl.DataFrame) -> Iterator[Claim]:
    """Gradients that no optimizer takes: of parameters that none trains, or set to zero before one takes them."""
    sums, updates = calls.filter(pl.col("name") == ACCUMULATES), calls.filter(pl.col("phase") == "optimizer")
    if updates["step"].n_unique() < observed.summary.steps.count:
        return
    marks = _optimizer_calls(observed)
    nodes, sums = (one.with_columns(run=pl.Series(np.searchsorted(marks["ts"], one["ts"]))) for one in (backward, sums))
    lost, never = _lost(sums, updates, marks)
    layers = calls.filter(pl.col("name").is_in(PARAMETRIC) & (pl.col("phase") == "forward")).drop_nulls("sequence")
    weights = {number: _weights_of(*row) for number, *row in layers.select("sequence", "name", "shapes").iter_rows()}
    found: list[pl.DataFrame] = []
    for run, shapes in lost.items():
        mine = nodes.filter(pl.col("run") == run)
        here = [number for number in mine["sequence"].drop_nulls().unique().to_list() if number in weights]
        foreign = [number for number in here if shapes.intersection(weights[number])]
        between = pl.col("sequence").is_between(min(foreign, default=1), max(foreign, default=0))
        inner = mine.filter(between & ~pl.col("sequence").is_in(sorted({*here} - {*foreign})))
        passes = _passes_on(calls, inner)
        if passes:  # to layers that are trained: only the gradients of the weights are for nothing
            inner = inner.filter(pl.col("sequence").is_in(foreign)) if shapes <= never else inner.clear()
        inner = inner.with_columns(pl.col("time") * (0.5 if passes else 1.0))
        added = [shape in shapes for text in sums["shapes"].to_list() for shape in (sizes(text) or ((),))[:1]]
        of_run = pl.Series(added, dtype=pl.Boolean) & (sums["run"] == run)
        found += [inner.drop("run"), sums.filter(of_run).drop("run")] if len(inner) else []
    if found:
        yield _of_lost(observed, calls, pl.concat(found), lost, never)


def _weights_of(name: str, shapes: str | None) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the weights of a layer: a product takes its own turned, an embedding takes it first."""
    found = sizes(shapes)
    if "embedding" in name:
        return found[:1]
    return found[1:] if name != "aten::addmm" else tuple(shape[::-1] for shape in found[2:])


def _optimizer_calls(observed: Observed) -> pl.DataFrame:
    """Return when optimizers begin to update or to clear gradients, in order, and whether each ``clears``."""
    spans = columns_of(observed.tables, "spans", "name", "ts", "step").with_columns(pl.col("name").cast(pl.String))
    named = spans.filter(pl.col("name").str.contains(r"^Optimizer\.(?:step|zero_grad)#")).sort("ts")
    return named.select("ts", "step", clears=pl.col("name").str.starts_with("Optimizer.zero_grad#"))


def _lost(
    sums: pl.DataFrame, updates: pl.DataFrame, marks: pl.DataFrame
) -> tuple[dict[int, set[tuple[int, ...]]], set[tuple[int, ...]]]:
    """Return the shapes of gradients that no optimizer takes, by run, and those that none ever takes.

    A run is what lies between two calls of optimizers. Biases are left out: many have one shape. What a step
    has not used by its end may be taken in a later one.
    """
    taken: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for text, at in updates.select("shapes", "ts").sort("ts").iter_rows():
        for shape in {*sizes(text)}:
            taken[shape].append(at)
    lost: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    never: set[tuple[int, ...]] = set()
    if not any(len(shape) > 1 for shape in taken):
        return lost, never
    cleared = marks.filter("clears")
    clears, of_step = cleared["ts"].to_list(), cleared["step"].to_list()
    for text, at, step, run in sums.select("shapes", "ts", "step", "run").iter_rows():
        shape = (sizes(text) or ((),))[0]
        if len(shape) < 2:
            continue
        updated = taken.get(shape, [])
        later, clear = bisect(updated, at), bisect(clears, at)
        if not updated:
            never.add(shape)
            lost[run].add(shape)
        elif (
            clear < len(clears)
            and of_step[clear] == step
            and clears[clear] < max(updated[later : later + 1], default=0)
        ):
            lost[run].add(shape)
    return lost, never


def _passes_on(calls: pl.DataFrame, nodes: pl.DataFrame) -> bool:
    """Return whether the last layer that a backward reaches among these nodes makes a gradient of its input, too."""
    inside = within(calls, nodes).filter(
        pl.col("name").is_in(["aten::mm", "aten::convolution_backward", "aten::embedding_dense_backward"])
    )
    if inside.is_empty():
        return False
    inside = inside.sort("ts")  # the backward reaches the first layer last
    begin = nodes.filter(pl.col("ts") <= inside["ts"][-1])["ts"].to_numpy().max()
    of_node = inside.filter(pl.col("ts") >= begin)
    return len(of_node) > 1 or any(text.lower().startswith("[true") for text in texts(of_node["concrete"][0])[-1:])


def _of_lost(
    observed: Observed,
    calls: pl.DataFrame,
    chosen: pl.DataFrame,
    lost: dict[int, set[tuple[int, ...]]],
    never: set[tuple[int, ...]],
) -> Claim:
    time, shapes = float(chosen["time"].sum()), {shape for of_run in lost.values() for shape in of_run}
    cleared, largest = not shapes <= never, max(shapes, key=elements)
    finding = Finding(
        cause="teacher-with-gradients",
        title=f"{of_step(observed, time)} the backward computes gradients that "
        + ("are set to zero before an optimizer takes them" if cleared else "no optimizer uses"),
        gain_ns=round(time), gain_low_ns=round(0.8 * time), gain_high_ns=round(1.25 * time),
        basis="the nodes of the backward between the operators with these parameters, and the sums of gradients",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"gradients of {count_text(len(shapes), 'shape')} of weights, such as "
                     f"{' × '.join(map(str, largest))}, "
                     + ("that no optimizer reads before they are cleared" if cleared else "that no optimizer updates"),
                     value=float(len(shapes)), result="operator_details"),
        ),
        remedy="Cut the graph where the other network begins: discriminator(fake.detach()) in the discriminator's step."
        if cleared else
        "Run the network that is not trained under torch.no_grad(): with torch.no_grad(): target = teacher(x); "
        "or turn its gradients off: teacher.requires_grad_(False), model.backbone.requires_grad_(False).",
    )  # fmt: skip
    return Claim(finding, Depth.CAUSE, explained_within(calls, chosen))


def _recomputed(observed: Observed, calls: pl.DataFrame) -> Iterator[Claim]:
    """Forwards that the backward runs again (checkpointing), in a process that leaves most of the memory free."""
    layers = calls.filter(pl.col("name").is_in(PARAMETRIC))
    first = layers.filter(pl.col("phase") == "forward").select("name", "shapes").unique()
    recorded = (pl.col("phase") == "backward") & (pl.col("sequence") >= 0) & pl.col("name").str.starts_with("aten::")
    again = calls.filter(recorded.fill_null(value=False))
    repeated = again.join(first, on=["name", "shapes"], how="semi", nulls_equal=True)
    looks = observed.looks_through("torch/utils/checkpoint.py", *_RECOMPUTES)
    time = max(float(outermost(calls, again)["time"].sum()), float(looks["time"].sum()))
    yield from _again(
        observed, time, repeated, {**explained_within(calls, again), **observed.explained(looks)},
        "Keep what the forward computes: take torch.utils.checkpoint out, or gradient_checkpointing=False; or "
        "checkpoint only as many blocks as the memory needs.",
    )  # fmt: skip


def _recomputed_by_paddle(observed: Observed, calls: pl.DataFrame) -> Iterator[Claim]:
    """The same of Paddle's ``recompute``: a node of the backward runs operators of the forward."""
    nodes = calls.filter(pl.col("name").str.contains(_RECOMPUTES_OF_PADDLE))
    inside = within(calls, nodes)
    again = inside.filter((pl.col("phase") == "forward") & pl.col("name").str.ends_with(" dygraph"))
    time = float(again["self"].sum()) + float(nodes["self"].sum())
    yield from _again(
        observed, time, again, explained_within(calls, again),
        "Keep what the forward computes: call the block itself instead of recompute(block, x); or recompute only as "
        "many blocks as the memory needs.",
    )  # fmt: skip


def _again(
    observed: Observed, time: float, repeated: pl.DataFrame, explains: dict[str, float], remedy: str
) -> Iterator[Claim]:
    used, most = _memory(observed)
    steps = observed.summary.steps.count
    if len(repeated) < steps or repeated["step"].n_unique() < steps or not used or used > _FREE * most:
        return
    finding = Finding(
        cause="recomputation",
        title=f"{of_step(observed, time)} the backward computes parts of the forward again to save memory, of which "
        f"the process uses {bytes_text(used)} of {bytes_text(most)}",
        gain_ns=round(time), gain_low_ns=round(0.8 * time), gain_high_ns=round(1.3 * time),
        basis="the operators of the forward that the backward repeats, or the samples of it",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"{len(repeated) // steps} operators of the forward a step run again in the backward",
                     value=len(repeated) / steps, result="operator_details", operator=str(repeated["name"][0])),
            Evidence(text=f"the process has at most {bytes_text(used)} in memory", value=float(used), unit="bytes"),
        ),
        remedy=remedy,
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, explains)


def _memory(observed: Observed) -> tuple[int, int]:
    """Return the most memory that the process had, and what it may have, in bytes; 0 where that is unknown."""
    machine = observed.facts.get("machine")
    known = [machine.get(name) for name in ("memory_limit", "memory_bytes")] if isinstance(machine, dict) else []
    counters = columns_of(observed.tables, "counters", "name", "value")
    resident = counters.filter(pl.col("name").cast(pl.String) == "process memory")["value"].drop_nulls()
    return int(resident.max() or 0), int(min(filter(None, known), default=0))  # type: ignore[arg-type]
