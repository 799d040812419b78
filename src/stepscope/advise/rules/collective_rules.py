"""Collectives of a rank: too many small ones, those that could run beside the backward, and exchanges nobody needs.

Settings of DistributedDataParallel that cost time in each step belong to them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.advise.calls import of_step, recorded_calls
from stepscope.advise.claims import Claim, Depth
from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.observed import Observed
from stepscope.analyse.intervals import Times, unite
from stepscope.analyse.operators.operator_calls import or_negative, rows_of
from stepscope.analyse.quantities import bytes_text, count_text, duration_text, percent_text
from stepscope.analyse.step.activity import device_rows, of_kinds, span_codes
from stepscope.analyse.step.step_trace_time import split
from stepscope.trace.schema import PHASES
from stepscope.trace.tables import Tables, columns_of, has_rows

#: Collectives of a step that are many, and bytes of the mean one up to which they are small.
_MANY, _SMALL = 8, 256 << 10
#: Bytes that one collective should carry: the size of a bucket of DistributedDataParallel.
_BUCKET = 25 << 20
#: Part of the sums of gradients that begins when the backward has ended, from which on nothing overlaps.
_LATE = 0.9
#: Small collectives that are statistics of layers are so from this part of all on.
_MOST = 0.6
#: Steps from which on one of them is an exception.
_SEVERAL = 3
#: Part of the step from which on such communication is told, and of the backward beside which it can run.
_TOLD, _BESIDE = 0.07, 0.9
#: Collectives that sum gradients up, as frameworks spell them; one that may exchange what was made of them; and all of
#: which one can carry the tensors of several: not messages, nor what each rank has for each other one.
_SUMS = r"^_?(?:all_?reduce|reduce_?scatter)"
_GATHERS = "allgather"
_JOINED = rf"{_SUMS}|^_?all_?gather|^_?(?:broadcast|reduce|gather|scatter)"
#: Where DistributedDataParallel is.
_DDP = "torch/nn/parallel/distributed.py"
#: Where the functions are that exchange tensors.
_DISTRIBUTED = r"[/\\]torch[/\\]distributed[/\\]distributed_c10d\.py$"
#: Its functions that exchange objects of Python, and the collectives that they call: the sizes, then the pickled bytes.
_OBJECTS = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list")
_BY_OBJECTS = ("all_gather", "gather", "broadcast", "scatter")
#: Functions of this package that exchange tensors; those of them that training with it does not need.
_OF_DISTRIBUTED = re.compile(r"[/\\]torch[/\\]distributed[/\\]")
_UNNEEDED = ("barrier", "monitored_barrier", "broadcast")
_CALLED = {*_UNNEEDED, "all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "gather", "scatter"}
#: What runs the backward, at the end of which DistributedDataParallel waits for its sums.
_ENGINE = "_engine_run_backward"
#: Bytes with which it tells the other ranks whether a parameter was used.
_MARK = 4
_ACCUMULATES = "torch::autograd::AccumulateGrad"
#: States of a thread that waits for other ranks.
_WAITING = ("lock", "io", "waiting")


@dataclass(frozen=True, eq=False)
class _Exchanged:
    """The collectives inside steps whose bytes are known and that can be joined.

    Attributes:
        sums: Whether each sums up what all ranks give to it.
        gradients: Whether it may carry gradients.
        bytes: Bytes that the rank gives to it.
        start: Start in ns.
        dur: Duration in ns.
        step: Number of its step.
    """

    sums: npt.NDArray[np.bool_]
    gradients: npt.NDArray[np.bool_]
    bytes: Times
    start: Times
    dur: Times
    step: Times

    def __len__(self) -> int:
        return len(self.start)

    def of(self, chosen: npt.NDArray[np.bool_]) -> _Exchanged:
        """Return some of them."""
        times = (one[chosen] for one in (self.bytes, self.start, self.dur, self.step))
        return _Exchanged(self.sums[chosen], self.gradients[chosen], *times)


def collectives(observed: Observed) -> Iterator[Claim]:
    """Yield collectives whose number makes the step longer."""
    steps = observed.summary.steps.count
    if not steps or not has_rows(observed.tables, "collectives"):
        return
    exchanged = _exchanged(observed.tables)
    if not len(exchanged):
        return
    exposed, reduced = exposed_communication(observed), exchanged.of(exchanged.gradients)
    often = _repeats(observed.tables, reduced, steps)
    if often > 1:
        yield _too_often(observed, reduced, often, exposed)
        return
    small = exchanged.of(exchanged.bytes <= _SMALL)
    if len(small) >= _MANY * steps:
        part = float(small.dur.sum()) / float(exchanged.dur.sum() or 1)
        yield _too_small(observed, small, part * exposed, _calling(observed))
    if observed.summary.on_device:
        yield from _after_backward(observed, reduced, exposed)


def exposed_communication(observed: Observed) -> float:
    """Return the communication that nothing hides, ns per step.

    One step in which all ranks wait for one does not count. On a processor, an operator of the program, or the
    backward, that waits for a collective counts as computing; the looks see the wait.
    """
    part = observed.part("communication") or 0.0
    if observed.summary.on_device:
        steps = split(observed.tables).parts["communication"]
        usual = float(np.median(steps) / steps.mean()) if len(steps) >= _SEVERAL and steps.any() else 1.0
        return part * min(usual, 1.0)
    inside = pl.col("leaf").str.contains(_DISTRIBUTED) | (pl.col("leaf_function") == _ENGINE)
    waits = observed.looks.filter(inside & pl.col("state").is_in(_WAITING))
    spans = columns_of(observed.tables, "spans", "kind", "ts", "dur", "step").drop_nulls("step").sort("ts")
    spans = spans.filter(pl.col("kind").cast(pl.String) == "collective")
    running = unite(spans["ts"].to_numpy(), (spans["ts"] + spans["dur"]).to_numpy())
    whole = running.length / max(observed.summary.steps.count, 1)  # a wait is as long on a busy machine
    return max(part, min(float(waits["time"].sum()), whole, observed.step_ns))


def _calling(observed: Observed) -> pl.DataFrame:
    """Return the looks at which a processor begins collectives; none where a device computes, which hides them."""
    calls = pl.col("leaf").str.contains(_DISTRIBUTED) & ~pl.col("state").is_in(_WAITING)
    return observed.looks.filter(calls & (not observed.summary.on_device))


def _exchanged(tables: Tables) -> _Exchanged:
    found = columns_of(tables, "collectives", "span", "operation", "bytes_in")
    rows, carried = rows_of(columns_of(tables, "spans", "id")["id"], found["span"]), or_negative(found["bytes_in"])
    name = found["operation"].cast(pl.String).fill_null("")
    sums = name.str.contains(_SUMS).to_numpy()
    gradients = sums | (name == _GATHERS).to_numpy()
    known = np.flatnonzero((rows >= 0) & (carried > 0) & name.str.contains(_JOINED).to_numpy())
    spans = columns_of(tables, "spans", "ts", "dur", "step")[rows[known]]
    start, dur, step = (or_negative(column) for column in spans.get_columns())
    return _Exchanged(sums[known], gradients[known], carried[known], start, dur, step).of(step >= 0)


def _repeats(tables: Tables, reduced: _Exchanged, steps: int) -> int:
    """Return how often a step exchanges its gradients: after each of its backward passes, in the same sizes each time.

    A size that is exchanged before the first backward of a step is not that of a gradient: tensor parallel layers add
    up their outputs in forward and backward.
    """
    rows, codes, spans = device_rows(tables), span_codes(tables), columns_of(tables, "spans", "ts", "step")
    if not len(rows):
        rows = np.flatnonzero(of_kinds(codes.kind, "operator"))
    rows = rows[(codes.phase[rows] != PHASES.index("communication")) & (codes.phase[rows] < len(PHASES))]
    ts, step = (or_negative(spans[name][rows]) for name in spans.columns)
    rows, ts, step = (values[step >= 0][np.argsort(ts[step >= 0], kind="stable")] for values in (rows, ts, step))
    backward = codes.phase[rows] == PHASES.index("backward")
    begins = np.flatnonzero(backward & ~np.roll(backward, 1) | backward & (np.diff(step, prepend=-1) != 0))
    passes, more = divmod(len(begins), steps)
    if more or passes < 2:
        return 1
    latest = np.searchsorted(ts[begins], reduced.start, "right") - 1
    before = (latest < 0) | (step[begins][latest] != reduced.step)
    sizes = list(zip(reduced.sums.tolist(), reduced.bytes.tolist(), strict=True))
    others = {size for size, early in zip(sizes, before.tolist(), strict=True) if early}
    carried: list[Counter[tuple[bool, int]]] = [Counter() for _ in begins]
    for size, place in zip(sizes, latest.tolist(), strict=True):
        if size not in others:
            carried[place][size] += 1
    if any(one != carried[0] for one in carried):
        return 1
    gradients = [size for _, size in carried[0].elements()]
    return passes if gradients and sum(gradients) > _SMALL * len(gradients) else 1


def _too_small(observed: Observed, small: _Exchanged, waits: float, calling: pl.DataFrame) -> Claim:
    exposed = waits + float(calling["time"].sum())
    steps = observed.summary.steps.count
    each, total = len(small) / steps, float(small.bytes.sum()) / steps
    kept = ceil(total / _BUCKET)
    norms = _synchronised_norms(observed)
    statistics = bool(norms) and 2 * norms >= _MOST * each  # one exchange in the forward, one in the backward
    gain = exposed * (min(2 * norms / each, 1.0) if statistics else 1 - min(1.0, 2 * kept / each))
    finding = Finding(
        cause="synchronised-batch-norm" if statistics else "small-collectives",
        title=f"{each:.0f} collectives a step carry {bytes_text(round(total / each))} each and take "
        f"{of_step(observed, exposed)} that nothing hides"
        + (f": the statistics of {count_text(norms, 'SyncBatchNorm layer')}" if statistics else ""),
        gain_ns=round(gain), gain_low_ns=round(0.6 * gain), gain_high_ns=round(exposed),
        basis="communication that nothing hides, less that of other collectives"
        if statistics else f"communication that nothing hides, of which {kept} larger ones stay",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"{each:.0f} collectives a step, {bytes_text(round(total))} together", value=each,
                     result="communication"),
        ),
        remedy="Normalise each rank's own batch where it has 16 samples or more: leave "
        "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) out; with fewer, torch.nn.GroupNorm needs no exchange."
        if statistics else
        "Put tensors together before they are exchanged: DistributedDataParallel with its default "
        "bucket_cap_mb=25, or torch._utils._flatten_dense_tensors and one all_reduce; FullyShardedDataParallel around "
        "whole blocks, not each layer. Metrics: add them up on each rank, and exchange them once an epoch.",
    )  # fmt: skip
    return Claim(finding, Depth.CAUSE, {"communication": waits} | observed.explained(calling))


def _synchronised_norms(observed: Observed) -> int:
    """Return how many layers of the models exchange the statistics of their batch."""
    state = observed.facts.get("torch.state")
    models = state.get("models") or [] if isinstance(state, dict) else []
    return max((int(one.get("sync_batchnorm") or 0) for one in models), default=0)


def _after_backward(observed: Observed, reduced: _Exchanged, exposed: float) -> Iterator[Claim]:
    """Sums of gradients of which none begins before the backward has ended."""
    if observed.share(exposed) < _TOLD:
        return
    tables = observed.tables
    rows = device_rows(tables)
    codes, spans = span_codes(tables), columns_of(tables, "spans", "ts", "dur", "step")
    rows = rows[of_kinds(codes.kind[rows], "kernel") & (codes.phase[rows] == PHASES.index("backward"))]
    start, dur, step = (or_negative(spans[name][rows]) for name in spans.columns)
    numbers, place = np.unique(step, return_inverse=True)
    ended = np.full(len(numbers), np.iinfo(np.int64).min)
    np.maximum.at(ended, place, start + dur)
    sums = reduced.of(reduced.sums & np.isin(reduced.step, numbers))
    behind = sums.start >= ended[np.searchsorted(numbers, sums.step)]
    late, whole = float(sums.dur[behind].sum()), float(sums.dur.sum())
    if not whole or late < _LATE * whole:
        return
    exposed = min(exposed, late / observed.summary.steps.count)  # the rest is of other communication
    if observed.share(exposed) < _TOLD:
        return
    beside = float(dur[step >= 0].sum()) / observed.summary.steps.count
    gain = min(exposed, _BESIDE * beside)
    finding = Finding(
        cause="communication-not-overlapped",
        title=f"{of_step(observed, exposed)} gradients are exchanged after the backward, while the device computes "
        "nothing",
        gain_ns=round(0.9 * gain), gain_low_ns=round(0.5 * gain), gain_high_ns=round(exposed),
        basis="communication that nothing hides, as far as it fits beside the backward",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{percent_text(late / whole)} of the sums of gradients begin when the backward has ended",
                     value=late / whole, result="communication"),
            Evidence(text=f"the backward computes {duration_text(beside)} a step, beside which they could run",
                     value=beside, unit="ns", result="step_anatomy"),
        ),
        remedy="Exchange gradients while the backward runs: DistributedDataParallel(model) instead of all_reduce() "
        "behind backward(); where it is used, smaller buckets (bucket_cap_mb=10), so that the first is full early.",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, {"communication": exposed})


def _too_often(observed: Observed, reduced: _Exchanged, often: int, exposed: float) -> Claim:
    steps = observed.summary.steps.count
    total = float(reduced.bytes.sum()) / steps
    gain = exposed * (1 - 1 / often)
    finding = Finding(
        cause="unneeded-collectives",
        title=f"gradients are exchanged {often} times a step; the last time would do: {duration_text(gain)} of "
        f"{duration_text(observed.step_ns)}",
        gain_ns=round(gain), gain_low_ns=round(0.7 * gain), gain_high_ns=round(1.3 * gain),
        basis="communication that nothing hides, of which one exchange stays",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"the same sizes {often} times a step, {bytes_text(round(total))} together",
                     value=float(often),
                     result="communication"),
        ),
        remedy="Exchange gradients only in the last part of an accumulated batch: with model.no_sync(): "
        "loss.backward() for the others.",
    )  # fmt: skip
    return Claim(finding, Depth.CAUSE, {"communication": exposed})


def data_parallel(observed: Observed) -> Iterator[Claim]:
    """Yield what each step sends besides: objects, buffers, and which parameters have gradients, where all have one."""
    yield from _objects(observed)
    state = observed.facts.get("torch.state")
    models = state.get("models") or [] if isinstance(state, dict) else []
    models = [one for one in models if isinstance(one.get("ddp"), dict)]
    if models and not observed.summary.on_device:
        yield from _besides(observed)
    for model in models:
        if model["ddp"].get("find_unused_parameters") and not model["ddp"].get("static_graph"):
            yield from _search(observed, model)
        if model["ddp"].get("broadcast_buffers"):
            yield from _buffers(observed, model)


def _objects(observed: Observed) -> Iterator[Claim]:
    """Objects of Python that ranks exchange, such as the metrics of a step."""
    looks = observed.looks_through("torch/distributed/distributed_c10d.py", *_OBJECTS)
    if looks.is_empty():
        return
    waiting = pl.col("state").is_in(_WAITING)
    waits = min(float(looks.filter(waiting)["time"].sum()), sum(_usual(observed, name) for name in _BY_OBJECTS))
    own = looks.filter(~waiting)
    time = float(own["time"].sum()) + waits
    if observed.share(time) < _TOLD:
        return
    called = sorted({one.function for stack in looks["stack"].to_list() for one in observed.stacks[stack]}
                    & set(_OBJECTS))  # fmt: skip
    yield _in_distributed(
        observed, own, waits, cause="small-collectives", who=f"{' and '.join(called)} does so",
        title=f"{of_step(observed, time)} ranks exchange objects of Python{observed.most_seen(looks)}",
        evidence=f"{' and '.join(called)} pickles objects, and sends their sizes and then their bytes",
        remedy="Exchange numbers as one tensor, every so many steps: if step % 50 == 0: "
        "dist.all_reduce(torch.stack([loss.detach(), correct])); objects once in an epoch.",
    )  # fmt: skip


def _besides(observed: Observed) -> Iterator[Claim]:
    """Collectives that the program itself calls in the step, beside those of DistributedDataParallel."""
    called: dict[int, str] = {}
    for stack, frames in observed.stacks.items():
        inner = list(takewhile(lambda frame: _OF_DISTRIBUTED.search(frame.file), frames))
        name = next((one.function for one in reversed(inner) if one.function in _CALLED), "")
        objects = any(one.function in _OBJECTS for one in inner)
        if name and not objects and len(inner) < len(frames) and frames[len(inner)].own:
            called[stack] = name
    looks = observed.looks.filter(pl.col("stack").is_in(list(called)))
    looks = looks.with_columns(name=pl.col("stack").replace_strict(called, return_dtype=pl.String, default=""))
    by_name = looks.group_by("name").agg(pl.col("time").sum()).sort("time", "name", descending=[True, False])
    names, time = by_name["name"].to_list(), float(looks["time"].sum())
    if observed.share(time) < _TOLD:
        return
    own = looks.filter(~pl.col("state").is_in(_WAITING))
    said = ", ".join(names)
    yield _in_distributed(
        observed, own, time - float(own["time"].sum()),
        cause="unneeded-collectives" if names[0] in _UNNEEDED else "small-collectives",
        who=f"the program calls {said}",
        title=f"{of_step(observed, time)} the program exchanges besides its gradients: "
        f"{said}{observed.most_seen(looks)}",
        evidence=f"lines of the program call {said} of torch.distributed, beside DistributedDataParallel",
        remedy="Leave barrier() out: ranks meet where they exchange gradients. DistributedDataParallel keeps their "
        "parameters equal: no broadcast() of these. Add metrics up on each rank, and exchange them every so many "
        "steps.",
    )  # fmt: skip


def _search(observed: Observed, model: dict[str, Any]) -> Iterator[Claim]:
    calls, steps = recorded_calls(observed), max(observed.summary.steps.count, 1)
    trained = int(model.get("trainable_parameters") or 0)
    sums = len(calls.filter(pl.col("name") == _ACCUMULATES)) / steps
    looks = observed.looks_through(_DDP, "_post_forward", "_find_tensors")
    waits = _of_its_own(observed, _MARK * trained)
    time = float(looks["time"].sum()) + waits
    if not trained or sums < trained or not time:
        return
    yield _in_distributed(
        observed, looks, waits, cause="unused-parameter-search",
        title=f"{of_step(observed, time)} DistributedDataParallel searches the graph for parameters without a "
        f"gradient and tells the other ranks, and all {trained} have one",
        evidence=f"find_unused_parameters=True, and each step adds up {sums:.0f} gradients of {trained} parameters",
        remedy="Leave find_unused_parameters=True out: DistributedDataParallel(model). If other steps leave some "
        "parameters out, always the same ones: static_graph=True.",
    )  # fmt: skip


def _of_its_own(observed: Observed, size: int) -> float:
    """Return what the collectives of integers of this size take, ns a step: half of what they share with others."""
    found = columns_of(observed.tables, "collectives", "span", "dtype", "bytes_in")
    found = found.join(columns_of(observed.tables, "spans", "id", "ts", "dur", "step"), left_on="span", right_on="id")
    mine = pl.col("dtype").cast(pl.String).str.to_lowercase().str.starts_with("int") & (pl.col("bytes_in") == size)
    found = found.with_columns(mine=mine.fill_null(value=False), end=pl.col("ts") + pl.col("dur")).drop_nulls("step")
    around = found.filter(~pl.col("mine")).group_by("step").agg(begin=pl.col("ts").min(), until=pl.col("end").max())
    shared = (pl.min_horizontal("end", "until") - pl.max_horizontal("ts", "begin")).clip(0).fill_null(0)
    own = found.filter("mine").join(around, on="step", how="left").select("step", time=pl.col("dur") - shared / 2)
    time = float(own.group_by("step").agg(pl.col("time").sum())["time"].median() or 0.0)  # type: ignore[arg-type]
    time *= min(observed.step_ns / max(observed.summary.steps.mean_ns, 1.0), 1.0)
    return min(time, observed.part("communication") or 0.0)


def _buffers(observed: Observed, model: dict[str, Any]) -> Iterator[Claim]:
    looks = observed.looks_through(_DDP, "_sync_buffers")
    waiting = pl.col("state").is_in(_WAITING)
    # A rank that comes first waits for the others: without the exchange it waits for them at the next one.
    waits = min(float(looks.filter(waiting)["time"].sum()), _usual(observed, "broadcast"))
    own = looks.filter(~waiting)
    time = float(own["time"].sum()) + waits
    if not time:
        return
    held = sum(int(size) for size in (model.get("buffer_bytes_by_dtype") or {}).values())
    norms = count_text(int(model.get("batchnorm") or 0), "BatchNorm layer")
    yield _in_distributed(
        observed, own, waits, cause="buffer-broadcasts",
        title=f"{of_step(observed, time)} the first rank sends its buffers to the others before the forward: the "
        f"statistics of {norms}",
        evidence=f"broadcast_buffers is on, as by default; the model has {held:,} bytes of buffers",
        remedy="DistributedDataParallel(model, broadcast_buffers=False): in training, BatchNorm uses the statistics of "
        "its own batch; a checkpoint of the first rank has the same buffers as before.",
    )  # fmt: skip


def _usual(observed: Observed, operation: str) -> float:
    """Return what the collectives of a kind take where no rank is late, ns a step: the lower quartile of each."""
    found = columns_of(observed.tables, "collectives", "span", "operation")
    found = found.filter(pl.col("operation").cast(pl.String) == operation)
    spans = columns_of(observed.tables, "spans", "id", "dur", "step").drop_nulls("step")
    durations = found.join(spans, left_on="span", right_on="id")["dur"]
    each = float(durations.quantile(0.25) or 0.0)
    return each * len(durations) / max(observed.summary.steps.count, 1)


def _in_distributed(observed: Observed, looks: pl.DataFrame, waits: float, **says: str) -> Claim:
    seen, count = float(looks["time"].sum()), max(float(looks["count"].sum()), 1.0)
    time, error = seen + waits, seen / count**0.5 + waits / 4
    finding = Finding(
        cause=says["cause"],
        title=says["title"],
        gain_ns=round(time), gain_low_ns=round(max(time - 2 * error, 0.0)), gain_high_ns=round(time + 2 * error),
        basis=f"the samples in which {says.get('who', 'DistributedDataParallel does so')}, and its own part of the "
        "communication that nothing hides",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=says["evidence"]),
            Evidence(text=f"{duration_text(seen)} of the step in {count:.0f} looks at the training thread", value=seen,
                     unit="ns", result="python_lines"),
        ),
        remedy=says["remedy"],
    )  # fmt: skip
    return Claim(finding, Depth.CAUSE, observed.explained(looks))
