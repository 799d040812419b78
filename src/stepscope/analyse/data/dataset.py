"""How long the training thread waited for its batches, by data loader, and the data pipeline for its own parts."""

from __future__ import annotations

import json

import polars as pl

from stepscope.analyse.data.minddata_pipeline import BATCH_TIMES, batches, operations
from stepscope.analyse.step.activity import track_ids
from stepscope.trace.tables import Tables


def dataset(tables: Tables) -> pl.DataFrame:
    """Return one row per data loader and stage, longest total first: number of waits and their mean time in µs.

    ``enumerate(DataLoader)#Iterator.__next__`` is the operation ``enumerate(DataLoader)#Iterator`` at the stage
    ``__next__``. Custom Info holds the arguments of the first wait as JSON, the number of workers among them.

    Behind them, where a data pipeline measured itself, stand the stages of its end: ``pipeline``, until the pipeline
    gave the batch, ``push``, until a device's queue took it, and ``batch``, both; Custom Info names its operations.
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
    waited = rows.select(
        pl.col("operation").alias("Operation"),
        pl.col("stage").alias("Stage"),
        pl.col("count").alias("Occurrences"),
        pl.col("mean").alias("Avg. time (us)"),
        pl.Series("Custom Info", [json.dumps(told[i]) if i in told else None for i in rows["first"]], pl.String),
    )
    return pl.concat([waited, _pipeline_stages(tables, waited.schema)])


def _pipeline_stages(tables: Tables, schema: pl.Schema) -> pl.DataFrame:
    """Return the stages of the data pipeline's end: number of batches and mean time in µs."""
    lane, samples = batches(tables)
    info = json.dumps({"pipeline": [one.label for one in operations(tables)]})
    rows = []
    for name in BATCH_TIMES:
        times = samples.filter(pl.col("name") == name)["value"].to_list()
        if times:
            rows.append((lane, name.removesuffix(" time"), len(times), round(1000 * sum(times) / len(times), 3), info))
    return pl.DataFrame(rows, schema=schema, orient="row")


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
