"""The operators that MindSpore was called with (``shapes_{rank}.ssj``), and which operator each call ran.

What the file holds is described in :mod:`stepscope.collect.mindspore.mindspore_calls`. A call and its operators have
no number in common: the operators run later, on another thread, in the order of the calls. So both are put side by side
as two texts are compared, by the types of operators a call is known to run. What does not fit stays without.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import polars as pl

from stepscope.read.common.nesting import Integers
from stepscope.trace.blocks import read_frames, unpack
from stepscope.trace.clock import Anchor, Clock
from stepscope.trace.losses import LossLedger

_Time = Annotated[int, msgspec.Meta(ge=-(1 << 61), le=1 << 61)]
_Text = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 31) - 1)]

#: Types of operators that a call runs on a CPU, where they are not just its own name (MindSpore 2.10, as measured).
_RUNS: dict[str, tuple[str, ...]] = {
    "ClampScalar": ("Maximum", "Minimum"),
    "Dense": ("MatMul", "Add"),
    "Max": ("ReduceMax",),
    "MeanExt": ("ReduceMean",),
    "Min": ("ReduceMin",),
    "PowTensorScalar": ("Pow",),
    "SiLU": ("Sigmoid", "Mul"),
    "SumExt": ("ReduceSum",),
}
#: Types that stand for each other: which one runs depends on the shapes.
_SAME = {"BatchMatMul": "MatMul"}

#: Events that call one operator each, on the thread that asks for it.
CALLING_EVENTS = ("RunOp", "NativeFunc", "EmitOp")
#: Events around the noting of a network's graph, and the event of its gradient.
_OPENING, _CLOSING, _GRADIENT = "new_graph", "end_graph", "RunGrad"
#: The event of a thread that runs a compiled graph and waits for it.
_GRAPH = "RunGraph"

_METHOD = "tensor."

#: Operators and calls that are skipped at most to find where both agree again, and how many must agree there.
_FARTHEST, _AGREE = 48, 3

_CALLS = {
    "call_ts": pl.Int64,
    "call_thread": pl.Int64,
    "call": pl.String,
    "call_shapes": pl.String,
    "dtypes": pl.String,
    "concrete": pl.String,
}


class _CallColumns(msgspec.Struct):
    thread: list[_Time] = []
    time: list[_Time] = []
    name: list[_Text] = []
    shapes: list[_Text] = []
    types: list[_Text] = []
    values: list[_Text] = []


class _CallBlock(msgspec.Struct):
    anchors: list[tuple[_Time, _Time, _Time]] = []
    names: list[str] = []
    calls: _CallColumns = msgspec.field(default_factory=_CallColumns)
    closed: bool = False


def read(paths: Sequence[Path], ledger: LossLedger) -> pl.DataFrame:
    """Return every call in the files ``shapes_*.ssj`` in order of time.

    Returns:
        Columns call_ts (ns since the epoch), call_thread (native id), call (its name), call_shapes, dtypes, concrete
        (JSON, null where they were not asked for).
    """
    return pl.concat([pl.DataFrame(schema=_CALLS), *(_read_file(path, ledger) for path in paths)]).sort("call_ts")


def _read_file(path: Path, ledger: LossLedger) -> pl.DataFrame:
    decoder = msgspec.json.Decoder(_CallBlock)
    anchors, rows, closed = [], [], False
    for payload in read_frames(path, ledger):
        try:
            block = decoder.decode(unpack(payload))
            rows.append(_rows(block))
        except (ValueError, RecursionError, pl.exceptions.PolarsError):
            ledger.add("journal_unreadable")
            continue
        anchors += [Anchor(*anchor) for anchor in block.anchors]
        closed = closed or block.closed
    ledger.add("ended_abruptly", int(not closed))
    if not anchors:
        return pl.DataFrame(schema=_CALLS)
    frame = pl.concat(rows)
    return frame.with_columns(pl.Series("call_ts", Clock(anchors).epochs(frame["call_ts"].to_list()), pl.Int64))


def _rows(block: _CallBlock) -> pl.DataFrame:
    """Return the calls of a block; their times are still monotonic."""
    calls = block.calls
    texts = pl.Series(block.names, dtype=pl.String)
    named = {
        key: texts.gather(pl.Series(numbers, dtype=pl.Int64).replace(-1, None))
        for key, numbers in zip(
            ("call", "call_shapes", "dtypes", "concrete"),
            (calls.name, calls.shapes, calls.types, calls.values),
            strict=True,
        )
    }
    return pl.DataFrame({"call_ts": calls.time, "call_thread": calls.thread, **named}, schema=_CALLS)


def join(operators: pl.DataFrame, calls: pl.DataFrame, ledger: LossLedger) -> pl.DataFrame:
    """Give operators the call that ran them, and its shapes where MindSpore's files have none.

    Args:
        operators: Columns ts, type and shapes, in order of start.
        calls: What :func:`read` returned.
        ledger: Counts operators of types that were called, but whose call is not there.

    Returns:
        The operators with columns dtypes, concrete, call_ts, call_thread and call; null without a call. Of several
        operators that a call runs only the first takes what the call was given.
    """
    kinds = [_SAME.get(kind, kind) for kind in operators["type"].to_list()]
    expected, owner, first = _expected(calls["call"].to_list(), set(kinds))
    place = np.full(operators.height, -1, np.int64)
    leading = np.zeros(operators.height, np.bool_)
    known = set(expected)
    chosen = [row for row, kind in enumerate(kinds) if kind in known]
    times = calls["call_ts"].to_numpy()[owner] if len(owner) else np.empty(0, np.int64)
    pairs = align([kinds[row] for row in chosen], operators["ts"].gather(chosen).to_list(), expected, times.tolist())
    for row, token in pairs:
        place[chosen[row]] = owner[token]
        leading[chosen[row]] = first[token]
    if calls.height:
        ledger.add("operator_calls_unmatched", len(chosen) - len(pairs))
    matched = (
        calls.select(pl.all().gather(pl.Series(place, dtype=pl.Int64).replace(-1, None).cast(pl.Int64)))
        if calls.height
        else pl.DataFrame({name: pl.Series([None] * operators.height, dtype=kind) for name, kind in _CALLS.items()})
    )
    given = pl.Series(leading)
    joined = pl.concat([operators, matched.select("call_ts", "call_thread", "call")], how="horizontal")
    own = [pl.when(given).then(matched[key]).alias(key) for key in ("call_shapes", "dtypes", "concrete")]
    return (
        joined.with_columns(own).with_columns(pl.coalesce("shapes", "call_shapes").alias("shapes")).drop("call_shapes")
    )


def with_events(operators: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Give operators without a recorded call the event of the host pipeline that called them."""
    asked = events.filter(pl.col("name").is_in(CALLING_EVENTS)).sort("ts", maintain_order=True)
    # A method calls the operator that it stands for: the inner event counts.
    around = pl.col("ts").shift(-1).over("thread") < pl.col("ts") + pl.col("dur")
    calls = asked.filter(~around.fill_null(value=False)).select(call_ts="ts", call_thread="thread", call="op")
    absent = [pl.lit(None, kind).alias(name) for name, kind in _CALLS.items() if name not in calls.columns]
    found = join(operators.select("ts", "type", "shapes"), calls.with_columns(absent), LossLedger("events"))
    without = pl.col("call_ts").is_null()
    return operators.with_columns(
        call_ts=pl.when(without).then(found["call_ts"]).otherwise("call_ts"),
        call_thread=pl.when(without).then(found["call_thread"]).otherwise("call_thread"),
    )


def with_graphs(operators: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Give operators of compiled graphs the thread that waits for the graph, and as time of the call their start."""
    graphs = events.filter(pl.col("name") == _GRAPH).select("ts", waits="thread", end=pl.col("ts") + pl.col("dur"))
    found = operators.join_asof(graphs.sort("ts"), on="ts")
    inside = pl.col("call_ts").is_null() & (pl.col("ts") <= pl.col("end"))
    return found.with_columns(
        call_ts=pl.when(inside).then("ts").otherwise("call_ts"),
        call_thread=pl.when(inside).then("waits").otherwise("call_thread"),
    ).drop("waits", "end")


def with_phases(operators: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Give PyNative's operators, whose names are the same forward and backward, the phase of their call.

    An operator is forward if it was called while the network's graph was noted (between ``new_graph`` and
    ``end_graph``), and backward if it was called while the gradient ran (``stage:RunGrad``). Calls wait in a queue,
    which keeps their order: in tables in order of start, the n-th call of a type is the n-th operator of that type.
    Types with more calls than operators, or fewer, keep the phase that their names say.
    """
    calls = events.filter(pl.col("name").is_in(CALLING_EVENTS)).select("ts", "thread", type="op")
    if not calls.height:
        return operators
    calls = _inside(calls, _recordings(events), "forward")
    calls = _inside(calls, _intervals(events, _GRADIENT), "backward")
    turn, count = pl.int_range(pl.len()).over("type"), pl.len().over("type").alias("count")
    said = calls.select("type", count, turn=turn, called=pl.coalesce("backward", "forward"))
    joined = operators.with_columns(count, turn=turn).join(
        said, on=["type", "count", "turn"], how="left", maintain_order="left"
    )
    return joined.with_columns(phase=pl.coalesce("phase", "called")).drop("count", "turn", "called")


def _intervals(events: pl.DataFrame, name: str) -> pl.DataFrame:
    chosen = events.filter(pl.col("name") == name)
    return chosen.select("ts", "thread", end=pl.col("ts") + pl.col("dur")).sort("ts")


def _recordings(events: pl.DataFrame) -> pl.DataFrame:
    """Return from each begin of a network's graph to its end on the same thread."""
    closing = _intervals(events, _CLOSING).select("ts", "thread", "end")
    opening = _intervals(events, _OPENING).select("ts", "thread")
    found = opening.join_asof(closing, on="ts", by="thread", strategy="forward", check_sortedness=False)
    return found.drop_nulls("end")


def _inside(calls: pl.DataFrame, spans: pl.DataFrame, phase: str) -> pl.DataFrame:
    """Add a column with the phase's name: that name for calls that begin inside a span of their thread, else null."""
    found = calls.join_asof(spans, on="ts", by="thread", check_sortedness=False)
    inside = pl.when(pl.col("ts") <= pl.col("end")).then(pl.lit(phase))
    return found.with_columns(inside.alias(phase)).drop("end")


def _expected(calls: list[str], ran: set[str]) -> tuple[list[str], Integers, list[bool]]:
    """Return the types of operators that the calls run, each with its call and whether it is the call's first.

    Calls that run nothing (views, questions about a tensor) run no type that ran at all.
    """
    types = {name: _types(name, ran) for name in set(calls)}
    tokens, owner, first = [], [], []
    for place, name in enumerate(calls):
        for number, kind in enumerate(types[name]):
            tokens.append(kind)
            owner.append(place)
            first.append(number == 0)
    return tokens, np.asarray(owner, np.int64), first


def _types(name: str, ran: set[str]) -> tuple[str, ...]:
    method = name.startswith(_METHOD)
    if method:  # events call methods as the program does: `tensor.masked_fill`
        name = "".join(part.capitalize() for part in name.removeprefix(_METHOD).split("_"))
    own, extended = ((name,), _RUNS.get(name, ())), ((f"{name}Ext",), _RUNS.get(f"{name}Ext", ()))
    shorter = (name.removesuffix("Ext"),), (name.removesuffix("s"),), (f"Reduce{name}",)
    for candidate in (*(extended + own if method else own + extended), *shorter):
        kinds = tuple(_SAME.get(kind, kind) for kind in candidate)
        if kinds and ran.issuperset(kinds):
            return kinds
    return ()


def align(ran: list[str], began: list[int], called: list[str], at: list[int]) -> list[tuple[int, int]]:
    """Return which operator belongs to which call, as places in ``ran`` and ``called``, both ascending.

    Args:
        ran: Types of operators in order of start.
        began: Their starts, ns.
        called: Types that calls run, in order of the calls.
        at: Times of the calls, ns: an operator never runs before its call.
    """
    pairs, i, j = [], 0, 0
    while i < len(ran) and j < len(called):
        if ran[i] == called[j] and at[j] <= began[i]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        else:
            i, j = _agreement(ran, called, i, j)
    return pairs


def _agreement(ran: list[str], called: list[str], i: int, j: int) -> tuple[int, int]:
    """Return the nearest later places from which both agree for a while; without one, the next operator's."""
    for distance in range(1, _FARTHEST):
        for skipped in range(distance + 1):
            one, other = i + skipped, j + distance - skipped
            some = ran[one : one + _AGREE]
            if some and some == called[other : other + len(some)]:
                return one, other
    return i + 1, j
