"""What the files of a job hold, on a job of two stages of two ranks whose times are known."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import polars as pl
import pytest

from stepscope.cluster.job import Job
from stepscope.cluster.job_results import CLOCKS, JOB_RESULTS, JobResults, waits_of_steps
from stepscope.cluster.job_tables import JobTables, conform
from stepscope.cluster.pipeline import pipeline_stages
from stepscope.cluster.slow_links import link_speeds, transits
from stepscope.cluster.what_if.critical_path import unknown_path

MS = 1_000_000
#: Start of the step by the clock of the job; the clock of rank r is 10 r seconds ahead.
START = 1_795_000_000 * 10**9
AHEAD = 10 * 10**9
RANKS = range(4)
#: Ranks 0 and 1 send to 2 and 3 (ms 20 to 30 of the step), then all reduce with their peer: rank r arrives at 60 + r.
STAGE = {0: 0, 1: 0, 2: 1, 3: 1}


def own(rank: int, ms: float) -> int:
    """A time of the step by the rank's own clock."""
    return START + rank * AHEAD + round(ms * MS)


def steps() -> list[dict[str, Any]]:
    parts = {"copy": 1 * MS, "data_wait": 2 * MS, "sync": 0, "host_only": 3 * MS}
    found = []
    for rank in RANKS:
        communication = (20 if rank < 2 else 30) * MS
        computing = (60 - 2 * rank) * MS
        row = {"rank": rank, "step": 7, "ts": own(rank, 0), "dur": 100 * MS, "computing": computing, **parts}
        row |= {"communication": communication, "overlapped": 5 * MS, "preparing": 4 * MS}
        found.append({**row, "idle": 94 * MS - communication - computing})
    return found


def collectives() -> list[dict[str, Any]]:
    found = []
    for rank in RANKS:
        peer = rank + 2 if rank < 2 else rank - 2
        pair = {"source": min(rank, peer), "destination": max(rank, peer), "group": 2, "bytes_in": 4_000_000}
        sends = "send" if rank < 2 else "recv"
        row = {"rank": rank, "step": 7, "sequence": 0}
        found.append({**row, "operation": sends, "ts": own(rank, 20), "dur": 10 * MS, "exposed": 9 * MS, **pair})
        reduce = {"group": STAGE[rank], "bytes_in": 8_000_000, "bytes_out": 8_000_000, "exposed": 10 * MS}
        dur = round((90 - 60 - rank) * MS)
        found.append({**row, "operation": "allreduce", "ts": own(rank, 60 + rank), "dur": dur, **reduce})
    return found


def meeting_of(row: dict[str, Any]) -> int:
    return row["source"] if row["operation"] in ("send", "recv") else 2 + row["group"]


def arrivals(rows: list[dict[str, Any]], known: frozenset[int]) -> pl.DataFrame:
    found = []
    for row in rows:
        meeting = meeting_of(row)
        there = [other for other in rows if meeting_of(other) == meeting]
        at = {other["rank"]: other["ts"] - other["rank"] * AHEAD for other in there}
        last, end = max(at.values()), at[row["rank"]] + row["dur"]
        times: dict[str, Any] = dict.fromkeys(("arrival", "end", "lateness", "wait", "transit", "last", "uncertainty"))
        times["reason"] = "the clock of the rank is not known"
        if set(at) <= known:
            mine = at[row["rank"]]
            times = {"arrival": mine, "end": end, "lateness": mine - min(at.values()), "wait": last - mine}
            times |= {"transit": end - last, "last": None if len(set(at.values())) == 1 else mine == last}
            times |= {"uncertainty": 2000, "reason": None}
        kept = {name: row[name] for name in ("rank", "step", "group", "operation")}
        found.append({"meeting": meeting, **kept, "bytes": row["bytes_in"], **times})
    types = {"rank": pl.Int32, "step": pl.Int32, "group": pl.Int32, "last": pl.Boolean, "arrival": pl.Int64}
    types |= dict.fromkeys(("end", "lateness", "wait", "transit", "uncertainty"), pl.Int64)
    types["reason"] = pl.String
    return pl.DataFrame(found, schema_overrides=types)


def job(known: frozenset[int] = frozenset(RANKS), *, pipeline: bool = True) -> Job:
    """The job; the clocks of the ranks that are not ``known`` are not."""
    ranks = [
        {"rank": rank, "directory": f"rank{rank}", "host": f"node{rank // 2}", "device": "cuda:0"} for rank in RANKS
    ]
    ranks.append({"rank": 4, "directory": "rank4", "fault": "The file is empty."})
    groups = [
        {"id": stage, "ranks": [2 * stage, 2 * stage + 1], "name": f"dp{stage}", "transport": "nccl"}
        for stage in (0, 1)
    ]
    groups.append({"id": 2, "ranks": [*RANKS], "name": "pp", "transport": "nccl"})
    rows = collectives()
    met = conform("collectives", pl.DataFrame(rows, infer_schema_length=None))
    met = met.with_columns(meeting=pl.Series([meeting_of(row) for row in rows]), members=2, complete=True)
    clocks = [
        {"rank": rank, "host": f"node{rank // 2}", "offset_ns": -rank * AHEAD if rank in known else None}
        | {"drift_ppm": None, "uncertainty_ns": 1000 if rank in known else None, "anchor": 0}
        | {"reason": None if rank in known else "it shares no collective", "component": 0}
        for rank in RANKS
    ]
    types = {"rank": pl.Int32, "offset_ns": pl.Int64, "drift_ppm": pl.Float64, "reason": pl.String}
    tables = JobTables(
        ranks=conform("ranks", pl.DataFrame(ranks, infer_schema_length=None)),
        steps=conform("steps", pl.DataFrame(steps())),
        collectives=met.drop("meeting", "members", "complete"),
        groups=conform("groups", pl.DataFrame(groups)),
    )
    places = [{"group": STAGE[rank], "kind": "dp", "rank": rank, "place": rank % 2} for rank in RANKS]
    made = SimpleNamespace(
        tables=tables,
        clocks=pl.DataFrame(clocks, schema_overrides=types),
        meetings=met,
        arrivals=arrivals(rows, known),
        groups=pl.DataFrame(places, schema_overrides={"rank": pl.Int32}),
        stages=pl.DataFrame(
            {"rank": list(RANKS), "stage": list(STAGE.values())} if pipeline else {"rank": [], "stage": []},
            schema={"rank": pl.Int32, "stage": pl.Int64},
        ),
    )
    made.pipeline = pipeline_stages(tables.steps, met, made.stages)
    made.links = link_speeds(transits(tables, met, made.groups))
    made.what_if = None
    made.critical_path = unknown_path(made.tables.steps["step"], "nobody knows")
    made.results = JobResults(cast("Job", made))
    return cast("Job", made)


def test_clocks_are_the_columns_that_the_design_fixes() -> None:
    found = job(frozenset({0, 1})).results["clocks"]
    assert tuple(found.columns) == CLOCKS
    assert found["offset_ns"].to_list() == [0, -AHEAD, None, None]
    assert found["reason"].to_list() == [None, None, *["it shares no collective"] * 2]


def test_a_step_of_a_rank_has_the_columns_of_msprof_analyze_and_times_by_the_clock_of_the_job() -> None:
    found = job().results["cluster_step_trace_time"]
    assert found.columns[:3] == ["Step", "Type", "Index"]
    of_ranks = found.filter(pl.col("Type") == "rank")
    assert of_ranks["Index"].to_list() == ["0", "1", "2", "3"]
    assert of_ranks["Start Time(us)"].unique().to_list() == [START / 1000]
    first = of_ranks.row(0, named=True)
    expected = {"Total": 100.0, "Computing": 60.0, "Communication(Not Overlapped)": 20.0, "Overlapped": 5.0}
    expected |= {"Communication": 25.0, "Free": 20.0, "Preparing": 4.0, "Copy(Not Overlapped)": 1.0, "Data Wait": 2.0}
    # From the start of sending (20) to the end of the all-reduce (90), less 10 in which a pair communicates.
    expected |= {"Stage": 60.0, "Bubble": 10.0, "Communication(Not Overlapped and Exclude Receive)": 11.0}
    assert {name: first[name] for name in expected} == {name: ms * 1000 for name, ms in expected.items()}


def test_a_stage_takes_as_long_as_its_longest_rank() -> None:
    found = job().results["cluster_step_trace_time"].filter(pl.col("Type") == "stage")
    assert found["Index"].to_list() == ["(0, 1)", "(2, 3)"]
    assert found["Computing"].to_list() == [60_000.0, 56_000.0]
    alone = job(pipeline=False).results["cluster_step_trace_time"]
    assert alone["Type"].unique().to_list() == ["rank"]


def test_a_rank_without_a_clock_has_no_time_of_the_job() -> None:
    found = job(frozenset({0, 1, 2})).results["cluster_step_trace_time"].filter(pl.col("Index") == "3")
    assert found["Start Time(us)"].to_list() == [None]
    assert found["Total"].to_list() == [100_000.0]


def test_a_collective_is_one_row_with_the_waiting_of_each_rank() -> None:
    found = job().results["cluster_communication"].filter(pl.col("operation") == "allreduce")
    assert found["ranks"].to_list() == [[0, 1], [2, 3]]
    assert found["group_name"].to_list() == ["dp0", "dp1"]
    assert found["bytes"].to_list() == [8_000_000] * 2
    assert found["first_arrival_ns"].to_list() == [START + 60 * MS, START + 62 * MS]
    assert found["last_arrival_ns"].to_list() == [START + 61 * MS, START + 63 * MS]
    assert found["last_rank"].to_list() == [1, 3]
    assert found["wait_ns"].to_list() == [[MS, 0]] * 2
    assert found["transit_ns"].to_list() == [[29 * MS, 29 * MS], [27 * MS, 27 * MS]]


def test_nothing_is_said_of_who_waited_where_a_clock_is_not_known() -> None:
    found = job(frozenset({0, 1, 2})).results["cluster_communication"].filter(pl.col("group_name") == "dp1")
    assert found.select("first_arrival_ns", "last_arrival_ns", "end_ns", "last_rank").row(0) == (None,) * 4
    assert found["wait_ns"].to_list() == [[None, None]]


def test_a_pair_is_one_link_and_a_collective_one_row_a_rank() -> None:
    found = job().results["cluster_communication_matrix"]
    pairs = found.filter(pl.col("dst_rank").is_not_null()).sort("src_rank")
    # The receiver's row counts: 4 MB within 10 ms.
    assert pairs.select("operation", "src_rank", "dst_rank", "count", "bytes", "transit_ns").rows() == [
        ("recv", 0, 2, 1, 4_000_000, 10 * MS),
        ("recv", 1, 3, 1, 4_000_000, 10 * MS),
    ]
    assert pairs["bandwidth_gb_s"].to_list() == [0.4, 0.4]
    groups = found.filter(pl.col("operation") == "allreduce")
    assert groups["src_rank"].to_list() == [0, 1, 2, 3]
    assert groups["bandwidth_gb_s"].to_list() == pytest.approx([8 / 29, 8 / 29, 8 / 27, 8 / 27])


def test_ranks_are_compared_with_their_own_stage() -> None:
    found = job().results["cluster_ranks"]
    assert found["rank"].to_list() == [0, 1, 2, 3, 4]
    assert found["own_ns"].to_list() == [80 * MS, 80 * MS, 70 * MS, 70 * MS, None]
    assert found["speed"].to_list() == [1.0, 1.0, 1.0, 1.0, None]
    assert found["wait_ns"].to_list() == [MS, 0, MS, 0, None]
    assert found["times_last"].to_list() == [0, 1, 0, 1, None]
    assert found["times_first"].to_list() == [1, 0, 1, 0, None]
    assert found["meetings"].to_list() == [1, 1, 1, 1, None]
    assert found["dp"].to_list() == [0, 1, 0, 1, None]
    assert found["stage"].to_list() == [0, 0, 1, 1, None]
    assert found["fault"].to_list() == [None] * 4 + ["The file is empty."]


def test_the_slower_of_two_ranks_is_compared_with_the_other() -> None:
    found = cast("Any", job())
    slower = pl.when(rank=1).then(pl.col("dur") + 20 * MS).otherwise("dur")
    found.tables = replace(found.tables, steps=found.tables.steps.with_columns(dur=slower))
    assert JobResults(found)["cluster_ranks"]["speed"].to_list() == [1.0, 0.8, 1.0, 1.0, None]


def test_collectives_that_wait_at_one_time_count_once() -> None:
    rows = [(0, 1, 0, 30, 10), (0, 1, 10, 25, 15), (0, 1, 100, 5, 5), (1, 1, 0, None, None)]
    frame = pl.DataFrame(rows, schema=["rank", "step", "arrival", "wait", "transit"], orient="row")
    # Waiting from 0 to 30, 10 to 35 and 100 to 105; moving data from 30 to 40, 35 to 50 and 105 to 110.
    assert waits_of_steps(frame).rows() == [(0, 1, 40, 25)]


def test_results_of_a_job_of_which_nothing_is_known_have_their_columns() -> None:
    nothing = cast("Any", job())
    nothing.tables = JobTables(ranks=nothing.tables.ranks)
    nothing.clocks, nothing.arrivals = nothing.clocks.clear(), nothing.arrivals.clear()
    nothing.meetings, nothing.groups = nothing.meetings.clear(), nothing.groups.clear()
    full = job().results
    for name in JOB_RESULTS:
        assert JobResults(nothing)[name].columns == full[name].columns, name
