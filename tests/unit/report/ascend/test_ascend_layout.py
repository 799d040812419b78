"""The layout of Ascend's deliverables: directories, files, names and arithmetic."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stepscope.analyse.results import Results
from stepscope.cli.main import main
from stepscope.errors import OutputError, UsageError
from stepscope.report import registry
from stepscope.report.ascend.calls import calls, communication_matrix, group_key, hccl_name, parallel_group_info
from stepscope.report.ascend.layout import Ascend
from stepscope.report.ascend.overlap_analysis import RankWork
from stepscope.report.ascend.text.csv_tables import kernel_shapes, kernel_types, operator_shapes
from stepscope.report.ascend.variant import MINDSPORE, PYTORCH
from stepscope.report.protocol import Source
from stepscope.report.safe_text import csv_cell
from stepscope.trace import tables
from stepscope.trace.tables import Tables
from tests.golden import hostile
from tests.unit.analyse.build import Rank

TRACE = Path(__file__).parents[3] / "data" / "kineto" / "alexnet_simple_add.json.gz"
BOTH = Ascend(types=("text", "db"))
OUTPUT = "ASCEND_PROFILER_OUTPUT"
MANIFEST = {
    "worker": "train_1",
    "process": 4711,
    "rank": 3,
    "window": {"start_ns": 1_763_000_000_123_456_789, "end_ns": 1_763_000_001_000_000_000},
}


def source(found: Tables, **manifest: Any) -> Source:
    return Source(found, Results(found), {**MANIFEST, **manifest})


def two_steps() -> Rank:
    """A device that computes from 100 to 900 and on across the end of step 1 (1000), and communicates meanwhile."""
    rank = Rank()
    compute, other = rank.stream(7), rank.stream(9)
    rank.span(compute, "kernel", 100, 800, "gemm")
    rank.span(compute, "kernel", 950, 250, "late")
    rank.span(compute, "memcpy", 1300, 50, "Memcpy HtoD")
    rank.span(compute, "kernel", 1500, 100, "gemm")
    reduce = rank.span(other, "collective", 800, 400, "ncclKernel_AllReduce", step=1)
    sent = rank.span(other, "collective", 1700, 200, "ncclKernel_SendRecv", step=2)
    known = {"group": "tp", "group_ranks": "[4, 0]", "transport": "nccl"}
    rank.add("collectives", span=reduce, operation="all_reduce", bytes_in=2_000_000, **known)
    rank.add("collectives", span=sent, operation="send", bytes_in=1_000_000, destination=4, **known)
    rank.step(1, 0, 1000)
    rank.step(2, 1000, 1000)
    return rank


def cells(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def slices(path: Path) -> list[dict[str, Any]]:
    return [event for event in json.loads(path.read_text(encoding="utf-8")) if event["ph"] == "X"]


def test_steps_count_whole_events_by_the_step_they_start_in() -> None:
    found = RankWork(two_steps().tables()).step_trace_time(MINDSPORE)
    first, second = found.rows(named=True)
    assert first["Computing"] == pytest.approx(1.05)  # 800, and all of the 250 ns that begin in step 1
    assert first["Communication"] == pytest.approx(0.4)
    assert first["Communication(Not Overlapped)"] == pytest.approx(0.05)  # 900 to 950
    assert first["Overlapped"] == pytest.approx(0.35)
    assert first["Free"] == 0
    assert first["Stage"] == pytest.approx(0.4)
    assert first["Preparing"] == pytest.approx(0.1)
    assert second["Computing"] == pytest.approx(0.1)
    assert second["Communication"] == second["Bubble"] == pytest.approx(0.2)
    assert second["Free"] == pytest.approx(0.4)  # the gaps 1200 to 1500 (a copy in it) and 1600 to 1700
    assert second["Stage"] == 0
    assert second["Preparing"] == pytest.approx(0.5)


def test_stage_is_the_communications_or_all_work() -> None:
    work = RankWork(two_steps().tables())
    assert work.step_trace_time(MINDSPORE)["Stage"].to_list() == pytest.approx([0.4, 0])
    # from 100 to 1200; from the free time at 1200 to 1900: a send does not count as bubble
    assert work.step_trace_time(PYTORCH)["Stage"].to_list() == pytest.approx([1.1, 0.7])


def test_a_rank_without_steps_has_step_0_and_one_without_anything_none() -> None:
    rank = two_steps()
    rank.rows["steps"].clear()
    (row,) = RankWork(rank.tables()).step_trace_time(MINDSPORE).rows(named=True)
    assert row["Step"] == 0
    assert row["Computing"] == pytest.approx(1.15)
    assert RankWork(tables.lazy(tables.complete({}))).step_trace_time(MINDSPORE).is_empty()


def test_operations_have_the_names_of_hccl() -> None:
    found = calls(two_steps().tables())
    key = group_key("tp")
    assert [call.name for call in found] == [f"hcom_allReduce__{key[-3:]}_0_1", f"hcom_send__{key[-3:]}_0_1"]
    assert [call.type for call in found] == ["hcom_allReduce_", "hcom_send_"]
    assert parallel_group_info(found) == {"tp": {"group_name": "tp", "group_rank": 0, "global_ranks": [0, 4]}}


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("all_reduce", "allReduce"),
        ("allreduce", "allReduce"),
        ("_allgather_base_", "allGather"),
        ("all_gather_into_tensor", "allGather"),
        ("reduce_scatter_tensor_coalesced", "reduceScatter"),
        ("all_to_all_single", "alltoAll"),
        ("broadcast", "broadcast"),
        ("irecv", "receive"),
        ("=cmd|' /C calc'!A0", "cmdccalca0"),
        ("", "other"),
    ],
)
def test_names_of_operations(operation: str, name: str) -> None:
    assert hccl_name(operation) == name


def test_the_key_of_a_group_is_the_one_ascend_gives_it() -> None:
    # The two names that the capture db_level1 has for its group, in COMMUNICATION_OP and in CommAnalyzerTime.
    assert group_key("90.91.105.46%enp189s0f0_60000_0_1736410538306028") == "17148521525495523210"


def test_numbers_of_operations_are_those_all_ranks_count_where_they_are_known() -> None:
    rank = two_steps()
    for number, row in enumerate(rank.rows["collectives"]):
        row["sequence"] = 40 + number
    assert [call.name.split("_")[-2] for call in calls(rank.tables())] == ["40", "41"]


def test_links_are_places_in_the_group() -> None:
    matrix = communication_matrix(calls(two_steps().tables()), stepless=False)
    key = group_key("tp")
    assert set(matrix["step1"]["collective"][f"allreduce-top1@{key}"]) == {"0-0"}
    sent = matrix["step2"]["p2p"][f"send-top1@{key}"]
    assert set(sent) == {"0-1", "0-0"}
    assert sent["0-1"]["Transit Size(MB)"] == 1
    assert sent["0-0"]["Transit Size(MB)"] == 0


def test_shapes_and_types_have_their_files_forms() -> None:
    assert kernel_shapes("[[8,3,2],[],[64]]") == '"8,3,2;;64"'
    assert operator_shapes("[[8, 3], []]") == "8,3;\n"
    assert operator_shapes("[[[1,2],[3]],[4]]") == "[[1,2],[3]];\n4"
    assert kernel_types('["float","ScalarList"]') == "FLOAT;SCALARLIST"
    assert kernel_types("not json") == "NOT JSON"


def test_a_directory_says_who_and_when(tmp_path: Path) -> None:
    (directory,) = BOTH.write(source(two_steps().tables()), tmp_path)
    assert directory.name == "train-1_4711_20251113021320123_ascend_ms"
    assert directory.stat().st_mode & 0o777 == 0o700
    info = json.loads((directory / "profiler_info_3.json").read_text())
    assert info["ms_profiler_info"] == {"rank_id": 3, "device_id": 0}
    assert (
        json.loads((directory / "profiler_metadata.json").read_text())["parallel_group_info"]["tp"]["group_rank"] == 0
    )
    assert {path.name for path in (directory / OUTPUT).iterdir()} == {
        "step_trace_time.csv",
        "kernel_details.csv",
        "op_statistic.csv",
        "trace_view.json",
        "communication.json",
        "communication_matrix.json",
        "ascend_mindspore_profiler_3.db",
        "communication_analyzer.db",
    }
    assert list(tmp_path.iterdir()) == [directory]


@pytest.mark.parametrize(
    ("manifest", "ending"),
    [
        ({"collectors": {"torch": {}}}, "ascend_pt"),
        ({"collectors": {"torch": {}, "mindspore": {"unused": "the program has not imported mindspore"}}}, "ascend_pt"),
        ({"format": "kineto"}, "ascend_pt"),
        ({"collectors": {"torch": {}, "mindspore": {}}}, "ascend_ms"),
        ({}, "ascend_ms"),
    ],
)
def test_the_variant_is_the_frameworks(manifest: dict[str, Any], ending: str, tmp_path: Path) -> None:
    (directory,) = Ascend().write(source(two_steps().tables(), **manifest), tmp_path)
    assert directory.name.endswith(ending)


def test_written_again_it_holds_the_new_files_only(tmp_path: Path) -> None:
    given = source(two_steps().tables())
    (first,) = Ascend().write(given, tmp_path)
    (again,) = Ascend(types=("db",)).write(given, tmp_path)
    assert again == first
    assert {path.suffix for path in (first / OUTPUT).iterdir()} == {".db"}


def test_a_directory_that_is_not_ours_stays(tmp_path: Path) -> None:
    given = source(two_steps().tables())
    (directory,) = Ascend().write(given, tmp_path)
    info = directory / "profiler_info_3.json"
    info.write_text(json.dumps({"rank_id": 3}))
    with pytest.raises(OutputError, match="stepscope did not write it"):
        Ascend().write(given, tmp_path)
    assert json.loads(info.read_text()) == {"rank_id": 3}
    assert list(tmp_path.iterdir()) == [directory]


def test_a_rank_without_anything_has_an_empty_timeline_only(tmp_path: Path) -> None:
    (directory,) = Ascend().write(source(tables.lazy(tables.complete({}))), tmp_path)
    assert [path.name for path in (directory / OUTPUT).iterdir()] == ["trace_view.json"]
    assert json.loads((directory / OUTPUT / "trace_view.json").read_text()) == []


@pytest.mark.parametrize("variant", [MINDSPORE, PYTORCH])
def test_databases_of_a_rank_without_anything_can_be_opened(variant: Any, tmp_path: Path) -> None:
    given = source(tables.lazy(tables.complete({})))
    (directory,) = Ascend(variant=variant, types=("db",)).write(given, tmp_path)
    with closing(sqlite3.connect(directory / OUTPUT / variant.profiler_database.format(rank=3))) as database:
        assert database.execute("SELECT count(*) FROM TASK").fetchone() == (0,)


def test_totals_are_the_same_in_tables_timeline_and_database(tmp_path: Path) -> None:
    (directory,) = BOTH.write(source(two_steps().tables()), tmp_path)
    output = directory / OUTPUT
    kernels = cells(output / "kernel_details.csv")
    computing = sum(float(row["Duration(us)"]) for row in kernels if row["Accelerator Core"] != "HCCL")
    communication = sum(float(row["Duration(us)"]) for row in kernels if row["Accelerator Core"] == "HCCL")
    assert computing == pytest.approx(1.15)
    assert sum(float(row["Total Time(us)"]) for row in cells(output / "op_statistic.csv")) == pytest.approx(computing)
    events = slices(output / "trace_view.json")
    assert sum(float(event["dur"]) for event in events if event["name"] == "Computing") == pytest.approx(computing)
    hccl = [event for event in events if event["name"].startswith("hcom_")]
    assert sum(float(event["dur"]) for event in hccl) == pytest.approx(communication)
    document = json.loads((output / "communication.json").read_text())
    entries = [entry for step in document.values() for sort in step.values() for entry in sort.items()]
    elapsed = [entry["Communication Time Info"]["Elapse Time(ms)"] for name, entry in entries if name[:5] != "Total"]
    assert sum(elapsed) * 1000 == pytest.approx(communication)
    with closing(sqlite3.connect(output / "ascend_mindspore_profiler_3.db")) as database:
        join = "SELECT sum(endNs - startNs) FROM TASK JOIN COMPUTE_TASK_INFO USING (globalTaskId)"
        assert database.execute(join).fetchone() == (1150,)
        assert database.execute("SELECT sum(endNs - startNs) FROM COMMUNICATION_OP").fetchone() == (600,)
        assert database.execute("SELECT id, startNs < endNs FROM STEP_TIME").fetchall() == [(1, 1), (2, 1)]


def test_stamps_keep_their_digits_and_end_with_a_tab(tmp_path: Path) -> None:
    (directory,) = Ascend().write(source(two_steps().tables()), tmp_path)
    first = cells(directory / OUTPUT / "kernel_details.csv")[0]
    assert first["Start Time(us)"] == "1763000000000000.100\t"
    assert [first[name] for name in ("Step ID", "Type", "Accelerator Core", "Duration(us)")] == [
        "",
        "gemm",
        "CUDA",
        "0.800",
    ]


def test_scopes_of_cells_are_bars_with_the_gaps_inside(tmp_path: Path) -> None:
    rank = Rank()
    thread = rank.thread()
    for number, (ts, module) in enumerate([(0, "net/a"), (20, "net/a"), (50, "net/b"), (90, None), (120, "net/b")]):
        span = rank.span(thread, "operator", ts, 10, f"MatMul{number}")
        if module:
            rank.add("operators", span=span, module=module)
    (directory,) = Ascend(variant=MINDSPORE).write(source(rank.tables()), tmp_path)
    events = json.loads((directory / OUTPUT / "trace_view.json").read_text())
    bars = [
        (event["name"], event["ts"][-3:], event["dur"]) for event in events if event["ph"] == "X" and event["pid"] == 3
    ]
    assert bars == [
        ("net", "000", "0.060"),
        ("net", "120", "0.010"),
        ("a", "000", "0.030"),
        ("b", "050", "0.010"),
        ("b", "120", "0.010"),
    ]


def test_the_host_waits_and_communicates_apart_from_its_work() -> None:
    rank = Rank()
    thread = rank.thread()
    rank.span(thread, "operator", 0, 100, "aten::mm")
    rank.span(thread, "data", 100, 100, "enumerate(DataLoader)#x.__next__")
    rank.span(thread, "operator", 120, 10, "aten::stack")
    rank.span(thread, "operator", 300, 100, "c10d::allreduce_", phase="communication")
    call = rank.span(thread, "collective", 310, 50, "record_param_comms")
    rank.add("collectives", span=call, operation="allreduce")
    rank.span(thread, "operator", 320, 10, "aten::empty")
    work = RankWork(rank.tables())
    assert work.pieces["name"].to_list() == ["aten::mm"]
    assert work.overlap["Computing"].length == 100
    assert len(work.calls) == 1


@pytest.mark.parametrize("variant", [MINDSPORE, PYTORCH])
def test_hostile_names_stay_text_and_slices_nest(variant: Any, tmp_path: Path) -> None:
    given = hostile.source()
    given = replace(given, results=Results(given.tables))
    (directory,) = Ascend(variant=variant, types=("text", "db")).write(given, tmp_path)
    output = directory / OUTPUT
    csv.field_size_limit(10_000_000)
    for path in output.glob("*.csv"):
        for row in csv.reader(io.StringIO(path.read_bytes().decode(), newline="")):
            for cell in row:
                assert cell[:1] not in ("=", "+", "@", "\t", "\r"), path.name
                assert cell[:1] != "-" or cell[1:2].isdigit(), path.name
    threads: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in slices(output / "trace_view.json"):
        assert event["tid"] > 0
        start, duration = (
            round(float(event[key][-12:] if isinstance(event[key], str) else event[key]) * 1000)
            for key in ("ts", "dur")
        )
        threads.setdefault((event["pid"], event["tid"]), []).append((start, start + duration))
    assert threads
    for spans in threads.values():
        _assert_nests(spans)


def _assert_nests(spans: list[tuple[int, int]]) -> None:
    open_ends: list[int] = []
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1]
        open_ends.append(end)


def test_hostile_names_of_an_npus_tasks_stay_text(tmp_path: Path) -> None:
    name = '"}],=cmd|\\x\n</script>\u2028'
    rank = Rank()
    stream, other = rank.stream(7), rank.stream(9)
    kernel = rank.span(stream, "kernel", 100, 800, name)
    part = rank.span(other, "collective", 800, 400, "hcom_allReduce__271_0_1")
    rank.add("tasks", span=kernel, type=name, operation=name, core=name, input_shapes=name, output_dtypes=name)
    rank.add("tasks", span=part, type="HCCL", core="HCCL", operation="hcom_allReduce_")
    rank.add("kernel_counters", span=kernel, name=name, value=1.0, unit=name)
    rank.add("collectives", span=part, operation=name, group=name, algorithm=name, dtype=name)
    rank.step(1, 0, 2000)
    (directory,) = BOTH.write(source(rank.tables()), tmp_path)
    (found,) = [event for event in slices(directory / OUTPUT / "trace_view.json") if event["name"] == name]
    assert found["args"]["Task Type"] == name
    (row,) = [row for row in cells(directory / OUTPUT / "kernel_details.csv") if row["Accelerator Core"] != "HCCL"]
    assert row["Name"] == row["Type"] == csv_cell(name)
    (database,) = (directory / OUTPUT).glob("ascend_*_profiler_*.db")
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM STRING_IDS WHERE value = ?", (name,)).fetchone() == (1,)


def test_the_data_pipeline_has_its_rank_in_the_name(tmp_path: Path) -> None:
    pipeline = {"minddata_pipeline_raw": pl.DataFrame({"op_id": [0]}), "minddata_pipeline_summary": {"op_ids": [0, 1]}}
    given = source(two_steps().tables())
    (directory,) = Ascend().write(replace(given, results={**given.results, **pipeline}), tmp_path)
    names = sorted(path.name for path in (directory / OUTPUT).glob("minddata*"))
    assert names == [
        "minddata_pipeline_raw_3.csv",
        "minddata_pipeline_summary_3.csv",
        "minddata_pipeline_summary_3.json",
    ]


def test_unknown_layouts_and_types_name_the_known_ones() -> None:
    with pytest.raises(UsageError, match="ascend_pt"):
        registry.layout("nsight")
    with pytest.raises(UsageError, match="text, db"):
        registry.layout("ascend", "xlsx")


def test_export_prints_the_directories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(TRACE), "--output", str(tmp_path), "--quiet"]) == 0
    run = capsys.readouterr().out.strip()
    assert main(["export", run, "--layout", "ascend"]) == 0
    (directory,) = capsys.readouterr().out.split()
    assert Path(directory).parent == Path(run) / "ascend"
    assert (Path(directory) / OUTPUT / "kernel_details.csv").exists()
    assert main(["export", run, "--layout", "ascend", "--type", "pdf"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(SystemExit):
        main(["export", run, "--layout", "ascend", "--to", "csv"])
