"""The calls of operators in the recorded steps as rules see them, less the time that their thread waited for a core."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import zip_longest
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.advise.observed import Observed
from stepscope.analyse.intervals import unite
from stepscope.analyse.operators.op_statistic import host_work
from stepscope.analyse.operators.operator_calls import by_depth, host_operators, or_negative, rows_of
from stepscope.analyse.quantities import duration_text
from stepscope.trace.tables import Tables, columns_of, forget, with_series

#: A call whose own time is this many times the median of its like was interrupted.
_INTERRUPTED = 2.0
#: From one call to the next, what was interrupted counts as so many usual ones.
LONGEST = 4.0
#: Bytes a second that a core copies, if unknown.
_COPY = 8e9
#: Part of the speed of a large product that those of a step reach where each takes a whole batch.
_SPEED = 0.5
#: Calls that are needed to know a median.
_ALIKE = 4
#: Columns of calls that are alike, so that one which takes much longer than the median was interrupted.
_LIKE = ("name", "shapes", "nth")
#: Part of the run's steps in which the thread waited for a core, from which on calls are interrupted.
_DISTURBED = 0.02

#: Calls that are summed up at one time, which bounds the memory it takes.
_AT_ONCE = 1 << 20
#: What the tables ``spans`` and ``operators`` say of a call.
_OF_SPANS, _SAID = ("sequence", "phase"), ("shapes", "dtypes", "strides", "concrete")
#: The calls of a rank, which several rules look at.
_KNOWN: WeakKeyDictionary[Observed, pl.DataFrame] = WeakKeyDictionary()
#: What XLA does on a host from the begin of a program to its end.
_EXECUTES = "ThunkExecutor::Execute"
#: Frameworks whose operators do not say which parameters they take a gradient of; their state counts them.
_TOLD_TRAINED = ("mindspore", "paddle")
#: Operators with parameters among their inputs; the node of the backward that adds a parameter's gradient up.
PARAMETRIC = (
    "aten::linear", "aten::addmm", "aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::convolution",
    "aten::embedding", "aten::embedding_bag", "aten::_embedding_bag", "aten::batch_norm", "aten::layer_norm",
    "aten::group_norm", "aten::lstm", "aten::gru",
)  # fmt: skip
ACCUMULATES = "torch::autograd::AccumulateGrad"
#: Operators that read a number.
READS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal")


def trained_parameters(observed: Observed, frameworks: Iterable[str] = _TOLD_TRAINED) -> int:
    """Return the number of parameters that the models of these frameworks train; 0 of other frameworks."""
    states = [observed.facts.get(f"{framework}.state") for framework in frameworks]
    models = [one for state in states if isinstance(state, dict) for one in state.get("models") or []]
    return sum(int(one.get("trainable_parameters") or 0) for one in models)


def recorded_calls(observed: Observed) -> pl.DataFrame:
    """Return the operator calls of the recorded steps; no row where only a sample of the operators was recorded.

    A call that was interrupted counts with the median of those of its name and shapes, or of its name and place in the
    step. Times are scaled to the mean step of the run, so that a sum over rows is a time per step.

    Columns: ``id``; ``track``; ``step``; ``ts``; ``name``; ``phase``, text or null; ``depth``; ``outer``, the row of
    the operator around it or -1; ``time`` and ``self``, ns per step; ``sequence``; ``shapes``, ``dtypes``,
    ``strides`` and ``concrete``, JSON or null; ``nth``, see :func:`_numbered`.
    """
    if observed not in _KNOWN:
        _KNOWN[observed] = _recorded_calls(observed)
    return _KNOWN[observed]


def _recorded_calls(observed: Observed) -> pl.DataFrame:
    tables = observed.tables
    forget(tables, host_work)  # the summary, which is made of it, is there
    calls = host_operators(tables).drop("dur", "kind")
    in_steps = or_negative(calls["step"]) >= 0
    if observed.summary.sampled < 1 or not observed.summary.steps.count:
        calls, in_steps = calls.clear(), in_steps[:0]
    calls = _numbered(_with_said(calls, tables), observed.summary.steps.count)
    own, whole = calls["self"].to_numpy().astype(np.float64), float(observed.summary.steps.total_ns)
    alone = int(observed.manifest.get("world_size") or 1) < 2  # else a call may be long because it waits for a rank
    times = _delay_share(observed) * whole, whole
    lost = _lost(calls, own, in_steps, times, alone=alone) if _disturbed(observed) else 0.0
    own *= observed.step_ns / max(whole - lost, 1.0)
    total, outer = own.copy(), calls["outer"].to_numpy()
    for level in reversed(by_depth(calls["depth"])):
        inner = level[outer[level] >= 0]
        np.add.at(total, outer[inner], total[inner])
    row = pl.Series("row", np.arange(len(calls), dtype=np.uint32))
    calls = row.to_frame().hstack(with_series(calls, [pl.Series("time", total), pl.Series("self", own)]))
    return calls if in_steps.all() else calls.filter(pl.Series(in_steps))


def _lost(
    calls: pl.DataFrame,
    own: npt.NDArray[np.float64],
    in_steps: npt.NDArray[np.bool_],
    times: tuple[float, float],
    *,
    alone: bool,
) -> float:
    """Let calls that were interrupted take what is usual, in ``own``; return what the steps lost to other processes.

    ``times`` are what their thread waited for a core, and all of them, ns. Of a rank ``alone``, calls lose no more than
    the steps do: threads that compute beside the training thread wait for cores, too, and the step with them.
    """
    alike = pl.col("self").median().over(_LIKE), pl.len().over(_LIKE)
    medians, counts = (column.to_numpy() for column in calls.select(alike[0].alias("median"), alike[1].alias("n")))
    long, (delay, whole) = (own > _INTERRUPTED * medians) & (counts >= _ALIKE), times
    here = long & in_steps
    # A call that waits for another rank is long, too. What was lost is at most the wait for a core.
    over = float(own[here].sum() - medians[here].sum())
    lost = min(over, delay)
    usual = medians + (own - medians) * (1 - lost / over) if alone and over > delay else medians
    # What else was lost was so in the Python between operators, or in calls that are not known to be long.
    between = max(whole - float(own.sum(where=in_steps)), 0.0)
    lost += (delay - lost) * between / max(between + float(own.sum(where=in_steps & (counts < _ALIKE))), 1.0)
    np.copyto(own, usual, where=long)
    return min(lost, whole - float(own.sum(where=in_steps)))  # a long call waits for a core each time that it runs


def _with_said(calls: pl.DataFrame, tables: Tables) -> pl.DataFrame:
    """Return calls with what the tables ``spans`` and ``operators`` say of them: :data:`_OF_SPANS`, :data:`_SAID`."""
    spans = columns_of(tables, "spans", "id", *_OF_SPANS)
    rows = pl.Series(rows_of(spans["id"], calls["id"]).astype(np.uint32))
    found = [calls["name"].cast(pl.String), spans["sequence"][rows], spans["phase"][rows].cast(pl.String)]
    calls = with_series(calls, found)
    said = columns_of(tables, "operators", "span", *_SAID)
    known = [name for name in _SAID if said[name].null_count() < len(said)]
    # These literals take no memory.
    calls = calls.with_columns_seq(pl.lit(None, pl.String).alias(name) for name in _SAID)
    if not known:
        return calls
    place = np.full(len(calls), len(said), np.uint32)
    of = rows_of(calls["id"], said["span"])
    place[of[of >= 0]] = np.flatnonzero(of >= 0)
    places, unknown = pl.Series(place), pl.Series([None], dtype=pl.String)
    return with_series(calls, [said[name].cast(pl.String).append(unknown)[places] for name in known])


def _numbered(calls: pl.DataFrame, steps: int) -> pl.DataFrame:
    """Return calls with ``nth``, their place among those of their name in the step, where no shapes are known.

    A small product and a large one of Paddle are then not alike. It takes as many steps as tell a median.
    """
    if steps < _ALIKE or calls.is_empty() or calls["shapes"].null_count() < len(calls):
        return calls.with_columns_seq(nth=pl.lit(0, pl.UInt32))
    places = calls.select("track", "step", "name", "ts").with_row_index("at").sort("ts")
    places = places.select("at", nth=pl.col("at").cum_count().over("track", "step", "name")).sort("at")
    return with_series(calls, [places["nth"]])


def in_order(observed: Observed, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the outermost calls in their order, with the time ``until`` the next one of the thread, ns per step.

    It contains the Python between two calls. What was interrupted counts as a multiple of the usual of its like.
    """
    top = calls.filter(pl.col("outer") < 0)
    order = top.select(pl.arg_sort_by("track", "step", "ts")).to_series()
    if not order.is_sorted():  # as they mostly are: a copy of ten million calls takes a gigabyte
        top = top[order]
    apart = (pl.col("ts").shift(-1).over("track", "step") - pl.col("ts")).fill_null(0)
    top = top.with_columns(apart=apart).with_columns(usual=pl.col("apart").median().over(_LIKE))
    until = pl.when(pl.len().over(_LIKE) >= _ALIKE).then(pl.min_horizontal("apart", LONGEST * pl.col("usual")))
    top = top.with_columns(until=until.otherwise("apart"))
    lost = top.group_by("step").agg(lost=pl.col("apart").sum() - pl.col("until").sum())
    steps = columns_of(observed.tables, "steps", "number", "dur")
    steps = steps.join(lost, left_on="number", right_on="step", how="left")
    scale = observed.step_ns / max(_uninterrupted(observed, steps), 1.0)
    return top.with_columns(pl.col("until") * scale).drop("apart", "usual")


def _uninterrupted(observed: Observed, steps: pl.DataFrame) -> float:
    """Return what the recorded steps take in all, ns, without what interrupted them inside and outside of operators.

    The wait for a core of each step tells that. Where it is unknown, the median of all steps is what others take.
    """
    rest = (pl.col("dur") - pl.col("lost").fill_null(0)).alias("rest")
    known = observed.run_steps.drop_nulls("delay").select(pl.col("number").cast(pl.Int64), "quiet")
    found = steps.select(pl.col("number").cast(pl.Int64), rest).join(known, on="number")
    if found.is_empty() or len(found) < len(steps):
        return float(steps.select(rest)["rest"].median() or 0.0) * observed.summary.steps.count  # type: ignore[arg-type]
    return float(found.select(pl.min_horizontal("rest", "quiet").sum()).item())


def _disturbed(observed: Observed) -> bool:
    return (observed.summary.run.delay_share or 0.0) > _DISTURBED


def _delay_share(observed: Observed) -> float:
    """Return the part of the recorded steps in which the thread waited for a core, or of all where that is unknown."""
    recorded = observed.run_steps.filter(pl.col("recorded").fill_null(value=False)).drop_nulls("delay")
    if recorded.is_empty():
        return observed.summary.run.delay_share or 0.0
    return min(float(recorded["delay"].sum()) / float(recorded["dur"].sum()), 1.0)


def one_core(observed: Observed, dtype: str) -> float | None:
    """Return the operations a second of a large matrix product on one core of this machine; None if not measured."""
    for one in observed.speeds:
        product = (one.get("one_core") or {}).get(dtype) if one.get("framework") == observed.framework else None
        if product and product.get("flops_per_s"):
            return float(product["flops_per_s"])
    return None


def torch_threads(observed: Observed) -> int:
    """Return the threads of torch; one if unknown."""
    state = observed.facts.get("torch.state")
    return max(int(state.get("threads") or 1), 1) if isinstance(state, dict) else 1


def copy_speed(observed: Observed) -> float:
    """Return the bytes a second that one core of this machine copies.

    What most cores do, where it was not measured; or at least that, where other programs ran while it was.
    """
    for one in observed.speeds:
        if one.get("framework") == observed.framework and one.get("copy_bytes_per_s"):
            return max(float(one["copy_bytes_per_s"]), _COPY if one.get("disturbed") else 0.0)
    return _COPY


def of_step(observed: Observed, ns: float) -> str:
    """Return a time per step beside the step: ``3.1 ms of 12 ms``."""
    return f"{duration_text(ns)} of {duration_text(observed.step_ns)}"


def a_step(observed: Observed) -> str:
    """Return what an amount is of: ``a step``, or without steps ``altogether``."""
    return "a step" if observed.summary.steps.count else "altogether"


def outermost(calls: pl.DataFrame, chosen: pl.DataFrame) -> pl.DataFrame:
    """Return those of the chosen calls that lie inside no other chosen one: their times can be added."""
    inside = _inside(calls, chosen)
    return chosen.filter(pl.Series(~inside[chosen["row"].to_numpy()]))


def within(calls: pl.DataFrame, chosen: pl.DataFrame) -> pl.DataFrame:
    """Return the chosen calls and all that they contain."""
    inside = _inside(calls, chosen)
    inside[chosen["row"].to_numpy()] = True
    return calls.filter(pl.Series(inside[calls["row"].to_numpy()]))


def with_backward(calls: pl.DataFrame, forward: pl.DataFrame) -> pl.DataFrame:
    """Return calls of the forward, and the nodes of the backward that belong to them."""
    made = within(calls, forward).filter(pl.col("phase") == "forward")["sequence"].drop_nulls().unique()
    nodes = (pl.col("phase") == "backward") & (pl.col("outer") < 0) & pl.col("sequence").is_in(made.implode())
    return pl.concat([forward, calls.filter(nodes)])


def of_steps(calls: pl.DataFrame, asked: pl.Expr) -> Iterator[pl.DataFrame]:
    """Yield the calls of a thread in a step, in the order of time, for each in which one is what is asked for.

    At one time, only those of one step are copied.
    """
    place = ("track", "step")
    found = calls.select(*place, asked.alias("asked")).filter("asked").select(place).unique()
    if not found.is_empty():
        rows = calls.select(*place, at=pl.int_range(pl.len(), dtype=pl.UInt32)).join(found, on=place, how="semi")
        for at in rows.group_by(place).agg("at").sort(place)["at"]:
            yield calls[at].sort("ts")


def innermost(calls: pl.DataFrame) -> pl.Series:
    """Return whether each call contains no other one."""
    rows, outer = calls["row"].to_numpy(), calls["outer"].to_numpy()
    around = np.zeros(max(int(rows.max(initial=0)), int(outer.max(initial=0))) + 1, np.bool_)
    around[outer[outer >= 0]] = True
    return pl.Series(~around[rows])


def _inside(calls: pl.DataFrame, chosen: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Return, by row, whether a call lies inside one of the chosen."""
    rows, outer = calls["row"].to_numpy(), calls["outer"].to_numpy()
    inside = np.zeros(max(int(rows.max(initial=0)), int(outer.max(initial=0))) + 1, np.bool_)
    around = np.zeros(len(inside), np.bool_)
    around[chosen["row"].to_numpy()] = True
    for level in by_depth(calls["depth"]):
        deeper = level[outer[level] >= 0]
        above = outer[deeper]
        inside[rows[deeper]] = inside[above] | around[above]
    return inside


def each(column: pl.Series, says: Callable[[str | None], Any], dtype: pl.DataType) -> pl.Series:
    """Return what a function says of each text of a column, which repeats few different texts."""
    if column.null_count() == len(column):
        return pl.Series("said", [says(None)], dtype=dtype).new_from_index(0, len(column))
    texts_of = column.unique()
    said = pl.DataFrame([texts_of.alias("text"), pl.Series("said", [says(text) for text in texts_of], dtype=dtype)])
    joined = column.alias("text").to_frame().join(said, on="text", how="left", nulls_equal=True, maintain_order="left")
    return joined["said"]


def explained_within(calls: pl.DataFrame, chosen: pl.DataFrame) -> dict[str, float]:
    """Return the chosen calls, and all that they contain, as the time that a claim explains."""
    return explained_calls(within(calls.select("row", "outer", "depth", "name", "shapes", "phase", "self"), chosen))


def explained_calls(calls: pl.DataFrame) -> dict[str, float]:
    """Return calls as the time that a claim explains: that of each operator, shapes and phase."""
    explained: dict[str, float] = {}
    for some in calls.select("name", "shapes", "phase", "self").iter_slices(_AT_ONCE):
        for name, shapes, phase, time in some.group_by("name", "shapes", "phase").agg(pl.col("self").sum()).iter_rows():
            key = f"call {name} {shapes or ''} {phase or ''}"
            explained[key] = explained.get(key, 0.0) + time
    return explained


@lru_cache(maxsize=4096)
def sizes(text: str | None) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the inputs of a call, those of a list of tensors one by one; empty if unknown."""
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return ()
    return tuple(_flat(found)) if isinstance(found, list) else ()


def _flat(shapes: Iterable[object]) -> Iterator[tuple[int, ...]]:
    for shape in shapes:
        if isinstance(shape, list) and shape and isinstance(shape[0], list):
            yield from _flat(shape)
        elif isinstance(shape, list) and all(isinstance(size, int) for size in shape):
            yield tuple(shape)


@lru_cache(maxsize=4096)
def texts(text: str | None) -> tuple[str, ...]:
    """Return a JSON list of strings, such as the types of the inputs of a call; empty if unknown."""
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return ()
    return tuple(str(one) for one in found) if isinstance(found, list) else ()


def elements(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a tensor."""
    return int(np.prod(shape)) if shape else 1


def broadcast(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of what tensors are broadcast to."""
    return tuple(max(sizes) for sizes in zip_longest(*map(reversed, shapes), fillvalue=1))[::-1]


#: Cells of recurrent layers, which a program calls for each time step.
CELLS = ("aten::gru_cell", "aten::lstm_cell", "aten::rnn_tanh_cell", "aten::rnn_relu_cell")
#: Begin of the names of fused attention.
ATTENTION = "aten::_scaled_dot_product_"


def product_flops(name: str, shapes: str | None, concrete: str | None = None) -> float:
    """Return the operations of a matrix product, convolution or attention by its inputs; 0 for other operators.

    A multiplication and an addition are two. A grouped convolution counts by its weight's own channels.

    Args:
        name: Operator of ATen.
        shapes: Shapes of its inputs, JSON.
        concrete: Values of its scalar inputs, JSON: stride, padding and dilation of a convolution.
    """
    found = sizes(shapes)
    try:
        if name in {"aten::mm", "aten::bmm"}:
            return 2.0 * elements(found[0]) * found[1][-1]
        if name in {"aten::addmm", "aten::baddbmm"}:
            return 2.0 * elements(found[1]) * found[2][-1]
        if name == "aten::convolution_backward":
            grad, data, weight = found[:3]
            turned = texts(concrete)[7:8] == ("True",)
            return 4.0 * elements(data if turned else grad) * elements(weight[1:])
        if name == "aten::convolution":
            data, weight = found[0], found[1]
            if texts(concrete)[6:7] == ("True",):  # transposed: each of its inputs is multiplied with the kernel
                return 2.0 * elements(data) * elements(weight[1:])
            stride, padding, dilation = (json.loads(value) for value in texts(concrete)[3:6])
            out = [
                (size + 2 * p - d * (kernel - 1) - 1) // s + 1
                for size, kernel, s, p, d in zip(data[2:], weight[2:], stride, padding, dilation, strict=True)
            ]
            return 2.0 * data[0] * elements(tuple(out)) * elements(weight)
        if name.startswith(ATTENTION):  # two products forward, five backward
            backward = name.endswith("_backward")
            query, key = found[backward], found[backward + 1]
            return (5 if backward else 2) * 2.0 * elements(query) * key[-2]
    except (IndexError, ValueError, TypeError):
        return 0.0
    return 0.0


def multiplying(observed: Observed, calls: pl.DataFrame) -> float:
    """Return what the products of calls take at least, ns per step: at half the speed of a large one on this machine.

    0 where that speed was not measured.
    """
    single = one_core(observed, "float32")
    kind = ("name", "shapes", "concrete")
    alike = (some.group_by(kind).len() for some in calls.select(kind).iter_slices(_AT_ONCE))
    flops = sum(count * product_flops(*call) for some in alike for *call, count in some.iter_rows())
    return 1e9 * flops / (_SPEED * single * max(observed.summary.steps.count, 1)) if single else 0.0


def executing(observed: Observed) -> float:
    """Return the time per step, ns, in which XLA runs programs on the host: their parallel parts have no operators."""
    spans = columns_of(observed.tables, "spans", "name", "ts", "dur")
    spans = spans.filter(pl.col("name").cast(pl.String).str.starts_with(_EXECUTES)).sort("ts")
    running = unite(spans["ts"].to_numpy(), (spans["ts"] + spans["dur"]).to_numpy())
    steps = columns_of(observed.tables, "steps", "ts", "dur")
    inside = running.within(steps["ts"].to_numpy(), (steps["ts"] + steps["dur"]).to_numpy())
    return float(inside.sum()) * observed.step_ns / max(observed.summary.steps.total_ns, 1)
