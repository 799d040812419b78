"""Which operators a backward pass belongs to, which not, and what is computed again. See ``docs/definitions.md``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analyse.idle.line_of_code import lines_of_spans
from stepscope.analyse.intervals import Times
from stepscope.analyse.operators.operator_calls import device_time, host_operators, rows_of
from stepscope.analyse.step import sample
from stepscope.analyse.step.activity import Rows
from stepscope.analyse.step.announced import announced
from stepscope.analyse.units import us
from stepscope.trace.tables import Tables, columns_of, has_rows

#: The passes, in the order in which they are shown.
_PASSES = ("evaluation", "forward", "no backward", "backward", "repeated backward", "recomputed forward")
_PASS = {name: number for number, name in enumerate(_PASSES)}
_SHOWN_AS = {"forward": "forward", "backward": "backward", "other": "no backward"}


def gradient_use(tables: Tables) -> pl.DataFrame:
    """Return one row per pass and outermost operator inside steps, with its time in µs; none from a sample."""
    operators = host_operators(tables)
    ids = columns_of(tables, "spans", "id")["id"]
    rows = rows_of(ids, operators["id"])
    spans = columns_of(tables, "spans", "phase", "sequence", "name")[rows]
    outer, inside = operators["outer"].to_numpy(), operators["step"].is_not_null().to_numpy()
    inside &= (operators["kind"] == "operator").to_numpy()
    phase = spans["phase"].cast(pl.String)
    given = columns_of(tables, "operators", "span", "forward_thread", "module")
    details = operators.select(span="id").join(given, on="span", how="left", maintain_order="left")
    numbered = (spans["sequence"].fill_null(0) > 0).to_numpy()
    of_node = (details["forward_thread"].fill_null(0) > 0).to_numpy()
    passes = phase.replace_strict(_SHOWN_AS, default=None, return_dtype=pl.String)
    number = np.array([_PASS.get(name, -1) for name in passes.to_list()], np.int64)
    again = _outermost(numbered & ~of_node & (phase == "backward").fill_null(value=False).to_numpy(), outer)
    number[_repeated(operators, spans, details)] = _PASS["repeated backward"]
    number[evaluated(tables, operators["ts"].to_numpy())] = _PASS["evaluation"]
    number[again] = _PASS["recomputed forward"]
    kept = np.flatnonzero(inside & (number >= 0) & ((outer < 0) | again))
    if sample.fraction(tables) < 1 or not (phase == "backward").any():
        kept = kept[:0]
    frame = pl.DataFrame(
        {
            "pass": number[kept],
            "name": operators["name"].gather(kept).cast(pl.String),
            "module": details["module"].gather(kept).cast(pl.String),
            "line": lines_of_spans(tables, rows[kept]),
            "host": operators["dur"].gather(kept),
            "device": device_time(tables, operators)[1][kept],
        }
    )
    if not has_rows(tables, "kernels"):
        frame = frame.with_columns(device=pl.lit(None, pl.Int64))
    return _summed(frame, max(1, len(columns_of(tables, "steps", "number"))))


def _summed(frame: pl.DataFrame, steps: int) -> pl.DataFrame:
    keys = ["pass", "name", "module", "line"]
    device = pl.when(pl.col("device").is_not_null().any()).then(pl.col("device").sum())
    rows = frame.group_by(keys).agg(pl.len().alias("count"), pl.col("host").sum(), device.alias("device"))
    rows = rows.sort("pass", "host", *keys[1:], descending=[False, True, *[False] * 3])
    return rows.select(
        pl.Series("pass", _PASSES).gather(rows["pass"]).alias("Pass") if len(rows) else pl.lit("").alias("Pass"),
        pl.col("name").alias("Name"), pl.col("module").alias("Module"), pl.col("line").alias("Line"),
        pl.col("count").alias("Count"), us("host").alias("Host Time(us)"), us("device").alias("Device Time(us)"),
        (pl.col("host") / 1000 / steps).round(3).alias("Host Time per Step(us)"),
        (pl.col("device") / 1000 / steps).round(3).alias("Device Time per Step(us)"),
    )  # fmt: skip


def _outermost(chosen: npt.NDArray[np.bool_], outer: Rows) -> npt.NDArray[np.bool_]:
    """Return which chosen operators lie in no other chosen one."""
    result, around = chosen.copy(), outer
    while (around >= 0).any():
        result &= ~((around >= 0) & chosen[around])
        around = np.where(around >= 0, outer[around], -1)
    return result


def _repeated(operators: pl.DataFrame, spans: pl.DataFrame, details: pl.DataFrame) -> Rows:
    """Return the evaluations of nodes of the graph that were evaluated before: a graph that was kept."""
    nodes = pl.DataFrame([operators["ts"], spans["sequence"], details["forward_thread"], spans["name"]])
    nodes = nodes.with_row_index("row").filter((pl.col("forward_thread") > 0) & (pl.col("sequence") >= 0)).sort("ts")
    before = pl.col("row").cum_count().over("sequence", "forward_thread", "name") > 1
    return np.asarray(nodes.filter(before)["row"].to_numpy(), np.int64)


def evaluated(tables: Tables, ts: Times) -> npt.NDArray[np.bool_]:
    """Return which instants lie in an evaluation that the program or a library announced."""
    result = np.zeros(len(ts), np.bool_)
    if has_rows(tables, "run_events"):
        for start, dur in announced(tables, "evaluation").iter_rows():
            result |= (ts >= start) & (ts < start + dur)
    return result
