"""Parts of one rank, each from one file → complete tables on one time line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.assemble import links, phases, rank_programs, stacks, stream_collectives, timeline
from stepscope.read.assemble.timeline import RankTimeline, Renumbering
from stepscope.read.common.dense import or_null
from stepscope.read.common.nesting import Integers, looked_up
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import Frames, complete, dtype, together, typed, with_series

#: Columns of ``spans`` that parts may have besides the schema's.
_LINK_COLUMNS = ("external", "forward_thread", "said_phase")
_DETAILS = ("kernels", "tasks", "operators", "collectives", "kernel_counters", "transfers", "arguments")
_BY_THEMSELVES = ("links", "static_memory")
_ON_TRACKS = ("counters", "allocations", "pipeline")
#: Tables with numbers of stacks, and the column.
_OF_STACKS = {"operators": "stack", "live_memory": "stack", "stacks": "id"}
_DATA_LOADER = "enumerate(DataLoader)#"
#: Spans whose step is looked up at once.
_AT_ONCE = 1 << 18
_ARROWS: dict[str, type[pl.DataType]] = {
    "kind": pl.String,
    "from_track": pl.Int32,
    "from_ts": pl.Int64,
    "to_track": pl.Int32,
    "to_ts": pl.Int64,
}

#: Tables of one part, or of the rank, by name.
_Part: TypeAlias = dict[str, pl.DataFrame]


def assemble(
    parts: Iterable[_Part], ledgers: Sequence[LossLedger], *, rank: int | None = None, host: str | None = None
) -> Frames:
    """Merge the parts of one rank.

    Args:
        parts: What the readers of single formats return, at least one; those that the caller does not keep are given
            up as soon as they are on the time line.
        ledgers: What was lost while they were read.
        rank: Rank of the process; None takes what the files say.
        host: Host name; None takes what the files say.

    Returns:
        Every table of the schema: tracks unified, spans numbered, nested and linked, steps resolved.
    """
    whole = [{**complete({}), **part, "spans": typed("spans", part["spans"])} for part in parts]
    _keep_one_wait_per_batch(whole)
    line, moved = timeline.build(whole, rank, host)
    merged = _details(whole, moved)
    arrows = _arrows(whole, moved)
    del moved  # 4 bytes a span
    ledger = LossLedger("assembly")
    ledger.add("span_crosses_parent", int((line.crossing & ~line.on_device).sum()))
    merged["steps"] = _steps(whole, ledger)
    merged.update(_linked(line, merged, arrows, ledger))
    merged["tracks"] = line.tracks
    facts = pl.concat([part["metadata"] for part in whole])
    first = {key: row for row, key in reversed(list(enumerate(facts["key"].to_list())))}
    merged["metadata"] = facts[sorted(first.values())]
    merged["losses"] = _losses([*ledgers, ledger], [part["losses"] for part in whole])
    return complete(merged)


def _keep_one_wait_per_batch(parts: list[_Part]) -> None:
    """Where a part measured the waits for data itself, PyTorch's own ranges around the same waits are annotations."""
    waiting = [(part["spans"]["name"], part["spans"]["kind"] == "data") for part in parts if part["spans"].height]
    waits = [names.filter(chosen).cast(pl.String) for names, chosen in waiting if chosen.any()]
    if all(name.startswith(_DATA_LOADER) for names in waits for name in names.to_list()):
        return
    foreign = (pl.col("kind") == "data") & pl.col("name").cast(pl.String).str.starts_with(_DATA_LOADER)
    kind = pl.when(foreign).then(pl.lit("annotation").cast(dtype("enum:kind"))).otherwise(pl.col("kind"))
    for part in parts:
        part["spans"] = part["spans"].with_columns(kind=kind)


def _details(parts: Sequence[_Part], moved: Renumbering) -> _Part:
    """Return the detail tables of all parts, with the numbers of the time line; they are taken out of the parts."""
    instructions, of_operators = rank_programs.merged(parts)
    names = (*_DETAILS, *_ON_TRACKS, *_BY_THEMSELVES, "live_memory", "stacks")
    merged: dict[str, list[pl.DataFrame]] = {name: [] for name in names}
    first_stack = 0
    for part, tracks, spans, instruction in zip(parts, moved.tracks, moved.spans, of_operators, strict=True):
        numbers: dict[str, npt.NDArray[Any]] = {"track": tracks, "span": spans}
        stacks_here = 1 + max(part["stacks"]["id"].to_list(), default=-1)
        if instruction is not None:
            part["operators"] = part["operators"].with_columns(instruction)
        for name, frames in merged.items():
            frame = part.pop(name)
            if frame.height:
                frames.append(_renumbered(name, frame, numbers, first_stack))
        first_stack += stacks_here
    return {"instructions": instructions, **{name: together(name, frames) for name, frames in merged.items()}}


def _renumbered(
    table: str, frame: pl.DataFrame, numbers: dict[str, npt.NDArray[Any]], first_stack: int
) -> pl.DataFrame:
    """Return a table of a part with the numbers of the rank's tracks, spans and stacks."""
    columns = [_looked_up(frame[name], known) for name, known in numbers.items() if name in frame.columns]
    if first_stack and table in _OF_STACKS:
        columns.append(frame[_OF_STACKS[table]] + first_stack)
    return with_series(frame, columns) if columns else frame


def _looked_up(own: pl.Series, numbers: npt.NDArray[Any]) -> pl.Series:
    """Return the number of the rank for each number of a part; null stays null."""
    kind = pl.Int32 if own.name == "track" else pl.Int64
    if not own.null_count():
        return pl.Series(own.name, numbers[own.to_numpy()], dtype=kind)
    known = pl.Series(own.name, numbers[own.drop_nulls().to_numpy()], dtype=kind)
    return pl.Series(own.name, [None], kind).new_from_index(0, len(own)).scatter(own.is_not_null().arg_true(), known)


def _arrows(parts: Sequence[_Part], moved: Renumbering) -> pl.DataFrame:
    frames = [pl.DataFrame(schema=_ARROWS)]
    for part, numbers in zip(parts, moved.tracks, strict=True):
        arrows = part.get("arrows")
        if arrows is not None and arrows.height:
            ends = {name: numbers[arrows[name].to_numpy()] for name in ("from_track", "to_track")}
            frames.append(pl.DataFrame({**{name: arrows[name] for name in _ARROWS}, **ends}, schema=_ARROWS))
    return pl.concat(frames)


def _linked(
    line: RankTimeline, merged: dict[str, pl.DataFrame], arrows: pl.DataFrame, ledger: LossLedger
) -> dict[str, pl.DataFrame]:
    """Return the tables that say what belongs to what."""
    launch = links.launches(line, arrows)
    links.count_dangling(line, launch, ledger)
    operator = links.operators(line, launch)
    line = stream_collectives.with_launched(line, operator)
    flows = links.flows(line, launch, arrows)
    operators, stack_table = stacks.attach(line, merged["operators"], merged["stacks"])
    return {
        "spans": _spans(line, phases.phases(line, flows, launch), merged["steps"]),
        "kernels": _kernels(merged["kernels"], launch, operator),
        "operators": operators,
        "stacks": stack_table,
        "flows": flows,
        "collectives": stream_collectives.details(line, operator, merged["collectives"]),
        "allocations": _allocations(line, merged["allocations"]),
    }


def _kernels(kernels: pl.DataFrame, launch: Integers, operator: Integers) -> pl.DataFrame:
    if not kernels.height:
        return kernels
    span = kernels["span"].to_numpy()
    return with_series(kernels, [or_null("launch", launch[span]), or_null("operator", operator[span])])


def _allocations(line: RankTimeline, frame: pl.DataFrame) -> pl.DataFrame:
    """Give memory events the operator during which they happened, and the thread.

    A part that knows better which operator they belong to says a time within it in the column ``at``.
    """
    if not frame.height:
        return frame
    if "track" not in frame.columns:
        return _in_time(frame)
    placed, others, track = frame, None, frame["track"]
    if track.null_count():
        known = track.is_not_null()
        placed, others, track = frame.filter(known), frame.filter(~known), track.filter(known)
    at = placed["at"].fill_null(placed["ts"]) if "at" in placed.columns else placed["ts"]
    around = line.at(track.to_numpy(), at.to_numpy())
    operator = looked_up(line.nearest(line.of_kinds("operator")), around)
    names = [name for name in frame.columns if name not in ("track", "at")]
    rows = with_series(placed[names], [or_null("span", operator), line.tracks["thread"][track]])
    if others is not None:
        rows = pl.concat([rows, others[names]], how="diagonal_relaxed")
    return _in_time(rows)


def _in_time(frame: pl.DataFrame) -> pl.DataFrame:
    """Return rows in order of time; those of one time stay in the order they have."""
    return frame[np.argsort(frame["ts"].to_numpy(), kind="stable")]


def _steps(parts: Sequence[dict[str, pl.DataFrame]], ledger: LossLedger) -> pl.DataFrame:
    """Return the steps of the part that knows them best: stepscope's own journal, else the marks in the trace.

    A second mark of a step, or one that begins before its predecessor ends, is counted and left out.
    """
    own = [part["steps"] for part in parts if "arrows" not in part and part["steps"].height]
    found = together("steps", own or [part["steps"] for part in parts])
    if not found.height:
        return found
    found = found[np.lexsort((found["dur"].to_numpy(), found["ts"].to_numpy()))]
    kept, last, numbers = [], None, set()
    for row, (number, ts, dur) in enumerate(found[["number", "ts", "dur"]].iter_rows()):
        if (last is None or ts >= last) and number not in numbers:
            kept.append(row)
            last = ts + dur
            numbers.add(number)
    ledger.add("step_overlap", found.height - len(kept))
    if not own and (found["source"] == "inferred").all():  # from the work itself
        return found[kept]
    waited_for = [part["dispatches"] for part in parts if "dispatches" in part]
    return settled(found[kept], pl.concat(waited_for)) if waited_for else found[kept]


def _spans(line: RankTimeline, phase: pl.Series, steps: pl.DataFrame) -> pl.DataFrame:
    made = [
        pl.Series("id", np.arange(len(line))),
        or_null("parent", line.parent),
        pl.Series("depth", line.depth),
        _step_of(line.ts, steps),
        phase,
    ]
    return line.spans[[name for name in line.spans.columns if name not in _LINK_COLUMNS]].hstack(made)


def _step_of(ts: Integers, steps: pl.DataFrame) -> pl.Series:
    """Return the number of the step in which each time lies; null outside every step."""
    number, inside = np.zeros(len(ts), np.int32), np.zeros(len(ts), np.bool_)
    if steps.height:
        begin, dur, known = (steps[name].to_numpy() for name in ("ts", "dur", "number"))
        for first in range(0, len(ts), _AT_ONCE):
            piece = slice(first, first + _AT_ONCE)
            place = np.searchsorted(begin, ts[piece], side="right") - 1
            inside[piece] = (place >= 0) & (ts[piece] < (begin + dur)[place])
            number[piece] = known[place]
    return pl.Series("step", number).set(pl.Series(~inside), None)


def _losses(ledgers: Sequence[LossLedger], given: Sequence[pl.DataFrame]) -> pl.DataFrame:
    rows = [
        (loss.what, loss.count, loss.severity, loss.source, loss.advice) for ledger in ledgers for loss in ledger.rows()
    ]
    counted = pl.DataFrame(rows, schema=["what", "count", "severity", "source", "advice"], orient="row")
    return together("losses", [counted, *given])


def settled(steps: pl.DataFrame, dispatches: pl.DataFrame) -> pl.DataFrame:
    """Return the steps with each boundary where everything that was asked for before it has been computed.

    A program that waits for its results in every step has its boundaries there already.

    Args:
        steps: Columns ``ts`` and ``dur`` in ns, ordered by ``ts``.
        dispatches: When work was asked for (``ts``), and when it had been computed (``end``), in ns.
    """
    if not dispatches.height or not steps.height:
        return steps
    ordered = dispatches.sort("ts")
    asked = ordered["ts"].to_numpy()
    computed = np.maximum.accumulate(ordered["end"].to_numpy())
    begin = _later(steps["ts"].to_numpy(), asked, computed)
    end = _later((steps["ts"] + steps["dur"]).to_numpy(), asked, computed)
    return steps.with_columns(pl.Series("ts", begin), pl.Series("dur", end - begin))


def _later(times: Integers, asked: Integers, computed: Integers) -> Integers:
    place = np.searchsorted(asked, times, side="left") - 1
    return np.maximum(times, np.where(place >= 0, computed[place], times))
