"""Parts of one rank, each from one file → complete tables on one time line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl

from stepscope.read import communication, links, phases, programs, stacks, timeline
from stepscope.read.dispatched import settled
from stepscope.read.nesting import Integers, looked_up
from stepscope.read.timeline import Timeline
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import Frames, complete, dtype

#: Columns of ``spans`` that parts may have besides the schema's.
_LINK_COLUMNS: dict[str, pl.DataType | type[pl.DataType]] = {
    "external": pl.Int64,
    "forward_thread": pl.Int64,
    "said_phase": dtype("enum:phase"),
}
_NUMBERS: dict[str, pl.DataType | type[pl.DataType]] = {"correlation": pl.Int64, "sequence": pl.Int64}
_DETAILS = ("kernels", "tasks", "operators", "collectives", "kernel_counters", "transfers", "arguments")
_BY_THEMSELVES = ("links", "static_memory")
_ON_TRACKS = ("counters", "allocations", "pipeline")
_DATA_LOADER = "enumerate(DataLoader)#"


def assemble(
    parts: Iterable[dict[str, pl.DataFrame]],
    ledgers: Sequence[LossLedger],
    *,
    rank: int | None = None,
    host: str | None = None,
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
    whole = [_prepared(part) for part in parts]
    whole = _one_wait_per_batch(whole)
    line, track_numbers = timeline.build(whole, rank, host)
    merged = _details(whole, line, track_numbers)
    whole = [{**part, "spans": part["spans"].clear()} for part in whole]
    ledger = LossLedger("assembly")
    ledger.add("span_crosses_parent", int((line.nesting.crossing & ~line.on_device).sum()))
    steps = _steps(whole, ledger)
    merged.update(_linked(line, merged, _arrows(whole, track_numbers), ledger))
    merged["spans"] = merged["spans"].with_columns(_step_of(line.ts, steps).alias("step"))
    merged["steps"] = steps
    merged["tracks"] = line.tracks
    merged["metadata"] = pl.concat([part["metadata"] for part in whole]).unique(
        "key", keep="first", maintain_order=True
    )
    merged["losses"] = _losses([*ledgers, ledger], [part["losses"] for part in whole if "losses" in part])
    return complete(merged)


def _prepared(part: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return a part with every table, and with the columns that links are found by."""
    tables = {**complete({}), **part}
    spans = tables["spans"]
    numbered = {**_LINK_COLUMNS, **_NUMBERS}
    missing = [pl.lit(None, kind).alias(name) for name, kind in numbered.items() if name not in spans.columns]
    tables["spans"] = spans.with_columns(
        pl.col("name").cast(pl.Categorical()), pl.col("kind").cast(dtype("enum:kind")), *missing
    )
    return tables


def _one_wait_per_batch(parts: list[dict[str, pl.DataFrame]]) -> list[dict[str, pl.DataFrame]]:
    """Where a part measured the waits for data itself, PyTorch's own ranges around the same waits are annotations."""
    waits = [part["spans"].filter(pl.col("kind") == "data")["name"].cast(pl.String) for part in parts]
    if all(names.str.starts_with(_DATA_LOADER).all() for names in waits):
        return parts
    foreign = (pl.col("kind") == "data") & pl.col("name").cast(pl.String).str.starts_with(_DATA_LOADER)
    kind = pl.when(foreign).then(pl.lit("annotation").cast(dtype("enum:kind"))).otherwise(pl.col("kind"))
    return [{**part, "spans": part["spans"].with_columns(kind=kind)} for part in parts]


def _details(
    parts: Sequence[dict[str, pl.DataFrame]], line: Timeline, track_numbers: Sequence[Integers]
) -> dict[str, pl.DataFrame]:
    """Return the detail tables of all parts, with the numbers of the time line."""
    names = (*_DETAILS, *_ON_TRACKS, *_BY_THEMSELVES, "live_memory", "stacks")
    merged: dict[str, list[pl.DataFrame]] = {name: [] for name in names}
    instructions, of_operators = programs.merged(parts)
    first_span = first_stack = 0
    for part, numbers, instruction in zip(parts, track_numbers, of_operators, strict=True):
        for name in _DETAILS:
            merged[name].append(
                _uncategorised(part[name]).with_columns(_renumbered(part[name]["span"], line, first_span))
            )
        merged["operators"][-1] = merged["operators"][-1].with_columns(pl.col("stack") + first_stack, instruction)
        merged["live_memory"].append(_uncategorised(part["live_memory"]).with_columns(pl.col("stack") + first_stack))
        merged["stacks"].append(part["stacks"].with_columns(pl.col("id") + first_stack))
        for name in _BY_THEMSELVES:
            merged[name].append(_uncategorised(part[name]))
        for name in _ON_TRACKS:
            merged[name].append(_retracked(_uncategorised(part[name]), numbers))
        first_span += part["spans"].height
        first_stack += 1 + max(part["stacks"]["id"].to_list(), default=-1)
    tables = {name: pl.concat(frames, how="diagonal_relaxed") for name, frames in merged.items()}
    return {**tables, "instructions": instructions}


def _renumbered(span: pl.Series, line: Timeline, first: int) -> pl.Series:
    """Return the numbers on the time line of a part's spans, whose numbers there begin with ``first``."""
    known = line.number[span.drop_nulls().to_numpy() + first]
    if not span.null_count():
        return pl.Series("span", known, dtype=pl.Int64)
    return pl.Series("span", np.full(len(span), None), dtype=pl.Int64).scatter(span.is_not_null().arg_true(), known)


def _uncategorised(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame whose texts are all of one type, so that frames of several parts can be put together."""
    return frame.with_columns(pl.col(pl.String, pl.Enum).cast(pl.Categorical())) if frame.width else frame


def _retracked(frame: pl.DataFrame, numbers: Integers) -> pl.DataFrame:
    if "track" not in frame.columns:
        return frame
    known = frame["track"].drop_nulls()
    moved = pl.Series("track", np.full(frame.height, None), dtype=pl.Int32)
    moved = moved.scatter(frame["track"].is_not_null().arg_true(), numbers[known.to_numpy()]) if len(known) else moved
    return frame.with_columns(moved)


def _arrows(parts: Sequence[dict[str, pl.DataFrame]], track_numbers: Sequence[Integers]) -> pl.DataFrame:
    schema = {"kind": pl.String, "from_track": pl.Int32, "from_ts": pl.Int64, "to_track": pl.Int32, "to_ts": pl.Int64}
    frames = [pl.DataFrame(schema=schema)]
    for part, numbers in zip(parts, track_numbers, strict=True):
        if "arrows" in part:
            arrows = part["arrows"]
            ends = [
                pl.Series(name, numbers[arrows[name].to_numpy()], dtype=pl.Int32) for name in ("from_track", "to_track")
            ]
            frames.append(arrows.with_columns(ends).select(list(schema)))
    return pl.concat(frames)


def _linked(
    line: Timeline, merged: dict[str, pl.DataFrame], arrows: pl.DataFrame, ledger: LossLedger
) -> dict[str, pl.DataFrame]:
    """Return the tables that say what belongs to what."""
    launch = links.launches(line, arrows)
    links.count_dangling(line, launch, ledger)
    operator = links.operators(line, launch)
    line = communication.with_launched(line, operator)
    flows = links.flows(line, launch, arrows)
    kernels = merged["kernels"]
    span = kernels["span"].to_numpy()
    operators, stack_table = stacks.attach(line, merged["operators"], merged["stacks"])
    return {
        "spans": _spans(line, phases.phases(line, flows, launch)),
        "kernels": kernels.with_columns(launch=_or_null(launch[span]), operator=_or_null(operator[span])),
        "operators": operators,
        "stacks": stack_table,
        "flows": flows,
        "collectives": communication.details(line, operator, merged["collectives"]),
        "allocations": _allocations(line, merged["allocations"]),
    }


def _or_null(numbers: Integers) -> pl.Series:
    return pl.Series(numbers, dtype=pl.Int64).replace(-1, None)


def _allocations(line: Timeline, frame: pl.DataFrame) -> pl.DataFrame:
    """Give memory events the operator during which they happened, and the thread.

    A part that knows better which operator they belong to says a time within it in the column ``at``.
    """
    if "track" not in frame.columns:
        return frame.sort("ts")
    frame = frame.with_columns(at=pl.coalesce("at", "ts") if "at" in frame.columns else "ts")
    placed = frame.filter(pl.col("track").is_not_null())
    around = line.at(placed["track"].to_numpy(), placed["at"].to_numpy())
    operator = looked_up(line.nearest(line.of_kinds("operator")), around)
    thread = line.tracks.select(pl.col("id").alias("track"), "thread")
    placed = (
        placed.drop("thread", strict=False).with_columns(span=_or_null(operator)).join(thread, on="track", how="left")
    )
    rows = pl.concat([placed, frame.filter(pl.col("track").is_null())], how="diagonal_relaxed")
    return rows.drop("track", "at").sort("ts", maintain_order=True)


def _steps(parts: Sequence[dict[str, pl.DataFrame]], ledger: LossLedger) -> pl.DataFrame:
    """Return the steps of the part that knows them best: stepscope's own journal, else the marks in the trace.

    A second mark of a step, or one that begins before its predecessor ends, is counted and left out.
    """
    own = [part["steps"] for part in parts if "arrows" not in part and part["steps"].height]
    found = pl.concat(own or [part["steps"] for part in parts], how="diagonal_relaxed").sort("ts", "dur")
    kept, last, numbers = [], None, set()
    for place, (number, ts, dur) in enumerate(found.select("number", "ts", "dur").iter_rows()):
        if (last is None or ts >= last) and number not in numbers:
            kept.append(place)
            last = ts + dur
            numbers.add(number)
    ledger.add("step_overlap", found.height - len(kept))
    if not own and (found["source"] == "inferred").all():  # from the work itself
        return found[kept]
    waited_for = [part["dispatches"] for part in parts if "dispatches" in part]
    return settled(found[kept], pl.concat(waited_for)) if waited_for else found[kept]


def _spans(line: Timeline, phase: pl.Series) -> pl.DataFrame:
    return line.spans.drop("part", *_LINK_COLUMNS).with_columns(
        _or_null(line.nesting.parent).alias("parent"),
        pl.Series("depth", line.nesting.depth),
        phase.alias("phase"),
    )


def _step_of(ts: Integers, steps: pl.DataFrame) -> pl.Series:
    """Return the number of the step in which each time lies; null outside every step."""
    if not steps.height:
        return pl.Series([None], dtype=pl.Int32).new_from_index(0, len(ts))
    begin = steps["ts"].to_numpy()
    place = np.searchsorted(begin, ts, side="right") - 1
    inside = (place >= 0) & (ts < (begin + steps["dur"].to_numpy())[place])
    return steps["number"].gather(pl.Series(np.where(inside, place, -1)).replace(-1, None))


def _losses(ledgers: Sequence[LossLedger], given: Sequence[pl.DataFrame]) -> pl.DataFrame:
    rows = [
        (loss.what, loss.count, loss.severity, loss.source, loss.advice) for ledger in ledgers for loss in ledger.rows()
    ]
    schema = {"what": pl.String, "count": pl.Int64, "severity": pl.String, "source": pl.String, "advice": pl.String}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return pl.concat([frame, *(part.cast(schema) for part in given)])  # type: ignore[arg-type]
