"""The ranks of a job on one time line: their tables by the clock of the job, and a name that says how sure that is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from stepscope.report.protocol import Source
from stepscope.run import Run
from stepscope.trace.tables import RankTables, Tables

#: Columns of times that timelines show, by table; where a duration goes with them, it is converted as well.
_TIMES = {"spans": True, "steps": True, "counters": False, "allocations": False}


@dataclass(frozen=True)
class RankClock:
    """What makes times of the job of the times of a rank.

    Attributes:
        host: Machine of the rank; None if it is unknown.
        offset: What to add to a time of the rank, ns. A rank whose clock is not known begins with the first of those
            with a known one; where none is known, all begin together.
        drift: What to add besides for each ns since ``anchor``.
        anchor: A time of the rank, ns.
        uncertainty: By how much a time of the job may be wrong, ns; None if the clock is not known.
        reason: Why it is not known; empty if it is.
        begin: First time of the job that the rank recorded; None if it is unknown.
        end: The last one.
    """

    host: str | None = None
    offset: int = 0
    drift: float = 0.0
    anchor: int = 0
    uncertainty: int | None = None
    reason: str = ""
    begin: int | None = None
    end: int | None = None

    def time(self, of_rank: int) -> int:
        """Return the time of the job for a time of the rank, both in ns since the Unix epoch."""
        return of_rank + self.offset + round((of_rank - self.anchor) * self.drift)

    def on_job(self, tables: Tables) -> Tables:
        """Return the tables with the times that timelines show by the clock of the job."""
        shift, drift, anchor = self.offset, self.drift, self.anchor
        if not shift and not drift:
            return tables

        def moved(time: pl.Expr) -> pl.Expr:
            # Monotonic: what nests, nests afterwards.
            return time + shift + ((time - anchor) * drift).round().cast(pl.Int64) if drift else time + shift

        found = dict(tables)
        for name, lasts in _TIMES.items():
            ts, end = pl.col("ts"), pl.col("ts") + pl.col("dur")
            duration = [(moved(end) - moved(ts)).alias("dur")] if lasts and drift else []
            found[name] = tables[name].with_columns(moved(ts).alias("ts"), *duration)
        return RankTables(found, {})

    def label(self, rank: int) -> str:
        """Return the name of a rank: ``rank 3 · host b · ± 1.8 µs``."""
        host = f" · {self.host}" if self.host else ""
        sure = f"not aligned: {self.reason}" if self.uncertainty is None else f"± {self.uncertainty / 1000:.1f} µs"
        return f"rank {rank}{host} · {sure}"


def rank_clocks(run: Run) -> dict[int, RankClock]:
    """Return the clock of each rank of a job.

    Raises:
        InputError: No rank can be read.
    """
    job = run.job
    rows = {row["rank"]: row for row in job.clocks.iter_rows(named=True)}
    ends = {rank: (begin, end) for rank, begin, end in job.tables.ranks.select("rank", "begin", "end").iter_rows()}
    found, unknown = {}, {}
    for rank in (one.rank for one in run.ranks):
        row = rows.get(rank) or {"reason": "nothing is known of it", "offset_ns": None, "host": None}
        if row["offset_ns"] is None:
            unknown[rank] = RankClock(row["host"], reason=row["reason"])
            continue
        drift = float(row["drift_ppm"] or 0.0) / 1e6
        clock = RankClock(row["host"], row["offset_ns"], drift, row["anchor"] or 0, row["uncertainty_ns"])
        found[rank] = _recorded(clock, *ends.get(rank, (None, None)))
    known = [clock.begin for clock in found.values()] or [begin for begin, _ in ends.values()]
    first = min((begin for begin in known if begin is not None), default=None)
    for rank, clock in unknown.items():
        begin, end = ends.get(rank, (None, None))
        offset = first - begin if first is not None and begin is not None else 0
        found[rank] = _recorded(RankClock(clock.host, offset, reason=clock.reason), begin, end)
    return found


def _recorded(clock: RankClock, begin: int | None, end: int | None) -> RankClock:
    """Return the clock with the times of the job between which its rank recorded."""
    times = (None if time is None else clock.time(time) for time in (begin, end))
    return RankClock(clock.host, clock.offset, clock.drift, clock.anchor, clock.uncertainty, clock.reason, *times)


def aligned(run: Run) -> Iterator[Source]:
    """Yield what a timeline of the job shows of each rank, one rank in memory at a time.

    A rank whose clock is not known begins with the first of the others, and its name says so.

    Raises:
        InputError: A rank cannot be read.
    """
    clocks = rank_clocks(run)
    for rank in run.ranks:
        clock = clocks[rank.rank]
        yield Source(clock.on_job(rank.shown), {}, rank.manifest, clock.label(rank.rank))
        rank.release()


def within(tables: Tables, begin: int, end: int) -> Tables:
    """Return the tables with what timelines show between two times of the rank, ns since the Unix epoch."""
    found = dict(tables)
    for name, lasts in _TIMES.items():
        last = pl.col("ts") + pl.col("dur") if lasts else pl.col("ts")
        found[name] = tables[name].filter((pl.col("ts") < end) & (last > begin))
    return RankTables(found, {})
