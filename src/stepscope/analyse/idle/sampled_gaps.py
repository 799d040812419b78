"""What samples of Python stacks say of idle time in which nothing else was recorded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analyse.idle.line_of_code import lines_of_stacks
from stepscope.analyse.intervals import Times
from stepscope.analyse.stacks.sampled_time import ends_steps
from stepscope.analyse.step.activity import Rows
from stepscope.trace.tables import Tables, columns_of, shared

#: Fewer looks say too little: the time stays unknown.
_FEW = 5
#: State of a sample → reason of the idle time in which it lies.
_REASONS = {
    "python": "python", "native": "python", "collecting": "garbage collection", "core": "waiting for a core",
    "gil": "waiting", "lock": "waiting", "sleep": "waiting", "io": "waiting", "child": "waiting", "waiting": "waiting",
}  # fmt: skip


#: Columns of the time that looks explain.
_SHARES = pl.Schema(
    {
        "device": pl.Int64, "step": pl.Int64, "time": pl.Int64, "samples": pl.Int64,
        "reason": pl.String, "name": pl.String, "line": pl.String,
    }
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Rest:
    """Pieces of idle time of which nothing is known.

    Attributes:
        device: Number of the device of each.
        step: Number of its step.
        thread: Track of the thread that was awaited; -1 if unknown.
        start: Start in ns.
        end: End in ns.
    """

    device: Rows
    step: Rows
    thread: Rows
    start: Times
    end: Times


def sampled_gaps(tables: Tables, rest: Rest) -> tuple[pl.DataFrame, Rows]:
    """Return unknown time, split by what the looks at the thread that lie in it say; and the pieces it was taken from.

    The shares are those of all steps together, since a step has few looks; the times of a step add up to what they
    were. What no Python thread ran is what the thread that trains did meanwhile. Pieces with too few looks stay
    unknown.

    Returns:
        Rows of device, step, line, reason, name, samples and time (ns); places in ``rest``.
    """
    looks = _looks(tables)
    main = looks.filter("trains")["thread"].head(1).to_list()
    known = columns_of(tables, "tracks", "id", "thread").filter(pl.col("thread").is_in(looks["thread"].implode()))
    threads = dict(known.iter_rows())
    parts = [pl.DataFrame(schema=_SHARES)]
    told = []
    awaited = {track: threads.get(track, *main) for track in np.unique(rest.thread).tolist()}
    for number in {thread: None for thread in awaited.values() if thread is not None}:
        own = np.isin(rest.thread, [track for track, thread in awaited.items() if thread == number])
        for device in np.unique(rest.device[own]).tolist():
            mine = np.flatnonzero(own & (rest.device == device))
            said = _said(tables, rest.start[mine], rest.end[mine], looks.filter(pl.col("thread") == number))
            if said["samples"].sum() >= _FEW:
                steps = pl.DataFrame({"step": rest.step[mine], "time": rest.end[mine] - rest.start[mine]})
                share = _shared_out(steps, said).with_columns(device=pl.lit(device, pl.Int64))
                parts.append(share.select(*_SHARES).cast(_SHARES))
                told.append(mine)
    return pl.concat(parts), np.concatenate(told) if told else np.empty(0, np.int64)


@shared
def _looks(tables: Tables) -> pl.DataFrame:
    """Return every look at a thread of this process: ts, thread, trains, state, stack; in order of time."""
    samples = columns_of(tables, "samples", "ts", "dur", "count", "process", "thread", "worker", "state", "stack")
    samples = samples.filter(pl.col("worker").is_null() & pl.col("stack").is_not_null())
    rows = np.repeat(np.arange(samples.height), samples["count"].to_numpy())
    count = samples["count"].to_numpy()
    place = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    ts = samples["ts"].to_numpy()[rows] + place * samples["dur"].to_numpy()[rows] // count[rows]
    looks = samples.select("thread", "state", "stack", trains=ends_steps(tables))
    return looks[rows].with_columns(ts=ts).sort("ts")


def _said(tables: Tables, start: Times, end: Times, looks: pl.DataFrame) -> pl.DataFrame:
    """Return the looks that lie in pieces of time, counted by reason, name and line."""
    order, ts = np.argsort(start, kind="stable"), looks["ts"].to_numpy()
    place = np.searchsorted(start, ts, side="right", sorter=order) - 1
    inside = looks.filter((place >= 0) & (ts < end[order[place]]))
    inside = inside.join(lines_of_stacks(tables, inside["stack"]), on="stack", how="left")
    state = pl.col("state").cast(pl.String)
    reason = state.replace_strict(_REASONS, return_dtype=pl.String)
    name = pl.when(reason == "waiting").then(state)
    return inside.group_by("line", reason=reason, name=name).agg(samples=pl.len().cast(pl.Int64)).sort(pl.all())


def _shared_out(pieces: pl.DataFrame, said: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each step and what was said in the looks, with its share of the step's time, rounded to ns."""
    steps = pieces.group_by("step").agg(pl.col("time").sum()).sort("step")
    counts = np.cumsum(np.concatenate(([0], said["samples"].to_numpy())))
    before = steps["time"].to_numpy()[:, None] * counts[None, :] // counts[-1]
    crossed = steps.drop("time").with_row_index("place").join(said, how="cross", maintain_order="left_right")
    samples = pl.when(pl.col("place") == 0).then("samples").otherwise(0)
    return crossed.with_columns(samples, time=np.diff(before, axis=1).ravel())
