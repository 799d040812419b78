"""What decided how long the steps of a job took: the path through its ranks, from the end of each step to its begin.

A rank works, and waits for the last rank to arrive at a collective: the path goes on there. The pieces of a step follow
each other without a gap, so that they add up to the step.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import polars as pl

from stepscope.cluster.arrivals import waits_for_some
from stepscope.cluster.what_if.replay import Replay

Frame: TypeAlias = pl.DataFrame

#: Why the path is not known at a collective that no other rank recorded.
_ALONE = "the other ranks of a collective on the path are not known"

PATH_SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "step": pl.Int64,
    "place": pl.Int64,
    "rank": pl.Int64,
    "part": pl.String,
    "operation": pl.String,
    "group": pl.Int64,
    "meeting": pl.Int64,
    "begin_ns": pl.Int64,
    "dur_ns": pl.Int64,
    "margin_ns": pl.Int64,
    "uncertainty_ns": pl.Int64,
    "reason": pl.String,
}


def critical_path(replay: Replay, arrivals: Frame) -> Frame:
    """Return the path through the ranks of a job: the result ``cluster_critical_path``.

    Args:
        replay: The job, put together again.
        arrivals: When each rank arrives at each meeting, on the job's clock.

    Returns:
        A row a piece, by step and ``place`` in it from 1. ``rank`` works, or is the last to arrive at the collective
        that is waited for (null if it waits for none); ``part`` is ``own work`` or ``communication``, which has
        operation, group and meeting; ``begin_ns`` by the clock of the job and ``dur_ns``; ``margin_ns``, by how much
        the last rank arrived after the one before it, and ``uncertainty_ns``, by how much that may be wrong. Of a step
        whose path runs through a collective of which it is not known who arrived last, one row with ``reason``; the
        rest of it is null.
    """
    pieces, borders = replay.path()
    rows = _collectives(replay, arrivals)
    begins, ends = pieces["begin"].to_numpy(), pieces["end"].to_numpy()
    low = np.maximum(np.searchsorted(borders, begins, side="right") - 1, 0)
    high = np.minimum(np.searchsorted(borders, ends, side="left") - 1, len(borders) - 2)
    count = np.maximum(high - low + 1, 0)
    which = np.repeat(np.arange(len(pieces)), count)
    step = np.repeat(low - np.cumsum(count) + count, count) + np.arange(count.sum())
    begin, end = np.maximum(begins[which], borders[step]), np.minimum(ends[which], borders[step + 1])
    cut = pieces[which].with_columns(begin=np.round(begin).astype(np.int64), end=np.round(end).astype(np.int64))
    placed = cut.with_columns(step=replay.steps.gather(step)).join(rows, on="row", how="left", maintain_order="left")
    late = rows.select("row", arrived="rank")
    placed = placed.join(late, left_on="last", right_on="row", how="left", maintain_order="left").with_columns(
        rank=pl.when(pl.col("row").is_null()).then(replay.ranks.gather(placed["place"])).otherwise("arrived"),
        margin=pl.when(pl.col("last").is_not_null()).then("margin"),
        reason=pl.when(pl.col("last").is_null()).then("reason"),
    )
    # Work goes on over collectives that nobody waits for.
    piece = pl.struct("step", "rank", "meeting", pl.col("row").is_null()).rle_id()
    merged = placed.group_by(piece.alias("piece"), maintain_order=True).agg(
        pl.exclude("begin", "end", "reason").first(),
        pl.col("reason").drop_nulls().first(),
        begin_ns=pl.col("begin").first() + replay.zero,
        dur_ns=pl.col("end").last() - pl.col("begin").first(),
    )
    shown = merged.with_columns(
        place=pl.int_range(pl.len()).over("step") + 1,
        part=pl.when(pl.col("row").is_null()).then(pl.lit("own work")).otherwise(pl.lit("communication")),
        margin_ns=pl.col("margin").round(),
        uncertainty_ns=pl.when(pl.col("margin").is_not_null()).then("uncertainty"),
    ).select(pl.col(name).cast(dtype) for name, dtype in PATH_SCHEMA.items())
    whole = pl.col("reason").is_null().all().over("step")
    unknown = shown.filter(~whole).group_by("step").agg(pl.col("reason").drop_nulls().first())
    return pl.concat([shown.filter(whole), unknown], how="diagonal").sort("step", "place")


def unknown_path(steps: pl.Series, reason: str) -> Frame:
    """Return the result of a job of which it is not known who waited for whom: a row a step, with the reason."""
    numbers = steps.unique().sort().cast(pl.Int64)
    none = [pl.lit(None, dtype).alias(name) for name, dtype in PATH_SCHEMA.items() if name not in ("step", "reason")]
    found = pl.DataFrame({"step": numbers}).with_columns(*none, reason=pl.lit(reason))
    return found.select(*PATH_SCHEMA)


def _collectives(replay: Replay, arrivals: Frame) -> Frame:
    """Return the collectives by row: how late the last rank comes, and why it is not known who that is."""
    known = arrivals.select("meeting", "rank", "uncertainty", "reason")
    before = pl.col("arrival").max() - pl.col("arrival").top_k(2).min()
    rows = replay.rows.with_row_index("row").with_columns(
        pl.col("row").cast(pl.Int64),
        margin=pl.when(pl.col("meeting").is_not_null()).then(before.over("meeting")),
    )
    joined = rows.join(known, on=["meeting", "rank"], how="left", maintain_order="left")
    why = pl.when(pl.col("meeting").is_null()).then(pl.lit(_ALONE)).otherwise("reason")
    return joined.select(
        "row", "rank", "meeting", "operation", "group", "margin", "uncertainty",
        reason=pl.when(~waits_for_some("operation")).then(why),
    )  # fmt: skip
