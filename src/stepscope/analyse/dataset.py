"""How long the training thread waited for its batches, by data loader."""

from __future__ import annotations

import json

import polars as pl

from stepscope.trace.tables import Tables


def dataset(tables: Tables) -> pl.DataFrame:
    """Return one row per data loader and stage, longest total first: number of waits and their mean time in µs.

    ``enumerate(DataLoader)#Iterator.__next__`` is the operation ``enumerate(DataLoader)#Iterator`` at the stage
    ``__next__``. Custom Info holds the arguments of the first wait as JSON, the number of workers among them.
    """
    name = pl.col("name").cast(pl.String)
    waits = tables["spans"].filter(pl.col("kind") == "data").sort("ts", "id")
    grouped = waits.group_by(
        name.str.replace(r"\.[^.]*$", "").alias("operation"), name.str.extract(r"\.([^.]*)$").alias("stage")
    ).agg(
        pl.len().cast(pl.Int64).alias("count"),
        (pl.col("dur").mean() / 1000).round(3).alias("mean"),
        pl.col("dur").sum().alias("total"),
        pl.col("id").first().alias("first"),
    )
    rows = grouped.sort("total", "operation", "stage", descending=[True, False, False]).collect()
    told = arguments(tables, rows["first"])
    return rows.select(
        pl.col("operation").alias("Operation"),
        pl.col("stage").alias("Stage"),
        pl.col("count").alias("Occurrences"),
        pl.col("mean").alias("Avg. time (us)"),
        pl.Series("Custom Info", [json.dumps(told[i]) if i in told else None for i in rows["first"]], pl.String),
    )


def arguments(tables: Tables, spans: pl.Series) -> dict[int, dict[str, object]]:
    """Return the arguments of those of these spans that have any, by span id."""
    rows = tables["arguments"].filter(pl.col("span").is_in(spans.implode())).collect()
    told: dict[int, dict[str, object]] = {}
    for span, key, value in rows.iter_rows():
        told.setdefault(span, {})[key] = json.loads(value)
    return told
