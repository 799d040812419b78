"""Why each device does nothing: the reasons of its idle time. Definition: ``docs/definitions.md``."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analyse.idle.gaps import Gaps, gaps
from stepscope.analyse.idle.idle_pieces import REASON, REASONS, idle_pieces
from stepscope.analyse.idle.line_of_code import lines_of_spans
from stepscope.analyse.idle.sampled_gaps import Rest, sampled_gaps
from stepscope.analyse.idle.thread_time import nearest_around
from stepscope.analyse.operators.operator_calls import rows_of
from stepscope.analyse.step.activity import Rows, Windows, of_kinds, span_kinds
from stepscope.analyse.units import timestamp_us, us
from stepscope.trace.tables import Tables, columns_of, forget, shared

_KEYS = ("device", "step", "reason", "name", "operator", "line", "next")
#: Types of the texts of the pieces of gaps, of which there may be as many as spans.
_TEXTS: dict[str, pl.DataType] = {
    "reason": pl.Enum(REASONS), **dict.fromkeys(("name", "operator", "line", "next"), pl.Categorical()),
}  # fmt: skip


class _Idle(NamedTuple):
    """The idle time of a rank: its steps, its devices, ns by step and device, and the same by what explains it.

    ``times`` has the columns of :data:`_KEYS`, time (ns), gaps and samples.
    """

    windows: Windows
    devices: pl.Series
    idle: pl.DataFrame
    times: pl.DataFrame


def idle_reasons(tables: Tables) -> pl.DataFrame:
    """Return one row per device, reason, and what it consists of, all steps together: most time first. Times in µs."""
    found = _explained(tables).times
    steps = found.group_by("device").agg(idle=pl.col("time").sum())
    keys = [key for key in _KEYS if key != "step"]
    summed = found.group_by(keys).agg(pl.col("time", "gaps", "samples").sum())
    rows = summed.join(steps, on="device", how="left").sort(
        "device", "time", *keys[1:], descending=[False, True, *[False] * (len(keys) - 1)], nulls_last=True
    )
    count = len(_explained(tables).windows.start)
    return rows.select(
        pl.col("device").alias("Device_id"), pl.col("reason").alias("Reason"), pl.col("name").alias("Name"),
        pl.col("operator").alias("Operator"), pl.col("line").alias("Line"), pl.col("next").alias("Next"),
        pl.when(pl.col("samples") == 0).then("gaps").alias("Gaps"),
        pl.when(pl.col("samples") > 0).then("samples").alias("Samples"),
        us("time").alias("Total Time(us)"), (pl.col("time") / 1000 / count).round(3).alias("Time per Step(us)"),
        (100 * pl.col("time") / pl.col("idle")).round(3).alias("Share(%)"),
    )  # fmt: skip


def idle_time(tables: Tables) -> pl.DataFrame:
    """Return one row per step and device, in µs: its idle time, and the part of each reason; these add up to it."""
    found = _explained(tables)
    windows = found.windows
    steps = pl.DataFrame(
        {
            "step": np.arange(len(windows.start)),
            "number": windows.number,
            "ts": windows.start,
            "whole": windows.end - windows.start,
        }
    )
    parts = found.times.group_by("step", "device").agg(
        *(pl.col("time").filter(pl.col("reason") == reason).sum().alias(reason) for reason in REASONS),
    )
    rows = steps.join(found.devices.to_frame(), how="cross")
    for part in (found.idle, parts):
        rows = rows.join(part, on=["step", "device"], how="left")
    rows = rows.with_columns(pl.col("idle", *REASONS).fill_null(0)).sort("ts", "device")
    return rows.select(
        pl.col("number").alias("Step"), pl.col("device").alias("Device_id"),
        timestamp_us("ts").alias("Start Time(us)"), us("whole").alias("Total(us)"), us("idle").alias("Idle(us)"),
        *(us(reason).alias(f"{reason.title()}(us)") for reason in REASONS),
    )  # fmt: skip


@shared
def _explained(tables: Tables) -> _Idle:
    """Return the idle time of a rank; a capture has many more gaps than reasons, so these alone are kept."""
    found = gaps(tables)
    devices = pl.Series("device", found.devices, dtype=pl.String)
    idle = pl.DataFrame({"step": found.step, "device": found.device, "idle": found.end - found.start})
    idle = idle.group_by("step", "device").agg(pl.col("idle").sum())
    told, windows = _told(tables, found), found.windows
    del found
    forget(tables, gaps, idle_pieces)
    told = _delayed(tables, told, windows)
    times = told.group_by(_KEYS).agg(pl.col("time", "gaps", "samples").sum()).cast(dict.fromkeys(_TEXTS, pl.String))
    idle, times = (frame.with_columns(devices.gather(frame["device"])) for frame in (idle, times))
    return _Idle(windows, devices, idle, times)


def _told(tables: Tables, found: Gaps) -> pl.DataFrame:
    """Return a row a piece of a gap, and a row a step and what looks at its unknown pieces say."""
    pieces = idle_pieces(tables)
    unknown = np.flatnonzero(pieces.reason == REASON["nothing known"])
    of = pieces.gap[unknown]
    rest = Rest(found.device[of], found.step[of], found.thread[of], pieces.start[unknown], pieces.end[unknown])
    looked, taken = sampled_gaps(tables, rest)
    begins = np.append(True, pieces.gap[1:] != pieces.gap[:-1])[: len(pieces.gap)]
    kept: slice | npt.NDArray[np.bool_] = slice(None)
    if len(taken):
        kept = np.ones(len(begins), np.bool_)
        kept[unknown[taken]] = False
    gap, reason, name, operator = (part[kept] for part in (pieces.gap, pieces.reason, pieces.name, pieces.operator))
    ended = np.append(_operator_after(tables, found), -1)[gap]
    told = pl.DataFrame(
        {
            "device": found.device[gap],
            "step": found.step[gap],
            "reason": pl.Series(REASONS, dtype=_TEXTS["reason"])[pl.Series(reason.astype(np.uint32))],
            "name": _names(tables, name, np.where(reason == REASON["collective"], name, -1)),
            "operator": _names(tables, operator),
            "line": lines_of_spans(tables, np.where(operator >= 0, operator, name)).cast(_TEXTS["line"]),
            "next": _names(tables, np.where(reason == REASON["nothing known"], ended, -1)),
            "time": (pieces.end - pieces.start)[kept],
            "gaps": begins[kept].astype(np.int64),
            "samples": np.zeros(len(gap), np.int64),
        }
    )
    return pl.concat(
        [told, looked.cast({text: _TEXTS[text] for text in _TEXTS if text in looked.columns})], how="diagonal"
    )


def _delayed(tables: Tables, told: pl.DataFrame, windows: Windows) -> pl.DataFrame:
    """Give the unknown time of a step as much of the thread's run-queue delay as cannot lie in the rest of the step."""
    delays = columns_of(tables, "run_steps", "number", "delay").drop_nulls().unique("number", keep="first")
    steps = pl.DataFrame({"number": windows.number, "whole": windows.end - windows.start})
    steps = steps.with_row_index("step").join(delays.with_columns(pl.col("number").cast(pl.Int64)), on="number")
    if not len(steps):
        return told
    unknown, key = told["reason"] == "nothing known", ["device", "step"]
    rest = told.filter(unknown).with_columns(pl.col("time").cum_sum().over(key).alias("until"))
    steps = steps.with_columns(pl.col("step").cast(told.schema["step"]))
    rest = rest.with_columns(pl.col("time").sum().over(key).alias("all")).join(steps, on="step", how="left")
    least = (pl.col("delay") - pl.col("whole") + pl.col("all")).clip(0, pl.col("all")).fill_null(0)
    # Shared out among the rows of the step so that no nanosecond is lost.
    moved = least * pl.col("until") // pl.col("all") - least * (pl.col("until") - pl.col("time")) // pl.col("all")
    rest = rest.with_columns(moved=moved)
    waits = rest.filter(pl.col("moved") > 0).with_columns(
        time="moved",
        reason=pl.lit("waiting for a core", _TEXTS["reason"]),
        next=pl.lit(None, _TEXTS["next"]),
        gaps=pl.lit(0, pl.Int64),
    )
    rest = rest.with_columns(time=pl.col("time") - pl.col("moved")).filter(pl.col("time") > 0)
    return pl.concat([told.filter(~unknown), *(part.select(told.columns) for part in (rest, waits))])


def _names(tables: Tables, rows: Rows, collectives: Rows | None = None) -> pl.Series:
    """Return the names of rows of ``spans``, null for -1; of collectives, the operation and the ranks that meet."""
    spans = columns_of(tables, "spans", "id", "name")
    if not len(spans):
        return pl.Series([None], dtype=_TEXTS["name"]).new_from_index(0, len(rows))
    names = spans["name"][pl.Series(np.maximum(rows, 0).astype(np.uint32))]
    shown = pl.select(pl.when(pl.Series(rows) >= 0).then(names)).to_series()
    if collectives is None or not (collectives >= 0).any():
        return shown
    known = columns_of(tables, "collectives", "span", "operation", "group_ranks")
    whom = pl.format("{} of ranks {}", pl.col("operation").cast(pl.String), pl.col("group_ranks").cast(pl.String))
    text = known.select(pl.coalesce(whom, pl.col("operation").cast(pl.String))).to_series()
    place = np.full(len(spans), -1, np.int64)
    found = rows_of(spans["id"], known["span"])
    place[found[found >= 0]] = np.flatnonzero(found >= 0)
    chosen = np.where(collectives >= 0, place[collectives], -1)
    return (
        pl.select(
            pl.when(pl.Series(chosen) >= 0).then(text.gather(np.maximum(chosen, 0))).otherwise(shown.cast(pl.String))
        )
        .to_series()
        .cast(_TEXTS["name"])
    )


def _operator_after(tables: Tables, found: Gaps) -> Rows:
    """Return the operator that asked for the work that ends each gap; -1 if unknown."""
    asking = np.where(found.launch >= 0, found.launch, found.next if found.devices == ["cpu"] else -1)
    return nearest_around(tables, asking, of_kinds(span_kinds(tables), "operator"))
