"""The time that samples of Python stacks stand for, by thread, stack, phase and state."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analyse.stacks.own_code import own_code
from stepscope.analyse.step.announced import announced
from stepscope.trace.schema import STEPPING
from stepscope.trace.tables import Tables, collected, columns_of, complete, facts, has_rows, lazy, shared

#: Title in results → the states of `samples` that it adds up.
STATES = {
    "Python(us)": "python", "Native(us)": "native", "Collecting(us)": "collecting", "GIL Wait(us)": "gil",
    "Core Wait(us)": "core", "Lock(us)": "lock", "Sleep(us)": "sleep", "IO(us)": "io", "Child(us)": "child",
    "Waiting(us)": "waiting",
}  # fmt: skip
#: Name of all workers together, and of what stepscope itself does, on whatever thread.
WORKERS, STEPSCOPE = "workers", "stepscope"
#: Python's own modules, packages that are installed among them, and the code that records.
_PYTHONS, _PACKAGES = r"^<frozen|[/\\]lib[/\\]python\d", r"[/\\](?:site|dist)-packages[/\\]"
_RECORDS = r"[/\\]stepscope[/\\](?:collect|native|trace)[/\\]"
_HOOKS = r"[/\\]stepscope[/\\]collect[/\\]hooks[/\\]methods\.py$"
#: A package that the code that records calls: what it does is done for its caller.
_CALLED = r"[/\\]psutil[/\\]"
#: Where a process begins that was forked; what is outside of it are the frames of its parent.
_FORKED = (r"multiprocessing[/\\]process\.py$", "_bootstrap")
#: States in which a thread does something.
_ACTIVE = ("python", "native", "collecting", "gil", "core")
#: Phase → functions that run it, and the end of their files: the frames of the frameworks.
_RUNS = {
    "data": (
        r"torch/utils/data/dataloader\.py$|mindspore/dataset/engine/iterators\.py$|"
        r"paddle/io/dataloader/dataloader_iter\.py$|grain/_src/python/(?:data_loader|dataset/.*)\.py$",
        r"__next__$",
    ),
    "backward": (
        r"torch/(?:_tensor|autograd/__init__|autograd/graph)\.py$|paddle/.*(?:tensor_patch_methods|backward_mode)\.py$|"
        r"mindspore/(?:graph|common)/api\.py$",
        r"(?:^|\.)(?:_engine_run_backward|backward|grad)$",
    ),
    "optimizer": (
        r"torch/optim/\w+\.py$|paddle/optimizer/\w+\.py$|mindspore/nn/optim/\w+\.py$|/optax/.*\.py$",
        r"(?:^|\.)(?:step|zero_grad|clear_grad|minimize|construct|update|update_fn|wrapper)$",
    ),
    "forward": (
        r"torch/nn/modules/module\.py$|paddle/nn/layer/layers\.py$|mindspore/nn/cell\.py$|/flax/.*\.py$",
        r"(?:^|\.)(?:_call_impl|_wrapped_call_impl|__call__|apply)$",
    ),
}
#: What contains a forward pass of its own: a checkpoint that recomputes, a loader that runs a model.
_CONTAINS_FORWARD = ("backward", "data")
#: Phases that the program or a library announces.
_ANNOUNCED = ("evaluation", "checkpoint")


@dataclass(frozen=True)
class SampledTime:
    """What was sampled.

    Attributes:
        rows: Columns ``thread`` (name), ``order`` (0 the training thread, 1 workers, 2 others, 3 stepscope), ``stack``,
            ``phase``, ``state``, ``count``, ``time`` (ns), ``inside`` (ns, within steps) and ``cpu`` (ns, CPU time
            since the look before each, within steps).
        frames: A row for each frame of a stack: ``stack``, ``place`` (0 the innermost), ``file``, ``line``,
            ``function`` and ``own``.
        steps: Number of steps of the run whose time is known.
    """

    rows: pl.DataFrame
    frames: pl.DataFrame
    steps: int


@shared
def sampled_time(tables: Tables) -> SampledTime:
    """Return the samples of all threads; where stepscope works, under its name, and not where it waits."""
    return _sampled(tables) if has_rows(tables, "samples") else replace(no_samples(), steps=len(_steps(tables)[0]))


@cache
def no_samples() -> SampledTime:
    """Return what is found without samples, and without steps."""
    return _sampled(lazy(complete({})))


def _sampled(tables: Tables) -> SampledTime:
    stacks = tables["stacks"].join(tables["samples"].select(id="stack").unique(), on="id", how="semi")
    stacks = stacks.with_columns(place=pl.int_ranges(pl.col("frames").list.len())).explode("frames", "place")
    frames = stacks.unnest("frames").rename({"id": "stack"}).with_columns(own=own_code(tables).fill_null(value=False))
    begins = pl.col("file").str.contains(_FORKED[0]) & pl.col("function").str.ends_with(_FORKED[1])
    outermost = pl.col("place").filter(begins).min().over("stack").fill_null(pl.col("place"))
    listed = frames.filter(pl.col("place") <= outermost).pipe(collected, tables).pipe(_without_hooks)
    samples = columns_of(
        tables, "samples", "ts", "dur", "count", "process", "thread", "name", "worker", "state", "stack", "cpu"
    )
    begin, end = _steps(tables)
    times = samples["ts"].to_numpy(), (samples["ts"] + samples["dur"]).to_numpy()
    ours = pl.col("stack").is_in(_of_stepscope(listed).implode()).fill_null(value=False)
    worker, trains = pl.col("worker").is_not_null(), ends_steps(tables)
    described = (
        samples.with_columns(inside=pl.Series(_within(times[1], begin, end) - _within(times[0], begin, end)))
        .filter(~ours | pl.col("state").cast(pl.String).is_in(_ACTIVE).fill_null(value=True))
        .join(stack_phases(listed), on="stack", how="left", maintain_order="left")
    )
    named = pl.when(worker).then(pl.lit(WORKERS)).otherwise(pl.col("name").cast(pl.String))
    cpu = pl.col("cpu") * pl.col("inside") / pl.col("dur").clip(1)
    # The kernel takes the core from a thread mostly as it returns from a call of ours: others have used its CPU time.
    parked = (ours & (pl.col("state").cast(pl.String) == "core")).fill_null(value=False)
    of_others = cpu.filter(~parked).sum().over("process", "thread")
    spread = pl.when(of_others > 0).then(
        pl.when(parked).then(0.0).otherwise(cpu.sum().over("process", "thread") / of_others)
    )
    asks = pl.when(pl.col("stack").is_in(_iterating(tables, listed))).then(pl.lit("data"))
    rows = described.select(
        "stack", "state", "count", "inside",
        time=pl.col("dur"),
        cpu=cpu * spread.fill_null(1.0),
        thread=pl.when(ours).then(pl.lit(STEPSCOPE)).otherwise(named),
        order=pl.when(ours).then(3).when(worker).then(1).when(trains).then(0).otherwise(2),
        phase=pl.when(~worker & ~ours).then(pl.coalesce(_announced(tables, described), asks, "phase")),
    )  # fmt: skip
    keys = ["order", "thread", "stack", "phase", "state"]
    summed = rows.group_by(keys).agg(pl.col("count", "time", "inside", "cpu").sum()).sort(keys)
    return SampledTime(summed, listed, len(begin))


def ends_steps(tables: Tables) -> pl.Expr:
    """Return whether a row is of the thread that ends the steps: the main thread, if no other is known to."""
    stepping = pl.lit(facts(tables).get(STEPPING), pl.String).cast(pl.Int64, strict=False)
    return pl.col("thread") == pl.coalesce(stepping, pl.col("process"))


def by_state(column: str = "time") -> list[pl.Expr]:
    """Return the time in each state in µs, for a group of rows, under its title; null where the source tells none."""
    text = pl.col("state").cast(pl.String)
    told = text.is_not_null().all()
    return [
        pl.when(told).then((pl.col(column).filter(text == state).sum() / 1000).round(3)).alias(title)
        for title, state in STATES.items()
    ]


def _steps(tables: Tables) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return starts and ends of the steps of the run, in order; those of unknown start are left out."""
    steps = columns_of(tables, "run_steps", "ts", "dur")
    steps = steps.drop_nulls() if any(column.null_count() for column in steps.iter_columns()) else steps
    steps = steps if steps["ts"].is_sorted() else steps.sort("ts")
    begin = steps["ts"].to_numpy()
    end = begin + steps["dur"].to_numpy()
    # A step ends before the next one begins; of those that do not, no time counts twice.
    return begin, np.minimum(end, np.append(begin[1:], end[-1:])) if len(begin) else end


def _within(
    time: npt.NDArray[np.int64], begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return for each time how much of the steps lies before it, in ns."""
    if not len(begin):
        return np.zeros(len(time), np.int64)
    before = np.concatenate([[0], np.cumsum(end - begin)])
    place = np.searchsorted(begin, time, side="right") - 1
    started = np.maximum(place, 0)
    return np.where(place < 0, 0, before[started] + np.minimum(time, end[started]) - begin[started])


def stack_phases(frames: pl.DataFrame) -> pl.DataFrame:
    """Return the phase of each stack that has a frame of one: the innermost, but what contains a forward pass first."""
    path = pl.col("file").str.replace_all("\\", "/", literal=True)
    phase = pl.coalesce(
        pl.when(path.str.contains(files) & pl.col("function").str.contains(functions)).then(pl.lit(name))
        for name, (files, functions) in _RUNS.items()
    )
    found = frames.sort("stack", "place").select("stack", phase=phase).drop_nulls()
    contains = pl.col("phase").filter(pl.col("phase").is_in(_CONTAINS_FORWARD)).first()
    innermost = pl.col("phase").first()
    chosen = pl.when(innermost == "forward").then(pl.coalesce(contains, innermost)).otherwise(innermost)
    return found.group_by("stack", maintain_order=True).agg(phase=chosen)


def _iterating(tables: Tables, frames: pl.DataFrame) -> list[int]:
    """Return the stacks in which a program of JAX, which has no loader, asks an iterator of its own for the next batch.

    That is ``__next__``, or a generator that waits to be asked for more between the steps.
    """
    used = json.loads(facts(tables).get("jax.used", "{}"))
    known = {(one["file"], one["function"]) for one in used.get("generators", ())}
    if not used:
        return []
    own = frames.filter("own").select("stack", pl.col("file", "function").cast(pl.String).fill_null(""))
    return sorted(
        {
            stack
            for stack, file, function in own.iter_rows()
            if (file, function) in known or function.rpartition(".")[2] == "__next__"
        }
    )


def _announced(tables: Tables, samples: pl.DataFrame) -> pl.Series:
    """Return the announced phase in which each sample lies; null in none."""
    names = pl.Series("announced", [None], pl.String).new_from_index(0, samples.height)
    if not has_rows(tables, "run_events"):
        return names
    for name in _ANNOUNCED:
        chosen = announced(tables, name)
        if chosen.height:
            at = np.searchsorted(chosen["ts"].to_numpy(), samples["ts"].to_numpy(), side="right") - 1
            ends = (chosen["ts"] + chosen["dur"]).to_numpy()[np.maximum(at, 0)]
            inside = pl.Series((at >= 0) & (samples["ts"].to_numpy() < ends))
            names = names.set(inside & names.is_null(), name)
    return names


def _without_hooks(frames: pl.DataFrame) -> pl.DataFrame:
    """Return the frames without the innermost ones of hooks: what they call is compiled, has no frame, and is theirs.

    A hook is a frame of :mod:`stepscope.collect.hooks.methods` and the function that it calls in place of the original.
    """
    frames = frames.sort("stack", "place")
    records, hooks = (pl.col("file").cast(pl.String).str.contains(text) for text in (_RECORDS, _HOOKS))
    outer = pl.col("file").shift(-1).over("stack").cast(pl.String).str.contains(_HOOKS)
    hook = (records & (hooks | outer)).fill_null(value=False)
    kept = frames.filter((~hook).cum_sum().over("stack") > 0)
    return kept.with_columns(place=pl.col("place") - pl.col("place").min().over("stack"))


def _of_stepscope(frames: pl.DataFrame) -> pl.Series:
    """Return the stacks of which the innermost frame, but for Python's own modules and psutil, is of what records."""
    file = pl.col("file")
    pythons = (file.str.contains(_PYTHONS) & ~file.str.contains(_PACKAGES)) | file.str.contains(_CALLED)
    inner = frames.filter(~pythons.fill_null(value=False)).sort("stack", "place")
    innermost = inner.group_by("stack", maintain_order=True).agg(pl.col("file").first())
    return innermost.filter(pl.col("file").str.contains(_RECORDS))["stack"]
