"""Ascend's own captures, read by us and exported again: row by row what Ascend's profiler wrote beside them.

Numbers are compared as numbers: a cell ``5.0`` is ``5.000``. Differences that remain are those of
``docs/ascend-definitions.md``, *What an Ascend capture keeps*.
"""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import stepscope
from stepscope.cli.main import main
from stepscope.trace.tables import is_derived_fact
from tests.golden.conftest import Analyse
from tests.golden.test_msprof_analyze import exported, rank_directories

OUTPUT = "ASCEND_PROFILER_OUTPUT"
#: Modes of msprof-analyze, and tables of their results.
CLUSTER = [
    ("cluster_time_summary", "ClusterTimeSummary"),
    ("all", "ClusterStepTraceTime"),
    ("all", "ClusterCommunicationTime"),
    ("all", "ClusterCommunicationBandwidth"),
    ("all", "ClusterCommunicationMatrix"),
    ("all", "CommunicationGroupMapping"),
]
#: Half a nanosecond in µs: durations of ``trace_view.json`` have more digits than ours.
NS = 0.001


def imported(directory: Path, folder: Path) -> Path:
    """Import all ranks of a directory as one run."""
    assert main(["import", str(directory), "--output", str(folder), "--quiet"]) == 0
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    return imported(shared_data / "ascend" / "text_level2", tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    return imported(shared_data / "ascend" / "db_level1", tmp_path_factory.mktemp("database"))


@pytest.fixture(params=[0, 1])
def rank(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


def cells(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [{key: value.strip() for key, value in row.items()} for row in csv.DictReader(file)]


def original(shared_data: Path, rank: int, name: str) -> Path:
    return shared_data / "ascend" / "text_level2" / f"rank{rank}_ascend_pt" / OUTPUT / name


def ours(text: Path, rank: int, name: str) -> Path:
    return rank_directories(exported(text, "text"))[rank] / OUTPUT / name


def assert_same(found: str, expected: str, within: float, where: object) -> None:
    """Cells are the same text, or numbers that differ by less than ``within``."""
    if found == expected:
        return
    try:
        assert float(found) == pytest.approx(float(expected), abs=within, rel=1e-12), where
    except ValueError:
        raise AssertionError((where, found, expected)) from None


def assert_rows(found: list[dict[str, str]], expected: list[dict[str, str]], within: float = 1e-9) -> None:
    assert list(found[0]) == list(expected[0])
    assert len(found) == len(expected)
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        for column, cell in theirs.items():
            assert_same(mine[column], cell, within, (number, column, mine, theirs))


def by(rows: Iterable[dict[str, str]], *columns: str) -> list[dict[str, str]]:
    return sorted(rows, key=lambda row: tuple(row[column] for column in columns))


def test_kernel_details(text: Path, shared_data: Path, rank: int) -> None:
    name = "kernel_details.csv"
    # Half a unit of the third decimal for Duration; stamps are exact.
    assert_rows(cells(ours(text, rank, name)), cells(original(shared_data, rank, name)))


def test_op_statistic(text: Path, shared_data: Path, rank: int) -> None:
    name = "op_statistic.csv"
    key = ("OP Type", "Core Type")
    # Sums of up to 57 durations, each rounded to a nanosecond.
    assert_rows(by(cells(ours(text, rank, name)), *key), by(cells(original(shared_data, rank, name)), *key), 57 * NS)


def test_api_statistic(text: Path, shared_data: Path, rank: int) -> None:
    name = "api_statistic.csv"
    key = ("Level", "API Name")
    # A mean that ends in half a nanosecond may be rounded to either side.
    assert_rows(by(cells(ours(text, rank, name)), *key), by(cells(original(shared_data, rank, name)), *key), 1.01 * NS)


def test_step_trace_time(text: Path, shared_data: Path, rank: int) -> None:
    name = "step_trace_time.csv"
    assert_rows(cells(ours(text, rank, name)), cells(original(shared_data, rank, name)), 200 * NS)


def test_memory_record(text: Path, shared_data: Path, rank: int) -> None:
    name = "memory_record.csv"
    key = ("Timestamp(us)", "Component", "Total Allocated(MB)")
    assert_rows(by(cells(ours(text, rank, name)), *key), by(cells(original(shared_data, rank, name)), *key))


def test_operator_memory(text: Path, shared_data: Path, rank: int) -> None:
    name = "operator_memory.csv"
    key = ("Allocation Time(us)", "Name", "Size(KB)")
    assert_rows(by(cells(ours(text, rank, name)), *key), by(cells(original(shared_data, rank, name)), *key))


def test_l2_cache(text: Path, shared_data: Path, rank: int) -> None:
    name = "l2_cache.csv"
    key = ("Stream Id", "Task Id", "Op Name")
    assert_rows(by(cells(ours(text, rank, name)), *key), by(cells(original(shared_data, rank, name)), *key))


def test_npu_module_mem(text: Path, shared_data: Path, rank: int) -> None:
    name = "npu_module_mem.csv"
    key = ("Component", "Timestamp(us)")
    found = [row for row in cells(original(shared_data, rank, name)) if float(row["Total Reserved(MB)"]) >= 0]
    assert_rows(by(cells(ours(text, rank, name)), *key), by(found, *key))


def test_categories_of_the_timeline(text: Path, shared_data: Path, rank: int) -> None:
    def categories(path: Path) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for event in json.loads(path.read_text()):
            if event.get("cat") in ("enqueue", "dequeue"):
                found.setdefault(event["cat"], set()).add(event["name"].partition("@")[0])
        return found

    name = "trace_view.json"
    assert categories(ours(text, rank, name)) == categories(original(shared_data, rank, name))


def leaves(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return path → value of everything in a document."""
    if isinstance(value, dict):
        return {key: leaf for name, inner in value.items() for key, leaf in leaves(inner, (*path, name)).items()}
    if isinstance(value, list):
        return {
            key: leaf for place, inner in enumerate(value) for key, leaf in leaves(inner, (*path, str(place))).items()
        }
    return {path: value}


@pytest.mark.parametrize("name", ["communication.json", "communication_matrix.json"])
def test_communication(name: str, text: Path, shared_data: Path, rank: int) -> None:
    found, expected = (
        leaves(json.loads(path.read_text())) for path in (ours(text, rank, name), original(shared_data, rank, name))
    )
    assert set(found) == set(expected)
    for path, value in expected.items():
        if isinstance(value, str):
            assert found[path] == value
        else:  # ms, truncated to ns for each of the four operations
            assert found[path] == pytest.approx(value, abs=4e-6), path


def test_steps_of_databases(database: Path, shared_data: Path, rank: int) -> None:
    expected = rows(
        shared_data / "ascend" / "db_level1" / f"rank{rank}_ascend_pt" / OUTPUT / "analysis.db", "StepTraceTime"
    )
    found = rows(rank_directories(exported(database, "db"))[rank] / OUTPUT / "analysis.db", "StepTraceTime")
    assert_tables(found, expected, 0.001)


@pytest.mark.parametrize(
    ("table", "within"), [("CommAnalyzerTime", 1e-6), ("CommAnalyzerBandwidth", 1e-6), ("CommAnalyzerMatrix", 1e-6)]
)
def test_communication_of_databases(table: str, within: float, database: Path, shared_data: Path, rank: int) -> None:
    source = shared_data / "ascend" / "db_level1" / f"rank{rank}_ascend_pt" / OUTPUT / "analysis.db"
    found = rows(rank_directories(exported(database, "db"))[rank] / OUTPUT / "analysis.db", table)
    key = ("hccl_op_name", "transport_type", "package_size", "src_rank", "dst_rank")
    mine, theirs = (
        sorted(some, key=lambda row: [str(row.get(column)) for column in key]) for some in (found, rows(source, table))
    )
    assert_tables(mine, theirs, within)


#: Table of the database of events → columns that make its rows comparable: the numbers of texts and tasks are ours.
EVENTS = {
    "COMPUTE_TASK_INFO": """SELECT n.value name, t.startNs, t.endNs, t.deviceId, t.streamId, t.taskId, t.contextId,
        blockDim, mixBlockDim, k.value core, o.value op, f.value formats, d.value types, s.value shapes, x.value shapes2
        FROM COMPUTE_TASK_INFO i JOIN TASK t USING (globalTaskId) JOIN STRING_IDS n ON n.id = i.name
        JOIN STRING_IDS k ON k.id = i.taskType JOIN STRING_IDS o ON o.id = i.opType
        JOIN STRING_IDS f ON f.id = i.inputFormats JOIN STRING_IDS d ON d.id = i.inputDataTypes
        JOIN STRING_IDS s ON s.id = i.inputShapes JOIN STRING_IDS x ON x.id = i.outputShapes ORDER BY t.startNs""",
    "TASK_PMU_INFO": """SELECT t.startNs, n.value name, round(p.value, 3) value FROM TASK_PMU_INFO p
        JOIN TASK t USING (globalTaskId) JOIN STRING_IDS n ON n.id = p.name ORDER BY t.startNs, n.value""",
    "COMMUNICATION_OP": """SELECT n.value name, startNs, endNs, g.value grp, a.value alg, o.value op, dataType, count
        FROM COMMUNICATION_OP c JOIN STRING_IDS n ON n.id = c.opName JOIN STRING_IDS g ON g.id = c.groupName
        JOIN STRING_IDS a ON a.id = c.algType JOIN STRING_IDS o ON o.id = c.opType ORDER BY startNs""",
    "OP_MEMORY": """SELECT n.value name, size, allocationTime, releaseTime, activeReleaseTime, duration,
        activeDuration, allocationTotalAllocated, allocationTotalReserved, allocationTotalActive, releaseTotalAllocated,
        releaseTotalReserved, releaseTotalActive, streamPtr, deviceId
        FROM OP_MEMORY m JOIN STRING_IDS n ON n.id = m.name ORDER BY allocationTime, n.value, size""",
    "MEMORY_RECORD": """SELECT c.value component, timestamp, totalAllocated, totalReserved, totalActive, streamPtr
        FROM MEMORY_RECORD m JOIN STRING_IDS c ON c.id = m.component
        ORDER BY timestamp, c.value, totalAllocated""",
    "STEP_TIME": "SELECT id, startNs, endNs FROM STEP_TIME",
}


@pytest.mark.parametrize("table", list(EVENTS))
def test_events_of_databases(table: str, database: Path, shared_data: Path, rank: int) -> None:
    name = f"ascend_pytorch_profiler_{rank}.db"
    source = shared_data / "ascend" / "db_level1" / f"rank{rank}_ascend_pt" / OUTPUT / name
    found, expected = (
        query(path, EVENTS[table])
        for path in (rank_directories(exported(database, "db"))[rank] / OUTPUT / name, source)
    )
    assert len(found) == len(expected) > 0
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == theirs


def canonical(tables: Any, name: str) -> pl.DataFrame:
    """Return a table with texts as text, and without the numbers of blocks and stacks."""
    frame: pl.DataFrame = tables[name].collect().with_columns(pl.col(pl.Categorical).cast(pl.String))
    if name == "allocations":
        frame = frame.drop("block")
    if name == "stacks":
        frame = frame.drop("id")
    if name == "operators":
        stacks = tables["stacks"].collect().rename({"id": "stack"})
        frame = frame.join(stacks, on="stack", how="left").drop("stack")
    return frame.sort(pl.all())


def query(path: Path, text: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(text)]


def rows(path: Path, table: str) -> list[dict[str, Any]]:
    return query(path, f"SELECT * FROM {table}")


def assert_tables(found: list[dict[str, Any]], expected: list[dict[str, Any]], within: float) -> None:
    assert list(found[0]) == list(expected[0])
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        for column, value in theirs.items():
            if isinstance(value, str) or value is None:
                assert mine[column] == value, (column, mine, theirs)
            else:
                assert mine[column] == pytest.approx(value, abs=within, rel=1e-12), (column, mine, theirs)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "table"), CLUSTER)
def test_msprof_analyze_finds_in_our_databases_what_it_finds_in_theirs(
    mode: str, table: str, analyse: Analyse, database: Path, shared_data: Path
) -> None:
    theirs, mine = (
        rows(analyse(directory, mode) / "cluster_analysis.db", table)
        for directory in (shared_data / "ascend" / "db_level1", exported(database, "db"))
    )
    key = ("rank", "rank_id", "index", "hccl_op_name", "band_type", "package_size", "src_rank", "dst_rank")
    found, expected = (sorted(some, key=lambda row: [str(row.get(name)) for name in key]) for some in (mine, theirs))
    # Times of up to 200 events, each truncated to ns.
    assert_tables(found, expected, 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cluster_communication.json", "cluster_communication_matrix.json"])
def test_msprof_analyze_finds_in_our_text_what_it_finds_in_theirs(
    name: str, analyse: Analyse, text: Path, shared_data: Path
) -> None:
    theirs, mine = (
        leaves(json.loads((analyse(directory, "all") / name).read_text()))
        for directory in (shared_data / "ascend" / "text_level2", exported(text, "text"))
    )
    assert set(mine) == set(theirs)
    for path, value in theirs.items():
        # It divides sizes by times again, of which the shortest is 8 µs, truncated to ns.
        expected = value if isinstance(value, str) else pytest.approx(value, abs=1e-5, rel=1e-4)
        assert mine[path] == expected, path


@pytest.mark.slow
def test_msprof_analyze_finds_the_steps_of_our_text(analyse: Analyse, text: Path, shared_data: Path) -> None:
    theirs, mine = (
        cells(analyse(directory, "all") / "cluster_step_trace_time.csv")
        for directory in (shared_data / "ascend" / "text_level2", exported(text, "text"))
    )
    assert_rows(by(mine, "Index"), by(theirs, "Index"), 200 * NS)


@pytest.mark.parametrize(("source", "kind"), [("text", "text"), ("database", "db")])
def test_what_is_exported_is_read_again(source: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Every table is the same, except for the facts that the layout adds: who wrote it, sums of the data pipeline."""
    run = request.getfixturevalue(source)
    again = imported(exported(run, kind), tmp_path / "again")
    for before, after in zip(stepscope.open(run).ranks, stepscope.open(again).ranks, strict=True):
        for name in set(before.tables) - {"metadata"}:
            assert_frame_equal(canonical(before.tables, name), canonical(after.tables, name))
        said = [one.tables["metadata"].filter(~is_derived_fact()).collect() for one in (before, after)]
        facts = [dict(rows.iter_rows()) for rows in said]
        assert facts[0].items() <= facts[1].items()
        assert set(facts[1]) - set(facts[0]) <= {"written_by", "dataset.csv"}


@pytest.mark.parametrize(("source", "kind"), [("text", "db"), ("database", "text")])
def test_what_is_exported_in_the_other_sort_has_the_same_events(
    source: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    run = request.getfixturevalue(source)
    again = imported(exported(run, kind), tmp_path / "again")
    for before, after in zip(stepscope.open(run).ranks, stepscope.open(again).ranks, strict=True):
        for name in ("steps", "links", "allocations", "stacks", "operators", "tracks", "collectives", "kernels"):
            assert canonical(before.tables, name).height == canonical(after.tables, name).height, name
        spans = [
            one.tables["spans"].select("ts", "dur", pl.col("name").cast(pl.String)).collect() for one in (before, after)
        ]
        assert_frame_equal(spans[0].sort(pl.all()), spans[1].sort(pl.all()))


def test_text_and_database_of_one_kind_of_run_say_the_same(text: Path, database: Path, rank: int) -> None:
    """The two captures are of one training, recorded with two levels: what both levels record is there in both."""
    one, other = (stepscope.open(run).ranks[rank].tables for run in (text, database))
    kernels = [
        tables["tasks"].filter(pl.col("operation").is_not_null() & (pl.col("core").cast(pl.String) != "HCCL"))
        for tables in (one, other)
    ]
    columns = (
        *("operation", "core", "blocks", "mix_blocks", "input_shapes", "input_dtypes", "input_formats"),
        *("output_shapes", "output_dtypes", "output_formats", "context", "model"),
    )
    told = [frame.select(pl.col(columns).cast(pl.String)).collect() for frame in kernels]
    assert_frame_equal(told[0].sort(pl.all()), told[1].sort(pl.all()))
    for name in ("links", "steps", "stacks", "operators", "collectives"):
        assert one[name].collect().height == other[name].collect().height, name
    kinds = [
        tables["spans"].filter(pl.col("kind") != "runtime").group_by("kind").len().collect() for tables in (one, other)
    ]
    named = [dict(frame.rows()) for frame in kinds]
    # Level 2 names the marks of the profiler and two events otherwise.
    assert {kind: count for kind, count in named[0].items() if kind not in ("sync", "overhead")} == {
        kind: count for kind, count in named[1].items() if kind not in ("sync", "overhead")
    }
    bytes_ = [frame["collectives"].select("bytes_in", "operation", "dtype").collect() for frame in (one, other)]
    assert [row[0] for row in bytes_[0].rows()] == [row[0] for row in bytes_[1].rows()]
