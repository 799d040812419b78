"""Forward or backward in MindSpore's PyNative, whose operators have the same names in both.

The host's events tell: an operator is forward when it was called while the network's graph was being noted (between
``new_graph`` and ``end_graph``), and backward when the gradient ran (``stage:RunGrad``). Calls wait in a queue; what
runs in the end keeps their order, so that the n-th call of a type is the n-th operator of that type.
"""

from __future__ import annotations

import polars as pl

#: Events that call one operator each, on the thread that asks for it.
_CALLS = ("RunOp", "NativeFunc", "EmitOp")
_OPENING, _CLOSING, _GRADIENT = "new_graph", "end_graph", "RunGrad"


def with_called_phases(operators: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Give operators whose names tell no phase that of the call that asked for them.

    Types with more calls than operators, or fewer, keep what their names tell.

    Args:
        operators: Operators in order of start, with columns type and phase.
        events: What :func:`stepscope.read.mindspore.host_pipeline.read` returned, in order of start.
    """
    calls = events.filter(pl.col("name").is_in(_CALLS)).select("ts", "thread", type="op")
    if not calls.height:
        return operators
    calls = _inside(calls, _recordings(events), "forward")
    calls = _inside(calls, _spans(events, _GRADIENT), "backward")
    turn, count = pl.int_range(pl.len()).over("type"), pl.len().over("type").alias("count")
    said = calls.select("type", count, turn=turn, called=pl.coalesce("backward", "forward"))
    joined = operators.with_columns(count, turn=turn).join(
        said, on=["type", "count", "turn"], how="left", maintain_order="left"
    )
    return joined.with_columns(phase=pl.coalesce("phase", "called")).drop("count", "turn", "called")


def _spans(events: pl.DataFrame, name: str) -> pl.DataFrame:
    chosen = events.filter(pl.col("name") == name)
    return chosen.select("ts", "thread", end=pl.col("ts") + pl.col("dur")).sort("ts")


def _recordings(events: pl.DataFrame) -> pl.DataFrame:
    """Return from each begin of a network's graph to its end on the same thread."""
    closing = _spans(events, _CLOSING).select("ts", "thread", "end")
    opening = _spans(events, _OPENING).select("ts", "thread")
    found = opening.join_asof(closing, on="ts", by="thread", strategy="forward", check_sortedness=False)
    return found.drop_nulls("end")


def _inside(calls: pl.DataFrame, spans: pl.DataFrame, phase: str) -> pl.DataFrame:
    """Add a column with the phase's name: that name for calls that begin inside a span of their thread, else null."""
    found = calls.join_asof(spans, on="ts", by="thread", check_sortedness=False)
    inside = pl.when(pl.col("ts") <= pl.col("end")).then(pl.lit(phase))
    return found.with_columns(inside.alias(phase)).drop("end")
