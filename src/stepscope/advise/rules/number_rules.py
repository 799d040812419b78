"""The type and the values of numbers: double precision, half precisions without fast operators, denormal numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import polars as pl

from stepscope.advise.calls import (
    ATTENTION,
    broadcast,
    elements,
    explained_calls,
    explained_within,
    of_step,
    one_core,
    product_flops,
    recorded_calls,
    sizes,
    texts,
    torch_threads,
)
from stepscope.advise.claims import Claim, Depth
from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.observed import Observed
from stepscope.advise.verdict import DISTURBED
from stepscope.analyse.quantities import number_text, percent_text
from stepscope.trace.tables import columns_of

#: Elements from which on a tensor's type decides how long an operator takes.
_LARGE = 2048
#: Parts of the time in double precision that single precision saves: twice the numbers a register and a cache line. Of
#: functions that Paddle computes number by number in double precision, and in vectors in single precision, nearly all.
_DOUBLE, _ONE_BY_ONE = (0.35, 0.5, 0.6), 0.95
#: Names of products in any framework, of which the speed of this machine decides; those functions of Paddle.
_MULTIPLIES, _OF_PADDLE = r"(?i)mat_?mul|mm$|dot|conv|linear", r"^(?:tanh|log) dygraph$"
#: What JAX and MindSpore call the types of PyTorch.
_NAMES = {"f64": "double", "f32": "float", "Float64": "double", "Float32": "float"}
#: How the parameters of a model become single.
_TO_SINGLE = {
    "torch": "model.float()",
    "jax": "leave jax_enable_x64 off, or jnp.float32 for parameters",
    "mindspore": "model.to_float(mindspore.float32)",
    "paddle": 'paddle.set_default_dtype("float32") before the model is made',
}
#: Matrix products.
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
#: Convolutions, the outermost operators whose sizes are known.
_CONVOLUTIONS = ("aten::convolution", "aten::convolution_backward")
#: Operations a second that a thread reaches in float32 at least, on processors with AVX2.
_SINGLE = 2e10
#: Part of the speed of a large product that those of a training reach.
_REACHED = 0.5
#: A product in half precision that takes this many times as long as in float32 is slow.
_SLOW_HALF = 2.0
#: Part of the step from which on a type of numbers is told.
_TOLD = 0.1
#: Smallest edge of a matrix of a product whose speed is compared.
_EDGE = 32
#: Operations of a product from which on its speed can be judged.
_FLOPS = 2e6
#: A product that is this many times slower than the fastest one of its type, of no larger sizes, is slow by its values.
_SLOWER = 8.0
#: What tells a call from the others of a step: the last is its place among those that are alike.
_PLACE = ("name", "shapes", "phase", "place")
#: Operators of which denormal numbers take long, and others that pass over memory as they do.
_OF_ELEMENTS = ("aten::mul", "aten::mul_", "aten::add", "aten::add_", "aten::sub", "aten::sub_", "aten::addcmul_")
_SIMPLE = (
    "aten::relu",
    "aten::relu_",
    "aten::clamp",
    "aten::clamp_",
    "aten::neg",
    "aten::copy_",
    "aten::threshold_backward",
)
#: Elements from which on such an operator is judged, and ns an element below which it may be the memory, where the
#: speed of this machine's is unknown.
_ELEMENTS, _ELEMENT_NS = 8192, 4.5


def number_types(observed: Observed) -> Iterator[Claim]:
    """Yield numbers that take longer than they need to."""
    if observed.summary.on_device:
        return
    calls = recorded_calls(observed)
    if calls.is_empty():
        return
    if calls["dtypes"].null_count() == len(calls):
        if _of_doubles(observed):
            training = pl.col("phase").is_in(["forward", "backward", "optimizer"])
            yield from _double(observed, calls.filter(training).with_columns(type=pl.lit("double")))
        return
    inputs = calls.select("shapes", "dtypes").unique()
    inputs = inputs.with_columns(type=pl.Series([_type(*row) for row in inputs.iter_rows()], dtype=pl.String))
    typed = calls.join(inputs, on=["shapes", "dtypes"], how="left", nulls_equal=True, maintain_order="left")
    yield from _double(observed, typed)
    if observed.framework != "torch":
        return
    yield from _half(observed, typed)
    yield from _denormal(observed, typed)


def _of_doubles(observed: Observed) -> bool:
    """Return whether the models of Paddle, which does not tell the types of each operator, are in double precision."""
    state = observed.facts.get("paddle.state")
    models = state.get("models") or [] if isinstance(state, dict) else []
    types = [one.get("elements_by_dtype") or {} for one in models]
    elements = sum(sum(map(int, each.values())) for each in types)
    return 2 * sum(int(each.get("float64", 0)) for each in types) > elements


def _type(shapes: str | None, dtypes: str | None) -> str | None:
    """Return the type of the largest tensor of floating-point numbers among the inputs of a call."""
    best, found = _LARGE - 1, None
    for shape, name in zip(sizes(shapes), texts(dtypes), strict=False):
        known = _NAMES.get(name, name)
        if known in {"double", "float", "c10::Half", "c10::BFloat16"} and elements(shape) > best:
            best, found = elements(shape), known
    return found


def _double(observed: Observed, calls: pl.DataFrame) -> Iterator[Claim]:
    double = calls.filter(pl.col("type") == "double")
    time = float(double["self"].sum())
    low, gain, high = _saved_by_single(observed, double)
    largest = double.group_by("name").agg(pl.col("self").sum()).sort("self", descending=True)
    if not time or observed.share(gain) < _TOLD:
        return
    name = str(largest["name"][0])
    finding = Finding(
        cause="double-precision",
        title=f"{of_step(observed, time)} operators compute in double precision",
        gain_ns=round(gain), gain_low_ns=round(low), gain_high_ns=round(high),
        basis="the time of operators on float64 tensors; a processor computes and moves twice as many float32",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"{percent_text(observed.share(time))} of the step is operators on float64, mostly {name}",
                     value=time, unit="ns", result="operator_details", operator=name),
        ),
        remedy=f"Train in single precision: {_TO_SINGLE.get(observed.framework, _TO_SINGLE['torch'])}, and data as "
        "float32: np.asarray(array, dtype=np.float32). NumPy makes float64 unless told otherwise.",
        operator=name,
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, explained_calls(double))


def _saved_by_single(observed: Observed, double: pl.DataFrame) -> tuple[float, float, float]:
    """Return what operators in double precision save in single precision at least, usually and at most, ns per step.

    Products save what the speeds that were measured in both types differ by, which may be nothing.
    """
    products = float(double.filter(pl.col("name").str.contains(_MULTIPLIES))["self"].sum())
    alone = pl.col("name").str.contains(_OF_PADDLE) if observed.framework == "paddle" else pl.lit(value=False)
    functions = float(double.filter(alone)["self"].sum())
    others = float(double["self"].sum()) - products - functions
    single, precise = one_core(observed, "float32"), one_core(observed, "float64")
    known = max(1 - precise / single, 0.0) if single and precise else None
    parts = _DOUBLE if known is None else (min(0.3, known), min(known, 0.65), min(max(known, 0.1) + 0.1, 0.7))
    low, gain, high = (
        part * products + usual * others + _ONE_BY_ONE * functions for part, usual in zip(parts, _DOUBLE, strict=True)
    )
    return low, gain, high


def _half(observed: Observed, calls: pl.DataFrame) -> Iterator[Claim]:
    """Products in a half precision that are slower than any processor computes them in single precision."""
    names = {"c10::Half": "float16", "c10::BFloat16": "bfloat16"}
    products = pl.col("name").is_in([*_PRODUCTS, *_CONVOLUTIONS]) | pl.col("name").str.starts_with(ATTENTION)
    rows = calls.filter(pl.col("type").is_in(list(names)) & products)
    flops = [product_flops(*row) for row in rows.select("name", "shapes", "concrete").iter_rows()]
    rows = rows.with_columns(pl.Series("flops", flops, pl.Float64)).filter(pl.col("flops") > 0)
    steps = max(observed.summary.steps.count, 1)
    time, threads = float(rows["time"].sum()), torch_threads(observed)
    single = _REACHED * (one_core(observed, "float32") or _SINGLE / _REACHED)
    as_float = 1e9 * float(rows["flops"].sum()) / steps / (single * threads)
    gain = time - as_float
    if not time or observed.share(gain) < _TOLD or time < _SLOW_HALF * as_float:
        return
    speed = float(rows["flops"].sum()) / steps / time
    kind = names[str(rows.group_by("type").agg(pl.col("time").sum()).sort("time", descending=True)["type"][0])]
    name = str(rows.sort("time", descending=True)["name"][0])
    finding = Finding(
        cause="slow-half-precision",
        title=f"{of_step(observed, time)} matrix products in {kind}, which this processor computes slowly",
        gain_ns=round(gain), gain_low_ns=round(0.7 * gain), gain_high_ns=round(min(time, 1.1 * gain)),
        basis=f"the time of products in {kind} less that of as many operations in float32, at {single / 1e9:.0f} "
        "GFLOP/s a thread",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"products in {kind} run at {number_text(speed)} GFLOP/s", value=time, unit="ns",
                     result="operator_details", operator=name),
        ),
        remedy="Train in float32 on this processor: take .half(), .bfloat16() and torch.autocast out of the program "
        "where it runs on a CPU; half precisions pay on processors with AMX or AVX512-FP16, and on GPUs.",
        operator=name,
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, explained_within(calls, rows))


class _SlowCalls(NamedTuple):
    """Operators that take far longer than their sizes ask for: what they are, what they take and could save, ns a step.

    Attributes:
        what: Plural noun.
        calls: The calls.
        time: Their time.
        gain: What of it other operators of their sizes do not take.
        slower: How many times longer than those the slowest takes.
        example: Name and shapes of the slowest.
    """

    what: str
    calls: pl.DataFrame
    time: float
    gain: float
    slower: float
    example: tuple[str, str]


def _denormal(observed: Observed, calls: pl.DataFrame) -> Iterator[Claim]:
    """Products, and sums and products of elements, that take many times as long as others of their sizes."""
    state = observed.facts.get("torch.state")
    if isinstance(state, dict) and state.get("flush_denormal") is True:
        return
    if (observed.summary.run.delay_share or 0.0) > DISTURBED:  # what was interrupted looks slow
        return
    typed = calls.filter(pl.col("type") == "float")
    typed = typed.join(columns_of(observed.tables, "spans", "id", "dur"), on="id", maintain_order="left")
    found = [one for one in (_slow_products(observed, typed), _slow_elements(observed, typed)) if one is not None]
    if not found:
        return
    most = max(found, key=lambda one: one.gain)
    time = min(sum(one.time for one in found), 0.95 * observed.step_ns)
    gain = min(sum(one.gain for one in found), time)
    name, shapes = most.example
    finding = Finding(
        cause="denormal-numbers",
        title=f"{of_step(observed, time)} {most.what} run {most.slower:.0f} times slower "
        "than others: their numbers are likely denormal, below 1.2e-38",
        gain_ns=round(gain), gain_low_ns=round(0.6 * gain), gain_high_ns=round(min(1.2 * gain, observed.step_ns)),
        basis="the time of the slow operators less what others take for as many operations or elements",
        confidence=Confidence.POSSIBLE,
        evidence=(
            Evidence(text=f"{name} of {shapes} is {most.slower:.0f} times slower per operation than the fastest of the "
                     "step that compute on as much", value=most.slower, result="operator_details", operator=name),
            Evidence(text="torch.set_flush_denormal is not on"),
        ),
        remedy="Let the processor take denormal numbers as zero: torch.set_flush_denormal(True), before the training. "
        "Look at what makes numbers vanish: weight decay without a gradient, products of many small factors.",
        operator=name,
    )  # fmt: skip
    columns = calls.columns
    yield Claim(finding, Depth.CAUSE, explained_calls(pl.concat([one.calls.select(columns) for one in found])))


def _slow_products(observed: Observed, calls: pl.DataFrame) -> _SlowCalls | None:
    products = calls.filter(pl.col("name").is_in(_PRODUCTS))
    flops = [product_flops(name, shapes) for name, shapes in products.select("name", "shapes").iter_rows()]
    edges = [min((min(shape) for shape in sizes(text) if len(shape) > 1), default=0) for text in products["shapes"]]
    large = pl.Series(edges, dtype=pl.Int64) >= _EDGE
    # The shapes of sparse matrices, which have no strides, do not tell how much is multiplied.
    known = [
        text is None or [len(one) for one in sizes(text)] == [len(one) for one in sizes(shapes)]
        for shapes, text in products.select("shapes", "strides").iter_rows()
    ]
    products = products.with_columns(pl.Series("work", flops, pl.Float64))
    products = products.filter(large & pl.Series(known, dtype=pl.Boolean))
    products = products.filter(pl.col("work") >= _FLOPS)
    if len(products) < 2:
        return None
    groups = _best(products)
    fastest = float(groups["each"].min() or 0.0)  # type: ignore[arg-type]
    slow = groups.filter(pl.col("each") > _SLOWER * fastest)
    return _slow(observed, "matrix products", products, slow.with_columns(usual=pl.lit(fastest)))


def _slow_elements(observed: Observed, calls: pl.DataFrame) -> _SlowCalls | None:
    """Sums and products of elements that are much slower than other simple operators, and than memory is."""
    simple = calls.filter(pl.col("name").is_in([*_OF_ELEMENTS, *_SIMPLE]))
    most = [elements(broadcast(sizes(text))) for text in simple["shapes"]]
    dense = [all(one[-1] == 1 for one in sizes(text) if one) for text in simple["strides"]]
    simple = simple.with_columns(pl.Series("work", most, pl.Float64)).filter(pl.Series(dense, dtype=pl.Boolean))
    simple = simple.filter(pl.col("work") >= _ELEMENTS)
    if simple.is_empty():
        return None
    groups = _best(simple).with_columns(usual=pl.col("each").min())
    least = pl.max_horizontal(_SLOWER * pl.col("usual"), pl.lit(_memory_ns(observed)))
    slow = groups.filter(pl.col("name").is_in(_OF_ELEMENTS) & (pl.col("each") > least))
    return _slow(observed, "sums and products of elements", simple, slow)


def _memory_ns(observed: Observed) -> float:
    """Return how long an element takes at most that is read twice and written to memory for the first time, ns."""
    for one in observed.speeds:
        if one.get("framework") == observed.framework and one.get("copy_bytes_per_s") and one.get("fault_ns"):
            return 12e9 / float(one["copy_bytes_per_s"]) + float(one["fault_ns"]) / 1024
    return _ELEMENT_NS


def _best(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the best call of each place in the step, which was not interrupted: ``each``, ns per unit of its work.

    Layers of one shape differ by their place.
    """
    placed = calls.sort("step", "ts").with_columns(place=pl.int_range(pl.len()).over("step", *_PLACE[:3]))
    groups = placed.group_by(_PLACE).agg(
        pl.col("dur").min().clip(1, None), pl.col("work").median(), calls=pl.len(), rows=pl.col("row")
    )
    return groups.with_columns(each=pl.col("dur") / pl.col("work"))


def _slow(observed: Observed, what: str, calls: pl.DataFrame, slow: pl.DataFrame) -> _SlowCalls | None:
    """Return what is known of slow places that every step has; None without any."""
    slow = slow.filter(pl.col("calls") >= observed.summary.steps.count)
    if slow.is_empty():
        return None
    slow = slow.with_columns(slower=pl.col("each") / pl.col("usual")).sort("slower", descending=True)
    time = float(slow["dur"].sum())
    usual = float((slow["work"] * slow["usual"]).sum()) / _REACHED
    chosen = calls.filter(pl.col("row").is_in(slow["rows"].explode().implode()))
    return _SlowCalls(what, chosen, time, time - usual, float(slow["slower"][0]), (slow["name"][0], slow["shapes"][0]))
