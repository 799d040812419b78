"""Ranks whose hosts wait for cores, and what that says of a rank: nothing where it shares its cores with others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from stepscope.advise.job_findings import job_findings
from stepscope.cluster.job import Job
from stepscope.cluster.job_tables import JobTables, conform
from tests.unit.cluster.slow.made_jobs import MS, job_tables

BUSY = 3


def delayed(rank: int, step: int, work: dict[str, float]) -> None:
    """Let one rank wait for a core while it multiplies, for longer or shorter."""
    if rank == BUSY:
        more = 20 + 15 * np.sin(step)
        work["aten::mm"] += more
        work["delay"] += more


def slow(rank: int, step: int, work: dict[str, float]) -> None:
    delayed(rank, step, work)
    if rank == 1:
        work["aten::relu"] += 12


def on_cores(tables: JobTables, cores: dict[int, str]) -> JobTables:
    """Say which cores ranks may use, and that they compute in all of their own time except delays."""
    named = [pl.lit(cores.get(rank, "0,1")) for rank in tables.ranks["rank"]]
    ranks = tables.ranks.with_columns(host=pl.lit("one"), cores=pl.concat_list(named).list.get(pl.int_range(pl.len())))
    steps = tables.steps.with_columns(cpu=pl.col("computing") + pl.col("host_only") - pl.col("delay"))
    return replace(tables, ranks=conform("ranks", ranks), steps=conform("steps", steps))


@pytest.mark.parametrize("seed", range(3))
def test_a_rank_that_waits_for_cores_that_others_use_too_is_not_named(seed: int) -> None:
    assert job_findings(Job(on_cores(job_tables(delayed, device="cpu", ranks=4, seed=seed), {}))) == []


def test_a_rank_that_waits_for_its_own_cores_is_named() -> None:
    [one] = job_findings(Job(on_cores(job_tables(delayed, device="cpu", ranks=4), {BUSY: "2"})))
    assert (one.cause, one.ranks) == ("slow-rank", (BUSY,))
    assert one.evidence[0].text.startswith("another process: ")


def test_a_rank_whose_own_cores_are_busier_than_those_that_its_peers_share_is_named() -> None:
    def crowded(rank: int, step: int, work: dict[str, float]) -> None:
        wait = (105 if rank == BUSY else 43) + 3 * np.sin(step + rank)
        work["aten::mm"] += wait
        work["delay"] += wait

    [one] = job_findings(Job(on_cores(job_tables(crowded, device="cpu", ranks=4), {BUSY: "2"})))
    assert (one.cause, one.ranks) == ("slow-rank", (BUSY,))
    assert one.evidence[0].text.startswith("another process: ")


@pytest.mark.parametrize(("computing", "asleep", "delay"), [(40, 20, 50), (20, 40, 50), (8, 30, 8)])
def test_the_longer_of_two_waits_names_a_rank_on_its_own_cores(computing: int, asleep: int, delay: int) -> None:
    """A thread that is woken waits for a core: a part of the delay lies in the wait for data."""

    def woken(rank: int, step: int, work: dict[str, float]) -> None:
        if rank == BUSY:
            work["aten::mm"] += computing
            work["data_wait"] += asleep
            work["delay"] += delay

    [one] = job_findings(Job(on_cores(job_tables(woken, device="cpu", ranks=4), {BUSY: "2"})))
    cause, first = ("slow-rank", "another process: ") if delay > asleep else ("data-wait-rank", "data wait: ")
    assert (one.cause, one.ranks) == (cause, (BUSY,))
    assert one.evidence[0].text.startswith(first)


def test_a_slow_operator_is_found_beside_a_rank_that_waits_for_a_core() -> None:
    found = job_findings(Job(on_cores(job_tables(slow, device="cpu", ranks=4), {})))
    assert [(one.ranks, one.operator) for one in found] == [((1,), "aten::relu")]
    assert found[0].added_ns == pytest.approx(12 * MS, rel=0.15)


@pytest.mark.parametrize("seed", range(3))
def test_a_rank_with_more_work_is_found_where_all_wait_for_a_core_most_of_the_time(seed: int) -> None:
    """Of a step of 1 s, ranks wait 0.6 to 0.9 s for one of the cores that they share."""
    rng = np.random.default_rng(seed)

    def crowded(rank: int, step: int, work: dict[str, float]) -> None:
        wait = rng.uniform(600, 900)
        work["aten::mm"] += wait * (1 + 0.03 * rng.random())
        work["delay"] += wait

    def more_work(rank: int, step: int, work: dict[str, float]) -> None:
        if rank == 1:
            for name in [name for name in work if name.startswith("aten::")]:
                work[name] *= 2.5
        crowded(rank, step, work)

    job = {"device": "cpu", "ranks": 3, "steps": 5, "seed": seed}
    assert job_findings(Job(on_cores(job_tables(crowded, **job), {}))) == []  # type: ignore[arg-type]
    [one] = job_findings(Job(on_cores(job_tables(more_work, **job), {})))  # type: ignore[arg-type]
    assert (one.cause, one.ranks) == ("slow-rank", (1,))


def test_a_rank_of_two_that_collects_garbage_is_named_though_both_wait_for_a_core_most_of_the_time() -> None:
    """It wants a core while it collects garbage, too: most of the pause is a wait for one."""
    rng = np.random.default_rng(0)

    def crowded(rank: int, step: int, work: dict[str, float]) -> None:
        wait = rng.uniform(600, 900)
        work["aten::mm"] += wait
        work["delay"] += wait

    def collects(rank: int, step: int, work: dict[str, float]) -> None:
        crowded(rank, step, work)
        if rank == 1:
            waits = rng.uniform(1_200, 1_500)
            work["host_only"] += 150 + waits
            work["garbage"] += 150 + waits
            work["delay"] += waits

    job = {"device": "cpu", "ranks": 2, "steps": 5}
    assert job_findings(Job(on_cores(job_tables(crowded, **job), {}))) == []  # type: ignore[arg-type]
    [one] = job_findings(Job(on_cores(job_tables(collects, **job), {})))  # type: ignore[arg-type]
    assert (one.cause, one.ranks) == ("slow-rank", (1,)) and "garbage collection" in one.title
    assert one.added_ns == pytest.approx(150 * MS, rel=0.4)


def test_an_operator_that_only_one_rank_runs_is_named_though_summaries_name_no_small_ones() -> None:
    def only_here(rank: int, step: int, work: dict[str, float]) -> None:
        work["aten::softmax"] = 12.0 if rank == 1 else 0.2

    tables = job_tables(only_here, device="cpu", ranks=4)
    small = (pl.col("name") == "aten::softmax") & (pl.col("rank") != 1)
    unnamed = tables.operators.with_columns(module=pl.when(small).then(pl.lit("(others)")).otherwise("module"))
    [one] = job_findings(Job(replace(tables, operators=conform("operators", unnamed))))
    assert (one.ranks, one.operator) == ((1,), "aten::softmax")
    assert one.title.endswith("it runs aten::softmax, which its peers do not")


def test_waits_for_others_inside_of_operators_are_no_own_time() -> None:
    """FSDP's hooks wait for the parameters of other ranks inside of autograd's nodes."""

    def more_work(rank: int, step: int, work: dict[str, float]) -> None:
        work["aten::softmax"] += 50.0 if rank == 1 else 0.0

    tables = on_cores(job_tables(more_work, device="cpu", ranks=4), {})
    waits = pl.when(pl.col("rank") == 1).then(0).otherwise(50 * MS)
    inside = tables.steps.with_columns(
        computing=pl.col("computing") + waits, communication=pl.col("communication") - waits, overlapped=waits + 5 * MS
    )
    for steps in (tables.steps, inside):
        [one] = job_findings(Job(replace(tables, steps=conform("steps", steps))))
        assert (one.cause, one.ranks, one.operator) == ("slow-rank", (1,), "aten::softmax")
        assert one.added_ns == pytest.approx(50 * MS, rel=0.1)
        assert one.gain_ns == pytest.approx(50 * MS, rel=0.1)
