"""How long the training thread waited for its batches, by data loader, and the data pipeline for its own parts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars as pl

from stepscope.analyse.data.minddata_pipeline import BATCH_TIMES, batches, operations
from stepscope.analyse.step.activity import of_kinds, span_kinds, track_ids
from stepscope.trace.tables import Tables, collected, columns_of, has_rows, shared, with_series

_SCHEMA = {
    "Operation": pl.String, "Stage": pl.String, "Occurrences": pl.Int64, "Avg. time (us)": pl.Float64,
    "Custom Info": pl.String,
}  # fmt: skip


def dataset(tables: Tables) -> pl.DataFrame:
    """Return one row per data loader and stage, longest total first: number of waits and their mean time in µs.

    ``enumerate(DataLoader)#Iterator.__next__`` is the operation ``enumerate(DataLoader)#Iterator`` at the stage
    ``__next__``. Custom Info holds the arguments of the first wait as JSON, the number of workers among them.

    Behind them, where a data pipeline measured itself, stand the stages of its end: ``pipeline``, until the pipeline
    gave the batch, ``push``, until a device's queue took it, and ``batch``, both; Custom Info names its operations.
    """
    waited = waits(tables)
    if not len(waited):
        return pl.DataFrame(_pipeline_stages(tables), _SCHEMA, orient="row")
    operation = pl.col("name").str.replace(r"\.[^.]*$", "").alias("operation")
    stage = pl.col("name").str.extract(r"\.([^.]*)$").alias("stage")
    mean = (pl.col("dur").mean() / 1000).round(3)
    by_stage = waited.lazy().group_by(operation, stage, maintain_order=True)
    grouped = by_stage.agg(count=pl.len().cast(pl.Int64), mean=mean, total=pl.col("dur").sum(), first=pl.first("id"))
    rows = grouped.sort("total", descending=True, maintain_order=True).pipe(collected, tables)
    found = arguments(tables, rows["first"])
    info = [json.dumps(found[first]) if first in found else None for first in rows["first"]]
    shown = [
        (operation, stage, count, mean, said)
        for (operation, stage, count, mean, _, _), said in zip(rows.iter_rows(), info, strict=True)
    ]
    return pl.DataFrame([*shown, *_pipeline_stages(tables)], _SCHEMA, orient="row")


def _pipeline_stages(tables: Tables) -> list[tuple[Any, ...]]:
    """Return the stages of the data pipeline's end: number of batches and mean time in µs."""
    lane, samples = batches(tables)
    if not lane:
        return []
    info = json.dumps({"pipeline": [one.label for one in operations(tables)]})
    rows = []
    for name in BATCH_TIMES:
        times = samples.filter(pl.col("name") == name)["value"].to_list()
        if times:
            rows.append((lane, name.removesuffix(" time"), len(times), round(1000 * sum(times) / len(times), 3), info))
    return rows


@shared
def waits(tables: Tables) -> pl.DataFrame:
    """Return id, name, ts and dur of every wait for a batch, in order of time; one inside another is part of it.

    Two sources may have seen the same wait: the framework's profiler and our own collector, one around the other.
    """
    rows = np.flatnonzero(of_kinds(span_kinds(tables), "data"))
    columns = columns_of(tables, "spans", "id", "name", "ts", "dur", "track")
    ids, ts, dur, track = (columns[name].to_numpy()[rows] for name in ("id", "ts", "dur", "track"))
    order = np.lexsort((ids, -dur, ts))
    outermost = np.zeros(len(rows), np.bool_)
    for thread in track_ids(tables, "thread"):
        mine = order[track[order] == thread]
        ends = ts[mine] + dur[mine]
        outermost[mine[:1]] = True
        outermost[mine[1:]] = ends[1:] > np.maximum.accumulate(ends)[:-1]
    found = columns[["id", "name", "ts", "dur"]][rows[order[outermost[order]]]]
    return with_series(found, [found["name"].cast(pl.String)])


def arguments(tables: Tables, spans: pl.Series) -> dict[int, dict[str, object]]:
    """Return the arguments of those of these spans that have any, by span id."""
    found: dict[int, dict[str, object]] = {}
    if not has_rows(tables, "arguments"):
        return found
    rows = tables["arguments"].filter(pl.col("span").is_in(spans.implode())).pipe(collected, tables)
    for span, key, value in rows.iter_rows():
        found.setdefault(span, {})[key] = json.loads(value)
    return found
