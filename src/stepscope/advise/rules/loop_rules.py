"""Loops of the program with a few small operators for each tensor or number: parameters, parts of a batch, elements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from stepscope.advise.calls import (
    ACCUMULATES,
    LONGEST,
    copy_speed,
    elements,
    explained_calls,
    explained_within,
    in_order,
    multiplying,
    of_step,
    recorded_calls,
    sizes,
    within,
)
from stepscope.advise.claims import Claim, Depth
from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.observed import Observed
from stepscope.advise.rules.dispatch_rules import updates_itself
from stepscope.advise.rules.python_rules import READS, converting
from stepscope.advise.tensor_parts import (
    ALL_PARTS,
    LINEAR,
    TAKES,
    anchors,
    branches,
    collected,
    layers_in,
    layers_of_parts,
)
from stepscope.analyse.quantities import duration_text
from stepscope.trace.tables import columns_of

#: Tensors of a step from which on they are a loop, and operators on parameters for each of them that are more than
#: what a single call per tensor does, such as setting a gradient to zero, and fewer than a loop over elements does.
_MANY, _EACH, _EACH_MOST = 10, 2, 60
#: Part of the parameters that an operator takes which takes each of them.
_NEARLY = 0.9
#: Mean time of a piece of the loop, ns, above which what is computed takes the time, not the calls.
_PIECE_NS = 1_000_000
#: A distance between operators, ns, behind which a loop has ended.
_BETWEEN = 300_000
#: A function takes about the time of a loop up to so many times it; on a busy machine.
_ABOUT = (2, 4)
#: Looks that tell the time of a function.
_LOOKS = 20
#: Part of the step from which on it is told.
_TOLD = 0.07
#: Operators for each tensor that stay where one call for all tensors takes the place of a loop, because a processor has
#: no operator for many tensors: the call goes through them in C++. An optimizer updates several tensors for each
#: parameter, a loop that reads numbers (a norm) needs them before it goes through the tensors again.
_PASSES, _PASS = 2.0, 1.0
#: Calls with the whole batch that take the place of those with a part, each as long as such a one.
_STAY = 2.0
#: Operators that make a tensor wider, or narrower, between two layers of a chain.
_WIDENS = ("aten::cat", "aten::glu")
#: Begin of the operators that exchange tensors with other ranks, and wait for them.
_EXCHANGES = "c10d::"
#: What is known of a call by its place among the others, and what a loop over parts is told by.
_PLACE = ("row", "outer", "depth")
_OF_PARTS = ("row", "step", "ts", "name", "phase", "shapes", "concrete", "time", "until")
#: Phases whose loops are those of the framework, or of the loader.
_NOT_OWN = ["backward", "optimizer", "data"]


#: Operators that make a number of Python from one element.
_READS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")
#: Of these, what takes a part of a tensor of JAX, MindSpore or Paddle, and reads nothing.
_PARTS_OF = frozenset(["getitem", "getitem_origin", "iter"])
#: Operators of Paddle with a gradient that one line calls in a step, from which on they are a loop, not a model.
_GRADED = 64
#: Lines above and below that belong to the body of the same loop.
_BODY = 3
#: Reads of a step from which on they are a loop. Two reads follow each other if at most so many ns lie between them; in
#: a loop, this part of all reads does.
_READ, _NEXT, _FOLLOW = 32, 100_000, 0.8
#: Part of the step from which on they are told, and what one operator for all elements saves: least, usual.
_READS_TOLD, _SAVED = 0.05, (0.7, 0.95)
#: How a framework whose operators do not show that a value is read reads many at once.
_AT_ONCE = {
    "jax": "compute them inside of the jitted step, return them in one array, and read that once (jax.device_get)",
    "mindspore": "stack the results (ops.stack) and call .asnumpy() once",
    "paddle": "compare and add up tensors, or stack the results (paddle.stack), and call .numpy() once",
}
#: Names of the operators of Paddle's compiled programs, which nobody calls one by one.
_OF_PROGRAMS = r"^(?:pd_op\.|builtin_)"
#: Names of spans of operators, or of jitted functions, that the program itself calls: no graph runs them.
_CALLED = {"jax": r"^PjitFunction\(", "mindspore": "^RunOp$", "paddle": " dygraph$"}
#: Part of a line's time in calls that read values, between which it computes and reads in a loop, and looks that tell
#: it. What only reads may wait for a whole compiled step.
_READING, _READ_LOOKS = (0.1, 0.9), 4
#: End of the file through which MindSpore calls what it differentiates: a forward, also one outside of cells.
_DIFFERENTIATES = "mindspore/ops/composite/base.py"
#: The file and the functions of PyTorch that give the state of a model, and that load one.
_MODULES, _STATES = "torch/nn/modules/module.py", ("state_dict", "load_state_dict")
#: Part of the looks beside forward, backward and optimizer at a line that calls the operators there; part of its time
#: in which the interpreter alone runs it, as a loop over values of NumPy, from which on it calls none.
_MOST, _INTERPRETED = 0.6, 0.8


def loops(observed: Observed) -> Iterator[Claim]:
    """Yield loops over parameters, over the parts of a batch, and over layers that take the same tensor."""
    if observed.framework != "torch" or observed.summary.on_device or not observed.step_ns:
        return
    calls = recorded_calls(observed)
    if calls.is_empty() or observed.summary.compiling is not None:  # a compiler runs operators to see what they do
        return
    line = in_order(observed, calls)
    yield from _over_parameters(observed, calls, line)
    yield from _over_parts(observed, calls, line)
    yield from _over_branches(observed, calls, line)


def _over_parameters(observed: Observed, calls: pl.DataFrame, line: pl.DataFrame) -> Iterator[Claim]:
    """Operators on tensors of the parameters' shapes, a few for each parameter: without a graph, or a penalty's."""
    steps = max(observed.summary.steps.count, 1)
    sums = calls.filter(pl.col("name") == ACCUMULATES)
    learned = Counter(shape for text in sums["shapes"].to_list() for shape in sizes(text)[:1])
    parameters = sum(learned.values()) / steps
    if parameters < _MANY:
        return
    written = _written_optimizer(observed)
    top = line.filter(_own(optimizer=written is not None))
    of_one = {text for text in top["shapes"].unique().to_list() if (sizes(text) or ((),))[0] in learned}
    graph = (pl.col("sequence") >= 0) & (pl.col("phase") == "forward")
    penalty = _of_each_parameter(top.filter(graph), learned)
    mine = pl.col("shapes").is_in(list(of_one)) & ~(graph & ~pl.col("name").is_in(penalty)).fill_null(value=False)
    chosen = top.with_columns(mine=mine.fill_null(value=False))
    loop = chosen.filter(_inside(chosen, "mine"))
    many = int(loop["mine"].sum()) / steps
    if not _EACH * parameters <= many <= _EACH_MOST * parameters or loop.is_empty() or _exchanges(loop):
        return
    where, time, looks = _function(observed, loop, optimizer=written is not None)
    if _elsewhere(observed, looks) > time / 2:
        return  # a module of Python goes through them, such as copy.deepcopy, or numpy's: its line is the place
    states = observed.looks_through(_MODULES, *_STATES)
    if whole := (copying := float(states["time"].sum())) > time / 2:
        where, time, looks = observed.most_seen(states), max(time, copying), states
    backward = _backward(calls, line, loop) if penalty else line.clear()
    time = min(time + _backward_time(observed, line, backward), observed.step_ns)
    each = many / parameters
    again = written is not None or loop["name"].is_in(_READS).any()
    # An optimizer subtracts the gradient of a penalty beside. Of a state that is copied seldom nothing stays.
    stay = 0.0 if penalty or whole else _PASSES if again else _PASS
    gain = time * (1 - stay / each)
    if observed.share(gain) < _TOLD:
        return
    names = loop.filter("mine")["name"].value_counts(sort=True)["name"].to_list()[:3]
    finding = Finding(
        cause="many-small-operators" if written is None else "per-parameter-optimizer",
        title=f"{of_step(observed, time)} the program goes through {parameters:.0f} parameters one by one"
        + (f", as its own optimizer{written}" if written is not None else "") + where,
        gain_ns=round(gain), gain_low_ns=round(0.6 * gain), gain_high_ns=round(time * (1 - 0.5 / each)),
        basis="the time from operator to operator of the loop, of which the operators stay that one call for all "
        f"tensors runs in C++, {stay:.0f} of {each:.0f} for each tensor",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{many:.0f} operators a step on tensors of the shapes of parameters, {each:.0f} for each: "
                     f"{', '.join(names)}", value=many, result="operator_details", operator=names[0]),
        ),
        remedy="Use an optimizer of torch: torch.optim.AdamW(model.parameters(), fused=True); or update all tensors "
        "at once: torch._foreach_mul_(means, beta), torch._foreach_addcdiv_(parameters, means, roots, value)."
        if written is not None else
        "Do it for all tensors in one call: torch._foreach_lerp_(averages, parameters, 0.001), "
        "torch._foreach_mul_(gradients, scale), torch.nn.utils.clip_grad_norm_(parameters, 1.0)"
        + ("; a penalty on their squares is the weight_decay of the optimizer." if penalty else "")
        + (". Copy a model's state every hundredth step; parameters alone: torch._foreach_copy_." if whole else "."),
        operator=names[0],
    )  # fmt: skip
    seen = _seen(observed, time, looks)
    ran = pl.concat([loop.select("row"), backward.select("row")])
    yield Claim(finding, Depth.CAUSE, {**explained_within(calls, ran), **seen})


def _of_each_parameter(calls: pl.DataFrame, learned: Counter[tuple[int, ...]]) -> list[str]:
    """Return the operators that take nearly every parameter, or a tensor of its shape, once: those of a penalty.

    No operator of a model's forward does: weights and biases have different ones.
    """
    found: dict[str, Counter[tuple[int, ...]]] = {}
    for name, text, count in calls.group_by("name", "shapes").len().iter_rows():
        found.setdefault(name, Counter())[(sizes(text) or ((),))[0]] += count
    all_of, once = sum(learned.values()), 2 - _NEARLY
    return sorted(
        name
        for name, shapes in found.items()
        if sum((shapes & learned).values()) >= _NEARLY * all_of
        and sum(count for shape, count in shapes.items() if shape in learned) <= once * all_of
    )


def _over_parts(observed: Observed, calls: pl.DataFrame, line: pl.DataFrame) -> Iterator[Claim]:
    """Operators on the parts of tensors, which loops take from them one after the other."""
    steps = max(observed.summary.steps.count, 1)
    top = line.select(_OF_PARTS).filter(_own())
    found: list[tuple[float, pl.DataFrame]] = []
    for anchor, pieces in anchors(top, steps):
        begin, end = pl.col("ts").filter(anchor).min(), pl.col("ts").filter(anchor).max()
        inside = top.filter(pl.col("ts").is_between(begin.over("step"), end.over("step")).fill_null(value=False))
        # Parts may differ in size, such as the neighbours of each node of a graph.
        body = inside.filter(pl.len().over("name") >= 0.8 * pieces * steps)
        each, time = len(body) / steps / pieces, float(body["until"].sum())
        layers = layers_in(calls, body)
        apart = layers_of_parts(calls, layers, body.filter(anchor)) if len(layers) else layers
        if len(layers) > len(apart) == 0 or _exchanges(body):
            continue  # a layer that is called again, over samples or time steps, and collectives have their own rules
        if round(each) < _EACH or time / pieces > _PIECE_NS or len(body) < 0.8 * len(inside):
            continue
        if not len(layers) and collected(body, top) < 0.8 * pieces * steps:
            continue  # each part needs the result of the one before it
        if len(layers):
            body = body.join(layers.join(apart, on="row", how="anti"), on="row", how="anti")
        body = body.join(pl.concat(one for _, one in found), on="row", how="anti") if found else body
        if len(body) >= 0.8 * pieces * steps:
            found.append((pieces, body))
    if not found:
        return
    body, pieces = pl.concat([body for _, body in found]), max(pieces for pieces, _ in found)
    each = len(body) / steps / sum(pieces for pieces, _ in found)
    backward = _backward(calls, line, body)
    where, time, looks = _function(observed, body)
    time += _backward_time(observed, line, backward)
    ran = pl.concat([body.select("row"), backward.select("row")])
    products = multiplying(observed, within(calls.select(*_PLACE, "name", "shapes", "concrete"), ran))
    gain = time * (1 - _STAY / pieces) - _moving(observed, calls, body) - products
    if observed.share(gain) >= _TOLD:
        explains = {**explained_within(calls, ran), **_seen(observed, time, looks)}
        yield Claim(_of_parts(observed, body, where, (pieces, each, time, gain)), Depth.CAUSE, explains)


def _moving(observed: Observed, calls: pl.DataFrame, body: pl.DataFrame) -> float:
    """Return what the operators of a loop but its layers move through memory, ns per step: none longer than it runs."""
    moves = body.filter(~pl.col("name").is_in(TAKES)).join(layers_in(calls, body), on="row", how="anti")
    each = 4e9 / copy_speed(observed) / max(observed.summary.steps.count, 1)
    alike = moves.group_by("shapes").agg("time")
    return sum(
        float(times.clip(upper_bound=each * max(map(elements, sizes(text)), default=0)).sum())
        for text, times in zip(alike["shapes"], alike["time"], strict=True)
    )


def _exchanges(loop: pl.DataFrame) -> bool:
    """Return whether a loop exchanges tensors with other ranks, and so waits for them."""
    return bool(loop["name"].str.starts_with(_EXCHANGES).any())


def _of_parts(observed: Observed, body: pl.DataFrame, where: str, of: tuple[float, ...]) -> Finding:
    pieces, each, time, gain = of
    names = body["name"].value_counts(sort=True)["name"].to_list()[:3]
    return Finding(
        cause="many-small-operators",
        title=f"{of_step(observed, time)} a loop goes through {pieces:.0f} parts of a batch, with {each:.0f} small "
        f"operators for each{where}",
        gain_ns=round(gain), gain_low_ns=round(0.6 * gain), gain_high_ns=round(time),
        basis="the time from operator to operator of the loop and its part of the backward, of which one call of each "
        "operator with the whole batch stays, and a pass over its memory",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{len(body) / max(observed.summary.steps.count, 1):.0f} operators a step: "
                     f"{', '.join(names)}", value=float(len(body)), result="operator_details", operator=names[0]),
        ),
        remedy="Compute on the whole batch: operators take a dimension (x.mean((2, 3), keepdim=True), "
        "torch.where(condition, a, b), loss_fn(output, target)); torch.func.vmap makes one of a function for a part. "
        "Where a part needs the one before it, as returns over time do: torch.cumsum, or torch.compile(function); "
        "without gradients also NumPy (x.numpy()), whose calls cost less.",
        operator=names[0],
    )  # fmt: skip


def _backward(calls: pl.DataFrame, line: pl.DataFrame, forward: pl.DataFrame) -> pl.DataFrame:
    """Return the nodes of the backward that belong to calls of the forward."""
    inside = within(calls.select(*_PLACE, "phase", "sequence"), forward)
    made = inside.filter(pl.col("phase") == "forward")["sequence"].drop_nulls()
    return line.filter((pl.col("phase") == "backward") & pl.col("sequence").is_in(made.implode()))


def _backward_time(observed: Observed, line: pl.DataFrame, nodes: pl.DataFrame) -> float:
    """Return what nodes take of the backward, ns per step: from node to node, or by the looks if that is longer.

    Between nodes the engine frees what they leave.
    """
    looks = observed.looks.filter(pl.col("phase") == "backward")
    seen = float(looks["time"].sum()) if looks["count"].sum() >= _LOOKS else 0.0
    whole = float(line.filter(pl.col("phase") == "backward")["time"].sum())
    return max(float(nodes["until"].sum()), seen * float(nodes["time"].sum()) / max(whole, 1.0))


def _over_branches(observed: Observed, calls: pl.DataFrame, line: pl.DataFrame) -> Iterator[Claim]:
    """Layers or small networks of one shape that take the same tensor one after the other, such as heads of attention.

    A chain of layers takes the results of one another: its shapes repeat only if they do not change.
    """
    steps, place = max(observed.summary.steps.count, 1), ["track", "step"]
    top = line.filter(_own())
    runs = branches(top.filter(pl.col("name") == LINEAR).sort(*place, "ts"))
    # With a backward in between, it is one layer that takes a batch after the other.
    nodes = line.filter(pl.col("phase") == "backward")["ts"].sort()
    runs = runs.filter(nodes.search_sorted(runs["begin"]) == nodes.search_sorted(runs["end"]))
    if runs.is_empty() or runs["step"].n_unique() < steps:
        return
    inside = top.sort("ts").join_asof(
        runs, left_on="ts", right_on="begin", by=place, strategy="backward", check_sortedness=False
    )
    body = inside.filter(pl.col("ts") <= pl.col("end"))
    backward = _backward(calls, line, body)
    pieces, depth = float(runs["branches"].mean() or 0.0), int(runs["depth"].max() or 1)  # type: ignore[arg-type]
    time = float(body["until"].sum()) + _backward_time(observed, line, backward)
    ran = pl.concat([body.select("row"), backward.select("row")])
    products = multiplying(observed, within(calls.select(*_PLACE, "name", "shapes", "concrete"), ran))
    gain = time * (1 - _STAY / pieces) - products
    if observed.share(gain) < _TOLD or time / (pieces * len(runs) / steps) > _PIECE_NS:
        return
    data, weight = sizes(runs["of"][0])[:2]
    sums = calls.filter(pl.col("name") == ACCUMULATES)["shapes"].to_list()
    added = sum(sizes(text)[:1] == (weight,) for text in sums)
    if 0 < added < pieces * steps / 2:  # one layer that is called for each time step
        return
    if len(body.filter(pl.col("name").is_in(_WIDENS))) >= pieces * len(runs) / 2:
        return  # each takes what the one before it gave, joined with something
    what = ("layers" if depth == 1 else f"networks of {depth} layers, the first") + f" of {weight[1]} × {weight[0]},"
    finding = Finding(
        cause="many-small-operators",
        title=f"{of_step(observed, time)} a loop gives one tensor to {pieces:.0f} {what} one after the other"
        + (f", {len(runs) / steps:.0f} times a step" if len(runs) > steps else ""),
        gain_ns=round(gain), gain_low_ns=round(0.6 * gain), gain_high_ns=round(time),
        basis="the time from operator to operator of the loop and its part of the backward, of which one of them "
        "stays, and what the products of all take",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{len(body) / steps:.0f} operators a step from the first to the last layer, on "
                     f"{' × '.join(map(str, data))}", value=len(body) / steps, result="operator_details",
                     operator=LINEAR),
        ),
        remedy=f"Compute all of them in one: torch.nn.Linear({weight[1]}, {pieces:.0f} * {weight[0]}), and split its "
        "result; for heads of attention, torch.nn.functional.scaled_dot_product_attention takes all heads at once."
        if depth == 1 else
        f"Compute all of them at once: weights of one parameter a layer, torch.empty({pieces:.0f}, {weight[1]}, "
        f"{weight[0]}) for the first, and x @ weight; or torch.func.stack_module_state(networks) and torch.func.vmap.",
        operator=LINEAR,
    )  # fmt: skip
    seen = _seen(observed, time, _looks(observed))
    yield Claim(finding, Depth.CAUSE, {**explained_within(calls, ran), **seen})


def _written_optimizer(observed: Observed) -> str | None:
    """Return the name of the optimizer that the program wrote itself, empty without one of a class; else None."""
    state = observed.facts.get("torch.state")
    optimizers = state.get("optimizers") if isinstance(state, dict) else None
    if optimizers is None or any(one.get("implementation") for one in optimizers):
        return None
    return f" {optimizers[0].get('class')}" if optimizers else ""


def _own(*, optimizer: bool = False) -> pl.Expr:
    """Return whether calls are of the program's own code or of its model; loading has rules of its own.

    Args:
        optimizer: Whether the code of the optimizer is the program's own, too.
    """
    others = [phase for phase in _NOT_OWN if not (optimizer and phase == "optimizer")]
    return ~pl.col("phase").is_in(others).fill_null(value=False)


def _inside(calls: pl.DataFrame, mine: str) -> pl.Series:
    """Return whether each call is one of a loop or lies between two that follow each other closely."""
    chosen, ts = calls[mine].to_numpy(), calls["ts"].to_numpy()
    group = calls.select(pl.struct("track", "step").rank("dense")).to_series().to_numpy()
    places = np.flatnonzero(chosen)
    inside = chosen.copy()
    for place, after in zip(places[:-1].tolist(), places[1:].tolist(), strict=True):
        if group[place] == group[after] and ts[after] - ts[place] <= _BETWEEN:
            inside[place:after] = True
    return pl.Series(inside)


def _looks(observed: Observed, *, optimizer: bool = False) -> pl.DataFrame:
    """Return the looks at which the program's own code outside of backward, optimizer and loading works."""
    looks = observed.looks.filter(pl.col("state").is_in(["python", "native"]) & pl.col("file").is_not_null())
    return looks.filter(_own(optimizer=optimizer))


def _seen(observed: Observed, time: float, looks: pl.DataFrame) -> dict[str, Any]:
    """Return the looks that a loop of this time explains."""
    seen = observed.explained(looks)
    scale = min(time / max(sum(seen.values()), 1.0), 1.0)
    return {name: scale * ns for name, ns in seen.items()}


def _elsewhere(observed: Observed, looks: pl.DataFrame) -> float:
    """Return what modules of Python take, and other packages that a loop's function calls, ns a step."""
    of_python = observed.looks.filter(pl.col("in_library") & (pl.col("phase") != "data").fill_null(value=True))
    packages = looks.filter((pl.col("leaf") != pl.col("file")) & ~pl.col("in_framework") & ~pl.col("in_library"))
    return float(of_python["time"].sum()) + float(packages["time"].sum())


def _function(observed: Observed, loop: pl.DataFrame, *, optimizer: bool = False) -> tuple[str, float, pl.DataFrame]:
    """Return the function with most time by the samples if it takes about the loop's, as text, its time, and its looks.

    Empty and the time of the operators if the samples see it too seldom, with all looks if they see none. What is not
    in the forward has its samples elsewhere. On a busy machine small operators look shorter than they are, beside long
    ones that wait.
    """
    most = _ABOUT[1] if (observed.summary.run.delay_share or 0.0) > 1 / 2 else _ABOUT[0]
    time, rows = float(loop["until"].sum()), _looks(observed, optimizer=optimizer)
    if not (loop["phase"] == "forward").any():
        rows = rows.filter((pl.col("phase") != "forward").fill_null(value=True))
    of = (
        rows.filter(pl.col("function") != "<module>")
        .group_by("file", "function")
        .agg(pl.col("time", "count").sum(), pl.col("line").min())
        .sort("time", descending=True)
        .head(1)
    )
    of = of.filter(pl.col("time").is_between(time / 2, most * time))
    if of.is_empty():
        return "", time, rows
    file, function, seen, count, line = of.row(0)
    rows = rows.filter((pl.col("file") == file) & (pl.col("function") == function))
    if count < _LOOKS:
        return "", time, rows
    return f": {function.rpartition('.<locals>.')[2]} ({observed.place(file, line)})", max(float(seen), time), rows


def element_reads(observed: Observed) -> Iterator[Claim]:
    """Yield a loop that reads the elements of tensors one by one, known by its operators in the recorded steps."""
    if observed.summary.on_device or not observed.step_ns:
        return
    if observed.framework in _AT_ONCE:
        yield from _read_line(observed)
    if observed.framework != "torch":
        return
    calls, steps = recorded_calls(observed), max(observed.summary.steps.count, 1)
    top = calls.filter((pl.col("outer") < 0) & ~pl.col("phase").is_in(["backward", "optimizer"]).fill_null(value=False))
    reads, splits = top.filter(pl.col("name").is_in(_READS)), top.filter(pl.col("name") == ALL_PARTS)
    many = len(reads) / steps
    if many < _READ:
        return
    time = _lasting(reads) * min(observed.step_ns / max(observed.summary.steps.mean_ns, 1.0), 1.0) / steps
    if not time:
        return
    time = min(time + float(splits["time"].sum()), observed.step_ns)
    if observed.share(time) < _READS_TOLD:
        return
    looks = observed.looks.filter(
        (pl.col("leaf") == pl.col("file")) & pl.col("state").is_in(["python", "native"])
        & ~pl.col("phase").is_in(["backward", "optimizer"]).fill_null(value=False)
    )  # fmt: skip
    seen = observed.explained(looks)
    scale = min(time / max(sum(seen.values()), 1.0), 1.0)
    low, gain = (part * time for part in _SAVED)
    finding = Finding(
        cause="python-in-step",
        title=f"{of_step(observed, time)} Python reads numbers from tensors one by one, {many:,.0f} times a step"
        + observed.most_seen(looks),
        gain_ns=round(gain), gain_low_ns=round(low), gain_high_ns=round(min(1.5 * time, observed.step_ns)),
        basis="the time from read to read in the recorded steps, as far as nothing else goes on between them",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"{many:,.0f} numbers a step are read by .item(), float(), int(), bool() or a comparison, "
                     f"{duration_text(time)} together", value=many, result="operator_details",
                     operator=str(reads["name"][0])),
        ),
        remedy="Compute on whole tensors and read the result: right += (predicted == y).sum().item() instead of a "
        "loop, torch.stack(torch._foreach_norm(tensors)) for many tensors; values = tensor.tolist() reads all at once.",
        operator=str(reads["name"][0]),
    )  # fmt: skip
    explains = {name: scale * ns for name, ns in seen.items()}
    if sum(explains.values()) < time / 2:  # else the calls would be the same time again
        explains |= explained_calls(pl.concat([reads, splits]))
    yield Claim(finding, Depth.CAUSE, explains)


def _read_line(observed: Observed) -> Iterator[Claim]:
    """Yield a line beside forward, backward and optimizer that calls many operators a step and reads their values."""
    beside = ~pl.col("phase").is_in(["forward", "backward", "optimizer", "evaluation"]).fill_null(value=False)
    calls, steps = recorded_calls(observed), max(observed.summary.steps.count, 1)
    own = calls.filter((pl.col("outer") < 0) & beside & ~pl.col("name").str.contains(_OF_PROGRAMS))
    spans = columns_of(observed.tables, "spans", "name", "dur", "step", "depth").drop_nulls("step")
    called = spans.filter(pl.col("name").cast(pl.String).str.contains(_CALLED[observed.framework]))
    # A jitted function is two spans, one in the other.
    called = called.filter(pl.col("depth") == pl.col("depth").min().over("name"))
    # Of parts that it takes from a tensor, MindSpore runs no kernel.
    many = max(len(own), len(called) - len(calls.filter((pl.col("outer") < 0) & ~beside))) / steps
    if many < _READ or len(called) < _MANY * steps:
        return
    trained = [s for s, frames in observed.stacks.items() if any(one.file.endswith(_DIFFERENTIATES) for one in frames)]
    looks = observed.looks.filter(beside & (pl.col("phase") != "data").fill_null(value=True))
    looks = looks.filter(pl.col("file").is_not_null() & ~pl.col("in_library") & ~pl.col("stack").is_in(trained))
    lines, whole = _lines(observed, looks), max(float(looks["time"].sum()), 1.0)
    each = float(called["dur"].median() or 0.0)  # type: ignore[arg-type]
    takes = (pl.col("parts") >= _READ * each) & (each > 0)  # so many parts as a loop, whatever its reads wait for
    known = pl.col("reading").is_between(*_READING) | (pl.col("reading") > _READING[1]) & takes
    own = calls.filter(pl.col("phase") != "optimizer")
    graded = observed.framework == "paddle" and _ungraded(own) < _READ * steps
    eager = observed.framework in ("paddle", "mindspore") and updates_itself(observed) is None
    if eager and (not graded or many >= _GRADED):
        calling = pl.col("interpreted") < _INTERPRETED * pl.col("body")
        known |= (pl.col("reading") < _READING[0]) & (pl.col("body") >= _MOST * whole) & calling  # .item(): no frame
    lines = lines.filter(known & (pl.col("count") >= _READ_LOOKS)).sort("time", descending=True)
    if lines.is_empty():
        return
    file, line = str(lines["file"][0]), int(lines["line"][0])
    seen, reading = lines["reading"][0] >= _READING[0], "computes with single values and reads them one by one"
    time = float(lines["time" if seen else "body"][0])
    if graded and not seen:
        rest = float(observed.looks.filter(~beside & (pl.col("phase") != "backward"))["time"].sum())
        time = min(time + _backward_of(observed, own.filter(beside), own), observed.step_ns - rest)
    if observed.share(time) < _READS_TOLD:
        return
    place, low, gain = observed.place(file, line), _SAVED[0] * time, _SAVED[1] * time
    finding = Finding(
        cause="python-in-step" if seen else "many-small-operators",
        title=f"{of_step(observed, time)} {place} {reading if seen else 'calls small operators one by one'}",
        gain_ns=round(gain), gain_low_ns=round(low), gain_high_ns=round(min(1.5 * time, observed.step_ns)),
        basis="the time of this line in the sampled stacks of all steps, and of its backward, nearly all of which one "
        "call for all saves",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{many:,.0f} operators a step outside of forward, backward and optimizer", value=many,
                     result="operator_details"),
            Evidence(text=f"{place}: {duration_text(time)} a step in {lines['count'][0]:.0f} looks", value=time,
                     unit="ns", source=f"{file}:{line}", result="python_lines"),
        ),
        remedy=f"Compute on whole tensors: {_AT_ONCE[observed.framework]}.",
        operator=place,
    )  # fmt: skip
    mine = looks.filter((pl.col("file") == file) & ((pl.col("line") - line).abs() <= (0 if seen else _BODY)))
    yield Claim(finding, Depth.CAUSE, observed.explained(mine))


def _lines(observed: Observed, looks: pl.DataFrame) -> pl.DataFrame:
    """Return own lines: ``time``, the part of it ``reading``, that of taking ``parts``, and of the ``body`` around.

    Of the body, ``interpreted`` is the time in which the interpreter runs the program's own code.
    """
    reads = pl.col("stack").is_in(converting(observed, READS - _PARTS_OF))
    parts = pl.col("stack").is_in(converting(observed, _PARTS_OF))
    alone = (pl.col("state") == "python") & (pl.col("leaf") == pl.col("file")) & ~pl.col("in_framework")
    lines = looks.group_by("file", "line").agg(
        pl.col("time", "count").sum(),
        reading=pl.col("time").filter(reads).sum() / pl.col("time").sum(),
        parts=pl.col("time").filter(parts).sum(),
        interpreted=pl.col("time").filter(alone).sum(),
    )
    near = lines.drop("interpreted").join(lines.select("file", "interpreted", other="line", body="time"), on="file")
    near = near.filter((pl.col("line") - pl.col("other")).abs() <= _BODY)
    return near.group_by("file", "line").agg(
        pl.col("time", "count", "reading", "parts").first(), pl.col("body", "interpreted").sum()
    )


def _backward_of(observed: Observed, loop: pl.DataFrame, calls: pl.DataFrame) -> float:
    """Return the part of Paddle's backward that belongs to operators of a loop, by its number of nodes, ns a step."""
    backward = sum(part.share for part in observed.summary.phases if part.name == "backward") * observed.step_ns
    nodes = _nodes(calls)
    return backward * int(nodes.is_in(_operators(loop).unique().to_list()).sum()) / max(len(nodes), 1)


def _ungraded(calls: pl.DataFrame) -> int:
    """Return how many of Paddle's operators compute what no gradient goes through: its node has a name like theirs."""
    return int((~_operators(calls).is_in(_nodes(calls).unique().to_list())).sum())


def _nodes(calls: pl.DataFrame) -> pl.Series:
    """Return the operators that the nodes of Paddle's backward belong to, as :func:`_operators` writes them."""
    return calls["name"].str.extract(r"(\w+)GradNode").str.to_lowercase().drop_nulls().str.strip_prefix("global_")


def _operators(calls: pl.DataFrame) -> pl.Series:
    """Return the names of Paddle's operators."""
    return calls["name"].str.extract(r"^(\w+) dygraph$").str.replace_all("_", "").drop_nulls()


def _lasting(reads: pl.DataFrame) -> float:
    """Return the time from one read to the next in all recorded steps, ns, where they follow each other.

    0 where other things go on between many of them, such as a model that is asked for one action after the other.
    """
    ordered = reads.sort("step", "ts")
    apart = np.diff(ordered["ts"].to_numpy())[np.diff(ordered["step"].to_numpy()) == 0]
    near = apart[apart <= _NEXT]
    return float(np.minimum(near, LONGEST * np.median(near)).sum()) if len(near) > _FOLLOW * len(apart) else 0.0
