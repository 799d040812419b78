"""Work that another type, another operator or a cooler device makes faster: products in pieces, slowed clocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.advise.calls import (
    broadcast,
    each,
    elements,
    explained_calls,
    explained_within,
    of_step,
    of_steps,
    one_core,
    product_flops,
    recorded_calls,
    sizes,
    torch_threads,
    with_backward,
    within,
)
from stepscope.advise.claims import Claim, Depth
from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.forms import Calls, Form
from stepscope.advise.forms.compiled_forms import compiled_forms
from stepscope.advise.forms.costly_forms import BEGINS, costly_forms
from stepscope.advise.forms.inputs_in_step import function_of
from stepscope.advise.forms.repeated_passes import repeated_passes
from stepscope.advise.forms.unused_results import LOSSES, TAKES, ignored_targets, unused_results
from stepscope.advise.observed import Observed
from stepscope.advise.rules.part_rules import generation
from stepscope.analyse.operators.operator_calls import device_time, host_operators, operator_names, or_negative, rows_of
from stepscope.analyse.quantities import count_text, duration_text, percent_text
from stepscope.analyse.step.activity import device_rows, of_kinds, span_codes, span_kinds, texts_of
from stepscope.trace.schema import TARGETS
from stepscope.trace.tables import columns_of, has_rows

#: Names of kernels that multiply float32 without tensor cores, and of those that do so in TF32, on NVIDIA GPUs.
_SINGLE = r"(?i)sgemm|scudnn|_f32f32_f32f32_f32_|_simt_s|convolve_sgemm|(?:dgrad|wgrad_alg0|fprop)_engine<float"
_TENSOR = r"(?i)tensorop|tf32|s1688|s16816|h884|hmma|xmma.*(?:bf16|f16)|nvjet"
_TF32 = r"(?i)tf32|tensorop_s1688(?:gemm|fprop|dgrad|wgrad)_\d"
#: Kernels that compute in double precision.
_DOUBLE = r"(?i)dgemm|d884gemm|tensorop_d|[<, ]double[,>]"
#: Parts of their time that another type saves, least, usual and most: TF32 on tensor cores; float32 instead of float64.
_BY_TF32, _BY_SINGLE = (0.35, 0.6, 0.85), (0.4, 0.5, 0.7)
#: TF32 is on where such kernels take this part of the time of float32 ones.
_USED = 0.2
#: First generation of NVIDIA GPUs that computes in TF32.
_AMPERE = 8
#: Products of attention, its softmax forward and backward, and how many pieces of work lie between them at most.
_PRODUCTS = ("aten::bmm", "aten::baddbmm", "aten::baddbmm_")
_SOFTMAX = ("aten::_softmax", "aten::_safe_softmax", "aten::_softmax_backward_data", "aten::_masked_softmax")
_NEAR = 8
#: Operators of a CPU whose own time is this part of a product's do work; the others make views and take memory.
_WORK = 0.02
#: Parts that a fused attention saves of the products: least, usual, most; and of what lies between them.
_OF_PRODUCTS, _OF_BETWEEN = (0.0, 0.4, 0.7), (0.7, 0.9, 1.0)
#: What fused attention takes on a processor, by its operations: of its products, of which the backward computes one
#: again, and of each row of scores in each direction; and how far that is right. Measured with torch 2.13.
_FUSED_PRODUCTS, _FUSED_BACKWARD, _FUSED_ROW, _FUSED = 1.35, 1.25, 27_000, (1.3, 1.0, 0.75)
#: Operators that combine each row of one tensor with each row of another, what they do next with each number, and the
#: sums over the numbers of a pair; those that do all of it.
_COMBINES, _EACH = ("aten::sub", "aten::mul"), ("aten::pow", "aten::square", "aten::mul", "aten::abs")
_SUMS = ("aten::sum", "aten::mean", "aten::norm", "aten::linalg_vector_norm")
_VIEWS = ("aten::unsqueeze", "aten::slice", "aten::select", "aten::expand", "aten::view", "aten::transpose")
_OF_PAIRS = ("aten::cosine_similarity", "aten::pairwise_distance")
#: Operators of a form that its evidence names.
_NAMED = 4
#: Phases whose operators are not the program's own.
_NOT_OWN = ["backward", "optimizer", "data"]
#: Parts of the time of sums over pairs that a product of matrices saves: least, usual, most.
_BY_PRODUCT = (0.6, 0.9, 1.0)
#: What slows clocks although nobody set it so; part of the samples from which on it is told.
_SLOWED = ("heat", "power brake", "other hardware", "power cap")
_SAMPLES, _FEWEST = 0.2, 5
#: Every later step of a kernel that became slower takes so many times its longest earlier one; fewest steps on a side.
_SLOWER, _SIDE = 1.15, 2
#: Part of the time of kernels that becomes slower by about one factor, from which on it is the clock; how near it is.
_ALL, _ALIKE = 0.8, 0.25
_COOLER = (
    "Look at temperature, power and fans (nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER); raise the power limit if it "
    "is set low (nvidia-smi -pl), and see who else uses the machine's power and cooling."
)


def kernels(observed: Observed) -> Iterator[Claim]:
    """Yield kernels of devices that another type, another operator or a cooler device makes faster."""
    if not observed.summary.on_device:
        if observed.framework == "torch":
            yield from _host_attention(observed)
            yield from _pairs(observed)
        if observed.framework in _FORMS:
            yield from _forms(observed)
        return
    if not observed.step_ns:
        return
    used = _used(observed)
    yield from _single(observed, used)
    yield from _double(observed, used)
    if observed.framework == "torch":
        yield from _attention(observed)
    yield from _clocks(observed, used)
    yield from _slower(observed)


def _used(observed: Observed) -> dict[str, float]:
    """Return the time of kernels inside the steps by name, ns per step."""
    tables, steps = observed.tables, observed.summary.steps.count
    rows = device_rows(tables)
    rows = rows[of_kinds(span_kinds(tables)[rows], "kernel")]
    spans = columns_of(tables, "spans", "dur", "step")
    rows = rows[or_negative(spans["step"][rows]) >= 0] if steps else rows
    _, first, name = np.unique(span_codes(tables).name[rows], return_index=True, return_inverse=True)
    time = np.bincount(name, weights=spans["dur"].to_numpy()[rows], minlength=len(first))
    texts = (text or "" for text in texts_of(tables, rows[first]))
    return dict(zip(texts, (time / max(steps, 1)).tolist(), strict=True))


def _by_step(observed: Observed) -> tuple[list[str], npt.NDArray[np.float64]]:
    """Return the kernels that each recorded step runs as often, and their time in each, ns: a row a kernel."""
    tables = observed.tables
    rows = device_rows(tables)
    rows = rows[of_kinds(span_kinds(tables)[rows], "kernel")]
    spans = columns_of(tables, "spans", "dur", "step")
    step = or_negative(spans["step"][rows])
    rows, step = rows[step >= 0], step[step >= 0]
    numbers, place = np.unique(step, return_inverse=True)
    _, first, name = np.unique(span_codes(tables).name[rows], return_index=True, return_inverse=True)
    shape = (len(first), len(numbers))
    cell = name * shape[1] + place
    calls = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
    time = np.bincount(cell, spans["dur"].to_numpy()[rows], shape[0] * shape[1]).reshape(shape)
    equal = (calls == calls[:, :1]).all(axis=1)
    texts = [text or "" for text in texts_of(tables, rows[first])]
    return [text for text, kept in zip(texts, equal, strict=True) if kept], time[equal]


def _slower(observed: Observed) -> Iterator[Claim]:
    """Kernels that take longer from one step of the recording on, with as many calls as before."""
    if observed.summary.steps.count < 2 * _SIDE:
        return
    names, time = _by_step(observed)
    count = time.shape[1]
    best: tuple[float, int, npt.NDArray[np.bool_]] = (0.0, 0, np.zeros(len(names), np.bool_))
    for change in range(_SIDE, count - _SIDE + 1):
        slower = time[:, change:].min(axis=1) > _SLOWER * time[:, :change].max(axis=1)
        excess = float((time[slower].mean(axis=1) - time[slower, :change].mean(axis=1)).sum())
        best = max(best, (excess, change, slower), key=lambda one: one[0])
    excess, change, slower = best
    if observed.share(excess) < _USED / 4:
        return
    before, after = time[slower, :change].mean(axis=1), time[slower, change:].mean(axis=1)
    ratio = float(after.sum() / before.sum())
    alike = np.abs(after / before - ratio) <= _ALIKE * (ratio - 1)
    clocks = float(before[alike].sum()) >= _ALL * float(time[:, :change].mean(axis=1).sum())
    kept = [name for name, chosen in zip(names, slower, strict=True) if chosen]
    order = np.argsort(before - after)
    gain = excess * _on_path(observed, kept)
    number = int(columns_of(observed.tables, "steps", "number")["number"].sort()[change])
    largest = kept[int(order[0])]
    what = (
        "every kernel takes"
        if clocks
        else f"{largest[:60]} takes"
        if len(kept) == 1
        else (f"{len(kept)} kernels, {largest[:60]} most of all, take")
    )
    finding = Finding(
        cause="low-clocks" if clocks else "slower-kernel",
        title=f"from step {number} on {what} {ratio:.2f} × as long as before, {of_step(observed, excess)}",
        gain_ns=round(gain), gain_low_ns=round(0.7 * gain), gain_high_ns=round(1.2 * excess),
        basis="their time in the mean recorded step less that of the steps before, on the critical path",
        confidence=Confidence.LIKELY,
        evidence=tuple(
            Evidence(text=f"{kept[one][:100]}: {duration_text(after[one])} a step, before {duration_text(before[one])}",
                     value=float(after[one]), unit="ns", result="kernel_details", operator=kept[one])
            for one in order[:3].tolist()
        ),
        remedy=_COOLER if clocks else f"See what changes at step {number}: sizes behind the same kernel, work of "
        "another stream or program that shares the device (streams), an algorithm chosen anew.",
        operator=largest,
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, {"clocks": gain} if clocks else {f"slower {name}": gain for name in kept})


def _on_path(observed: Observed, names: Iterable[str]) -> float:
    """Return the part of the time of kernels that the step waits for; where the host decides, that is little."""
    path = observed.result("critical_path").filter(pl.col("Name").is_in(list(names)))
    whole = float(path["Total Time(us)"].sum()) if len(path) else 0.0
    return min(float(path["On Path(us)"].sum()) / whole, 1.0) if whole else 1.0


def _single(observed: Observed, used: dict[str, float]) -> Iterator[Claim]:
    """Products in float32 on a GPU that computes them faster in TF32, which is off."""
    single = {name: ns for name, ns in used.items() if re.search(_SINGLE, name) and not re.search(_TENSOR, name)}
    time, fast = sum(single.values()), sum(ns for name, ns in used.items() if re.search(_TF32, name))
    if not time or generation(observed) < _AMPERE or fast > _USED * time:
        return
    if observed.share(_BY_TF32[1] * time) < _USED / 4:
        return
    path = _on_path(observed, single)
    low, gain, high = (part * time * path for part in _BY_TF32)
    yield _typed(
        observed, single, "tf32-off", (low, gain, high),
        title="products of matrices and convolutions in float32, which this GPU computes faster in TF32",
        basis="the time of these kernels on the critical path, of which tensor cores save 35 to 85 %",
        remedy='Let tensor cores compute float32: torch.set_float32_matmul_precision("high") and '
        "torch.backends.cudnn.allow_tf32 = True, before the training; or train in bfloat16: "
        'torch.autocast("cuda", torch.bfloat16).',
    )  # fmt: skip


def _double(observed: Observed, used: dict[str, float]) -> Iterator[Claim]:
    double = {name: ns for name, ns in used.items() if re.search(_DOUBLE, name)}
    time = sum(double.values())
    if not time:
        return
    path = _on_path(observed, double)
    low, gain, high = (part * time * path for part in _BY_SINGLE)
    yield _typed(
        observed, double, "double-precision", (low, gain, high),
        title="kernels that compute in double precision",
        basis="the time of these kernels on the critical path; a GPU computes and moves at least twice as many float32",
        remedy="Train in single precision: model.float(), and data as float32: torch.from_numpy(array).float(). NumPy "
        "makes float64 unless told otherwise.",
    )  # fmt: skip


def _typed(
    observed: Observed,
    found: dict[str, float],
    cause: str,
    gains: tuple[float, float, float],
    **says: str,
) -> Claim:
    time, largest = sum(found.values()), sorted(found.items(), key=lambda one: -one[1])
    low, gain, high = map(round, gains)
    finding = Finding(
        cause=cause,
        title=f"{of_step(observed, time)} are {says['title']}",
        gain_ns=gain, gain_low_ns=low, gain_high_ns=high,
        basis=says["basis"],
        confidence=Confidence.LIKELY,
        evidence=tuple(
            Evidence(text=f"{name[:100]}: {duration_text(dur)} a step", value=dur, unit="ns", result="op_statistic",
                     operator=name)
            for name, dur in largest[:3]
        ),
        remedy=says["remedy"],
        operator=largest[0][0],
    )  # fmt: skip
    return Claim(finding, Depth.CAUSE, {f"kernel {name}": dur for name, dur in found.items()})


def _attention(observed: Observed) -> Iterator[Claim]:
    """Softmax between two batched products, forward or backward, with what lies between them."""
    if operator_names(observed.tables).isdisjoint(_SOFTMAX):
        return
    operators = host_operators(observed.tables)
    own, _ = device_time(observed.tables, operators)
    work = operators.with_columns(pl.col("name").cast(pl.String), own=pl.Series(own)).filter(pl.col("own") > 0)
    work = work.sort("track", "ts") if not observed.summary.steps.count else work.drop_nulls("step").sort("track", "ts")
    inside, ends, layers = _between_products(work["name"].to_list())
    time = work["own"].to_numpy()
    each = max(observed.summary.steps.count, 1)
    between, products = float(time[inside].sum()) / each, float(time[ends].sum()) / each
    if not layers or observed.share(between) < _USED / 4:
        return
    part = _on_path(observed, _kernels_of(observed, work.filter(pl.Series(inside | ends))))
    finding = _in_pieces(observed, between, products, layers / each, part)
    yield Claim(finding, Depth.CAUSE, {"attention": between + products})


def _host_attention(observed: Observed) -> Iterator[Claim]:
    """Softmax between two batched products that the program asks for itself; SDPA computes some attention so, too."""
    calls = recorded_calls(observed)
    if not (calls["name"].is_in(_SOFTMAX)).any():
        return
    fused = within(calls, calls.filter(pl.col("name") == "aten::scaled_dot_product_attention"))
    products = calls.filter(pl.col("name").is_in(_PRODUCTS))["self"]
    least = _WORK * float(products.median() or 0.0)  # type: ignore[arg-type]
    work = calls.filter((pl.col("self") >= least) & ~pl.col("row").is_in(fused["row"].implode())).sort("track", "ts")
    inside, ends, layers = _between_products(work["name"].to_list())
    if not layers:
        return
    time = work["self"].to_numpy()
    between, around = float(time[inside].sum()), float(time[ends].sum())
    if observed.share(between) < _USED / 4:
        return
    steps = max(observed.summary.steps.count, 1)
    finding = _in_pieces(observed, between, around, layers / steps)
    takes = _fused(observed, work.filter(pl.Series(ends)), work.filter(pl.Series(inside)))
    if takes is not None:
        low, gain, high = (max(between + around - of * takes, 0.0) for of in _FUSED)
        finding = msgspec.structs.replace(
            finding, gain_ns=round(gain), gain_low_ns=round(low), gain_high_ns=round(high),
            basis=f"what the pieces take, less {duration_text(takes)} in one call, by its operations at the speed of "
            "a large product on this machine",
        )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, explained_calls(work.filter(pl.Series(inside | ends))))


def _fused(observed: Observed, products: pl.DataFrame, between: pl.DataFrame) -> float | None:
    """Return what attention takes in one call, ns per step; None if the sizes or the speed of products are unknown."""
    speed = one_core(observed, "float32")
    flops = [product_flops(*row) for row in products.select("name", "shapes", "concrete").iter_rows()]
    scores = [(*sizes(text), ())[0] for text in between.filter(pl.col("name").is_in(_SOFTMAX))["shapes"]]
    if not speed or not all(flops) or not all(scores):
        return None
    backward = (products["phase"] == "backward").fill_null(value=False).to_list()
    computed = sum(one * (_FUSED_BACKWARD if again else 1.0) for one, again in zip(flops, backward, strict=True))
    rows = sum(elements(shape[:-1]) for shape in scores)
    whole = _FUSED_PRODUCTS * computed + _FUSED_ROW * rows
    return 1e9 * whole / (speed * torch_threads(observed) * max(observed.summary.steps.count, 1))


def _pairs(observed: Observed) -> Iterator[Claim]:
    """Sums over pairs of rows, of which each number is written and read: a product of matrices keeps the sums alone."""
    calls, steps = recorded_calls(observed), max(observed.summary.steps.count, 1)
    own = (pl.col("outer") < 0) & ~pl.col("phase").is_in(_NOT_OWN).fill_null(value=False)
    combines = pl.col("name").is_in([*_COMBINES, *_OF_PAIRS])
    found = [calls.clear()]
    for step in of_steps(calls, own & combines):
        top = step.filter(own)
        begins = top.select(combines).to_series() & each(top["shapes"], _of_pairs, pl.Boolean())
        found += (top[place : place + _until_sum(top[place : place + _NEAR])] for place in begins.arg_true())
    sums = pl.concat(found)
    if sums.is_empty():
        return
    ran = with_backward(calls, sums)
    time = float(ran["time"].sum())
    pair = max(
        (sizes(text)[:2] for text in sums["shapes"] if _of_pairs(text)), key=lambda one: elements(broadcast(one))
    )
    low, gain, high = (part * time for part in _BY_PRODUCT)
    if observed.share(gain) < _USED / 4:
        return
    first, second, whole = (" × ".join(map(str, shape)) for shape in (*pair, broadcast(pair)))
    names = [name.removeprefix("aten::") for name in sums["name"].unique(maintain_order=True)]
    finding = Finding(
        cause="pairwise-broadcast",
        title=f"{of_step(observed, time)} sums over pairs of rows are made number by number: tensors of {whole} from "
        f"{first} and {second}",
        gain_ns=round(gain), gain_low_ns=round(low), gain_high_ns=round(high),
        basis="the operators on the broadcast tensors and their nodes of the backward, nearly all of which a product "
        "of matrices saves",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{len(sums) / steps:.0f} operators a step on {whole}: {', '.join(names)}", value=time,
                     unit="ns", result="operator_details", operator=str(sums["name"][0])),
        ),
        remedy="Sums of products are a product of matrices: a @ b.T, or torch.einsum; distances are torch.cdist(a, b), "
        "their squares (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * a @ b.T. If no pairs are wanted, the shapes do "
        "not fit: squeeze() one of them.",
        operator=str(sums["name"][0]),
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, explained_within(calls, ran))


def _forms(observed: Observed) -> Iterator[Claim]:
    """Results of which most is not used, and calls of which another form costs less."""
    calls, steps = recorded_calls(observed), max(observed.summary.steps.count, 1)
    for one in _FORMS[observed.framework](observed, calls):
        ran = with_backward(calls, one.calls) if one.backward else one.calls
        time, looks, where = float(ran["time"].sum()), observed.looks.clear(), ""
        # The memory of a copy is freed outside of operators. A compiled program says its own lines.
        if observed.framework != "jax" and (one.calls["phase"] == "other").fill_null(value=False).all():
            looks, where = function_of(observed, time)
            time = max(time, float(looks["time"].sum()))
        gain, names = one.part * time, one.calls["name"].unique(maintain_order=True).to_list()
        many = count_text(round(len(one.calls) / steps), "operator")
        finding = Finding(
            cause=one.cause,
            title=f"{of_step(observed, time)} {one.title}{': ' * bool(where)}{where}",
            gain_ns=round(gain), gain_low_ns=round(0.8 * gain), gain_high_ns=round(time),
            basis="the operators that make and take it and their nodes of the backward, less what stays",
            confidence=Confidence.LIKELY,
            evidence=(
                Evidence(text=f"{many} a step: {', '.join(names[:_NAMED])}", value=time, unit="ns",
                         result="operator_details", operator=names[0]),
            ),
            remedy=one.remedy,
            operator=names[0],
        )  # fmt: skip
        yield Claim(finding, Depth.CAUSE, {**explained_within(calls, ran), **observed.explained(looks)})


def _forms_of_torch(observed: Observed, calls: pl.DataFrame) -> list[Form]:
    """Return the costly forms among operators that ran one by one."""
    own = (pl.col("outer") < 0) & ~pl.col("phase").is_in(_NOT_OWN).fill_null(value=False)
    forms: list[Form] = []
    for find, begins in ((unused_results, TAKES), (costly_forms, BEGINS)):
        looked = of_steps(calls, own & pl.col("name").is_in(begins))
        forms += find(Calls.of(step.filter(own)) for step in looked)
    if ignored := _ignored(observed):
        looked = of_steps(calls, own & pl.col("name").is_in(LOSSES))
        forms += ignored_targets((Calls.of(step.filter(own)) for step in looked), ignored)
    forms += repeated_passes(of_steps(calls, pl.col("phase") == "backward"))
    return forms


#: What finds them, by framework.
_FORMS = {"torch": _forms_of_torch, "jax": compiled_forms}


def _ignored(observed: Observed) -> dict[int, float]:
    """Return, of each number of classes that a loss had, the part of the targets that it ignores, where it does."""
    counted = observed.facts.get(TARGETS)
    entries = counted if isinstance(counted, list) else []
    return {classes: none / rows for classes, rows, none in entries if 0 < none <= rows}


def _of_pairs(shapes: str | None) -> bool:
    """Return whether each of the first two inputs of a call has a size of 1, or none, where the other one is larger."""
    first, second = (*sizes(shapes)[:2], (), ())[:2]
    places = list(zip_longest(reversed(first), reversed(second), fillvalue=1))
    return any(one == 1 < other for one, other in places) and any(other == 1 < one for one, other in places)


def _until_sum(calls: pl.DataFrame) -> int:
    """Return how many of these calls make pairs of rows and sum them up; 0 if they do not end with such a sum."""
    whole = broadcast(sizes(calls["shapes"][0])[:2])
    for place, (name, shapes) in enumerate(calls.select("name", "shapes").iter_rows()):
        if place and name in _VIEWS and sizes(shapes)[:1] != (whole,):
            continue  # of what the next product takes
        if place and (name not in {*_EACH, *_SUMS} or sizes(shapes)[:1] != (whole,)):
            return 0
        if name in {*_SUMS, *_OF_PAIRS}:
            return place + 1
    return 0


def _between_products(names: Sequence[str]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], int]:
    """Return what lies between the products of attention, forward or backward, the products, and how often it is.

    Args:
        names: Operators that do the work, in their order.
    """
    product = np.isin(names, _PRODUCTS)
    inside, ends, layers = np.zeros(len(names), np.bool_), np.zeros(len(names), np.bool_), 0
    for place in np.flatnonzero(np.isin(names, _SOFTMAX)).tolist():
        wide = 2 if "backward" in names[place] else 1  # the gradients of both factors
        before = max(place - _NEAR, 0) + np.flatnonzero(product[max(place - _NEAR, 0) : place])[-wide:]
        behind = place + 1 + np.flatnonzero(product[place + 1 : place + 1 + _NEAR])[:wide]
        if not len(before) or not len(behind):
            continue
        inside[before[-1] + 1 : behind[0]] = True
        ends[before] = ends[behind] = True
        layers += 1
    return inside, ends, layers


def _in_pieces(observed: Observed, between: float, products: float, layers: float, path: float = 1.0) -> Finding:
    """Return that attention is computed in pieces: what lies between products, the products, ns; how often a step.

    ``path`` is the part of it that the step waits for.
    """
    low, gain, high = (
        path * (of * between + with_them * products)
        for of, with_them in zip(_OF_BETWEEN, _OF_PRODUCTS, strict=True)
    )  # fmt: skip
    return Finding(
        cause="attention-not-fused",
        title=f"{of_step(observed, between + products)} is attention in pieces: all scores are written and read "
        f"between two products, {layers:.0f} times a step",
        gain_ns=round(gain), gain_low_ns=round(low), gain_high_ns=round(high),
        basis="the work between the products, nearly all of which fused attention saves, and a part of the products",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"softmax, masks and scaling between the products: {duration_text(between)} a step",
                     value=between, unit="ns", result="operator_details", operator="aten::_softmax"),
            Evidence(text=f"the products: {duration_text(products)} a step", value=products, unit="ns",
                     result="operator_details", operator="aten::bmm"),
        ),
        remedy="Compute attention in one call: torch.nn.functional.scaled_dot_product_attention(q, k, v), or "
        'attn_implementation="sdpa" (or "flash_attention_2") in from_pretrained() of transformers.',
        operator="aten::_softmax",
    )  # fmt: skip


def _kernels_of(observed: Observed, operators: pl.DataFrame) -> set[str]:
    """Return the names of the kernels that operators launched themselves."""
    launched = columns_of(observed.tables, "kernels", "span", "operator")
    launched = launched.filter(pl.col("operator").is_in(operators["id"].implode()))
    rows = rows_of(columns_of(observed.tables, "spans", "id")["id"], launched["span"])
    _, first = np.unique(span_codes(observed.tables).name[rows[rows >= 0]], return_index=True)
    return {text for text in texts_of(observed.tables, rows[rows >= 0][first]) if text}


def _clocks(observed: Observed, used: dict[str, float]) -> Iterator[Claim]:
    """Clocks that heat, power or other hardware slows, by samples of the GPU while the program ran."""
    if not has_rows(observed.tables, "counters"):
        return
    samples = columns_of(observed.tables, "counters", "name", "value").with_columns(pl.col("name").cast(pl.String))
    clock = samples.filter(pl.col("name") == "SM clock")["value"].drop_nulls()
    slowed = samples.filter(pl.col("name").is_in([f"slowed by {one}" for one in _SLOWED]))
    if len(clock) < _FEWEST or slowed.is_empty():
        return
    by = slowed.group_by("name").agg(pl.col("value").mean()).sort("value", descending=True)
    reason, part = by.row(0)
    usual, most = float(clock.mean() or 0.0), float(clock.max() or 0.0)  # type: ignore[arg-type]
    slower = 1 - usual / most if most else 0.0
    if part < _SAMPLES:
        return
    gain = slower * sum(used.values()) * _on_path(observed, used)
    finding = Finding(
        cause="low-clocks",
        title=f"the GPU runs at {usual:.0f} of {most:.0f} MHz, slowed by {str(reason).removeprefix('slowed by ')} in "
        f"{percent_text(part)} of the samples",
        gain_ns=round(gain), gain_low_ns=round(0.5 * gain), gain_high_ns=round(1.2 * gain),
        basis="the time of kernels on the critical path, by the mean clock against the highest one that was seen",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{reason} in {percent_text(part)} of the samples", value=part),
            Evidence(text=f"mean SM clock {usual:.0f} MHz, highest {most:.0f} MHz", value=usual, unit="MHz"),
        ),
        remedy=_COOLER,
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, {"clocks": gain})
