"""Collectives of several ranks meet by group, number, operation and size, whatever each rank's window holds."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.cluster.job_tables import JobTables
from stepscope.cluster.meetings import meetings

from .build import Simulated, changed, data_parallel, pipeline, three_dimensions


def wrong(tables: JobTables, truth: pl.DataFrame) -> int:
    """Return how many meetings join rows that are not one collective; ``truth`` has its true number, ``true``."""
    met = meetings(tables).join(truth.select("rank", "ts", "true"), on=["rank", "ts"])
    return (
        met.drop_nulls("meeting").group_by("meeting").agg(pl.col("true").n_unique()).filter(pl.col("true") > 1).height
    )


def with_truth(tables: JobTables) -> pl.DataFrame:
    """Add what each collective is: its number by the source, before a test changes it."""
    return tables.collectives.with_columns(true=pl.format("{} {}", pl.col("group"), pl.col("sequence")))


def test_all_ranks_of_a_group_meet_in_every_collective() -> None:
    tables = three_dimensions(2, 2, 2).tables()
    met = meetings(tables)
    assert met["meeting"].null_count() == 0 and met["complete"].all(ignore_nulls=False)
    assert met.height == tables.collectives.height and met["ts"].equals(tables.collectives["ts"])
    size = met.join(tables.groups.select(group="id", size="size"), on="group", how="left")["size"].fill_null(2)
    assert (met["members"] == size).all(ignore_nulls=False)


def test_windows_that_only_count_their_own_collectives_are_moved_by_their_steps() -> None:
    """Rank 1 opens its window two steps later, rank 2 closes early, and neither knows the group's own numbers."""
    tables = data_parallel(4, steps=12, each=3).tables()
    truth = with_truth(tables)
    late = (pl.col("rank") != 1) | (pl.col("step") >= 2)
    early = (pl.col("rank") != 2) | (pl.col("step") < 9)
    cut = changed(tables, lambda rows: rows.filter(late & early).with_columns(sequence=pl.lit(None, pl.Int64)))
    met = meetings(cut)
    assert met["meeting"].null_count() == 0
    assert wrong(cut, truth) == 0
    assert met.filter(pl.col("step").is_between(2, 8))["complete"].all(ignore_nulls=False)
    assert not met.filter(pl.col("step") < 2)["complete"].any()


def test_a_collective_that_one_rank_lost_moves_only_what_follows() -> None:
    tables = data_parallel(4, steps=12, each=3).tables()
    truth = with_truth(tables)
    lost = (pl.col("rank") == 3) & (pl.col("step") == 5) & (pl.col("sequence") % 3 == 1)
    cut = changed(tables, lambda rows: rows.filter(~lost).with_columns(sequence=pl.lit(None, pl.Int64)))
    assert cut.collectives.height == tables.collectives.height - 1
    assert wrong(cut, truth) == 0
    assert meetings(cut).filter(pl.col("step") > 5)["complete"].all(ignore_nulls=False)


def test_numbers_of_a_source_meet_although_the_steps_are_counted_from_each_window() -> None:
    tables = data_parallel(2, steps=12, each=3).tables()
    truth = with_truth(tables)
    own = pl.col("step") - pl.when(pl.col("rank") == 1).then(4).otherwise(2)
    cut = changed(
        tables,
        lambda rows: rows.filter(pl.col("step") >= pl.when(pl.col("rank") == 1).then(4).otherwise(2)).with_columns(
            step=own
        ),
    )
    assert wrong(cut, truth) == 0
    assert meetings(cut)["members"].value_counts(sort=True)["members"][0] == 2


def test_other_operations_and_sizes_never_meet() -> None:
    tables = data_parallel(3, steps=6, each=2).tables()
    strange = (pl.col("rank") == 2) & (pl.col("step") == 4)
    other = changed(tables, lambda rows: rows.with_columns(bytes_in=pl.when(strange).then(7).otherwise("bytes_in")))
    met = meetings(other)
    assert met.filter(strange)["meeting"].null_count() == 2
    assert met.filter(~strange)["meeting"].null_count() == 0
    assert met.filter((pl.col("step") == 4) & (pl.col("rank") < 2))["members"].unique().to_list() == [2]


def test_each_rank_may_have_a_name_of_its_own_for_a_group() -> None:
    tables = data_parallel(3, steps=4).tables()
    groups = pl.DataFrame({"id": [0, 1, 2], "ranks": [[0, 1, 2]] * 3, "size": [3] * 3, "name": ["a", "b", "c"]})
    named = changed(tables, lambda rows: rows.with_columns(group=pl.col("rank")))
    named = JobTables(ranks=named.ranks, collectives=named.collectives, groups=groups.cast({"id": pl.Int32}))
    assert meetings(named)["complete"].all(ignore_nulls=False)


def test_a_name_that_more_ranks_have_than_belong_to_it_says_nothing() -> None:
    tables = data_parallel(4, steps=4).tables()
    groups = pl.DataFrame(
        {"id": [0], "ranks": [None], "size": [2]}, schema={"id": pl.Int32, "ranks": pl.List(pl.Int64), "size": pl.Int64}
    )
    assert (
        meetings(JobTables(ranks=tables.ranks, collectives=tables.collectives, groups=groups))["meeting"].null_count()
        == tables.collectives.height
    )


def test_collectives_without_a_group_are_of_all_ranks_only_if_they_end_together() -> None:
    unnamed = {"group": pl.lit(None, pl.Int32), "sequence": pl.lit(None, pl.Int64)}
    whole = changed(data_parallel(4).tables(), lambda rows: rows.with_columns(**unnamed))
    assert meetings(whole)["complete"].all(ignore_nulls=False)
    pairs = Simulated(4)
    for _ in range(30):
        begin = pairs.time
        for members in ((0, 1), (2, 3)):
            pairs.time = begin
            pairs.collective(members)
        pairs.next_step()
    apart = changed(pairs.tables(), lambda rows: rows.with_columns(**unnamed))
    assert meetings(apart)["meeting"].null_count() == apart.collectives.height


def test_collectives_without_a_group_meet_though_they_queue_and_clocks_drift() -> None:
    """Each starts when the one before it has ended, so that starts lie together, too; clocks drift by 5 ppm a rank."""
    rng = np.random.default_rng(4)
    table = data_parallel(4).tables()

    def queued(rows: pl.DataFrame) -> pl.DataFrame:
        place = pl.int_range(pl.len(), dtype=pl.Int64).over("rank")
        rows = rows.with_columns(end=place * 500_000_000 + pl.Series(rng.integers(0, 500, len(rows))))
        begin = pl.col("end").shift(1, fill_value=-500_000_000).over("rank") + 1_000
        drift = 1 + 5e-6 * pl.col("rank")
        shown = [(one * drift).round().cast(pl.Int64) for one in (begin, pl.col("end"))]
        rows = rows.with_columns(ts=shown[0], dur=shown[1] - shown[0]).drop("end")
        return rows.with_columns(group=pl.lit(None, pl.Int32), sequence=pl.lit(None, pl.Int64))

    assert meetings(changed(table, queued))["complete"].to_list() == [True] * table.collectives.height


def test_sends_meet_recvs_whose_ranks_put_nothing_in() -> None:
    """A sender says what it puts in and takes out 0 bytes, a receiver the reverse."""
    sends = pl.col("operation") == "send"
    taken = {
        "bytes_in": pl.when(sends).then("bytes_in").otherwise(0),
        "bytes_out": pl.when(~sends).then("bytes_out").otherwise(0),
    }
    tables = changed(pipeline(4).tables(), lambda rows: rows.with_columns(**taken))
    met = meetings(tables)
    assert met["meeting"].null_count() == 0 and met["complete"].all(ignore_nulls=False)


def test_sends_meet_recvs_by_their_order_in_a_direction_whatever_their_numbers() -> None:
    """The numbers of a group count what each rank sends and receives in it: they differ between the two."""
    tables = pipeline(4, steps=6).tables()
    truth = tables.collectives.with_columns(true=pl.format("{}>{} {}", "source", "destination", "sequence"))
    place = pl.int_range(pl.len(), dtype=pl.Int64).over("rank")
    assert wrong(changed(tables, lambda rows: rows.with_columns(sequence=place)), truth) == 0
    met = meetings(changed(tables, lambda rows: rows.with_columns(sequence=place)))
    assert (met["members"] == 2).all(ignore_nulls=False) and met["complete"].all(ignore_nulls=False)


def test_collectives_of_two_streams_meet_in_the_order_of_their_calls_whatever_starts_first() -> None:
    """A gather that is prefetched waits for nothing and starts before the reduction that was called before it."""
    job = Simulated(4)
    for _ in range(8):
        for operation in ("reducescatter", "allgather"):
            job.collective(range(4), operation)
        job.next_step()
    called = job.tables().collectives.with_columns(launch=pl.col("ts") - 10_000, sequence=pl.lit(None, pl.Int64))
    truth = called.with_columns(true=pl.int_range(pl.len(), dtype=pl.Int64).over("rank"))
    gathers = (pl.col("rank") == 2) & (pl.col("operation") == "allgather") & (pl.col("step") % 3 > 0)
    early = pl.when(gathers).then(pl.col("ts").shift(1) - 1_000).otherwise("ts")
    truth = truth.with_columns(early.alias("ts"), dur=pl.col("dur") + pl.col("ts") - early)
    tables = changed(job.tables(), lambda _: truth.drop("true").sort("rank", "ts"))
    assert meetings(tables)["complete"].to_list() == [True] * len(truth)
    assert wrong(tables, truth) == 0
