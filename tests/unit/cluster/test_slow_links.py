"""The speed of links against their peers: pairs, groups, and what no comparison can tell."""

from __future__ import annotations

import polars as pl
import pytest

from stepscope.cluster.groups import parallel_groups
from stepscope.cluster.job_tables import JobTables, conform
from stepscope.cluster.slow_links import as_its_peers, communication_by_operation, link_speeds, transits
from tests.unit.cluster.small_jobs import Collective, SmallJob, Step, Work, pipeline, spread

VARIES = spread(0.03)


def of_job(job: SmallJob) -> tuple[pl.DataFrame, pl.DataFrame]:
    found = transits(job.tables, job.meetings, parallel_groups(job.tables))
    return found, link_speeds(found)


def pipeline_with(slow: tuple[int, int], factor: float) -> SmallJob:
    return pipeline(
        4, 2, 3, 8, lambda rank, step: 5e6 * VARIES(rank, step),
        lambda a, b: 1e5 * VARIES(a, b) * (factor if {a, b} == set(slow) else 1),
    )  # fmt: skip


@pytest.mark.parametrize("link", [(0, 2), (3, 5), (5, 7)])
def test_a_slow_pair_is_named(link: tuple[int, int]) -> None:
    _, links = of_job(pipeline_with(link, 3.0))
    slow = links.filter("slow")
    assert slow["link"].to_list() == [f"{link[0]}-{link[1]}"]
    assert slow["ratio"][0] == pytest.approx(3, rel=0.15)
    assert slow["peers"].to_list() == [5]
    assert slow["peers_bandwidth"][0] / slow["bandwidth"][0] == pytest.approx(slow["ratio"][0], rel=0.05)


def test_links_of_a_healthy_job_are_alike() -> None:
    for factor in (0.9, 1.0, 1.1):
        _, links = of_job(pipeline_with((0, 2), factor))
        assert not links["slow"].any()


def test_the_clocks_may_be_wrong() -> None:
    job = pipeline_with((3, 5), 3.0)
    right = of_job(job)[1]
    job.offsets = {rank: rank * 10**12 for rank in job.programs}
    assert of_job(job)[1].equals(right)


def grouped(factor: float, groups: int = 3) -> SmallJob:
    """Return a job of groups of four ranks, each of which sums something; the first group takes longer."""
    programs, members = {}, {group: list(range(4 * group, 4 * group + 4)) for group in range(groups)}
    for group, ranks in members.items():
        for rank in ranks:
            program: list[Work | Collective | Step] = []
            for step in range(4):
                transit = 2e6 * VARIES(group, step) * (factor if group == 0 else 1)
                program += [Work(1e7 * VARIES(rank, step)), Collective(group, transit=transit), Step()]
            programs[rank] = program
    return SmallJob(programs, members)


@pytest.mark.parametrize("groups", [2, 3, 8])
def test_a_slow_group_is_named_as_a_whole(groups: int) -> None:
    found, links = of_job(grouped(2.0, groups))
    assert links.filter("slow")["link"].to_list() == ["group 0"]
    assert not of_job(grouped(1.0, groups))[1]["slow"].any()
    shorter = as_its_peers(found, ["group 0"])
    assert len(shorter) == 4
    assert shorter["transit"].to_numpy().mean() == pytest.approx(2e6, rel=0.1)


def test_one_group_can_be_compared_with_nothing() -> None:
    assert of_job(grouped(5.0, 1))[1].is_empty()


def test_links_within_a_machine_are_not_compared_with_those_between_machines() -> None:
    job = grouped(4.0)
    hosts = [f"node{0 if rank in (0, 1) else rank // 4 + 1}" for rank in range(12)]
    tables = JobTables(
        ranks=conform("ranks", job.tables.ranks.with_columns(host=pl.Series(hosts))),
        steps=job.tables.steps,
        groups=job.tables.groups,
    )
    links = link_speeds(transits(tables, job.meetings, parallel_groups(job.tables)))
    assert "group 0" not in links["link"].to_list()
    assert not links["slow"].any()


@pytest.mark.parametrize(
    ("slow", "named"),
    [
        ({1}, ["0-2", "1-3", "2-4", "3-5"]),
        ({0}, ["0-2", "1-3"]),
        ({0, 3}, []),
        ({0, 1, 2, 3}, []),
    ],
    ids=["two thirds of all", "a third", "two machines: nobody knows", "all alike"],
)
def test_a_machine_is_named_though_most_links_are_slow_that_are_its_own(slow: set[int], named: list[str]) -> None:
    """A pipeline of four stages, each on a machine of its own; all links of some machines take three times as long."""
    job = pipeline(
        4, 2, 3, 8, lambda rank, step: 5e6 * VARIES(rank, step),
        lambda a, b: 1e5 * VARIES(a, b) * (3 if {a // 2, b // 2} & slow else 1),
    )  # fmt: skip
    hosts = pl.Series([f"node{rank // 2}" for rank in range(8)])
    ranks = conform("ranks", job.tables.ranks.with_columns(host=hosts))
    tables = JobTables(ranks=ranks, steps=job.tables.steps, groups=job.tables.groups)
    found = transits(tables, job.meetings, parallel_groups(job.tables))
    links = link_speeds(found)
    assert sorted(links.filter("slow")["link"]) == named
    for row in links.filter("slow").iter_rows(named=True):
        assert row["ratio"] == pytest.approx(3, rel=0.15)
        assert row["peers"] == 6 - len(named)


def test_a_meeting_of_which_a_rank_is_missing_says_nothing() -> None:
    job = grouped(2.0)
    meetings = job.meetings.with_columns(complete=pl.col("rank") < 0)
    assert transits(job.tables, meetings, parallel_groups(job.tables)).is_empty()


def test_calls_whose_work_is_not_recorded_say_nothing() -> None:
    job = grouped(2.0)
    meetings = job.meetings.with_columns(launched=pl.col("rank") > 0)
    assert "group 0" not in transits(job.tables, meetings, parallel_groups(job.tables))["link"].to_list()


def test_how_each_kind_is_used() -> None:
    job = pipeline_with((0, 2), 1.0)
    kinds = communication_by_operation(job.meetings, parallel_groups(job.tables), job.arrivals)
    sums = kinds.filter(pl.col("operation") == "allreduce").row(0, named=True)
    assert (sums["kind"], sums["a_step"], sums["small"]) == ("dp", 1, 0)
    assert sums["exposed"] == pytest.approx(1)
    assert sums["wait_ns"] + sums["transit_ns"] == pytest.approx(sums["time_ns"], rel=1e-6)
    unknown = job.arrivals.with_columns(pl.lit(None).cast(pl.Int64).alias(name) for name in ("wait", "transit"))
    kinds = communication_by_operation(job.meetings, parallel_groups(job.tables), unknown)
    assert kinds["wait_ns"].to_list() == [None] * len(kinds)
