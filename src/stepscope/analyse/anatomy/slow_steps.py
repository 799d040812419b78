"""Which operators, kernels and waits make slow steps slow. Definition: ``docs/definitions.md``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stepscope.analyse.operators.op_statistic import device_work, host_work
from stepscope.analyse.step import sample
from stepscope.analyse.step.activity import not_recorded, of_kinds, on_tracks, span_kinds
from stepscope.analyse.step.step_trace_time import PARTS, split
from stepscope.analyse.units import titled
from stepscope.trace.tables import Tables, columns_of

#: Most rows a group of steps has: the spans whose time differs most.
MOST = 200
#: Kinds of spans on host threads that are listed beside operators.
_WAITS = ("data", "sync", "garbage", "compile")
_KEYS = ["device", "name", "kind"]
_SCHEMA: dict[str, type[pl.DataType]] = {
    "steps": pl.String, "device": pl.String, "name": pl.String, "kind": pl.String, "usual_calls": pl.Float64,
    "calls": pl.Float64, "usual": pl.Float64, "time": pl.Float64, "growth": pl.Float64, "share": pl.Float64,
}  # fmt: skip


def slow_steps(tables: Tables) -> pl.DataFrame:
    """Return one row per group of steps and name: mean time a step there, in the usual steps, and the difference.

    Groups are ``slow``, the slowest quarter of the recorded steps against the faster half, and ``first``, the first
    step of the run against the others, where it was recorded. The row ``step`` of a group comes first; where
    work may be missing, nothing else is known.
    """
    windows = split(tables).windows
    spans = _spans(tables) if windows.declared else pl.DataFrame()
    spans = spans.clear() if "computing" in not_recorded(tables) else spans
    found = [pl.DataFrame(schema=_SCHEMA)]
    for group, chosen, usual in _groups(tables, windows.number, windows.end - windows.start):
        found.append(_compared(tables, spans, group, chosen, usual))
    return pl.concat(found).select(titled({
        "Steps": "steps", "Device_id": "device", "Name": "name", "Kind": "kind",
        "Usual Calls": "usual_calls", "Calls": "calls", "Usual Time(us)": _us("usual"), "Time(us)": _us("time"),
        "Growth(us)": _us("growth"), "Share of Growth(%)": "share",
    }))  # fmt: skip


def _us(column: str) -> pl.Expr:
    return (pl.col(column) / 1000).round(3)


def _groups(tables: Tables, number: np.ndarray, dur: np.ndarray) -> Iterator[tuple[str, list[int], list[int]]]:
    """Yield the groups of recorded steps: name, places of its steps, and of those to compare them with."""
    run = columns_of(tables, "run_steps", "number", "ts", "dur").sort("ts")
    first = run.filter(pl.col("dur").is_not_null())["number"].head(1).to_list()
    recorded_first = bool(first) and len(number) > 1 and int(number[0]) == first[0] <= 1
    places = np.arange(int(recorded_first), len(number))
    if len(places) > 1:
        order = places[np.argsort(dur[places], kind="stable")]
        quarter, half = -(-len(order) // 4), max(len(order) // 2, 1)
        yield "slow", order[-quarter:].tolist(), order[:half].tolist()
    if recorded_first:
        yield "first", [0], places.tolist()


def _spans(tables: Tables) -> pl.DataFrame:
    """Return device, name, kind, step and time (ns) of what a step consists of; operators with their self time."""
    columns = [*_KEYS, "step", "time"]
    pieces = [device_work(tables).select(columns)]
    if sample.fraction(tables) == 1:
        pieces.append(host_work(tables).select(columns))
    spans = columns_of(tables, "spans", "track", "name", "kind", "dur", "step")
    waits = on_tracks(tables, "thread") & of_kinds(span_kinds(tables), *_WAITS)
    pieces.append(
        spans[np.flatnonzero(waits)].select(
            pl.lit("cpu", pl.Categorical).alias("device"),
            "name",
            pl.col("kind").cast(pl.Categorical),
            "step",
            time="dur",
        )
    )
    return pl.concat(pieces)


def _compared(tables: Tables, spans: pl.DataFrame, group: str, chosen: list[int], usual: list[int]) -> pl.DataFrame:
    """Return the rows of a group of steps, those that grew most first, behind the whole step and its parts."""
    parts = split(tables)
    windows = parts.windows
    rows = [("step", "step", windows.end - windows.start)]
    if sample.fraction(tables) == 1:
        rows += [(name, "part", parts.parts[name]) for name in PARTS if name not in parts.unknown]
    sums = [
        {"device": None, "name": name, "kind": kind, "usual": times[usual].mean(), "time": times[chosen].mean()}
        for name, kind, times in rows
    ]
    whole = float(sums[0]["time"]) - float(sums[0]["usual"])
    of_steps = [pl.Series(windows.number[places]).implode() for places in (usual, chosen)]
    inside = [pl.col("step").is_in(numbers) for numbers in of_steps]
    grouped = spans.group_by(_KEYS).agg(
        usual_calls=inside[0].sum() / len(usual),
        calls=inside[1].sum() / len(chosen),
        usual=pl.col("time").filter(inside[0]).sum() / len(usual),
        time=pl.col("time").filter(inside[1]).sum() / len(chosen),
    )
    named = grouped.with_columns(pl.col(_KEYS).cast(pl.String), growth=pl.col("time") - pl.col("usual"))
    named = named.filter(pl.col("growth") != 0)
    most = named.sort(pl.col("growth").abs(), *_KEYS, descending=[True, False, False, False]).head(MOST)
    ordered = most.sort("growth", *_KEYS, descending=[True, False, False, False])
    head = pl.DataFrame(sums).cast({"device": pl.String}).with_columns(growth=pl.col("time") - pl.col("usual"))
    share = 100 * pl.col("growth") / whole if whole else pl.lit(None, pl.Float64)
    both = pl.concat([head, ordered], how="diagonal_relaxed")
    return both.with_columns(steps=pl.lit(group), share=share).select(*_SCHEMA).cast(_SCHEMA)  # type: ignore[arg-type]
