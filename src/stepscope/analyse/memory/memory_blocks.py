"""Every block of memory taken while recording: its life, what it is for, who took it. See ``docs/definitions.md``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analyse.anatomy.call_sites import call_sites
from stepscope.analyse.intervals import EMPTY, Intervals, Times
from stepscope.analyse.operators.operator_calls import by_depth, host_operators, rows_of
from stepscope.analyse.stacks.sampled_time import stack_phases
from stepscope.analyse.step.phase_times import phase_intervals
from stepscope.analyse.step.step_trace_time import split
from stepscope.trace.tables import Tables, columns_of, has_rows, shared

#: What memory is for; the last is what cannot be told.
CATEGORIES = ("parameters", "gradients", "optimizer state", "activations", "batch", "temporary", "unknown")
_PHASES = ("forward", "backward", "optimizer", "data")
#: Functions that make or move the parameters of modules.
_OF_MODULES = r"(?:^|\.)(?:__init__|_apply|to|cuda|reset_parameters|__new__|deepcopy|load_state_dict)$"
_IN_MODULES = r"torch[/\\]nn[/\\](?:modules|parameter)"
#: Operators that are around those that a program calls.
_WRAPPERS = r"^(?:autograd::engine::evaluate_function|Optimizer\.)"
_EVENTS = ("ts", "device", "address", "bytes", "allocated", "reserved", "span", "block", "stack", "name")


@dataclass(frozen=True, eq=False)
class MemoryBlocks:
    """Memory events, and what they say of blocks.

    Attributes:
        events: Columns device, ts, bytes, allocated, reserved, ``step`` (place among the steps, or among the
            repetitions of the forward pass without steps; -1 outside) and ``phase``; in order of time.
        blocks: One row per block taken: ``event`` and ``freed`` (rows of ``events``, freed null if it is held to the
            end), device, bytes, category, operator, module and ``stack``.
        steps: Number of steps, or of repetitions.
    """

    events: pl.DataFrame
    blocks: pl.DataFrame
    steps: int


@shared
def memory_blocks(tables: Tables) -> MemoryBlocks:
    """Return the blocks taken while recording."""
    events = columns_of(tables, "allocations", *_EVENTS).with_columns(pl.col("device", "name").cast(pl.String))
    if not events["ts"].is_sorted():
        events = events.sort("ts", maintain_order=True)
    phase = _phases(tables, events)
    step, steps = _steps(tables, events, phase)
    events = events.with_row_index("event").with_columns(
        pl.col("event").cast(pl.Int64), pl.Series("step", step), phase.alias("phase")
    )
    following = pl.struct("event", "bytes").shift(-1).over("device", "address", "block")
    placed = events.with_columns(following=following).unnest("following", separator=".")
    known = (pl.col("following.bytes") < 0) & pl.any_horizontal(pl.col("address", "block").is_not_null())
    taken = placed.filter(pl.col("bytes") > 0).with_columns(freed=pl.when(known).then("following.event"))
    blocks = taken.select("event", "freed", "device", "bytes", "span", "stack", "name", "address", "block")
    blocks = _owned(tables, blocks)
    category = _categories(tables, blocks, events, steps)
    shown = blocks.with_columns(category).select(
        "event", "freed", "device", "bytes", "category", "operator", "module", "stack"
    )
    return MemoryBlocks(events.select("device", "ts", "bytes", "allocated", "reserved", "step", "phase"), shown, steps)


def _phases(tables: Tables, events: pl.DataFrame) -> pl.Series:
    """Return the phase in which each event happens: that of its stack, else what the host works on at that time."""
    instants, codes = events["ts"].to_numpy(), np.zeros(len(events), np.int8)
    if has_rows(tables, "spans"):
        intervals = phase_intervals(tables, split(tables).work, on_device=False)
        for code, name in enumerate(_PHASES, 1):
            codes[_inside(intervals.get(name, EMPTY), instants)] = code
    found = pl.Series([None, *_PHASES], dtype=pl.String)[pl.Series(codes)]
    stacks = events["stack"]
    if stacks.null_count() == len(stacks):
        return found
    known = stack_phases(_frames(tables))
    of_stack = stacks.replace_strict(known["stack"], known["phase"], default=None, return_dtype=pl.String)
    if not has_rows(tables, "spans"):  # PyTorch's threads that run the backward pass have no Python frames
        found = pl.select(pl.when(stacks.is_null()).then(pl.lit("backward"))).to_series()
    return of_stack.zip_with(stacks.is_not_null(), found)


def _frames(tables: Tables) -> pl.DataFrame:
    stacks = tables["stacks"].with_columns(place=pl.int_ranges(pl.col("frames").list.len())).explode("frames", "place")
    return stacks.unnest("frames").rename({"id": "stack"}).collect()


def _inside(intervals: Intervals, instants: Times) -> npt.NDArray[np.bool_]:
    if not len(intervals):
        return np.zeros(len(instants), np.bool_)
    at = np.searchsorted(intervals.start, instants, side="right") - 1
    return np.asarray((at >= 0) & (instants < intervals.end[at]), np.bool_)


def _steps(tables: Tables, events: pl.DataFrame, phase: pl.Series) -> tuple[Times, int]:
    """Return the place of the step of each event, and their number.

    Without steps, a repetition begins with the first event of a forward pass or a batch after a backward pass or the
    optimizer.
    """
    steps = columns_of(tables, "steps", "ts", "dur").sort("ts")
    instants = events["ts"].to_numpy()
    if steps.height:
        start = steps["ts"].to_numpy()
        at = np.searchsorted(start, instants, side="right") - 1
        ended = instants >= (start + steps["dur"].to_numpy())[at]
        # What happens between two steps belongs to the one before.
        return np.where((at == steps.height - 1) & ended, steps.height, at), steps.height
    begins, ends = (
        phase.is_in(names).fill_null(value=False).to_numpy()
        for names in (("forward", "data"), ("backward", "optimizer"))
    )
    marked = np.flatnonzero(begins | ends)
    first = marked[begins[marked] & np.concatenate(([True], ends[marked][:-1]))]
    number = np.searchsorted(first, np.arange(len(phase)), side="right") - 1
    return number.astype(np.int64), len(first)


def _owned(tables: Tables, blocks: pl.DataFrame) -> pl.DataFrame:
    """Add the operator that took each block, its module, and its stack."""
    operators = host_operators(tables)
    name = operators["name"].cast(pl.String)
    outer, wrapper = operators["outer"].to_numpy(), name.str.contains(_WRAPPERS).to_numpy()
    top = np.arange(len(operators))
    for level in by_depth(operators["depth"])[1:]:
        inner = level[(outer[level] >= 0) & ~np.append(wrapper, True)[outer[level]]]
        top[inner] = top[outer[inner]]
    row = rows_of(operators["id"], blocks["span"])
    of_row = pl.Series(row).set(pl.Series(row < 0), None)
    called = name.gather(pl.Series(np.append(top, -1)[row]).set(pl.Series(row < 0), None))
    sites = call_sites(tables)
    place = rows_of(sites["id"], operators["id"]) if len(sites) else row
    site = pl.Series(np.append(place, -1)[row]).set(of_row.is_null(), None) if len(place) else of_row
    return blocks.with_columns(
        operator=pl.coalesce(pl.Series("called", called), "name"),
        module=sites["module"].gather(site),
        stack=pl.coalesce("stack", sites["stack"].gather(site).alias("of_operator")),
    )


def _categories(tables: Tables, blocks: pl.DataFrame, events: pl.DataFrame, steps: int) -> pl.Series:
    """Return what each block is for, by the phases in which it was taken and given back, and the steps between."""
    at, freed = blocks["event"].to_numpy(), blocks["freed"].fill_null(-1).to_numpy()
    step = np.append(events["step"].to_numpy(), steps)
    life = step[freed] - step[at]  # of a block held to the end, as if the next step freed it
    phase = events["phase"].gather(blocks["event"])
    until = events["phase"].gather(blocks["freed"])
    same, held = pl.Series(life == 0), blocks["freed"].is_null()
    # Where neither an address nor a number tells blocks apart, no life is known.
    told = blocks["address"].is_not_null() | blocks["block"].is_not_null()
    here = pl.DataFrame({"phase": phase, "until": until, "same": same, "held": held, "told": told})
    of_modules = _of_modules(tables, blocks)
    is_in, until_in = pl.col("phase").fill_null("other"), pl.col("until").fill_null("other")
    short = pl.col("same") & ~pl.col("held")
    category = (
        pl.when(~pl.col("told"))
        .then(pl.lit("unknown"))
        .when(is_in == "data")
        .then(pl.lit("batch"))
        .when((is_in == "forward") & short & (until_in == "forward"))
        .then(pl.lit("temporary"))
        .when(is_in == "forward")
        .then(pl.lit("activations"))
        .when((is_in == "backward") & short & (until_in == "backward"))
        .then(pl.lit("temporary"))
        .when(is_in == "backward")
        .then(pl.lit("gradients"))
        .when((is_in == "optimizer") & ~short)
        .then(pl.lit("optimizer state"))
        .when((is_in == "optimizer") | short)
        .then(pl.lit("temporary"))
        .when(of_modules & pl.col("held"))
        .then(pl.lit("parameters"))
        .otherwise(pl.lit("unknown"))
    )
    return here.select(category=category)["category"]


def _of_modules(tables: Tables, blocks: pl.DataFrame) -> pl.Series:
    """Return which blocks were taken by functions that make or move the parameters of modules."""
    if blocks["stack"].null_count() == len(blocks):
        return pl.Series([False], dtype=pl.Boolean).new_from_index(0, len(blocks))
    frames = _frames(tables)
    makes = pl.col("file").str.contains(_IN_MODULES) & pl.col("function").str.contains(_OF_MODULES)
    stacks = frames.filter(makes)["stack"].unique()
    return blocks["stack"].is_in(stacks.implode()).fill_null(value=False)
