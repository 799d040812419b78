"""``msprof-analyze``, Ascend's own tool, on Ascend's captures and on what we export: the same files, our numbers.

``make test`` installs it into an environment of its own. It always exits 0, so its output is checked too.
"""

from __future__ import annotations

import csv
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.report.ascend.overlap_analysis import RankWork
from stepscope.report.ascend.variant import MINDSPORE, PYTORCH, Variant
from tests.frameworks.torch.programs import environment, free_port, runs
from tests.frameworks.torch.test_distributed import DDP
from tests.golden.conftest import Analyse
from tests.unit.analyse.build import ORIGIN, Rank

pytestmark = pytest.mark.slow

OUTPUT = "ASCEND_PROFILER_OUTPUT"
STEP_COLUMNS = (
    "Computing",
    "Communication(Not Overlapped)",
    "Overlapped",
    "Communication",
    "Free",
    "Stage",
    "Bubble",
    "Communication(Not Overlapped and Exclude Receive)",
    "Preparing",
)


@pytest.fixture(scope="module")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real training on two processes."""
    folder = tmp_path_factory.mktemp("gloo")
    (folder / "ddp.py").write_text(DDP)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    command += ["-m", "stepscope", "run", "--later", "--output", str(folder / "runs"), "--steps", "4:6"]
    command += [str(folder / "ddp.py")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = runs(folder / "runs")
    return found


@pytest.fixture(scope="module")
def nccl(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    """A training on two GPUs that PyTorch's profiler recorded."""
    traces = [str(shared_data / "kineto" / "hta" / "trace_filter" / f"sampled_rank-{rank}.json.gz") for rank in (0, 1)]
    folder = tmp_path_factory.mktemp("nccl")
    assert main(["import", *traces, "--output", str(folder), "--quiet"]) == 0
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="module")
def allreduce(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    """Two processes of MindSpore on a CPU, as its own profiler recorded them, without steps."""
    captures = sorted((shared_data / "mindspore_cpu" / "comm_2rank").glob("*/*_ascend_ms"))
    folder = tmp_path_factory.mktemp("mindspore")
    assert main(["import", *map(str, captures), "--output", str(folder), "--quiet"]) == 0
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="module", params=["gloo", "nccl", "allreduce"])
def run(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def exported(run: Path, kind: str, layout: str = "ascend") -> Path:
    """Export a run, once."""
    directory = run.parent / f"{run.name}_{layout}_{kind}"
    if not directory.exists():
        assert main(["export", str(run), "--layout", layout, "--type", kind, "--output", str(directory)]) == 0
    return directory


def cells(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def rows(database: Path, table: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(database)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(f"SELECT * FROM {table}")]


def rank_directories(layout: Path) -> dict[int, Path]:
    return {int(path.stem.split("_")[-1]): path.parent for path in layout.glob("*/profiler_info_*.json")}


def our_steps(run: Path, variant: Variant) -> dict[tuple[int, int], dict[str, Any]]:
    """Return (rank, step) → the step as the layout has it."""
    found = {}
    for rank in stepscope.open(run).ranks:
        for row in RankWork(rank.tables).step_trace_time(variant).rows(named=True):
            found[rank.rank, row["Step"]] = row
    return found


def test_the_tool_finds_in_our_text_what_it_finds_in_ascends(analyse: Analyse, gloo: Path, shared_data: Path) -> None:
    original = analyse(shared_data / "ascend" / "text_level2", "all")
    ours = analyse(exported(gloo, "text"), "all")
    assert sorted(path.name for path in ours.iterdir()) == sorted(path.name for path in original.iterdir())
    times, matrix = (
        [_forms(folder / name) for folder in (original, ours)]
        for name in ("cluster_communication.json", "cluster_communication_matrix.json")
    )
    assert times[0] == times[1]
    assert matrix[0] == matrix[1]


def _forms(path: Path) -> set[str]:
    """Return the names that operations, their parts and links have in the tool's documents."""
    groups = json.loads(path.read_text())
    entries = [
        entry
        for group in groups.values()
        for step in group.values()
        for ranks in step.values()
        for entry in ranks.values()
    ]
    return {key for entry in entries for key in entry}


def test_steps_of_text_are_ours(analyse: Analyse, run: Path) -> None:
    found = cells(analyse(exported(run, "text"), "all") / "cluster_step_trace_time.csv")
    variant = MINDSPORE if rank_directories(exported(run, "text"))[0].name.endswith("_ms") else PYTORCH
    ours = our_steps(run, variant)
    assert {(int(row["Index"]), int(row["Step"])) for row in found} == set(ours)
    assert {rank for rank, _ in ours} == {0, 1}
    for row in found:
        expected = ours[int(row["Index"]), int(row["Step"])]
        assert [float(row[name]) for name in STEP_COLUMNS] == pytest.approx([expected[name] for name in STEP_COLUMNS])


def test_communication_of_text_is_ours(analyse: Analyse, run: Path) -> None:
    folder = analyse(exported(run, "text"), "all")
    group = json.loads((folder / "communication_group.json").read_text())
    assert group["collective"] == [[0, 1]]
    (steps,) = json.loads((folder / "cluster_communication.json").read_text()).values()
    for rank in stepscope.open(run).ranks:
        times = [
            ranks[str(rank.rank)]["Communication Time Info"]["Elapse Time(ms)"]
            for operations in steps.values()
            for name, ranks in operations.items()
            if not name.startswith("Total") and str(rank.rank) in ranks
        ]
        calls = RankWork(rank.tables).calls
        assert len(times) == len(calls)
        assert sum(times) == pytest.approx(sum(call.operation.elapsed for call in calls) / 1e6)
    (links,) = json.loads((folder / "cluster_communication_matrix.json").read_text()).values()
    assert {link for step in links.values() for name, cells in step.items() for link in cells} == {"0-0", "1-1"}


@pytest.mark.parametrize("layout", ["ascend_pt", "ascend_ms"])
def test_summary_of_times_of_databases_is_ours(analyse: Analyse, gloo: Path, layout: str) -> None:
    found = rows(
        analyse(exported(gloo, "db", layout), "cluster_time_summary") / "cluster_analysis.db", "ClusterTimeSummary"
    )
    ours = our_steps(gloo, PYTORCH if layout == "ascend_pt" else MINDSPORE)
    assert {(row["rank"], row["step"]) for row in found} == set(ours)
    durations = {
        (rank.rank, number): duration / 1000
        for rank in stepscope.open(gloo).ranks
        for number, duration in rank.tables["steps"].select("number", "dur").collect().rows()
    }
    for row in found:
        expected = ours[row["rank"], row["step"]]
        assert row["stepTime"] == pytest.approx(durations[row["rank"], row["step"]])
        assert row["computation"] == pytest.approx(expected["Computing"])
        assert row["communication"] == pytest.approx(expected["Communication"])
        assert row["communicationNotOverlapComputation"] == pytest.approx(expected["Communication(Not Overlapped)"])
        assert row["free"] == pytest.approx(expected["Free"])
        assert row["communicationWaitStageTime"] + row["communicationTransmitStageTime"] > 0
        assert row["memory"] == 0


def test_the_tool_adds_up_the_waits_of_the_job(analyse: Analyse, run: Path) -> None:
    (steps,) = json.loads((analyse(exported(run, "text"), "all") / "cluster_communication.json").read_text()).values()
    arrivals = stepscope.open(run).job.arrivals
    for rank in (0, 1):
        times = [
            ranks[str(rank)]["Communication Time Info"]
            for operations in steps.values()
            for name, ranks in operations.items()
            if not name.startswith("Total") and str(rank) in ranks
        ]
        mine = arrivals.filter(rank=rank)
        waited = mine["wait"].sum() / 1e6
        assert sum(one["Wait Time(ms)"] for one in times) == pytest.approx(waited)
        assert sum(one["Synchronization Time(ms)"] for one in times) == pytest.approx(waited)
        moved = sum(one["Transit Time(ms)"] for one in times)
        assert moved == pytest.approx(sum(one["Elapse Time(ms)"] for one in times) - waited)


def test_a_rank_waits_as_long_as_the_tool_says(analyse: Analyse, gloo: Path) -> None:
    """It takes the shortest duration among the ranks for the transit of all; we take the last arrival by one clock.

    It also lets the ranks of a broadcast wait for each other, though the sending one need not: there we state no wait,
    and the two differ by up to its whole time.
    """
    found = rows(analyse(exported(gloo, "db"), "cluster_time_summary") / "cluster_analysis.db", "ClusterTimeSummary")
    arrivals = stepscope.open(gloo).job.arrivals
    assert found
    for row in found:
        mine = arrivals.filter(rank=row["rank"], step=row["step"])
        waits = mine.filter(pl.col("wait").is_not_null())
        assert len(waits)
        assert set(mine.filter(pl.col("wait").is_null())["operation"]) <= {"broadcast"}
        together = arrivals.filter(pl.col("meeting").is_in(mine["meeting"].implode()))
        apart = sum(ends.max() - ends.min() for (_,), one in together.group_by("meeting") for ends in [one["end"]])
        apart += 2 * mine["uncertainty"].sum() + mine.filter(pl.col("wait").is_null())["dur"].sum()
        assert row["communicationWaitStageTime"] * 1000 == pytest.approx(waits["wait"].sum(), abs=apart)


def test_summary_of_times_of_a_gpu_has_its_copies(analyse: Analyse, nccl: Path) -> None:
    found = rows(analyse(exported(nccl, "db"), "cluster_time_summary") / "cluster_analysis.db", "ClusterTimeSummary")
    ours = our_steps(nccl, PYTORCH)
    assert {(row["rank"], row["step"]) for row in found} == set(ours)
    copied = sum(row["memory"] for row in found)
    pieces = [RankWork(rank.tables).pieces for rank in stepscope.open(nccl).ranks]
    copies = [
        row for frame in pieces for row in frame.rows(named=True) if row["kind"] == "memcpy" and row["step"] is not None
    ]
    assert copied == pytest.approx(sum(row["dur"] for row in copies) / 1000)


def test_steps_of_databases_are_ours(analyse: Analyse, gloo: Path) -> None:
    found = rows(analyse(exported(gloo, "db"), "all") / "cluster_analysis.db", "ClusterStepTraceTime")
    ours = our_steps(gloo, PYTORCH)
    assert {(int(row["index"]), int(row["step"])) for row in found} == set(ours)
    for row in found:
        expected = ours[int(row["index"]), int(row["step"])]
        assert list(row.values())[3:12] == pytest.approx([expected[name] for name in STEP_COLUMNS])


def test_columns_are_those_of_ascends_files(nccl: Path, gloo: Path, shared_data: Path) -> None:
    recorded = shared_data / "ascend" / "text_level2" / "rank0_ascend_pt" / OUTPUT
    seen = set()
    for layout in (exported(nccl, "text"), exported(gloo, "text")):
        for path in rank_directories(layout)[0].glob(f"{OUTPUT}/*.csv"):
            ours, theirs = (_header(file) for file in (path, recorded / path.name))
            seen.add(path.name)
            # The columns of every kernel are followed by the chosen counters of an AI Core.
            behind = theirs[len(ours) :] if path.name == "kernel_details.csv" else []
            assert all(name.startswith(("aic", "aiv", "cube")) for name in behind)
            assert ours == theirs[: len(theirs) - len(behind)], path.name
    # The other files need an Ascend device: its L2 cache, and the memory of its components.
    assert {path.name for path in recorded.glob("*.csv")} - seen == {"l2_cache.csv", "npu_module_mem.csv"}


def _header(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file))


def test_documents_have_the_keys_of_ascends(gloo: Path, shared_data: Path) -> None:
    recorded = shared_data / "ascend" / "text_level2" / "rank0_ascend_pt" / OUTPUT
    ours = rank_directories(exported(gloo, "text"))[0] / OUTPUT
    entries = [
        next(iter(next(iter(json.loads((folder / "communication.json").read_text()).values()))["collective"].values()))
        for folder in (recorded, ours)
    ]
    assert list(entries[0]["Communication Time Info"]) == list(entries[1]["Communication Time Info"])
    theirs, gloos = (entry["Communication Bandwidth Info"] for entry in entries)
    assert {*theirs, "GLOO"} == set(gloos)
    assert list(theirs["HCCS"]) == list(gloos["GLOO"])


def test_databases_have_the_columns_of_ascends(nccl: Path, shared_data: Path) -> None:
    recorded = shared_data / "ascend" / "db_level1" / "rank0_ascend_pt" / OUTPUT
    ours = rank_directories(exported(nccl, "db"))[0] / OUTPUT
    # MindStudio Insight adds columns to the files that it opens.
    added = {"depth", "waitNs"}
    for name in ("analysis.db", "ascend_pytorch_profiler_0.db"):
        theirs, found = _columns(recorded / name), _columns(ours / name)
        for table, columns in found.items():
            assert columns == [column for column in theirs[table] if column not in added], table


def _columns(path: Path) -> dict[str, list[str]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: [row[1] for row in connection.execute(f"PRAGMA table_info({name})")] for name in tables}


@pytest.mark.parametrize("rank", [0, 1])
def test_our_arithmetic_is_ascends(rank: int, shared_data: Path) -> None:
    """The pieces of work of an Ascend capture give the step that came with it, but for the rounding of their times."""
    folder = shared_data / "ascend" / "text_level2" / f"rank{rank}_ascend_pt" / OUTPUT
    (expected,) = cells(folder / "step_trace_time.csv")
    kernels = [
        (int(Decimal(row["Start Time(us)"].strip()) * 1000), row) for row in cells(folder / "kernel_details.csv")
    ]
    start = min(ts for ts, _ in kernels) - round(float(expected["Preparing"]) * 1000) - ORIGIN
    made = Rank()
    compute, other = made.stream(2), made.stream(3)
    for ts, row in kernels:
        kind = "collective" if row["Accelerator Core"] == "HCCL" else "kernel"
        track = other if kind == "collective" else compute
        span = made.span(track, kind, ts - ORIGIN, int(Decimal(row["Duration(us)"]) * 1000), row["Name"], step=50)
        if kind == "collective":
            made.add("collectives", span=span, operation="allreduce")
    made.step(50, start, 10**9)
    (found,) = RankWork(made.tables()).step_trace_time(PYTORCH).rows(named=True)
    assert found["Step"] == int(expected["Step"])
    for name in STEP_COLUMNS:
        # Each of at most 200 events is truncated to ns.
        assert found[name] == pytest.approx(float(expected[name]), abs=0.2), name


def test_step_times_follow_from_our_own_timeline(run: Path) -> None:
    """The lanes of ``trace_view.json``, added up as Ascend's parser adds them up, give ``step_trace_time.csv``."""
    for folder in rank_directories(exported(run, "text")).values():
        events = [
            event for event in json.loads((folder / OUTPUT / "trace_view.json").read_text()) if event["ph"] == "X"
        ]
        spans = [(event["name"], *_interval(event)) for event in events]
        windows = {name.split("#")[1]: (start, end) for name, start, end in spans if name.startswith("ProfilerStep#")}
        for row in cells(folder / OUTPUT / "step_trace_time.csv"):
            start, end = windows.get(row["Step"], (0, 10**20))
            for lane in ("Computing", "Communication", "Communication(Not Overlapped)"):
                total = sum(stop - begin for name, begin, stop in spans if name == lane and start <= begin < end)
                assert round(float(row[lane]) * 1000) == total
            free = [(begin, stop) for name, begin, stop in spans if name == "Free"]
            if folder.name.endswith("_ascend_pt"):  # torch_npu counts whole gaps to the step in which they begin
                expected = sum(stop - begin for begin, stop in free if start <= begin < end)
            else:
                expected = sum(max(0, min(stop, end) - max(begin, start)) for begin, stop in free)
            assert round(float(row["Free"]) * 1000) == expected


def _interval(event: dict[str, Any]) -> tuple[int, int]:
    start = int(Decimal(event["ts"]) * 1000)
    return start, start + int(Decimal(str(event["dur"])) * 1000)


def test_the_steps_of_a_job_have_the_tools_columns_and_values(
    analyse: Analyse, shared_data: Path, tmp_path: Path
) -> None:
    """Free and what depends on it differ: Ascend's step begins with its first device work."""
    theirs = cells(analyse(shared_data / "ascend" / "text_level2", "all") / "cluster_step_trace_time.csv")
    source = str(shared_data / "ascend" / "text_level2")
    assert main(["import", source, "--output", str(tmp_path), "--quiet"]) == 0
    (run,) = tmp_path.iterdir()
    ours = cells(run / "cluster" / "cluster_step_trace_time.csv")
    assert set(theirs[0]) <= set(ours[0])
    assert [row["Index"] for row in ours] == [row["Index"] for row in theirs] == ["0", "1"]
    same = ("Computing", "Communication(Not Overlapped)", "Overlapped", "Communication", "Bubble")
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine["Step"], mine["Type"]) == (other["Step"], other["Type"])
        for name in (*same, "Communication(Not Overlapped and Exclude Receive)"):
            assert float(mine[name]) == pytest.approx(float(other[name]), abs=0.1), name
