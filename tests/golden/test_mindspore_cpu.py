"""Recordings of MindSpore on a CPU against a reading in plain Python, and against MindSpore's own tables."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from stepscope.analyse.results import compute
from stepscope.cli.main import main
from stepscope.read import read_files
from stepscope.run import Run
from stepscope.trace.schema import TOTALS
from stepscope.trace.tables import Frames, lazy

from .mindspore_oracle import record

DATA = Path(__file__).resolve().parents[1] / "data" / "mindspore_cpu"
OWN = ["collected_graph", "collected_pynative", "own_graph", "own_pynative"]
SINGLE = [*OWN, "two_ranks/graph_rank0", "two_ranks/graph_rank1"]
#: The recordings beside the checkout, of which some are larger.
SHARED = [
    "ms210_cpu_graph",
    "ms210_cpu_pynative",
    "ms210_cpu_graph_schedule",
    "comm_2rank/graph_rank0",
    "comm_2rank/graph_rank1",
    "runtime_profiler_graph",
    "runtime_profiler_pynative",
]


def check(directory: Path) -> Frames:
    """Compare everything that both readings know of a directory."""
    frames, told = read_files([directory]), record(directory)
    spans = frames["spans"].with_columns(pl.col("name", "kind").cast(pl.String))
    ran = spans.filter(pl.col("kind").is_in(["operator", "collective"])).sort("ts")
    types = [name.rsplit("/", 1)[-1].rsplit("-op", 1)[0] for name, _, _ in told.calls]
    assert ran["name"].to_list() == types
    assert ran["ts"].to_list() == [start for _, start, _ in told.calls]
    assert (ran["ts"] + ran["dur"]).to_list() == [end for _, _, end in told.calls]
    check_own_tables(frames, directory)
    host = spans.filter(pl.col("kind").is_in(["runtime", "sync"]))
    threads = host.join(frames["tracks"].select(track="id", thread="thread"), on="track")
    seen = sorted(threads.select("name", "thread", "ts", end=pl.col("ts") + pl.col("dur")).rows())
    assert seen == sorted(told.events)
    losses = dict(frames["losses"].select(pl.col("what").cast(pl.String), "count").rows())
    assert losses == ({"event_not_an_interval": told.arrows} if told.arrows else {})
    memory = frames["allocations"].select("ts", "allocated", "reserved", "active")
    assert memory.rows() == sorted(told.memory, key=lambda row: row[0])
    return frames


def check_own_tables(frames: Frames, directory: Path) -> None:
    """The operators' counts are MindSpore's, their totals too but for the six digits that its files have."""
    told = record(directory)
    for name, (calls, total) in told.totals().items():
        counted, ms = told.counted[name]
        assert calls == counted
        assert total / 1e6 == pytest.approx(ms, rel=1e-5, abs=2e-6)
    statistic = compute("op_statistic", lazy(frames))
    expected: dict[str, list[float]] = {}
    for name, (calls, ms) in told.counted.items():
        entry = expected.setdefault(name.rsplit("/", 1)[-1].rsplit("-op", 1)[0], [0, 0.0])
        entry[0] += calls
        entry[1] += ms
    assert isinstance(statistic, pl.DataFrame)
    for name, count, microseconds in statistic.select("OP Type", "Count", "Total Time(us)").rows():
        assert count == expected[name][0]
        assert microseconds / 1e3 == pytest.approx(expected[name][1], rel=1e-5, abs=2e-6)
    assert set(statistic["OP Type"]) == set(expected)


@pytest.mark.parametrize("name", SINGLE)
def test_carried_recordings(name: str) -> None:
    check(DATA / name)


@pytest.mark.parametrize("name", SHARED)
def test_all_recordings(name: str, shared_data: Path) -> None:
    check(shared_data / "mindspore_cpu" / name)


@pytest.mark.parametrize("name", SINGLE)
def test_shapes_are_those_of_the_calls_in_order(name: str) -> None:
    frames, told = read_files([DATA / name]), record(DATA / name)
    rows = frames["operators"].join(frames["spans"].select(span="id", ts="ts"), on="span").sort("ts")
    turns: dict[str, int] = {}
    for (full, _, _), shapes in zip(told.calls, rows["shapes"].to_list(), strict=True):
        short = full.rsplit("/", 1)[-1]
        if short not in told.shapes:
            assert shapes is None
            continue
        written = told.shapes[short][turns.get(short, 0)]
        turns[short] = turns.get(short, 0) + 1
        assert shapes == written.replace("NoShape", "[]").replace("'", "").replace(" ", "")


@pytest.mark.parametrize("name", SINGLE)
def test_computing_and_communication_are_the_union_of_the_calls(name: str) -> None:
    tables = lazy(read_files([DATA / name]))
    told = record(DATA / name)
    row = compute("step_trace_time", tables)
    assert isinstance(row, pl.DataFrame)
    (only,) = row.to_dicts()
    assert only["Computing"] + only["Communication(Not Overlapped)"] == pytest.approx(told.busy() / 1e3, abs=1e-3)
    between = ("Copy(Not Overlapped)", "Data Wait", "Sync", "Host Only", "Idle")
    ends = [end for _, _, end in told.calls] + [end for *_, end in told.events]
    starts = [start for _, start, _ in told.calls] + [start for _, _, start, _ in told.events]
    whole, work = (max(ends) - min(starts)) / 1e3, only["Computing"] + only["Communication(Not Overlapped)"]
    assert work + only["Free"] == pytest.approx(whole, abs=1e-3)
    if told.events:
        assert work + sum(only[part] for part in between) == pytest.approx(whole, abs=1e-3)
    else:  # what lies between operators was not recorded
        assert [only[part] for part in between] == [0, None, None, None, None]


@pytest.mark.parametrize("name", ["collected_graph", "collected_pynative"])
def test_every_operator_lies_on_the_thread_that_launched_it(name: str) -> None:
    frames, told = read_files([DATA / name]), record(DATA / name)
    spans = frames["spans"].join(frames["tracks"].select(track="id", thread="thread"), on="track")
    launches = {(start, thread) for name, thread, start, _ in told.events if name in ("KernelLaunch", "LaunchTask")}
    for ts, dur, thread in spans.filter(pl.col("kind") == "operator").select("ts", "dur", "thread").rows():
        assert any(ts <= start <= ts + dur and thread == one for start, one in launches)
    inside = spans.filter(pl.col("name").is_in(["KernelLaunch", "LaunchTask"])).join(
        spans.select(parent="id", around="kind"), on="parent"
    )
    assert inside.height == len(launches)
    assert set(inside["around"]) == {"operator"}


@pytest.mark.parametrize("name", ["collected_graph", "collected_pynative"])
def test_the_phases_of_a_step(name: str) -> None:
    spans = read_files([DATA / name])["spans"].filter(pl.col("kind") == "operator")
    phases: dict[str, list[str]] = {}
    for operator, phase in spans.sort("ts").select(pl.col("name", "phase").cast(pl.String)).rows():
        phases.setdefault(operator, []).append(phase)
    assert phases["Conv2D"] == ["forward"] * 3
    assert phases["MatMul"] == ["forward", "backward", "backward"] * 3
    assert phases["Conv2DBackpropFilter"] == ["backward"] * 3
    assert set(phases["ApplyMomentum"]) == {"optimizer"}
    # Compiled, it is in the optimizer's cell; else nothing tells.
    assert set(phases["AssignAdd"]) == {"optimizer" if name == "collected_graph" else "other"}


def test_two_processes_become_two_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(DATA / "two_ranks"), "--output", str(tmp_path), "--quiet"]) == 0
    run = Run(capsys.readouterr().out.strip())
    assert [rank.rank for rank in run.ranks] == [0, 1]
    for rank, folder in zip(run.ranks, ("graph_rank0", "graph_rank1"), strict=True):
        told = record(DATA / "two_ranks" / folder)
        document = rank.result("communication")
        assert isinstance(document, dict)
        operations = document["step0"]["collective"]
        calls = [(start, end) for name, start, end in told.calls if "AllReduce" in name]
        assert [f"allreduce__{number}@" for number in range(3)] == [key for key in operations if key != "Total Op Info"]
        total = operations["Total Op Info"]["Communication Time Info"]["Elapse Time(ms)"]
        assert total == pytest.approx(sum(end - start for start, end in calls) / 1e6)
        assert total == pytest.approx(told.counted["Default/AllReduce-op0"][1], rel=1e-5)
        assert {track["process"] for track in rank.tables["tracks"].collect().to_dicts()} == {told.process}


def test_two_windows_of_one_process_become_one_rank(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shared_data / "mindspore_cpu" / "ms210_cpu_graph_schedule"
    assert main(["import", str(folder), "--output", str(tmp_path), "--quiet"]) == 0
    run = Run(capsys.readouterr().out.strip())
    assert [len(rank.captures) for rank in run.ranks] == [2]
    calls = record(folder).calls
    assert run.tables["spans"].collect().height == len(calls) == 88
    assert all((run.path / "rank0" / "results" / f"{name}.csv").is_file() for name in ("op_statistic", "dataset"))


def test_the_data_pipeline_is_what_mindspore_makes_of_it() -> None:
    tables = lazy(read_files([DATA / "minddata"]))
    theirs = DATA / "minddata" / "ASCEND_PROFILER_OUTPUT"
    summary = compute("minddata_pipeline_summary", tables)
    assert json.dumps(summary) == (theirs / "minddata_pipeline_summary_0.json").read_text()
    raw = compute("minddata_pipeline_raw", tables)
    assert isinstance(raw, pl.DataFrame)
    with (theirs / "minddata_pipeline_raw_0.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert raw.columns == header
    assert [["" if value is None else str(value) for value in row] for row in raw.iter_rows()] == rows


def test_the_file_of_the_summary_has_mindspores_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(DATA / "minddata"), "--output", str(tmp_path), "--quiet"]) == 0
    results = Path(capsys.readouterr().out.strip()) / "rank0" / "results"
    theirs = DATA / "minddata" / "ASCEND_PROFILER_OUTPUT"
    ours = (results / "minddata_pipeline_summary.csv").read_text().splitlines()
    assert ours == (theirs / "minddata_pipeline_summary_0.csv").read_text().splitlines()
    document = (results / "minddata_pipeline_summary.json").read_text().rstrip("\n")
    assert document == (theirs / "minddata_pipeline_summary_0.json").read_text()


def test_the_stages_of_the_pipelines_end() -> None:
    found = compute("dataset", lazy(read_files([DATA / "minddata"])))
    assert isinstance(found, pl.DataFrame)
    lines = [line.split() for line in (DATA / "minddata" / "dataset_iterator_profiling_0.txt").read_text().splitlines()]
    for stage, part in (("pipeline", "0"), ("push", "1"), ("batch", "2")):
        times = [int(value) for sort, sub, _, value, _ in lines if (sort, sub) == ("0", part)]
        (row,) = found.filter(pl.col("Stage") == stage).to_dicts()
        assert row["Operation"] == "dataset iterator"
        assert row["Occurrences"] == len(times) == 100
        assert row["Avg. time (us)"] == pytest.approx(1000 * sum(times) / len(times))
        assert json.loads(row["Custom Info"])["pipeline"][2] == "Map(id=2)"


def test_samples_of_the_pipeline_have_their_times(tmp_path: Path) -> None:
    frames = read_files([DATA / "collected_graph"])
    said = json.loads((DATA / "collected_graph" / "stepscope.json").read_text())
    (begin, begin_epoch), (_, end_epoch) = said["anchors"]
    cpu = json.loads((DATA / "collected_graph/minddata/minddata_cpu_utilization_0.json").read_text())
    queue = frames["counters"].filter(pl.col("name") == "output queue")
    expected = [begin_epoch + time * 1_000_000 - begin for time in cpu["time_stamp"]]
    for track in queue["track"].unique().to_list():
        times = queue.filter(pl.col("track") == track)["ts"].to_list()
        assert times == pytest.approx(expected, abs=1_000_000)
        assert begin_epoch - 2_000_000 <= times[0] <= times[-1] <= end_epoch


def test_memory_belongs_to_the_operator_that_starts_next() -> None:
    for name in ("collected_graph", "collected_pynative"):
        frames, told = read_files([DATA / name]), record(DATA / name)
        starts = [start for _, start, _ in told.calls]
        spans = dict(frames["spans"].select("id", "ts").rows())
        grown = frames["allocations"].filter((pl.col("bytes") > 0) & pl.col("span").is_not_null())
        assert grown.height > 10
        for ts, span in grown.select("ts", "span").rows():
            assert spans[span] == min(start for start in starts if start >= ts)
        peak = max(allocated for _, allocated, _, _ in told.memory)
        assert frames["allocations"]["allocated"].max() == peak


@pytest.mark.parametrize("name", ["runtime_profiler_graph", "runtime_profiler_pynative"])
def test_events_of_the_host_are_those_that_the_summary_states(name: str, shared_data: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(shared_data / "mindspore_cpu" / name, tmp_path / name))
    frames = read_files([directory])
    (sums,) = (path.name for path in directory.glob("RuntimeProfilerSummary*.csv"))
    compared = json.loads(dict(frames["metadata"].iter_rows())[TOTALS])
    assert compared == [f"{sums}: events of the host"] * 2
    assert "total_differs" not in frames["losses"]["what"].cast(str).to_list()
    (details,) = directory.glob("RuntimeProfilerDetail*.csv")
    lines = details.read_text().splitlines(keepends=True)
    details.write_text("".join(line for line in lines if "event:AcquireGil" not in line))
    losses = read_files([directory])["losses"].filter(pl.col("what").cast(str) == "total_differs")
    assert losses["severity"].to_list() == ["error"] * len(losses)
    assert any("of events of the host" in text for text in losses["advice"].to_list())
