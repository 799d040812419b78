"""When each run of a compiled program was asked for: JAX dispatches, and computes later."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.common.nesting import Integers
from stepscope.read.xplane.batches import Batch
from stepscope.read.xplane.gathered_rows import Rows, united_runs

#: What PjRt does on the thread that asks: for one device, and for several, where it says the number of the run.
_CALL = r"^CommonPjRtLoadedExecutable::Execute(?:HelperOnSingleDevice$| \()"
_SCHEMA = {"ts": pl.Int64, "end": pl.Int64}
#: Before every recording, in ns from its beginning.
_BEFORE = -3_600_000_000_000


def note(rows: Rows, batch: Batch, running: npt.NDArray[np.bool_]) -> None:
    """Keep what a thread of the program asks for, and the runs that it computes itself.

    Args:
        rows: Where they go.
        batch: Events of the thread.
        running: Which of them are instructions.
    """
    calls = batch.plane.event_names.str.contains(_CALL).to_numpy()[batch.place]
    for name, chosen in (("calls", calls), ("inline", running)):
        if chosen.any():
            part = batch.where(chosen)
            frame = {"program_id": part.integers("program_id"), "run": part.integers("run_id"), "ts": part.ts}
            rows.put(name, pl.DataFrame({**frame, "end": part.ts + part.dur}))


def dispatches(rows: Rows) -> pl.DataFrame:
    """Return for each run of a program on threads when it was asked for (``ts``) and when it was computed (``end``).

    A run that the asking thread computes itself is asked for when it begins. The others come in the order of the calls,
    and the last one belongs to the last call; those beyond were asked for before the recording began.
    """
    runs = united_runs(rows.tables.get("runs", []))
    if not runs.height or "calls" not in rows.tables:
        return pl.DataFrame(schema=_SCHEMA)
    calls = pl.concat(rows.tables["calls"]).sort("ts")
    inline = pl.concat(rows.tables.get("inline", [calls.clear()]))
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
