"""Time by line of the program's own Python code, from samples. Definition: ``docs/definitions.md``."""

from __future__ import annotations

import polars as pl

from stepscope.analyse.stacks.sampled_time import STATES, by_state, sampled_time
from stepscope.trace.tables import Tables

#: Of a normal distribution, 95 % lie within so many standard deviations.
_Z = 1.96
_LINE = ("file", "line", "function")
_KEYS = ["order", "thread", *_LINE, "phase"]


def python_lines(tables: Tables) -> pl.DataFrame:
    """Return one row per thread, line and phase: the training thread's first, then the workers', each by self time."""
    sampled = sampled_time(tables)
    lines = _lines(sampled.frames)
    placed = sampled.rows.join(lines.filter("innermost"), on="stack", how="left", maintain_order="left")
    inside = (
        placed.group_by(*_KEYS, "deeper").agg(pl.col("time").sum()).sort("time", "deeper", descending=[True, False])
    )
    deepest = inside.group_by(_KEYS, maintain_order=True).agg(pl.col("deeper").first())
    own = placed.group_by(_KEYS).agg(*by_state(), pl.col("count", "inside").sum(), own=pl.col("time").sum())
    anywhere = sampled.rows.join(lines, on="stack", how="left")
    total = anywhere.group_by(_KEYS).agg(total=pl.col("time").sum(), total_inside=pl.col("inside").sum())
    # A frame of a library stands for a stack without own code only where it is innermost, so `total` has every key.
    rows = total.join(own, on=_KEYS, how="left", nulls_equal=True)
    rows = rows.join(deepest, on=_KEYS, how="left", nulls_equal=True)
    whole = sampled.rows.group_by("order", "thread").agg(looks=pl.col("count").sum())
    rows = rows.join(whole, on=["order", "thread"], how="left").with_columns(
        pl.col("count", "own", "inside").fill_null(0),
        *(pl.when(pl.col("own").is_not_null()).then(title).otherwise(0.0).alias(title) for title in STATES),
    )
    rows = rows.sort("order", "own", "total", *_KEYS[1:], descending=[False, True, True, *[False] * len(_KEYS[1:])])
    return rows.select(_shown(sampled.steps))


def _lines(frames: pl.DataFrame) -> pl.DataFrame:
    """Return each line of own code in each stack once, and which of them is innermost, with what it calls there.

    A stack without own code has its innermost frame.
    """
    ordered = frames.sort("stack", "place")
    first = ordered.group_by("stack", maintain_order=True).agg(
        place=pl.col("place").filter("own").first(), leaf=pl.struct("file", "line", "function").first()
    )
    joined = ordered.join(first, on="stack", suffix="_first", maintain_order="left")
    chosen = pl.coalesce("place_first", pl.lit(0))
    shown = joined.filter(pl.col("own") | (pl.col("place_first").is_null() & (pl.col("place") == 0)))
    base = pl.col("leaf").struct.field("file").str.split("/").list.last()
    called = pl.format("{}:{} {}", base, *(pl.col("leaf").struct.field(name) for name in ("line", "function")))
    return shown.unique(["stack", *_LINE], keep="first", maintain_order=True).select(
        "stack", *_LINE, innermost=pl.col("place") == chosen, deeper=pl.when(chosen > 0).then(called)
    )


def _shown(steps: int) -> list[pl.Expr]:
    """Return the columns of the result; shares with the interval of Wilson for as many looks as there were."""
    share, looks = pl.col("count") / pl.col("looks"), pl.col("looks").cast(pl.Float64)
    middle = (share + _Z**2 / (2 * looks)) / (1 + _Z**2 / looks)
    half = _Z * (share * (1 - share) / looks + _Z**2 / (4 * looks**2)).sqrt() / (1 + _Z**2 / looks)
    per_step = 1 / steps if steps else None
    return [
        pl.col("thread").alias("Thread"), pl.col("file").alias("File"), pl.col("line").alias("Line"),
        pl.col("function").alias("Function"), pl.col("phase").alias("Phase"), pl.col("deeper").alias("Inside"),
        pl.col("count").alias("Samples"), (100 * share).alias("Share(%)"),
        (100 * (middle - half)).clip(0, 100).alias("Share Low(%)"),
        (100 * (middle + half)).clip(0, 100).alias("Share High(%)"),
        (pl.col("own") / 1000).round(3).alias("Self(us)"), (pl.col("total") / 1000).round(3).alias("Total(us)"),
        (pl.col("inside") / 1000 * per_step).cast(pl.Float64).round(3).alias("Self per Step(us)"),
        (pl.col("total_inside") / 1000 * per_step).cast(pl.Float64).round(3).alias("Total per Step(us)"),
        *map(pl.col, STATES),
    ]  # fmt: skip
