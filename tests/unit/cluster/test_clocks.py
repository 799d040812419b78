"""The clock of a job: found from the ends of collectives, wrong by less than it states, or not stated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

from stepscope.cluster.clocks import clocks, to_job_time
from stepscope.cluster.job_tables import JobTables
from stepscope.cluster.meetings import meetings

from .build import MS, START, US, Simulated, changed, data_parallel, pipeline, three_dimensions


def clocks_of(tables: JobTables) -> pl.DataFrame:
    return clocks(tables, meetings(tables))


@pytest.mark.parametrize(
    ("job", "limit"),
    [
        (lambda: data_parallel(8), 2 * US),
        (lambda: data_parallel(2, seed=3), 2 * US),
        (lambda: data_parallel(8, jitter=200 * US), 200 * US),
        (lambda: data_parallel(8, lopsided=True), 2 * US),
        (lambda: data_parallel(4, steps=3, each=3), 10 * US),
        (lambda: pipeline(6), 6 * US),
        (lambda: pipeline(4, steps=80, eager=True), 20 * US),
        (lambda: three_dimensions(2, 4, 2), 4 * US),
    ],
    ids=["ddp", "two ranks", "200 us", "late exits", "three steps", "pipeline", "eager sends", "3d"],
)
def test_no_clock_is_more_wrong_than_it_states(job: Callable[[], Simulated], limit: float) -> None:
    """Offsets of seconds, 50 ppm of drift."""
    made = job()
    tables = made.tables()
    found = clocks_of(tables)
    assert found["reason"].null_count() == made.world
    errors = made.errors(found, tables)
    for rank, stated in found.select("rank", "uncertainty_ns").iter_rows():
        assert errors[rank] <= stated, rank
    assert max(errors.values()) < limit
    assert found["uncertainty_ns"].median() < 3 * limit


def test_a_thousand_ranks_are_solved() -> None:
    made = three_dimensions(4, 8, 32, steps=4)
    tables = made.tables()
    found = clocks_of(tables)
    errors, stated = made.errors(found, tables), dict(found.select("rank", "uncertainty_ns").iter_rows())
    assert len(errors) == 1024
    assert sum(error > stated[rank] for rank, error in errors.items()) <= 10


def test_a_drift_is_known_only_where_the_window_is_long_enough() -> None:
    assert clocks_of(data_parallel(4, steps=200, each=1).tables())["drift_ppm"].null_count() == 0
    short = clocks_of(data_parallel(4, steps=2, each=2).tables())
    assert short["drift_ppm"].drop_nulls().to_list() in ([], [0.0]) and short["offset_ns"].null_count() == 0


def test_a_drift_is_not_known_from_a_few_ends_unless_they_lie_far_apart() -> None:
    apart = Simulated(4)
    for _ in range(5):
        apart.collective(range(4))
        apart.next_step(500.0)
    assert clocks_of(apart.tables())["drift_ppm"].null_count() == 0
    for seed in range(12):
        made = data_parallel(4, steps=1, each=3, seed=seed)
        tables = made.tables()
        found = clocks_of(tables)
        assert (found["drift_ppm"].fill_null(0) == 0).all(ignore_nulls=False)
        stated = dict(found.select("rank", "uncertainty_ns").iter_rows())
        assert all(error <= stated[rank] for rank, error in made.errors(found, tables).items()), seed


@pytest.mark.parametrize("world", [2, 8])
def test_three_ends_of_each_rank_say_little_of_how_exact_its_clock_is(world: int) -> None:
    """One collective in each of three steps of 0.8 s: lines through three ends leave little that can scatter."""
    within = []
    for seed in range(8):
        made = Simulated(world, seed=seed)
        for _ in range(3):
            made.collective(range(world))
            made.next_step(800.0)
        tables = made.tables()
        found = clocks_of(tables)
        stated = dict(found.select("rank", "uncertainty_ns").iter_rows())
        within += [error <= stated[rank] for rank, error in made.errors(found, tables).items()]
    assert sum(within) >= 0.9 * len(within)


def test_a_constant_more_on_one_clock_changes_its_offset_by_that_constant() -> None:
    tables = data_parallel(5).tables()
    before = clocks_of(tables)
    more = pl.when(pl.col("rank") == 3).then(123_456_789_012).otherwise(0)
    after = clocks_of(changed(tables, lambda rows: rows.with_columns(ts=pl.col("ts") + more)))
    moved = (before["offset_ns"] - after["offset_ns"]).to_list()
    assert moved == pytest.approx([0, 0, 0, 123_456_789_012, 0], abs=5)
    assert after["uncertainty_ns"].to_list() == pytest.approx(before["uncertainty_ns"].to_list(), abs=20)


def test_other_numbers_of_the_ranks_change_nothing() -> None:
    tables = data_parallel(5).tables()
    number = {0: 4, 1: 2, 2: 0, 3: 1, 4: 3}
    other = changed(
        tables, lambda rows: rows.with_columns(pl.col("rank").replace_strict(number, return_dtype=pl.Int32))
    )
    before, after = clocks_of(tables), clocks_of(other)
    time = int(tables.collectives["ts"].median())  # type: ignore[arg-type]
    shown = pl.DataFrame({"rank": before["rank"], "ts": [time] * 5})
    one = to_job_time(shown, before, "ts")["ts"].to_list()
    two = to_job_time(shown.with_columns(pl.col("rank").replace_strict(number, return_dtype=pl.Int32)), after, "ts")[
        "ts"
    ]
    apart = [a - b for a, b in zip(one, two.to_list(), strict=True)]
    assert max(apart) - min(apart) < 100_000 * 5  # the clock of the job is another rank's: its drift for some seconds
    inside = [abs((one[rank] - one[0]) - (two[rank] - two[0])) for rank in range(5)]
    assert max(inside) < 500 * US


def test_a_clock_that_was_set_has_a_reason_and_spoils_no_other() -> None:
    made = data_parallel(6, jump={3: (300 * MS, 3 * MS)})
    tables = made.tables()
    found = clocks_of(tables)
    assert found["offset_ns"].is_null().to_list() == [False, False, False, True, False, False]
    assert "was set" in found["reason"][3]
    stated = dict(found.select("rank", "uncertainty_ns").iter_rows())
    assert all(error <= stated[rank] for rank, error in made.errors(found, tables).items())


def test_a_rank_that_leaves_late_on_a_busy_host_has_a_clock_and_a_host_whose_clock_was_set_has_none() -> None:
    """Four ranks on one host or two: the last ends of one are 4 ms late, or host b's clock is set by 3 ms."""
    late = data_parallel(4).tables(host=[*"aaaa"], wall_clock=[True] * 4, device=["cpu"] * 4)
    last = pl.col("ts").rank("ordinal", descending=True).over("rank") <= 5
    more = pl.when((pl.col("rank") == 0) & last).then(4 * MS).otherwise(0)
    late = changed(late, lambda rows: rows.with_columns(dur=pl.col("dur") + more))
    assert clocks_of(late)["reason"].null_count() == 4
    made = data_parallel(6, jump=dict.fromkeys((4, 5), (300 * MS, 3 * MS)))
    made.offset[:4], made.offset[4:] = made.offset[0], made.offset[4]
    made.drift[:4], made.drift[4:] = made.drift[0], made.drift[4]
    found = clocks_of(made.tables(host=[*"aaaabb"], wall_clock=[True] * 6, device=["cpu"] * 6))
    assert found["offset_ns"].is_null().to_list() == [False] * 4 + [True] * 2


@pytest.mark.parametrize("by", [0, 3 * MS])
def test_a_host_whose_clock_was_set_is_found_by_the_few_collectives_that_span_hosts(by: int) -> None:
    """Eight collectives a step on each of two hosts, and one of each rank with a rank of the other host."""
    made = Simulated(8, jump=dict.fromkeys((4, 5, 6, 7), (250 * MS, by)))
    for _ in range(8):
        for _ in range(8):
            made.collective([0, 1, 2, 3])
            made.collective([4, 5, 6, 7])
        for rank in range(4):
            made.collective([rank, rank + 4])
        made.next_step()
    tables = made.tables()
    found = clocks_of(tables)
    assert found["offset_ns"].is_null().to_list() == [False] * 4 + [by > 0] * 4
    stated = dict(found.select("rank", "uncertainty_ns").iter_rows())
    assert all(error <= stated[rank] for rank, error in made.errors(found, tables).items())
    if by:
        assert all("moved apart" in reason for reason in found["reason"][4:])


@pytest.mark.parametrize("steps", [4, 8])
@pytest.mark.parametrize("by", [0, -5 * MS, 1200 * MS])
@pytest.mark.parametrize("part", [0.3, 0.5, 0.7])
def test_hosts_that_meet_seldom_are_not_compared_across_the_moment_when_a_clock_was_set(
    steps: int, by: int, part: float
) -> None:
    """Four hosts, each of which often ends together; between them messages, and two collectives a step."""
    hosts = [list(range(first, first + 4)) for first in (0, 4, 8, 12)]
    made = Simulated(16, jump=dict.fromkeys(hosts[2], (part * steps * 113 * MS, by)))
    for _ in range(steps):
        for _ in range(8):
            for host in hosts:
                made.collective(host)
        for rank in range(4):
            for source in (rank, rank + 4):
                made.transfer(source, source + 8)
                made.transfer(source, source + 8)
                made.transfer(source + 8, source)
            for low in (rank, rank + 8):
                made.collective([low, low + 4])
        made.collective(range(16))
        made.next_step()
    tables = made.tables()
    found = clocks_of(tables)
    blank = [row["rank"] for row in found.iter_rows(named=True) if row["offset_ns"] is None]
    assert blank == (hosts[2] if by else [])
    stated = dict(found.select("rank", "uncertainty_ns").iter_rows())
    assert all(error <= stated[rank] for rank, error in made.errors(found, tables).items())


@pytest.mark.parametrize("steps", [5, 9])
def test_one_collective_a_step_does_not_join_hosts_whose_clocks_moved_apart(steps: int) -> None:
    """Eight collectives a step of each rank with one of the other host, and one of all ranks."""
    made = Simulated(8, jump=dict.fromkeys((4, 5, 6, 7), (steps * 45 * MS, 35 * MS)))
    for _ in range(steps):
        for _ in range(8):
            made.collective([0, 1, 2, 3])
            made.collective([4, 5, 6, 7])
            for rank in range(4):
                made.collective([rank, rank + 4])
        made.collective(range(8))
        made.next_step()
    found = clocks_of(made.tables())
    assert found["offset_ns"].is_null().to_list() == [False] * 4 + [True] * 4
    assert all("moved apart" in reason for reason in found["reason"][4:])


@pytest.mark.parametrize("of_all", [False, True])
def test_a_clock_was_set_only_if_messages_and_collectives_say_so(of_all: bool) -> None:
    """From half time on, what rank 3 sends and receives ends 3 ms late, or everything that it does."""
    tables = three_dimensions(2, 2, 2).tables()
    message = pl.col("operation").is_in(["send", "recv"])
    late = (pl.col("rank") == 3) & (pl.col("step") >= 10) & (message | of_all)
    more = pl.when(late).then(3 * MS).otherwise(0)
    found = clocks_of(changed(tables, lambda rows: rows.with_columns(dur=pl.col("dur") + more)))
    assert found["offset_ns"].is_null().to_list() == [of_all and rank == 3 for rank in range(8)]


def test_ranks_that_share_no_collective_have_a_reason() -> None:
    made = Simulated(6)
    for _ in range(20):
        made.collective([0, 1, 2])
        made.collective([3, 4])
        made.next_step()
    found = clocks_of(made.tables())
    assert found["offset_ns"].is_null().to_list() == [False, False, False, True, True, True]
    assert all("shares no collective" in reason for reason in found["reason"].drop_nulls())
    assert found["component"].n_unique() == 3


def test_one_host_joins_what_no_collective_joins() -> None:
    """Two pairs, and a rank that takes part in nothing, on hosts with one clock each."""
    made = Simulated(6)
    made.offset[:] = [10.0, 10.0, 2e9, 10.0, 2e9, 10.0]
    made.drift[:] = 0
    for _ in range(20):
        made.collective([0, 1, 2])
        made.collective([3, 4])
        made.next_step()
    hosts = ["a", "a", "b", "a", "b", "a"]
    found = clocks_of(made.tables(host=hosts, wall_clock=[True] * 6, device=["cpu"] * 6))
    assert found["reason"].null_count() == 6
    assert (found.filter(pl.col("host") == "a")["offset_ns"].abs() < 20 * US).all(ignore_nulls=False)
    assert (found.filter(pl.col("host") == "b")["offset_ns"] + 2_000_000_000).abs().max() < 20 * US  # type: ignore[operator]


def on_two_hosts(seed: int, apart: float = 0.0) -> Simulated:
    """Eight ranks, four on a host, and few collectives; the clocks of a host's ranks lie ``apart`` by so many ns."""
    made = Simulated(8, seed=seed)
    made.offset = made.offset[[0, 0, 0, 0, 1, 1, 1, 1]] + apart * np.arange(8)
    made.drift = made.drift[[0, 0, 0, 0, 1, 1, 1, 1]]
    for _ in range(3):
        for size in range(4):
            made.collective(range(8), size=1 << 20 + size)
        made.next_step(200.0)
    return made


def test_one_clock_of_a_host_is_known_better_than_that_of_each_rank() -> None:
    worst = {"abcdefgh": 0.0, "aaaabbbb": 0.0}
    for seed in range(12):
        made = on_two_hosts(seed)
        for hosts in worst:
            tables = made.tables(host=[*hosts], wall_clock=[True] * 8, device=["cuda:0"] * 8)
            found = clocks_of(tables)
            errors, stated = made.errors(found, tables), dict(found.select("rank", "uncertainty_ns").iter_rows())
            assert all(error <= stated[rank] for rank, error in errors.items())
            worst[hosts] += max(errors.values())
    assert worst["aaaabbbb"] < 0.5 * worst["abcdefgh"]


def test_clocks_of_one_host_that_differ_are_not_taken_for_one() -> None:
    for seed in range(4):
        made = on_two_hosts(seed, apart=40 * US)
        tables = made.tables(host=[*"aaaabbbb"], wall_clock=[True] * 8, device=["cuda:0"] * 8)
        assert max(made.errors(clocks_of(tables), tables).values()) < 10 * US


def test_hosts_whose_ranks_have_different_clocks_join_nothing() -> None:
    made = Simulated(4)
    for _ in range(20):
        made.collective([0, 1, 2])
        made.next_step()
    found = clocks_of(made.tables(host=["a"] * 4, wall_clock=[True] * 4, device=["cpu"] * 4))
    assert found["offset_ns"].is_null().to_list() == [False, False, False, True]


def test_times_of_a_rank_without_a_clock_become_null() -> None:
    made = data_parallel(3, jump={1: (200 * MS, 50 * MS)})
    found = clocks_of(made.tables())
    moved = to_job_time(pl.DataFrame({"rank": [0, 1, 2], "ts": [START] * 3}), found, "ts")
    assert moved["ts"].is_null().to_list() == [False, True, False]


def test_a_job_without_collectives_has_no_clock() -> None:
    found = clocks_of(changed(data_parallel(3, steps=2).tables(), lambda rows: rows.clear()))
    assert found["offset_ns"].null_count() == 3 and found["reason"].null_count() == 0
