"""Parts of one rank, each from one file → complete tables on one time line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.assemble import (
    graph_replays,
    links,
    phases,
    rank_programs,
    recording_start,
    set_clock,
    stacks,
    stream_collectives,
    timeline,
)
from stepscope.read.assemble.timeline import RankTimeline, Renumbering
from stepscope.read.common.dense import or_null, places, without
from stepscope.read.common.distinct import is_missing
from stepscope.read.common.named_steps import rounded
from stepscope.read.common.nesting import Integers, looked_up
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import ANY_WORK, GAPS, NOT_RECORDED, STEPS_OF_DEVICE, STEPS_RECOUNT, TOTALS
from stepscope.trace.tables import (
    Frames,
    complete,
    conform,
    count_long_names,
    dtype,
    empty,
    taken,
    together,
    typed,
    with_series,
)

#: Columns of ``spans`` that parts may have besides the schema's.
_LINK_COLUMNS = ("external", "forward_thread", "calling_line", "said_phase", "launches")
_DETAILS = ("kernels", "tasks", "operators", "collectives", "kernel_counters", "transfers", "arguments")
_BY_THEMSELVES = (
    *("links", "static_memory", "memory_segments"),
    *("run_steps", "run_events", "batches", "compilations", "samples"),
)
_ON_TRACKS = ("counters", "allocations", "pipeline")
#: Tables with numbers of stacks, and the column.
_OF_STACKS = {
    **dict.fromkeys(("operators", "allocations", "memory_segments", "live_memory", "samples"), "stack"),
    "stacks": "id",
}
_DATA_LOADER = "enumerate(DataLoader)#"
#: Calls of CUDA and HIP that start kernels.
_LAUNCH = re.compile("Launch(?:Cooperative)?Kernel|GraphLaunch")
#: Spans whose step is looked up at once.
_AT_ONCE = 1 << 18
_ARROWS: dict[str, type[pl.DataType]] = {
    "kind": pl.String,
    "from_track": pl.Int32,
    "from_ts": pl.Int64,
    "to_track": pl.Int32,
    "to_ts": pl.Int64,
}
#: Later than every time.
_EVER = (1 << 63) - 1
#: Two files of a recording have the same time if theirs differ by less.
_TOGETHER_NS = 100_000
#: Steps of the host and of the device that differ by less than this fraction are alike.
_ALIKE = 0.05
_NO_ARROWS = pl.DataFrame(schema=_ARROWS)

#: Tables of one part, or of the rank, by name.
_Part: TypeAlias = dict[str, pl.DataFrame]


def assemble(
    parts: Iterable[_Part],
    ledgers: Sequence[LossLedger],
    *,
    rank: int | None = None,
    host: str | None = None,
    brief: bool = False,
) -> Frames:
    """Merge the parts of one rank.

    Args:
        parts: What the readers of single formats return, at least one; those that the caller does not keep are given
            up as soon as they are on the time line.
        ledgers: What was lost while they were read.
        rank: Rank of the process; None takes what the files say.
        host: Host name; None takes what the files say.
        brief: Leave out what the analysis of a job does not need: Python stacks that no part has.

    Returns:
        Every table of the schema: tracks unified, spans numbered, nested and linked, steps resolved.
    """
    whole = [{**complete({}), **part, "spans": typed("spans", part["spans"])} for part in parts]
    _keep_one_wait_per_batch(whole)
    compared = [TOTALS in part["metadata"]["key"].to_list() for part in whole if part["spans"].height]
    ledger = LossLedger("assembly")
    aligned = set_clock.align(whole, ledger)
    line, moved = timeline.build(whole, rank, host)
    merged = _details(whole, moved)
    arrows = _arrows(whole, moved)
    del moved  # 4 bytes a span
    ledger.add("span_crosses_parent", int((line.crossing & ~line.on_device).sum()))
    launch = links.launches(line, arrows)
    recount = max((int(at) for part in whole for at in set_clock.values(part["metadata"], STEPS_RECOUNT)), default=None)
    for part in whole:
        if recount is not None and "arrows" not in part:
            part["steps"] = _whole_steps(part["steps"], merged["run_steps"], recount)
    captures = graph_replays.only_captures(line)
    ledger.add("steps_of_capture", sum(whole[place]["steps"].height for place in captures))
    asked = [part for place, part in enumerate(whole) if place not in captures]
    merged["steps"] = _steps(asked, line, launch, ledger) if aligned else empty("steps")
    none_whole = any(part["steps"].height for part in asked) and not merged["steps"].height
    of_device = _ahead(merged["steps"], _asked(line, launch))
    merged["run_steps"] = _run_steps(merged["run_steps"], merged["steps"], recount)
    merged.update(_linked(line, merged, arrows, launch, ledger, brief=brief))
    merged["tracks"] = line.tracks
    outside = _work_outside_steps(line, merged["spans"]["step"], merged["steps"])
    ledger.add("spans_outside_steps", outside)
    unrecorded = ANY_WORK if outside or none_whole else _not_recorded(line, merged["steps"])
    merged["metadata"] = _facts(whole, of_device, compared=all(compared), unrecorded=unrecorded)
    merged["losses"] = empty("losses")
    frames = complete(merged)
    ledger.add("names_shortened", count_long_names(frames, line.distinct_names.values()))
    frames["losses"] = conform("losses", _losses([*ledgers, ledger], [part["losses"] for part in whole]))
    return frames


#: Kinds of what the journal has, whether or not anything records the work.
_BESIDE_WORK = ("step", "phase", "annotation", "data", "garbage", "compile")


def _not_recorded(line: RankTimeline, steps: pl.DataFrame) -> list[str]:
    """Return the parts of a step of which the files say nothing, where that would count as idle.

    These are all work, where no source of operators, calls or functions recorded, or where calls launch work on a
    device of which the files have none (a captured graph does not run); and what the host does, where they have work of
    a device and no call, operator or function of the host.
    """
    beside = line.of_kinds(*_BESIDE_WORK)
    if beside.all() and (len(beside) or steps.height):
        return ANY_WORK
    if (line.on_device & line.of_kinds("kernel", "memcpy", "memset", "collective", "other")).any():
        on_thread = (line.tracks["kind"] == "thread").to_numpy()[line.track]
        doing = (on_thread & ~line.of_kinds("step", "annotation")).any()
        return [] if doing else ["data wait", "sync", "host only"]
    names = line.distinct(line.of_kinds("runtime", "driver")).values()
    launched = any(map(_LAUNCH.search, names)) and not any("StreamBeginCapture" in name for name in names)
    return ANY_WORK if launched else []


def _work_outside_steps(line: RankTimeline, step: pl.Series, steps: pl.DataFrame) -> int:
    """Return how many spans of work there are, if none of them lies in any step, at least with a part; else 0.

    It is the work of the device, on a rank with a device. Steps and work of two recordings, or of two clocks, tell
    nothing of each other, and the steps would look idle.
    """
    working = line.on_device & line.of_kinds("kernel", "memcpy", "memset", "collective", "other")
    working = working if working.any() else line.of_kinds("operator")
    if not steps.height or not working.any() or step.filter(pl.Series(working)).null_count() < working.sum():
        return 0
    begins, ends = steps["ts"].to_numpy(), (steps["ts"] + steps["dur"]).to_numpy()
    last = np.searchsorted(begins, line.end[working]) - 1
    through = (last >= 0) & (ends[last] > line.ts[working])
    return 0 if through.any() else int(working.sum())


def _facts(
    parts: Sequence[_Part], of_device: list[tuple[int, int]], *, compared: bool, unrecorded: list[str]
) -> pl.DataFrame:
    """Return each fact as the first part has it; of totals only if those of every part with spans were compared."""
    said = [part["metadata"] for part in parts]
    if of_device:
        said.append(conform("metadata", pl.DataFrame({"key": [STEPS_OF_DEVICE], "value": [json.dumps(of_device)]})))
    if unrecorded:
        said.append(conform("metadata", pl.DataFrame({"key": [NOT_RECORDED], "value": [json.dumps(unrecorded)]})))
    facts = pl.concat(said)
    first = {key: row for row, key in reversed(list(enumerate(facts["key"].to_list())))}
    if not compared:
        first.pop(TOTALS, None)
    return facts if len(first) == facts.height else facts[sorted(first.values())]


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
    missing, found = is_missing(own), np.zeros(len(own), np.int64)
    found[~missing] = numbers[own.to_numpy()[~missing].astype(np.int64)]
    return without(pl.Series(own.name, found, dtype=kind), missing)


def _arrows(parts: Sequence[_Part], moved: Renumbering) -> pl.DataFrame:
    frames = [_NO_ARROWS]
    for part, numbers in zip(parts, moved.tracks, strict=True):
        arrows = part.get("arrows")
        if arrows is not None and arrows.height:
            ends = {name: numbers[arrows[name].to_numpy()] for name in ("from_track", "to_track")}
            frames.append(pl.DataFrame({**{name: arrows[name] for name in _ARROWS}, **ends}, schema=_ARROWS))
    return pl.concat(frames)


def _linked(
    line: RankTimeline,
    merged: dict[str, pl.DataFrame],
    arrows: pl.DataFrame,
    launch: Integers,
    ledger: LossLedger,
    *,
    brief: bool,
) -> dict[str, pl.DataFrame]:
    """Return the tables that say what belongs to what."""
    before = recording_start.launched_before(line, launch)
    recording_start.count_losses(line, launch, before, ledger)
    steps = recording_start.steps(line, launch, before, merged["steps"])
    graphs = graph_replays.replays(line, launch, merged["kernels"], ledger)
    # Where its graph was captured, a kernel's operator ran; else the replay stands for it.
    origin = np.where(graphs.captured >= 0, graphs.captured, launch)
    operator = links.operators(line, origin)
    operator = np.where(operator < 0, graphs.replay, operator)
    line = stream_collectives.with_launched(line, operator)
    flows = links.flows(line, launch, arrows)
    operators, stack_table = stacks.attach(line, merged["operators"], merged["stacks"], brief=brief)
    return {
        "steps": steps,
        "spans": _spans(line, phases.phases(line, flows, origin), steps),
        "kernels": _kernels(merged["kernels"], launch, operator, graphs.graph),
        "operators": operators,
        "stacks": stack_table,
        "flows": flows,
        "collectives": stream_collectives.details(line, operator, graphs.replay, merged["collectives"]),
        "allocations": _allocations(line, merged["allocations"]),
    }


def _kernels(kernels: pl.DataFrame, launch: Integers, operator: Integers, graph: Integers) -> pl.DataFrame:
    if not kernels.height:
        return kernels
    span = kernels["span"].to_numpy()
    if graph.any() and kernels["graph"].null_count():
        numbers = pl.Series(graph[span])
        numbered = kernels["graph"].zip_with(kernels["graph"].is_not_null() | (numbers == 0), numbers)
        kernels = kernels.with_columns(graph=numbered)
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


def _run_steps(found: pl.DataFrame, steps: pl.DataFrame, recount: int | None) -> pl.DataFrame:
    """Return all steps of the run: those found, of which the recorded ones are marked, and recorded ones not found.

    Recorded parts of steps that were counted anew up to ``recount`` are not among them.
    """
    if recount is not None:
        steps = steps.remove(_parts_of_steps(steps, found, recount))
    ours, theirs = found["number"].to_numpy(), steps["number"].to_numpy()
    marked = with_series(found, [pl.Series("recorded", np.isin(ours, theirs))])
    missing = steps["number", "ts", "dur"]
    if found.height:
        missing = missing[np.flatnonzero(~np.isin(theirs, ours))]
    recorded = pl.Series("recorded", [True]).new_from_index(0, missing.height)
    return _in_time(together("run_steps", [marked, missing.hstack([recorded])]))


def _parts_of_steps(steps: pl.DataFrame, run_steps: pl.DataFrame, recount: int) -> pl.Series:
    """Return which recorded steps seemed to be steps before they were counted anew, at the time ``recount``."""
    true = run_steps.select("number", true=pl.col("ts")).unique("number")
    known = steps.join(true, on="number", how="left", maintain_order="left")
    moved = (known["ts"] - known["true"]).abs().fill_null(_TOGETHER_NS) >= _TOGETHER_NS
    return moved & (steps["ts"] + steps["dur"] <= recount + _TOGETHER_NS)


def _whole_steps(steps: pl.DataFrame, run_steps: pl.DataFrame, recount: int) -> pl.DataFrame:
    """Return the steps of a window; instead of parts of steps, the steps that lie whole in it, if there is one."""
    part = _parts_of_steps(steps, run_steps, recount)
    if not part.any():
        return steps
    begin, end = min(steps["ts"].to_list()), max((steps["ts"] + steps["dur"]).to_list())
    inside = run_steps.filter(pl.col("ts") >= begin - _TOGETHER_NS, pl.col("ts") + pl.col("dur") <= end + _TOGETHER_NS)
    source = steps["source"].new_from_index(0, inside.height)
    return conform("steps", inside["number", "ts", "dur"].with_columns(source)) if inside.height else steps


def _in_time(frame: pl.DataFrame) -> pl.DataFrame:
    """Return rows in order of time; those of one time stay in the order they have."""
    return frame if frame["ts"].is_sorted() else frame[np.argsort(frame["ts"].to_numpy(), kind="stable")]


def _steps(parts: Sequence[_Part], line: RankTimeline, launch: Integers, ledger: LossLedger) -> pl.DataFrame:
    """Return the steps of the part that knows them best: stepscope's own journal, else the marks in the trace.

    A step of the journal ends when everything that it asked for has been computed, on threads and on devices. A second
    mark of a step, or one that begins before its predecessor ends, is counted and left out. Begin and duration are
    measured one by one: where a step seems to last a little longer than to the next, it ends there.
    """
    own = [part["steps"] for part in parts if "arrows" not in part and part["steps"].height]
    found = together("steps", own or [part["steps"] for part in parts])
    gaps = [gap for part in parts for said in set_clock.values(part["metadata"], GAPS) for gap in json.loads(said)]
    if gaps:  # a step of which only a part was recorded would seem to be idle
        ends = pl.col("ts") + pl.col("dur")
        whole = found.remove(pl.any_horizontal((ends > begin) & (pl.col("ts") < (end or _EVER)) for begin, end in gaps))
        ledger.add("steps_not_recorded", found.height - whole.height)
        found = whole
    if not found.height:
        return found
    found = taken(found, places(np.lexsort((found["dur"].to_numpy(), found["ts"].to_numpy()))))
    kept, lasts, last, least, numbers = [], [], None, 0, set()
    values = (found[name].to_list() for name in ("number", "ts", "dur"))
    said = rounded(found["dur"].to_numpy()).tolist()
    for row, (number, ts, dur) in enumerate(zip(*values, strict=True)):
        if (last is None or ts >= last - least) and number not in numbers:
            if last is not None and ts < last:
                lasts[-1] -= last - ts
            kept.append(row)
            lasts.append(dur)
            last, least = ts + dur, said[row]
            numbers.add(number)
    ledger.add("step_overlap", found.height - len(kept))
    found = found if len(kept) == found.height else found[kept]
    if lasts != found["dur"].to_list():
        found = found.with_columns(dur=pl.Series(lasts, dtype=found["dur"].dtype))
    if not own and (found["source"] == "inferred").all():  # from the work itself
        return found
    waited_for = [part["dispatches"] for part in parts if "dispatches" in part]
    if own:
        waited_for.append(_asked(line, launch))
    return settled(found, pl.concat(waited_for)) if waited_for else found


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
    return without(pl.Series("step", number), ~inside)


def _losses(ledgers: Sequence[LossLedger], given: Sequence[pl.DataFrame]) -> pl.DataFrame:
    rows = [
        (loss.what, loss.count, loss.severity, loss.source, loss.advice) for ledger in ledgers for loss in ledger.rows()
    ]
    columns = ("what", "count", "severity", "source", "advice")
    counted = [pl.DataFrame(rows, schema=columns, orient="row")] if rows else []
    return together("losses", [*counted, *given])


def _asked(line: RankTimeline, launch: Integers) -> pl.DataFrame:
    """Return when work of devices was asked for (``ts``), and when it had been done (``end``)."""
    work = np.flatnonzero(launch >= 0)
    return pl.DataFrame({"ts": line.ts[launch[work]], "end": line.end[work]})


def _ahead(steps: pl.DataFrame, asked: pl.DataFrame) -> list[tuple[int, int]]:
    """Return number and duration of each step as the device works for it, if one differs; else nothing."""
    if (steps["source"] == "inferred").all():
        return []
    dur, marked = settled(steps, asked)["dur"].to_numpy(), steps["dur"].to_numpy()
    differs = np.abs(dur - marked) > _ALIKE * marked
    return list(zip(steps["number"].to_list(), dur.tolist(), strict=True)) if differs.any() else []


def settled(steps: pl.DataFrame, dispatches: pl.DataFrame) -> pl.DataFrame:
    """Return the steps with each boundary where everything that was asked for before it has been computed.

    A program that waits for its results in every step has its boundaries there already.

    Args:
        steps: Columns ``ts`` and ``dur`` in ns, ordered by ``ts``.
        dispatches: When work was asked for (``ts``), and when it had been computed (``end``), in ns.
    """
    if not dispatches.height or not steps.height:
        return steps
    order = np.argsort(dispatches["ts"].to_numpy(), kind="stable")
    asked = dispatches["ts"].to_numpy()[order]
    computed = np.maximum.accumulate(dispatches["end"].to_numpy()[order])
    begin = _later(steps["ts"].to_numpy(), asked, computed)
    end = _later((steps["ts"] + steps["dur"]).to_numpy(), asked, computed)
    return with_series(steps, [pl.Series("ts", begin), pl.Series("dur", end - begin)])


def _later(times: Integers, asked: Integers, computed: Integers) -> Integers:
    place = np.searchsorted(asked, times, side="left") - 1
    return np.maximum(times, np.where(place >= 0, computed[place], times))
