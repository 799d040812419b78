"""Steps of the run that took much longer than the others, and what was in them.

Definitions: ``docs/definitions.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analyse.stacks.sampled_time import ends_steps, sampled_time
from stepscope.trace.tables import Tables, columns_of, has_rows

#: Something explains a step, or a difference, if it is at least this part of it.
EXPLAINS = 0.4
#: So many of them are told.
_TOLD = 3


@dataclass(frozen=True)
class Outlier:
    """A step that took much longer than the median.

    Attributes:
        number: Number of the step.
        dur_ns: Its duration.
        causes: What was in it, each with its time in ns, longest first; empty if nothing is known.
    """

    number: int
    dur_ns: int
    causes: tuple[tuple[str, int], ...]


def longest_steps(
    tables: Tables,
    rows: pl.DataFrame,
    outliers: npt.NDArray[np.bool_],
    inside: Mapping[int, Mapping[str, int]],
) -> tuple[Outlier, ...]:
    """Return the longest outliers, each with what takes a large part of what it takes more than the median.

    That is what a framework announces, such as a checkpoint; a wait for a core or for data; or else the line of the
    program that the samples of the training thread saw longer than in other steps.

    Args:
        tables: The tables.
        rows: The steps of the run.
        outliers: Which of them are outliers.
        inside: Of the place of a step: what is announced in it, with its time in ns.
    """
    if not outliers.any():
        return ()
    durations = rows["dur"].to_numpy()
    median = float(np.nanmedian(durations))
    places = sorted(np.flatnonzero(outliers).tolist(), key=lambda place: -durations[place])[:_TOLD]
    usual = {name: float(np.median(rows[name].fill_null(0).to_numpy())) for name in ("delay", "data_wait")}
    made = []
    for place in places:
        row, excess = rows.row(place, named=True), durations[place] - median
        times = dict(inside.get(place, {}))
        for name, cause in (("delay", "run queue"), ("data_wait", "data wait")):
            if (row[name] or 0) > usual[name]:
                times[cause] = row[name]
        causes = sorted((item for item in times.items() if item[1] >= EXPLAINS * excess), key=lambda item: -item[1])
        if not causes:
            line = _line(tables, row["ts"], row["dur"], median)
            causes = [line] if line is not None and line[1] >= EXPLAINS * excess else []
        made.append(Outlier(row["number"], row["dur"], tuple(causes)))
    return tuple(made)


def _line(tables: Tables, ts: int, dur: int, usual_ns: float) -> tuple[str, int] | None:
    """Return the line of the program that takes a step longest beyond what it takes others, and by how much, ns.

    The samples of the training thread tell; without any, the result is None.

    Args:
        tables: The tables.
        ts: Start of the step.
        dur: Its duration.
        usual_ns: The duration of other steps, in which each line has its share of the samples outside of this step.
    """
    if not has_rows(tables, "samples"):
        return None
    samples = columns_of(tables, "samples", "ts", "dur", "process", "thread", "worker", "stack")
    training = samples.filter(pl.col("worker").is_null(), ends_steps(tables))
    end = pl.col("ts") + pl.col("dur")
    here = pl.min_horizontal(end, pl.lit(ts + dur)) - pl.max_horizontal("ts", pl.lit(ts))
    looked = training.with_columns(here=here.clip(0))
    # Rows of samples stand for a little more than the time between them: together for no more than the step.
    scale = min(dur / max(float(looked["here"].sum()), 1.0), 1.0)
    own = sampled_time(tables).frames.filter("own").sort("stack", "place").unique("stack", keep="first")
    seen = (
        looked.join(own.select("stack", "file", "line", "function"), on="stack")
        .group_by("file", "line", "function", maintain_order=True)
        .agg(pl.col("here").sum(), elsewhere=(pl.col("dur") - pl.col("here")).sum())
    )
    share = pl.col("elsewhere") / pl.lit(max(float(training["dur"].sum()) - dur, 1.0))
    more = seen.with_columns(more=scale * pl.col("here") - usual_ns * share).sort("more", descending=True)
    if more.is_empty():
        return None
    most = more.row(0, named=True)
    return f"{most['function']} ({Path(most['file']).name}:{most['line']})", round(most["more"])
