"""Runs of compiled programs: when each was asked for and computed, and the steps that follow from them.

JAX dispatches a program and computes it later. Steps are those that ``StepTraceAnnotation`` declares, else the runs of
the program that takes most of the time. Code that is not compiled as a whole has no steps: each of its operations is a
program of its own.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import Mask
from stepscope.read.xplane.batches import XplaneBatch
from stepscope.read.xplane.gathered_rows import XplaneRows
from stepscope.trace.tables import conform, empty

#: What PjRt does on the thread that asks: for one device, and for several, where it says the number of the run.
_CALL = r"^CommonPjRtLoadedExecutable::Execute(?:HelperOnSingleDevice$| \()"
_DISPATCH = {"ts": pl.Int64, "end": pl.Int64}
_RUN = {"program_id": pl.Int64, "run": pl.Int64, "ts": pl.Int64, "end": pl.Int64, "total": pl.Int64}
#: Before every recording, in ns from its beginning.
_BEFORE = -3_600_000_000_000


def note_runs(rows: XplaneRows, batch: XplaneBatch) -> None:
    """Keep when each run of a program began and ended, and how long its operators took together."""
    frame = pl.DataFrame(
        {
            "program_id": batch.integers("program_id"),
            "run": batch.integers("run_id"),
            "ts": batch.ts,
            "end": batch.ts + batch.dur,
            "total": batch.dur,
        },
        schema=_RUN,
    )
    rows.put("runs", united_runs([frame.filter(pl.col("run").is_not_null())]))


def united_runs(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Return one row per run of a program."""
    together = pl.concat([pl.DataFrame(schema=_RUN), *frames])
    return together.group_by("program_id", "run", maintain_order=True).agg(
        pl.col("ts").min(), pl.col("end").max(), pl.col("total").sum()
    )


def note_calls(rows: XplaneRows, batch: XplaneBatch, running: Mask, *, own: bool) -> None:
    """Keep what a thread asks for, and the runs that it computes itself.

    Python that a program calls back runs on a thread of XLA's: there, the runs inside of a call are computed by it.

    Args:
        rows: Where it is kept.
        batch: Events of the thread.
        running: Which of them are instructions.
        own: Whether XLA made the thread.
    """
    calls = batch.plane.event_names.str.contains(_CALL).to_numpy()[batch.place]
    if own:
        order = np.argsort(batch.ts[calls])
        begins, ends = batch.ts[calls][order], (batch.ts + batch.dur)[calls][order]
        inside = np.searchsorted(begins, batch.ts, side="right") - 1
        running = running & (inside >= 0)
        running[running] = batch.ts[running] < ends[inside[running]]
    for name, chosen in (("calls", calls), ("inline", running)):
        if chosen.any():
            part = batch.where(chosen)
            frame = {"program_id": part.integers("program_id"), "run": part.integers("run_id"), "ts": part.ts}
            rows.put(name, pl.DataFrame({**frame, "end": part.ts + part.dur}))


def dispatches(rows: XplaneRows) -> pl.DataFrame:
    """Return for each run of a program on threads when it was asked for (``ts``) and when it was computed (``end``).

    A run that the asking thread computes itself is asked for when it begins. The others come in the order of the calls,
    and the last one belongs to the last call; those beyond were asked for before the recording began.
    """
    runs = united_runs(rows.pieces.get("runs", []))
    if not runs.height or "calls" not in rows.pieces:
        return pl.DataFrame(schema=_DISPATCH)
    calls = pl.concat(rows.pieces["calls"]).sort("ts")
    inline = pl.concat(rows.pieces.get("inline", [calls.clear()]))
    here = runs.join(inline, on=["program_id", "run"], how="semi").select("ts", "end")
    others = runs.join(inline, on=["program_id", "run"], how="anti")
    numbered = calls.drop_nulls("run").unique("run", keep="first").select("run", asked="ts")
    known = others.join(numbered, on="run").select("asked", "end")
    later = others.join(numbered, on="run", how="anti").sort("ts")
    asked = _from_last(_without(calls.filter(pl.col("run").is_null()), here), later)
    found = [here.rename({"ts": "asked"}), known, later.select(pl.Series("asked", asked, dtype=pl.Int64), "end")]
    return pl.concat(found).rename({"asked": "ts"})


def _without(calls: pl.DataFrame, inline: pl.DataFrame) -> Integers:
    """Return the times of the calls in which no run of their own was computed."""
    begins = inline["ts"].sort().to_numpy()
    inside = np.searchsorted(begins, calls["end"].to_numpy()) - np.searchsorted(begins, calls["ts"].to_numpy())
    times: Integers = calls["ts"].to_numpy()[inside == 0]
    return times


def _from_last(calls: Integers, runs: pl.DataFrame) -> Integers:
    """Return the time of the call of each run, both in order of time."""
    missing = runs.height - len(calls)
    if missing <= 0:
        return calls[-missing:]
    return np.concatenate([np.full(missing, _BEFORE, np.int64), calls])


def steps(rows: XplaneRows, operations: pl.DataFrame, instructions: pl.DataFrame) -> pl.DataFrame:
    """Return the table ``steps``, by the rows, the table of operations, and that of the programs' instructions."""
    declared = rows.pieces.get("steps", [])
    if declared and (marks := pl.concat(declared)).height:
        return conform("steps", marks.sort("ts", "dur").with_columns(source=pl.lit("declared")))
    if "starts" in rows.pieces:
        runs = _runs_on_device(pl.concat(rows.pieces["starts"]), operations)
    else:
        runs = united_runs(rows.pieces.get("runs", []))
    names = operations.select("program_id", "program").unique("program_id", keep="first")
    contents = instructions if instructions.height else operations
    return _inferred(runs.join(names, on="program_id", how="left", nulls_equal=True), contents)


def _inferred(runs: pl.DataFrame, contents: pl.DataFrame) -> pl.DataFrame:
    """Return the runs of the program that takes most of the time, each until the next begins.

    A function is compiled again for inputs of another form or place: its programs have one name, and are one here.
    None are returned if it ran once, or if all its runs together do no more operations than there are runs of other
    programs meanwhile: such code dispatches its operations one by one.

    Args:
        runs: A row a run.
        contents: Instructions of the programs: their primitives are the last names of the scopes.
    """
    totals = runs.group_by("program", maintain_order=True).agg(pl.col("total").sum(), pl.len())
    most = totals.sort("total", descending=True, maintain_order=True).head(1)
    if not most.height or most["len"][0] < 2:
        return empty("steps")
    chosen = (
        runs.join(most, on="program", how="semi", nulls_equal=True)
        .sort("ts", "end")
        .unique("ts", keep="last", maintain_order=True)
    )
    during = pl.col("ts").is_between(chosen["ts"].min(), chosen["ts"].max())
    beside = runs.filter(during).join(most, on="program", how="anti", nulls_equal=True).height
    operations = contents.join(chosen, on="program_id", how="semi", nulls_equal=True)
    primitives = operations.filter(pl.col("scope").cast(pl.String).str.contains("/", literal=True))
    each = (primitives["scope"] if primitives.height else operations["name"]).n_unique()
    if each * chosen.height <= beside:
        return empty("steps")
    end = pl.col("ts").shift(-1).fill_null(pl.col("end").max())
    frame = chosen.select("ts", number=pl.int_range(pl.len()), dur=end - pl.col("ts"))
    return conform("steps", frame.with_columns(source=pl.lit("inferred")))


def _runs_on_device(starts: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    """Return the runs of programs on the first device: kernels do not say which run they belong to.

    A run begins with the kernel that the first one began with.
    """
    numbered = (
        operations.select("program_id").with_row_index("operation").with_columns(pl.col("operation").cast(pl.Int32))
    )
    first = starts.filter(pl.col("device") == starts["device"].min()).join(numbered, on="operation", how="left")
    ordered = first.sort("ts", maintain_order=True)
    heads = ordered.group_by("program_id", maintain_order=True).agg(pl.col("operation", "place").first())
    head = pl.struct("operation", "place").is_in(heads.select(pl.struct("operation", "place")).to_series().implode())
    runs = ordered.with_columns(run=head.cast(pl.Int64).cum_sum().over("program_id"))
    return runs.group_by("program_id", "run", maintain_order=True).agg(
        pl.col("ts").min(), pl.col("end").max(), total=(pl.col("end") - pl.col("ts")).sum()
    )
