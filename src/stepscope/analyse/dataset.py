"""How long the training thread waited for its batches, by data loader."""

from __future__ import annotations

import json

import polars as pl

from stepscope.analyse.work import track_ids
from stepscope.trace.tables import Tables


def dataset(tables: Tables) -> pl.DataFrame:
    """Return one row per data loader and stage, longest total first: number of waits and their mean time in µs.

    ``enumerate(DataLoader)#Iterator.__next__`` is the operation ``enumerate(DataLoader)#Iterator`` at the stage
    ``__next__``. Custom Info holds the arguments of the first wait as JSON, the number of workers among them.
    """
    operation = pl.col("name").str.replace(r"\.[^.]*$", "").alias("operation")
    stage = pl.col("name").str.extract(r"\.([^.]*)$").alias("stage")
    grouped = (
        waits(tables)
        .group_by(operation, stage, maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            (pl.col("dur").mean() / 1000).round(3).alias("mean"),
            pl.col("dur").sum().alias("total"),
            pl.col("id").first().alias("first"),
        )
    )
    rows = grouped.sort("total", descending=True, maintain_order=True)
    told = arguments(tables, rows["first"])
    return rows.select(
        pl.col("operation").alias("Operation"),
        pl.col("stage").alias("Stage"),
        pl.col("count").alias("Occurrences"),
        pl.col("mean").alias("Avg. time (us)"),
        pl.Series("Custom Info", [json.dumps(told[i]) if i in told else None for i in rows["first"]], pl.String),
    )


def waits(tables: Tables) -> pl.DataFrame:
    """Return id, name, ts and dur of every wait for a batch, in order of time; one inside another is part of it.

    Two sources may have seen the same wait: the framework's profiler and our own collector, one around the other.
    """
    on_thread = pl.col("track").is_in(track_ids(tables, "thread"))
    spans = tables["spans"].filter((pl.col("kind") == "data") & on_thread)
    ends = pl.col("ts") + pl.col("dur")
    inside = (ends <= ends.cum_max().shift(1).over("track")).fill_null(value=False)
    outermost = spans.sort("ts", "dur", "id", descending=[False, True, False]).filter(~inside)
    return outermost.select("id", pl.col("name").cast(pl.String), "ts", "dur").collect()


def arguments(tables: Tables, spans: pl.Series) -> dict[int, dict[str, object]]:
    """Return the arguments of those of these spans that have any, by span id."""
    rows = tables["arguments"].filter(pl.col("span").is_in(spans.implode())).collect()
    told: dict[int, dict[str, object]] = {}
    for span, key, value in rows.iter_rows():
        told.setdefault(span, {})[key] = json.loads(value)
    return told
