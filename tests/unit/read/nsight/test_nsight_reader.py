"""Nsight Systems' export: what it says of kernels, calls, ranges and OS calls, against SQL on the same file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.errors import NotATraceError
from stepscope.read import read_files
from stepscope.read.sniff import look
from stepscope.trace.tables import Frames
from tests.unit import nsight_build
from tests.unit.nsight_build import BACKWARD_THREAD, BEGIN, KERNELS, MAIN, PROCESS

STEPS = 4


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return nsight_build.write(tmp_path / "report.sqlite", STEPS)


def asked(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def spans(path: Path) -> pl.DataFrame:
    frames = read_files([path])
    tracks = frames["tracks"].select(track="id", thread="thread", lane="name", of="process")
    found = frames["spans"].join(tracks, on="track", how="left")
    return found.with_columns(pl.col("name").cast(pl.String), pl.col("kind").cast(pl.String))


def losses(frames: Frames) -> dict[str, int]:
    return dict(frames["losses"].select(pl.col("what").cast(pl.String), "count").rows())


def test_kernels_are_those_of_the_database(file: Path) -> None:
    wanted = asked(
        file,
        f"""SELECT value, count(*), sum(end - start), min(start) + {BEGIN} FROM CUPTI_ACTIVITY_KIND_KERNEL
            JOIN StringIds ON id = demangledName GROUP BY value""",
    )
    found = spans(file).filter(pl.col("kind").is_in(["kernel", "collective"]))
    assert sorted(found.group_by("name").agg(pl.len(), pl.col("dur").sum(), pl.col("ts").min()).rows()) == wanted
    assert set(found.filter(pl.col("kind") == "collective")["name"]) == {KERNELS[2]}
    kernels = read_files([file])["kernels"]
    sizes = kernels.drop_nulls("grid").select("grid", "block", "registers", "shared_memory", "stream").unique().rows()
    assert sorted(sizes, key=str) == [([8, 2, 1], [128, 1, 1], 40, 1536, 13), ([8, 2, 1], [128, 1, 1], 40, 1536, 7)]


def test_copies_and_fills_have_bytes_and_the_names_that_kineto_gives(file: Path) -> None:
    named = spans(file).select("id", "name", "dur")
    found = read_files([file])["kernels"].join(named, left_on="span", right_on="id").drop_nulls("bytes")
    rows = found.group_by("name").agg(pl.len(), pl.col("bytes").sum(), pl.col("dur").sum()).sort("name").rows()
    (copied,) = asked(file, "SELECT count(*), sum(bytes), sum(end - start) FROM CUPTI_ACTIVITY_KIND_MEMCPY")
    (cleared,) = asked(file, "SELECT count(*), sum(bytes), sum(end - start) FROM CUPTI_ACTIVITY_KIND_MEMSET")
    assert rows == [("Memcpy HtoD (Pinned -> Device)", *copied), ("Memset (Device)", *cleared)]


def test_device_work_has_its_call_and_its_operator(file: Path) -> None:
    frames = read_files([file])
    names = frames["spans"].select("id", pl.col("name").cast(pl.String))
    joined = frames["kernels"].join(names.rename({"id": "launch", "name": "call"}), on="launch")
    joined = joined.join(names.rename({"id": "operator", "name": "by"}), on="operator")
    assert sorted(joined.group_by("call", "by").len().rows()) == [
        ("cuLaunchKernelEx", "AddmmBackward0", STEPS),
        ("cudaLaunchKernel", "aten::addmm", STEPS),
        ("cudaMemcpyAsync", "aten::to", STEPS),
    ]
    assert losses(frames) == {"correlation_dangling": STEPS}  # the fills, whose calls are not there


def test_ranges_of_emit_nvtx_are_operators(file: Path) -> None:
    frames = read_files([file])
    found = spans(file).filter(pl.col("kind") == "operator")
    counted = found.group_by("name", "thread").len().sort("name").rows()
    assert counted == [
        ("AddmmBackward0", BACKWARD_THREAD, STEPS),
        ("aten::addmm", MAIN, STEPS),
        ("aten::to", MAIN, STEPS),
        ("autograd::engine::evaluate_function: AddmmBackward0", BACKWARD_THREAD, STEPS),
    ]
    operators = frames["operators"].join(found.select(span="id", name="name"), on="span")
    shapes = operators.filter(pl.col("name") == "aten::addmm")["shapes"].cast(pl.String).unique().to_list()
    assert shapes == ["[[64],[8,3],[]]"]
    assert operators.filter(pl.col("name") == "aten::to")["external"].to_list() == [3] * STEPS
    phases = found.group_by("name").agg(pl.col("phase").cast(pl.String).unique()).sort("name").rows()
    assert [phase for _, (phase,) in phases] == ["backward", "forward", "other", "backward"]
    forward = found.filter(pl.col("name") == "aten::addmm").sort("ts")
    assert forward["sequence"].to_list() == list(range(STEPS))
    flows = frames["flows"].filter(pl.col("kind").cast(pl.String) == "forward_backward")
    assert flows["from"].to_list() == forward["id"].to_list()


def test_numbered_ranges_are_steps_and_results_come_of_them(file: Path) -> None:
    run = stepscope.open(file)
    steps = run.tables["steps"].collect()
    assert steps["number"].to_list() == [5, 6, 7, 8]
    assert steps["ts"].to_list() == [BEGIN + 50_000 + 10_000 * step for step in range(STEPS)]
    times = run.result("step_trace_time")
    assert isinstance(times, pl.DataFrame)
    assert times["Step"].to_list() == [5, 6, 7, 8]
    assert run.result("device_time")["Device_id"].to_list() == ["cuda:0"]  # type: ignore[union-attr]
    (said,) = run.tables["tracks"].select("host").unique().collect().rows()
    assert said == ("node-3",)


def test_threads_have_their_names_and_os_calls_their_time(file: Path) -> None:
    found = spans(file)
    assert set(found.filter(pl.col("thread") == BACKWARD_THREAD)["lane"]) == {"pt_autograd_0"}
    waits = found.filter(pl.col("name") == "poll")
    ((count, time),) = asked(file, "SELECT count(*), sum(end - start) FROM OSRT_API")
    assert (waits.height, waits["dur"].sum(), set(waits["kind"])) == (count, time, {"other"})
    ((held, kind),) = found.filter(pl.col("lane") == "profiler overhead").select("dur", "kind").rows()
    assert (held, kind) == (5_000, "overhead")
    assert set(found.filter(pl.col("kind") == "sync").select("name", "lane", "dur").rows()) == {
        ("Stream Sync", "stream 7 synchronisation", 800)
    }


def test_device_memory_is_taken_and_freed(file: Path) -> None:
    rows = read_files([file])["allocations"].select("ts", pl.col("device").cast(pl.String), "address", "bytes").rows()
    at = BEGIN + 50_000 + 8_600
    assert rows[:2] == [(at, "cuda:0", 1 << 33, 2 << 20), (at + 1, "cuda:0", 1 << 33, -(2 << 20))]


def test_processes_that_count_their_calls_alike_are_told_apart(tmp_path: Path) -> None:
    export = nsight_build.filled(tmp_path / "two.sqlite", 2)
    other = PROCESS + 7
    export.call("cudaLaunchKernel_v7000", 51_200, 51_300, 2, on=(other, other))
    export.kernel("other kernel", 51_500, 52_500, 2, other)
    frames = read_files([export.close()])
    names = frames["spans"].join(frames["tracks"].select(track="id", of="process"), on="track")
    names = names.select("id", "of", pl.col("name").cast(pl.String))
    joined = frames["kernels"].join(names.rename({"id": "launch", "of": "caller", "name": "call"}), on="launch")
    joined = joined.join(names.rename({"id": "span"}), on="span")
    assert set(joined.select("of", "caller").rows()) == {(PROCESS, PROCESS), (other, other)}
    assert joined.filter(pl.col("name") == "other kernel").height == 1


def test_a_table_that_is_not_known_keeps_its_time(file: Path) -> None:
    thread = nsight_build.global_tid(PROCESS, MAIN)
    nsight_build.again(
        file,
        'CREATE TABLE NEW_HOST_EVENTS (start INTEGER, "end" INTEGER, globalTid INTEGER, nameId INTEGER)',
        f"INSERT INTO NEW_HOST_EVENTS VALUES (1000, 3000, {thread}, (SELECT id FROM StringIds WHERE value = 'poll'))",
        'CREATE TABLE NEW_DEVICE_EVENTS (start INTEGER, "end" INTEGER, deviceId INTEGER, streamId INTEGER)',
        "INSERT INTO NEW_DEVICE_EVENTS VALUES (2000, 2500, 0, 7)",
        "CREATE TABLE GPU_METRICS (timestamp INTEGER, value INTEGER)",
    )
    frames = read_files([file])
    found = spans(file).filter(pl.col("ts") < BEGIN + 40_000)
    assert sorted(found.select("name", "kind", "dur", "lane").rows()) == [
        ("NEW_DEVICE_EVENTS", "other", 500, "stream 7"),
        ("poll", "other", 2_000, f"thread {MAIN}"),
    ]
    advice = " ".join(frames["losses"]["advice"].to_list())
    assert all(f"Table {name}." in advice for name in ("NEW_HOST_EVENTS", "NEW_DEVICE_EVENTS", "GPU_METRICS"))


def test_whole_graphs_count_as_computing(file: Path) -> None:
    nsight_build.again(
        file,
        """CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, "end" INTEGER, deviceId INTEGER,
            contextId INTEGER, streamId INTEGER, correlationId INTEGER, graphId INTEGER, graphExecId INTEGER)""",
        "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1, 9, 0, 1, 7, 0, 3, 4)",
    )
    (row,) = spans(file).filter(pl.col("name") == "CUDA graph 3").select("kind", "dur", "lane").rows()
    assert row == ("other", 8, "stream 7")


def test_what_nsight_says_that_it_dropped_is_a_loss_in_its_words(tmp_path: Path) -> None:
    export = nsight_build.filled(tmp_path / "report.sqlite")
    dropped = "CUPTI dropped 120 records:\n the buffer overflowed."
    for text in ("Profiling has started.", dropped, dropped, "Number of CUDA events collected: 120."):
        export.add("DIAGNOSTIC_EVENT", timestamp=5, timestampType=1, source=1, severity=2, text=text)
    losses = read_files([export.close()])["losses"].select(
        pl.col("what", "severity").cast(pl.String), "count", "advice"
    )
    (told,) = losses.filter(pl.col("what") == "events_dropped").rows()
    assert told[:3] == ("events_dropped", "data_loss", 1)
    assert told[3].startswith("Nsight Systems: CUPTI dropped 120 records: the buffer overflowed. The profiler says")


def test_nothing_in_the_file_runs(file: Path) -> None:
    nsight_build.again(
        file,
        "CREATE TRIGGER t AFTER INSERT ON OSRT_API BEGIN DELETE FROM StringIds; END",
        "DROP TABLE OSRT_API",
        """CREATE VIEW OSRT_API AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n)
            SELECT start, start AS "end", 1 AS globalTid, 1 AS nameId FROM n""",
        'CREATE TABLE "x"" (start); DROP" (start INTEGER, "end" INTEGER, globalTid INTEGER)',
    )
    assert "poll" not in spans(file)["name"].to_list()


TABLES = [text.split(" ")[0] for text in nsight_build.SCHEMA.split("CREATE TABLE ")[1:]]


@pytest.mark.parametrize("table", TABLES)
def test_any_table_may_be_missing(table: str, file: Path) -> None:
    frames = read_files([nsight_build.again(file, f"DROP TABLE {table}")])
    assert frames["spans"].height
    assert ("start_unknown" in losses(frames)) == (table == "TARGET_INFO_SESSION_START_TIME")


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_any_column_may_be_missing(table: str, file: Path) -> None:
    names = [row[1] for row in asked(file, f"PRAGMA table_info({table})") if not row[5]]
    for name in names[:-1]:  # a table keeps one
        nsight_build.again(file, f'ALTER TABLE {table} DROP COLUMN "{name}"')
        assert read_files([file])["spans"].height


@pytest.mark.parametrize(
    ("change", "loss"),
    [
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 9223372036854775807", "event_bad_time"),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon'", "event_bad_time"),
        ('UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = "end" + 1', "event_negative_duration"),
        ('UPDATE NVTX_EVENTS SET "end" = NULL', "event_unmatched_begin"),
        ("UPDATE NVTX_EVENTS SET eventType = 34", "event_unknown_kind"),
        ("UPDATE StringIds SET value = CAST(x'ff' AS TEXT)", "text_not_utf8"),
        ("UPDATE CUDA_GPU_MEMORY_USAGE_EVENTS SET bytes = -1", "event_damaged"),
        ("UPDATE META_DATA_EXPORT SET value = '99.1'", "version_unknown"),
        ("UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = -5", "start_unknown"),
    ],
)
def test_damage_is_counted(file: Path, change: str, loss: str) -> None:
    assert losses(read_files([nsight_build.again(file, change)]))[loss] > 0


@pytest.mark.slow
@pytest.mark.parametrize("value", [-(1 << 63), (1 << 63) - 1, 1 << 40, -1, "'text'", "NULL", "1.5", "x'00'"])
def test_no_value_breaks_the_reader(file: Path, value: object) -> None:
    content = file.read_bytes()
    columns = {table: asked(file, f"PRAGMA table_info({table})") for table in TABLES}
    for place in range(max(map(len, columns.values()))):
        file.write_bytes(content)
        chosen = {table: rows[place] for table, rows in columns.items() if place < len(rows) and not rows[place][5]}
        nsight_build.again(file, *(
            f'UPDATE {table} SET "{row[1]}" = {value}' for table, row in chosen.items() if value != "NULL" or not row[3]
        ))  # fmt: skip
        assert set(read_files([file])) >= {"spans"}


def test_names_stay_text(tmp_path: Path) -> None:
    hostile = ("\x1b[31m\n=1+1", "<script>", "\u202e" * 3, "a" * 5000)
    path = nsight_build.write(tmp_path / "r.sqlite", 4, hostile)
    assert set(spans(path).filter(pl.col("kind") == "kernel")["name"]) == set(hostile)


def test_a_report_that_is_not_exported_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "report1.nsys-rep").write_bytes(bytes(range(100)))
    with pytest.raises(NotATraceError, match="nsys export --type sqlite"):
        look(tmp_path / "report1.nsys-rep")


def test_exports_in_a_directory_are_ranks_and_other_databases_are_not(tmp_path: Path) -> None:
    for rank in (0, 1):
        nsight_build.write(tmp_path / f"report_rank{rank}.sqlite", 2)
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as connection:
        connection.execute("CREATE TABLE t (a)")
    assert [(one.name, one.format, one.rank) for one in look(tmp_path)] == [
        ("report_rank0.sqlite", "nsight", 0),
        ("report_rank1.sqlite", "nsight", 1),
    ]
