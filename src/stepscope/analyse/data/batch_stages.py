"""What making a batch takes, by data set and stage, and how many workers make batches as fast as they are used."""

from __future__ import annotations

import math

import polars as pl

from stepscope.analyse.data.dataset import arguments, waits
from stepscope.trace.tables import Tables, columns_of

_SCHEMA = {
    "Data Set": pl.String, "Stage": pl.String, "Batches": pl.Int64, "Processes": pl.Int64,
    "Mean(us)": pl.Float64, "P95(us)": pl.Float64, "CPU(us)": pl.Float64, "Share(%)": pl.Float64,
    "Rest of Step(us)": pl.Float64, "Workers Needed": pl.Int64,
}  # fmt: skip
#: Batches that are computed on a core for this part of their time get no more workers than there are cores.
_ON_CORE = 0.6


def batch_stages(tables: Tables) -> pl.DataFrame:
    """Return one row per data set and stage, the longest data set first, and in it ``batch`` before its stages.

    Stages are ``samples``, ``collation`` and ``other``, the time between them; the longest one is what holds the batch
    up. Times are per batch. The steps after the first batch tell the rest of a step, and how many batches it takes.
    """
    names = ("ts", "dur", "dataset", "process", "sample_dur", "sample_cpu", "collate_dur", "collate_cpu")
    batches = columns_of(tables, "batches", *names).with_columns(pl.col("dataset").cast(pl.String))
    rows: list[tuple[object, ...]] = []
    cores = _cores(tables)
    whole = batches.group_by("dataset").agg(pl.col("dur").sum()).sort("dur", "dataset", descending=[True, False])
    for name in whole["dataset"].to_list():
        mine = batches.filter(pl.col("dataset") == name)
        spent = mine.select(
            batch=pl.col("dur"),
            samples=pl.col("sample_dur"),
            collation=pl.col("collate_dur"),
            other=(pl.col("dur") - pl.col("sample_dur") - pl.col("collate_dur")).clip(0),
        )
        cpu = {"samples": mine["sample_cpu"], "collation": mine["collate_cpu"]}
        on_core = sum(float(one.sum()) for one in cpu.values()) / max(float(mine["dur"].sum()), 1.0)
        rest, needed = _needed(tables, mine, cores if on_core >= _ON_CORE else None)
        order = sorted(spent.columns[1:], key=lambda stage: -float(spent[stage].sum()))
        for stage in ("batch", *order):
            time, known = spent[stage], cpu.get(stage, cpu["samples"] + cpu["collation"] if stage == "batch" else None)
            share = 100 * float(time.sum()) / max(float(spent["batch"].sum()), 1.0)
            rows.append(
                (
                    *(name, stage, len(mine), mine["process"].n_unique(), _us(time.mean()), _us(time.quantile(0.95))),
                    *(None if known is None else _us(known.mean()), round(share, 2)),
                    *((rest, needed) if stage == "batch" else (None, None)),
                )
            )
    return pl.DataFrame(rows, _SCHEMA, orient="row")


def _needed(tables: Tables, batches: pl.DataFrame, most: int | None) -> tuple[float | None, int | None]:
    """Return the mean step without its wait for data, in µs, and the workers that make its batches meanwhile."""
    steps = columns_of(tables, "run_steps", "ts", "dur", "data_wait").drop_nulls()
    steps = steps.filter(pl.col("ts") >= batches["ts"].min())
    if steps.is_empty():
        return None, None
    rest = float((steps["dur"] - steps["data_wait"]).clip(0).mean() or 0.0)  # type: ignore[arg-type]
    until = int((steps["ts"] + steps["dur"]).to_numpy().max())
    making = float(batches.filter(pl.col("ts") < until)["dur"].sum()) / len(steps)
    needed = max(math.ceil(making / rest), 1) if rest else None
    return _us(rest), needed if needed is None or most is None else min(needed, most)


def _cores(tables: Tables) -> int | None:
    said = (values.get("cores") for values in arguments(tables, waits(tables)["id"]).values())
    return max((value for value in said if isinstance(value, int)), default=None)


def _us(ns: object) -> float:
    return round(float(ns or 0.0) / 1000, 3)  # type: ignore[arg-type]
