"""Samples of an NPU as :data:`stepscope.trace.ascend_columns.SAMPLES` of Ascend's database of events."""

from __future__ import annotations

import re
from collections.abc import Iterator

import polars as pl

from stepscope.report.ascend.overlap_analysis import RankWork
from stepscope.trace.ascend_columns import INT, MODULE_MEMORY, SAMPLE_LABELS, SAMPLES, SampledTable

#: The tables that are written; that of the modules' memory is made apart.
_WRITTEN = {"HBM", "LLC", "NPU_MEM", "AICORE_FREQ", "QOS", "ACC_PMU", "SOC_BANDWIDTH_LEVEL", "HCCS", "DDR"}
_STORED_LABELS = {shown: stored for stored, shown in SAMPLE_LABELS.items()}


def samples(work: RankWork) -> dict[str, pl.DataFrame]:
    """Return the tables of samples that have rows; texts as text."""
    lanes = work.tables["tracks"].filter(pl.col("kind") == "counter")
    places = lanes.select(
        pl.col("id").alias("track"),
        pl.col("name").alias("group"),
        pl.col("device").cast(pl.String).str.extract(r"^npu:(\d+)$").cast(pl.Int64).alias("deviceId"),
    )
    counters = work.tables["counters"].with_columns(pl.col("name").cast(pl.String))
    rows = counters.join(places, on="track").filter(pl.col("deviceId").is_not_null()).collect()
    written = [table for table in SAMPLES if table.table in _WRITTEN]
    made = {table.table: _table(rows.filter(pl.col("group") == table.group), table) for table in written}
    made["NPU_MODULE_MEM"], enumeration = _modules(rows.filter(pl.col("group") == MODULE_MEMORY))
    found = {name: frame for name, frame in made.items() if len(frame)}
    return found | ({"ENUM_MODULE": enumeration} if len(enumeration) else {})


def _table(rows: pl.DataFrame, table: SampledTable) -> pl.DataFrame:
    """Return a row for each sample; samples of one time and the same labels are one row."""
    known = [one for name in rows["name"].unique(maintain_order=True) for one in _columns_of(name, table)]
    schema = {"name": pl.String, "what": pl.String, **dict.fromkeys(table.labels, pl.String)}
    told = rows.join(pl.DataFrame(known, schema, orient="row"), on="name", how="inner", maintain_order="left")
    key = ["deviceId", "ts", *table.labels]
    nth = pl.int_range(pl.len()).over([*key, "what"]).alias("nth")
    wide = told.with_columns(nth).pivot("what", index=[*key, "nth"], values="value", maintain_order=True)
    labels = [
        pl.col(name).cast(pl.Int64) if holds == INT else pl.col(name).replace(_STORED_LABELS)
        for name, holds in table.labels.items()
    ]
    values = []
    for column, (_, _, parts) in table.values.items():
        value = pl.col(column) if column in wide.columns else pl.lit(None, pl.Float64)
        # Bytes are integers.
        values.append(((value * parts).round(0) if parts > 1 else value).alias(column))
    return wide.select("deviceId", pl.col("ts").alias("timestampNs"), *labels, *values)


def _columns_of(name: str, table: SampledTable) -> Iterator[tuple[str, ...]]:
    """Yield a counter's name, the column that holds it, and its labels."""
    for column, (template, _, _) in table.values.items():
        labels = [r"(\d+)" if holds == INT else "(.+)" for holds in table.labels.values()]
        found = re.fullmatch(re.escape(template).replace(r"\{\}", "{}").format(*labels), name)
        if found:
            yield (name, column, *found.groups())


def _modules(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the memory of modules, which have numbers of their own, and the names of the numbers."""
    names = rows["name"].unique(maintain_order=True)
    numbers = pl.DataFrame({"id": range(len(names)), "name": names}, schema={"id": pl.Int64, "name": pl.String})
    joined = rows.join(numbers, on="name", how="left", maintain_order="left")
    return joined.select(
        pl.col("id").alias("moduleId"),
        pl.col("ts").alias("timestampNs"),
        pl.col("value").alias("totalReserved"),
        "deviceId",
    ), numbers
