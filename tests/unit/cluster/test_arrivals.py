"""Who arrives when at a collective, who waits for whom: on the clock of the job, and nothing where it does not tell."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.cluster.arrivals import arrivals, with_waits
from stepscope.cluster.clocks import clocks
from stepscope.cluster.job_tables import JobTables
from stepscope.cluster.meetings import meetings
from tests.unit.analyse.build import ORIGIN, Rank

from .build import MS, US, Simulated, changed, data_parallel

LATE = 4 * MS


def arrivals_of(tables: JobTables) -> pl.DataFrame:
    met = meetings(tables)
    return arrivals(tables, met, clocks(tables, met))


def with_a_late_rank(late: int = 2, **options: object) -> Simulated:
    """Four ranks, of which one comes 4 ms after all others to every collective."""
    job = Simulated(4, **options)  # type: ignore[arg-type]
    for _ in range(40):
        members = np.arange(4)
        arrive = job.time + job.chance.uniform(0, 0.2 * MS, 4) + np.where(members == late, LATE, 0)
        end = arrive.max() + MS + job.exits(4)
        number = job.step
        job.groups.setdefault((0, 1, 2, 3), 0)
        job.add(members, arrive, end, group=0, operation="allreduce", sequence=number, bytes_in=8, bytes_out=8)
        job.next_step()
    return job


def test_the_late_rank_is_last_and_the_others_wait_for_it() -> None:
    found = arrivals_of(with_a_late_rank().tables())
    assert found["reason"].null_count() == len(found) == 160
    last = found.filter("last")
    assert len(last) == 40 and last["rank"].unique().to_list() == [2]
    assert (last["wait"] == 0).all(ignore_nulls=False)
    waits = found.filter(pl.col("rank") != 2)["wait"]
    assert abs(waits.median() - LATE) < 0.2 * MS and waits.min() > LATE - 0.3 * MS  # type: ignore[operator]
    assert abs(found["transit"].median() - MS) < 10 * US  # type: ignore[operator]
    # Together they are the rank's own time, by its own clock: the drift is the difference.
    assert ((found["wait"] + found["transit"]) - (found["end"] - found["arrival"])).abs().max() < US  # type: ignore[operator]


def test_arrivals_within_the_uncertainty_name_nobody() -> None:
    job = Simulated(4, jitter=200 * US)
    for _ in range(40):
        job.collective(range(4))
        job.next_step()
    found = arrivals_of(job.tables())
    margin = found.sort("arrival").group_by("meeting").agg(pl.col("arrival").bottom_k(4), pl.col("uncertainty").max())
    told = found.group_by("meeting").agg(pl.col("last").any())
    gap = margin.with_columns(gap=pl.col("arrival").list.max() - pl.col("arrival").list.sort().list.get(2))
    joined = gap.join(told, on="meeting")
    assert not joined.filter(pl.col("gap") < pl.col("uncertainty") / 2)["last"].any()


def test_a_rank_without_a_clock_is_never_blamed_and_blames_nobody() -> None:
    tables = with_a_late_rank(jump={2: (200 * MS, 50 * MS)}).tables()
    found = arrivals_of(tables)
    unknown = found.filter(pl.col("rank") == 2)
    assert unknown["arrival"].null_count() == unknown["last"].null_count() == len(unknown) == 40
    # The rank that is last has no clock: of the others none is called the last, and how long they wait is not known.
    others = found.filter(pl.col("rank") != 2)
    assert not others["last"].any() and others["wait"].null_count() == len(others)
    assert set(others["reason"]) == {"a rank whose clock is not known may be the last to arrive"}
    assert others["lateness"].null_count() == 0


def test_a_missing_rank_may_be_the_last() -> None:
    tables = changed(with_a_late_rank().tables(), lambda rows: rows.filter(pl.col("rank") != 2))
    found = arrivals_of(tables)
    assert (
        found["wait"].null_count() == len(found) or found.filter(pl.col("wait").is_not_null())["reason"].is_null().all()
    )
    healthy = changed(data_parallel(4).tables(), lambda rows: rows.filter(pl.col("rank") != 2))
    assert arrivals_of(healthy)["arrival"].null_count() == 0


def test_in_a_broadcast_nobody_waits_for_all() -> None:
    job = data_parallel(3, steps=20)
    job.collective(range(3), "broadcast")
    found = arrivals_of(job.tables()).filter(pl.col("operation") == "broadcast")
    assert found["wait"].null_count() == 3 and found["arrival"].null_count() == 0
    assert found["reason"].unique().to_list() == ["its ranks do not wait for all others"]


def test_a_rank_learns_its_waits_from_the_job_and_keeps_what_its_source_says() -> None:
    rank = Rank()
    stream = rank.stream(7)
    for place in range(4):
        span = rank.span(stream, "collective", 1000 * place, 900, "allreduce")
        rank.add("collectives", span=span, operation="allreduce", **({"wait": 5, "transit": 7} if place == 1 else {}))
    tables = rank.tables()
    known = pl.DataFrame(
        {
            "rank": [3, 3, 3, 3, 3, 0],
            "ts": [ORIGIN + at for at in (0, 1000, 2000, 3000, 3000, 0)],
            "dur": [900] * 6,
            "wait": [100, 200, None, 300, 400, 800],
        }
    )
    found = with_waits(tables, known, 3)["collectives"].collect()
    # The last is a kernel with two messages: it waits for the later one.
    assert found["wait"].to_list() == [100, 5, None, 400]
    assert found["synchronisation"].to_list() == [100, None, None, 400]
    assert found["transit"].to_list() == [800, 7, None, 500]
    assert with_waits(tables, known, 1) is tables
