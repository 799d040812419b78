"""When each rank arrives at each collective, by the clock of the job: who waits, for how long, and for whom."""

from __future__ import annotations

import polars as pl

from stepscope.cluster.clocks import to_job_time
from stepscope.cluster.job_tables import Frame, JobTables
from stepscope.cluster.meetings import POINT_TO_POINT, plain_name
from stepscope.trace.tables import RankTables, Tables, columns_of, has_rows

#: Operations that cannot end on any rank before all have arrived. In others a rank waits for some of them only.
_FOR_ALL = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier", *POINT_TO_POINT)
#: A rank that takes this much longer than the fastest in its group did for as many bytes has waited for somebody.
_HARDLY = 1.25
_UNKNOWN = "the clock of the rank is not known"
_OTHERS = "a rank whose clock is not known may be the last to arrive"
_MISSING = "a rank that is missing may be the last to arrive"
_SOME = "its ranks do not wait for all others"


def arrivals(tables: JobTables, meetings: Frame, clocks: Frame) -> Frame:
    """Return a row for each rank of each meeting, in their order.

    Args:
        tables: The tables of the job.
        meetings: What :func:`stepscope.cluster.meetings.meetings` returns for them.
        clocks: What :func:`stepscope.cluster.clocks.clocks` returns for them.

    Returns:
        ``meeting``, ``rank``, ``step``, ``group``, ``operation``, ``bytes``; ``ts`` and ``dur`` by the rank's own
        clock, ``arrival`` and ``end`` by the job's, in ns; in ns, ``lateness`` (after the first rank to arrive),
        ``wait`` (until the last one arrives, within the rank's own time), ``transit`` (the rest of that time) and
        ``uncertainty`` (most that a difference to another rank of the meeting is wrong). ``last`` is true for the rank
        that arrives last, and null where the uncertainty does not tell. What is not known is null, and ``reason`` says
        why.
    """
    rows = meetings.filter(pl.col("meeting").is_not_null() & pl.col("launched").fill_null(value=True))
    rows = rows.unique(["meeting", "rank"], keep="first", maintain_order=True).with_columns(
        arrival="ts", end=pl.col("ts") + pl.col("dur"), plain=plain_name("operation")
    )
    rows = to_job_time(rows, clocks, "arrival", "end")
    rows = rows.join(clocks.select("rank", error="uncertainty_ns"), on="rank", how="left", maintain_order="left")
    rows = rows.with_columns(_in_meeting()).with_columns(_reason(tables))
    waits = pl.col("reason").is_null()
    wait = (pl.col("latest") - pl.col("arrival")).clip(0, None)
    wait = pl.when(waits).then(pl.min_horizontal(wait, pl.col("dur")))
    # A kernel with messages of several peers waits until the last of them is there.
    together = wait.max().over("rank", "group", "ts", "dur")
    wait = pl.when(pl.col("plain").is_in(POINT_TO_POINT) & waits).then(together).otherwise(wait)
    late = pl.col("arrival") - pl.col("first")
    return rows.select(
        "meeting",
        "rank",
        "step",
        "group",
        "operation",
        pl.max_horizontal("bytes_in", "bytes_out").alias("bytes"),
        "ts",
        "dur",
        "arrival",
        "end",
        lateness=late,
        wait=wait,
        transit=pl.col("dur") - wait,
        last=pl.when(waits).then(_is_last()),
        uncertainty=pl.col("error") + pl.col("largest"),
        reason="reason",
    )


def waits_for_some(operation: str) -> pl.Expr:
    """Return whether a rank waits in an operation, whose name is in that column, for some of the others only."""
    return ~plain_name(operation).is_in(_FOR_ALL)


def with_waits(tables: Tables, arrivals: Frame, rank: int) -> Tables:
    """Return the tables of a rank with ``wait``, ``synchronisation`` and ``transit`` that only its job knows.

    Data that all ranks need cannot have moved before the last one arrived: all of the wait is synchronisation, and the
    rest of the time is transit. What the source states itself stays.

    Args:
        tables: The tables of the rank.
        arrivals: What :func:`arrivals` returns for its job.
        rank: The rank.
    """
    mine = arrivals.filter(pl.col("rank") == rank)
    if mine.is_empty() or not has_rows(tables, "collectives"):
        return tables
    # A kernel with several messages waits until the last of their peers is there.
    waited = pl.when(pl.col("wait").null_count() == 0).then(pl.col("wait").max())
    known = mine.group_by("ts", "dur").agg(waited.alias("known"))
    when = columns_of(tables, "spans", "id", "ts", "dur").rename({"id": "span"})
    silent = pl.col("wait").is_null() & pl.col("transit").is_null() & pl.col("known").is_not_null()
    rows = tables["collectives"].collect()
    filled = (
        rows.join(when, on="span", how="left", maintain_order="left")
        .join(known, on=["ts", "dur"], how="left", maintain_order="left")
        .with_columns(
            wait=pl.when(silent).then("known").otherwise("wait"),
            synchronisation=pl.when(silent).then("known").otherwise("synchronisation"),
            transit=pl.when(silent).then(pl.col("dur") - pl.col("known")).otherwise("transit"),
        )
        .select(rows.columns)
    )
    in_memory = dict(tables.in_memory) if isinstance(tables, RankTables) else {}
    return RankTables({**tables, "collectives": filled.lazy()}, {**in_memory, "collectives": filled})


def _in_meeting() -> list[pl.Expr]:
    """Return what a rank's arrival is compared with: those of the others whose clocks are known."""
    meeting = "meeting"
    known = pl.col("arrival")
    shortest = pl.col("dur").min().over("channel", "plain", pl.max_horizontal("bytes_in", "bytes_out"))
    return [
        known.min().over(meeting).alias("first"),
        known.max().over(meeting).alias("latest"),
        pl.col("error").max().over(meeting).alias("largest"),
        known.is_null().any().over(meeting).alias("others_unknown"),
        known.count().over(meeting).alias("compared"),
        # The last to arrive waits for nobody, whatever its clock shows: it is the one that is done soonest.
        (pl.col("dur").sort_by(known, nulls_last=False).last().over(meeting)).alias("dur_of_last"),
        shortest.alias("shortest"),
    ]


def _reason(tables: JobTables) -> pl.Expr:
    """Return why it is not known how long a rank waits; null where it is known."""
    somebody = pl.col("dur_of_last") > _HARDLY * pl.col("shortest") + pl.col("largest")
    there = pl.col("complete").fill_null(pl.col("members") == tables.ranks.height)
    return (
        pl.when(pl.col("arrival").is_null())
        .then(pl.lit(_UNKNOWN))
        .when(waits_for_some("operation"))
        .then(pl.lit(_SOME))
        .when(pl.col("others_unknown") & somebody)
        .then(pl.lit(_OTHERS))
        .when(~there & somebody)
        .then(pl.lit(_MISSING))
        .when(pl.col("compared") < 2)
        .then(pl.lit(_MISSING))
        .alias("reason")
    )


def _is_last() -> pl.Expr:
    """Return whether a rank arrives last: true, false, or null where the uncertainty does not tell."""
    before = pl.col("latest") - pl.col("arrival")
    # Of the others, the one that comes nearest to the last must be further away than both may be wrong.
    near = (before <= pl.col("error") + pl.col("largest")).sum().over("meeting")
    return pl.when(before > pl.col("error") + pl.col("largest")).then(False).when(near == 1).then(True)  # noqa: FBT003
