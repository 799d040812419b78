"""What does not fit in a job is named, with the ranks at fault, and what follows from it is not named beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from stepscope.advise.job_findings import job_findings
from stepscope.cluster.job import Job
from stepscope.cluster.job_tables import JobTables, conform
from stepscope.cluster.misfits import Misfit, misfits
from stepscope.cluster.slow.own_work import OTHERS, work_by_role
from tests.unit.cluster.slow.made_jobs import MS, job_tables


def changed(tables: JobTables, rank: int, **values: Any) -> JobTables:
    """Say something else of a rank."""
    here = pl.col("rank") == rank
    columns = [pl.when(here).then(pl.lit(value)).otherwise(name).alias(name) for name, value in values.items()]
    return replace(tables, ranks=conform("ranks", tables.ranks.with_columns(columns)))


def without(tables: JobTables, table: str, condition: pl.Expr) -> JobTables:
    return replace(tables, **{table: getattr(tables, table).filter(~condition)})


def only(found: list[Misfit], cause: str, *ranks: int) -> Misfit:
    assert [(one.cause, one.ranks) for one in found] == [(cause, ranks)]
    return found[0]


def test_a_healthy_job_has_none() -> None:
    tables = job_tables()
    assert misfits(tables, work_by_role(tables, dict.fromkeys(range(8), 0))) == []


def test_a_rank_that_cannot_be_read() -> None:
    found = misfits(changed(without(job_tables(), "steps", pl.col("rank") == 3), 3, fault="the file is damaged"))
    assert only(found, "unreadable-rank", 3).details == ("rank3: the file is damaged",)


def test_a_cut_capture_explains_its_missing_steps() -> None:
    tables = without(job_tables(), "steps", (pl.col("rank") == 5) & (pl.col("step") > 6))
    only(misfits(changed(tables, 5, cut=True)), "unreadable-rank", 5)


def test_a_rank_whose_device_was_not_recorded_runs_no_other_code() -> None:
    bare = (pl.col("rank") == 2) & (pl.col("kind") == "kernel")
    tables = changed(job_tables(), 2, device="cpu")
    own = pl.when(bare).then(pl.lit("operator")).otherwise("kind")
    tables = replace(
        tables,
        operators=tables.operators.with_columns(
            kind=own, name=pl.when(bare).then(pl.lit("aten::host")).otherwise("name")
        ),
    )
    assert [(one.cause, one.ranks) for one in job_findings(Job(tables))] == [("unreadable-rank", (2,))]
    only(misfits(tables), "unreadable-rank", 2)
    assert misfits(changed(job_tables(device="cpu"), 2, device="cpu")) == []


def test_one_rank_is_the_other() -> None:
    tables = without(job_tables(), "ranks", pl.col("rank") > 1)
    tables = without(
        without(tables, "steps", pl.col("rank") > 1), "steps", (pl.col("rank") == 1) & (pl.col("step") > 0)
    )
    one = only([one for one in misfits(tables) if one.cause != "missing-rank"], "unequal-steps", 1)
    assert one.sentence == (
        "Rank 1: other steps than the others (rank 1 has 1 step, 0 to 0; the other has 10, 0 to 9)."
    )


def test_other_steps() -> None:
    found = misfits(without(job_tables(), "steps", (pl.col("rank") == 5) & (pl.col("step") > 6)))
    one = only(found, "unequal-steps", 5)
    assert one.sentence == "Rank 5: other steps than the others (rank 5 has 7 steps, 0 to 6; 7 others have 10, 0 to 9)."


def test_missing_ranks_and_a_part_of_a_job() -> None:
    tables = without(job_tables(), "ranks", pl.col("rank").is_in([2, 6]))
    only(misfits(tables), "missing-rank", 2, 6)
    assert misfits(tables, whole=False) == []


def test_a_second_capture_of_a_rank() -> None:
    tables = job_tables()
    again = tables.ranks.filter(pl.col("rank") == 4).with_columns(
        fault=pl.lit("of the same time"), directory=pl.lit("b")
    )
    only(misfits(replace(tables, ranks=pl.concat([tables.ranks, conform("ranks", again)]))), "duplicate-rank", 4)


def test_another_number_of_ranks() -> None:
    only(misfits(changed(job_tables(), 1, world_size=7)), "world-size", 1)


def test_another_version() -> None:
    tables = replace(job_tables(), ranks=job_tables().ranks.with_columns(version=pl.lit("2.13.0")))
    one = only(misfits(changed(tables, 6, version="2.12.1")), "different-code", 6)
    assert "2.12.1, not 2.13.0" in one.sentence


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("ranks", [3, 8])
def test_other_kernels_in_place_of_the_peers(ranks: int, others: bool) -> None:
    """Summaries that do not name all operators hold the time of the others: 1 µs does not hide one of ms."""
    tables = job_tables(ranks=ranks)
    if others:
        rest = tables.operators.filter(pl.col("name") == "aten::mm")
        rest = rest.with_columns(name=pl.lit(OTHERS), total=pl.lit(1_000, pl.Int64))
        tables = replace(tables, operators=pl.concat([tables.operators, rest]))
    other = pl.when((pl.col("rank") == 1) & (pl.col("name") == "aten::add")).then(pl.lit("add_v2")).otherwise("name")
    tables = replace(tables, operators=tables.operators.with_columns(other.alias("name")))
    one = only(misfits(tables, work_by_role(tables, dict.fromkeys(range(ranks), 0))), "different-code", 1)
    assert one.details[0] == "only rank 1 runs add_v2"


def test_another_operator_that_runs_a_kernel_of_its_peers() -> None:
    """The kernel of the operator that the rank lacks also works for one that it has."""
    tables = job_tables(ranks=4)
    launched = tables.operators.with_columns(operator=pl.col("name"), name=pl.lit("gemm"), kind=pl.lit("kernel"))
    other = pl.when((pl.col("rank") == 1) & (pl.col("operator") == "aten::add")).then(pl.lit("add_v2"))
    tables = replace(tables, operators=launched.with_columns(other.otherwise("operator").alias("operator")))
    one = only(misfits(tables, work_by_role(tables, dict.fromkeys(range(4), 0))), "different-code", 1)
    assert one.details[0] == "only rank 1 runs add_v2"


def test_work_that_only_one_rank_has_more_is_no_other_code() -> None:
    """The first rank writes the log: that is work, not other code."""
    tables = job_tables()
    more = tables.operators.filter(pl.col("rank") == 0, pl.col("name") == "aten::mm").with_columns(name=pl.lit("log"))
    tables = replace(tables, operators=pl.concat([tables.operators, more]))
    assert misfits(tables, work_by_role(tables, dict.fromkeys(range(8), 0))) == []


def hung(culprit: int, ranks: int = 4) -> JobTables:
    """Two groups; the culprit stops in the third call of the group of all, so a pair of ranks stops, too."""
    rows = []
    for rank in range(ranks):
        waits_in_pair = rank // 2 == culprit // 2 and rank != culprit
        for group, calls, ran in ((0, 2 if rank == culprit else 3, 2), (1 + rank // 2, 5 if waits_in_pair else 4, 4)):
            rows += [{"rank": rank, "group": group, "sequence": n, "launched": n < ran} for n in range(calls)]
    values = [{"operation": "allreduce", "ts": 10 * MS * row["sequence"], "dur": MS, **row} for row in rows]
    groups = [{"id": 0, "ranks": list(range(ranks)), "size": ranks, "name": "0", "description": "default_pg"}]
    return replace(
        job_tables(ranks=ranks),
        collectives=conform("collectives", pl.DataFrame(values)),
        groups=conform("groups", pl.DataFrame(groups)),
    )


@pytest.mark.parametrize("culprit", [0, 3])
def test_a_hang_names_the_rank_that_waits_for_nobody(culprit: int) -> None:
    one = only(misfits(hung(culprit)), "hung-collective", culprit)
    assert one.sentence == f"Rank {culprit} never calls allreduce 2 of group default_pg: 3 ranks wait for it."


def killed(waited: float, *, lost: int = 0, imported: bool = False) -> JobTables:
    """Ranks of gloo that were killed while rank 1 did not call what the others called ``waited`` seconds before.

    Of rank 1, the last ``lost`` of its five calls are missing.
    """
    rows = [
        {"rank": rank, "group": 0, "operation": "allreduce", "launched": True, "sequence": n, "ts": 100 * MS * n}
        | {"dur": int(waited * 1_000 * MS) if n == 5 else 40 * MS}
        for rank in range(4)
        for n in range(5 - lost if rank == 1 else 6)
    ]
    values = [{**row, "launch": row["ts"]} for row in rows]
    groups = [{"id": 0, "ranks": [0, 1, 2, 3], "size": 4, "name": "0", "description": "default_pg"}]
    tables = job_tables(ranks=4, device="cpu")
    cut = tables.ranks.with_columns(cut=pl.lit(value=True), imported=pl.lit(value=imported))
    return replace(
        tables,
        ranks=conform("ranks", cut),
        collectives=conform("collectives", pl.DataFrame(values)),
        groups=conform("groups", pl.DataFrame(groups)),
    )


def test_a_hang_that_ends_with_all_processes_names_the_rank_that_the_others_wait_for() -> None:
    hang, cut = misfits(killed(30))
    assert (hang.cause, hang.ranks, cut.cause) == ("hung-collective", (1,), "unreadable-rank")
    assert hang.sentence == "Rank 1 never calls allreduce 5 of group default_pg: 3 ranks wait for it."
    assert hang.details[0].endswith("still waited when the recording ended, up to 30.0 s")


def test_calls_in_the_queue_behind_one_that_waits_are_no_sign_that_it_ran() -> None:
    """The backend has as many threads as calls wait; of the others, the host's call alone is recorded."""
    tables = killed(30)
    waits = tables.collectives.filter(pl.col("sequence") == 5)
    later = [waits.with_columns(pl.col("ts", "launch") + n * MS, sequence=5 + n, dur=MS // 10) for n in (1, 2, 3)]
    queued = [conform("collectives", rows.with_columns(pl.col("sequence").cast(pl.Int64))) for rows in later]
    hang, _ = misfits(replace(tables, collectives=pl.concat([tables.collectives, *queued])))
    assert hang.sentence == "Rank 1 never calls allreduce 5 of group default_pg: 3 ranks wait for it."


def pipeline_killed(hangs: int, waited: float) -> JobTables:
    """Four stages of gloo that were killed: the third microbatch reaches no stage behind the one that hangs."""
    rows = []
    for rank in range(4):
        for n, at in ((0, 0), (1, 100 * MS), (2, 200 * MS)):
            dur = int(waited * 1_000 * MS) if n == 2 else 40 * MS
            pair = {"source": rank, "destination": rank + 1}
            if rank < 3 and (n < 2 or rank < hangs):
                rows.append(
                    {"rank": rank, "operation": "send", "ts": at, "dur": dur if rank == hangs - 1 else MS, **pair}
                )
            if rank and (n < 2 or rank > hangs):
                pair = {"source": rank - 1, "destination": rank}
                rows.append({"rank": rank, "operation": "recv", "ts": at - 1, "dur": dur, **pair})
    tables = killed(waited)
    values = pl.DataFrame([{**row, "group": 0, "launched": True, "launch": row["ts"]} for row in rows])
    return replace(tables, collectives=conform("collectives", values))


@pytest.mark.parametrize(
    ("hangs", "sentence"),
    [
        (0, "Rank 0 never sends what rank 1 waits for: 3 ranks wait for it."),
        (3, "Rank 3 never receives what rank 2 sends: 1 rank waits for it."),
    ],
)
def test_a_stage_that_hangs_is_named_though_its_peers_wait_in_messages(hangs: int, sentence: str) -> None:
    hang, cut = misfits(pipeline_killed(hangs, 30))
    assert (hang.cause, hang.ranks, cut.cause) == ("hung-collective", (hangs,), "unreadable-rank")
    assert hang.sentence == sentence
    only(misfits(pipeline_killed(hangs, 1)), "unreadable-rank", 0, 1, 2, 3)


def test_a_stage_that_is_late_with_the_last_message_of_a_program_does_not_hang() -> None:
    tables = pipeline_killed(0, 30)
    late = {"rank": 0, "operation": "send", "source": 0, "destination": 1, "ts": 30_000 * MS, "dur": MS, "group": 0}
    sent = conform("collectives", pl.DataFrame([{**late, "launched": True, "launch": late["ts"]}]))
    found = misfits(replace(tables, collectives=pl.concat([tables.collectives, sent])))
    only(found, "unreadable-rank", 0, 1, 2, 3)


@pytest.mark.parametrize("description", [None, "undefined"])
def test_a_group_without_a_name_is_told_by_its_ranks(description: str | None) -> None:
    tables = killed(30)
    groups = conform("groups", tables.groups.with_columns(description=pl.lit(description, pl.String)))
    hang, _ = misfits(replace(tables, groups=groups))
    assert hang.sentence == "Rank 1 never calls allreduce 5 of the group of ranks 0, 1, 2, 3: 3 ranks wait for it."


@pytest.mark.parametrize(
    ("waited", "lost", "imported"),
    [(0.3, 0, False), (1.9, 0, False), (30, 2, False), (30, 0, True)],
    ids=["a usual wait", "less than the recorder keeps", "more calls are lost", "another tool's file that is cut"],
)
def test_processes_that_end_while_some_wait_are_no_hang(waited: float, lost: int, imported: bool) -> None:
    only(misfits(killed(waited, lost=lost, imported=imported)), "unreadable-rank", 0, 1, 2, 3)


def test_a_call_whose_work_was_not_found_is_no_hang_if_later_ones_ran() -> None:
    """The clock of its host was set between a call and its kernel: no call seems to have launched that kernel."""
    tables = hung(0)
    ran = tables.collectives.filter(pl.col("launched")).with_columns(launch="ts")
    lost = ran.filter(pl.col("rank") == 1, pl.col("group") == 0).head(1).with_columns(launched=pl.lit(value=False))
    assert misfits(replace(tables, collectives=pl.concat([ran, lost]))) == []


def test_calls_that_no_rank_finished_are_no_hang() -> None:
    """The recording stops while all ranks have called: the work follows after its end."""
    tables = hung(0)
    alike = tables.collectives.filter(pl.col("rank") == 1).with_columns(rank=pl.lit(0, pl.Int32))
    both = pl.concat([alike, tables.collectives.filter(pl.col("rank") == 1)])
    assert misfits(replace(job_tables(ranks=2), collectives=both)) == []


def test_a_clock_is_a_misfit_only_among_others_that_are_known() -> None:
    clocks = pl.DataFrame(
        {
            "rank": [0, 1, 2, 3],
            "host": list("abcd"),
            "offset_ns": [0, None, 5, 7],
            "reason": [None, "it was set", None, None],
            "component": [0, 1, 0, 0],
        }
    )
    tables = hung(0)
    whole = replace(tables, collectives=tables.collectives.filter(pl.col("launched")))
    one = only(misfits(whole, clocks=clocks), "clock-uncalibrated", 1)
    assert one.sentence == "The clock of rank 1 is not calibrated: it was set."
    assert misfits(whole, clocks=clocks.with_columns(offset_ns=pl.lit(None, pl.Int64))) == []


@pytest.mark.parametrize("together", [True, False])
def test_ranks_of_no_known_host_whose_clocks_agree_have_one_clock(together: bool) -> None:
    clocks = pl.DataFrame(
        {
            "rank": range(6),
            "offset_ns": [0, 3, 5, None, None, None],
            "reason": [None, None, None, *["it was set"] * 3],
            "component": [0, 0, 0, *([3] * 3 if together else [3, 4, 5])],
        }
    ).with_columns(host=pl.lit(None, pl.String))
    tables = hung(0)
    whole = replace(tables, collectives=tables.collectives.filter(pl.col("launched")))
    assert [misfit.ranks for misfit in misfits(whole, clocks=clocks)] == ([(3, 4, 5)] if together else [])
