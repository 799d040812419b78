"""Databases of Ascend's profilers: real ones, those of every documented version, damaged and foreign ones."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from stepscope.errors import DamagedTraceError, InputError
from stepscope.read.ascend.ascend_frames import FRAMES, Frames
from stepscope.read.ascend.database import event_database
from stepscope.trace.losses import LossLedger

T0 = 1736410576000000000
#: pid 7, tid 9
THREAD = 7 << 32 | 9
Rows = Mapping[str, Sequence[Mapping[str, object]]]


def make(path: Path, tables: Rows) -> Path:
    """Write a database: table → its rows."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        for name, rows in tables.items():
            connection.execute(f"CREATE TABLE {name} ({', '.join(rows[0])})")
            marks = ", ".join("?" * len(rows[0]))
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", [tuple(row.values()) for row in rows])
        connection.commit()
    return path


def strings(*texts: str) -> list[dict[str, object]]:
    return [{"id": number, "value": text} for number, text in enumerate(texts)]


def read(path: Path | None, analysis: Path | None = None) -> tuple[Frames, dict[str, int]]:
    ledger = LossLedger("test")
    frames = event_database.read(path, analysis, ledger)
    assert {name: dict(frame.schema) for name, frame in frames.items()} == FRAMES
    return frames, {loss.what: loss.count for loss in ledger.rows()}


def row(frames: Frames, name: str, index: int = 0) -> dict[str, object]:
    """Return a row of a frame without its nulls."""
    return {key: value for key, value in frames[name].row(index, named=True).items() if value is not None}


@pytest.fixture(scope="module")
def real(shared_data: Path) -> Path:
    return shared_data / "ascend" / "db_level1" / "rank0_ascend_pt" / "ASCEND_PROFILER_OUTPUT"


@pytest.fixture(scope="module")
def events(real: Path) -> Frames:
    frames, losses = read(real / "ascend_pytorch_profiler_0.db", real / "analysis.db")
    assert losses == {}
    return frames


def test_a_real_capture_is_read_whole(events: Frames) -> None:
    heights = {name: frame.height for name, frame in events.items()}
    # Of 552 tasks 296 are parts of communication, and 17 have rows for their parts too.
    assert heights["communication_tasks"] == 296
    assert heights["tasks"] == 552 - 296 - 17
    assert heights["host"] == 2460 + 710
    assert {name: heights[name] for name in ("task_counters", "communications", "blocks", "matrix", "steps")} == {
        "task_counters": 5180,
        "communications": 4,
        "blocks": 184,
        "matrix": 48,
        "steps": 1,
    }
    assert heights["memory"] == 990 + 14


def test_shapes_and_types_are_told_apart_where_the_file_confuses_them(events: Frames) -> None:
    operators = events["host"].filter(events["host"]["name"] == "aten::empty")
    assert (operators["shapes"][0], operators["dtypes"][0]) == (";;;;;", "ScalarList;Scalar;Scalar;None;Scalar;None")


def test_counters_have_the_units_of_the_text_files(events: Frames) -> None:
    kernel = events["tasks"].with_row_index().filter(events["tasks"]["name"] == "Conv2D1").row(0, named=True)
    counters = events["task_counters"].filter(events["task_counters"]["row"] == kernel["index"])
    found = {name: (value, unit) for _, name, value, unit in counters.iter_rows()}
    assert found["aicore_time"] == (pytest.approx(311.573, abs=0.001), "us")
    assert found["aic_mac_ratio"][1] == found["aic_total_cycles"][1] == ""
    hbm = events["counters"].filter(events["counters"]["name"] == "HBM 0/Read")
    # 28937346 bytes/s, by MB of 1024 * 1024.
    assert hbm["value"][1] == pytest.approx(27.5968, abs=0.0001)
    assert set(hbm["unit"]) == {"MB/s"}


def test_arrows_join_what_shares_a_connection(events: Frames) -> None:
    host, tasks = events["host"], events["tasks"]
    for start, frame, end, sort in events["flows"].iter_rows():
        if sort == "launch" and frame == "tasks":
            assert host["connection"][start] == tasks["connection"][end]
            # The clocks of host and device agree to about a µs.
            assert host["ts"][start] <= tasks["ts"][end] + 10_000
        if sort == "queue":
            assert (host["sort"][start], host["sort"][end]) == ("enqueue", "dequeue")
    counted = events["flows"].group_by("sort").len()
    assert dict(counted.iter_rows())["forward_backward"] == 27


def test_operations_have_the_times_of_the_other_database(events: Frames) -> None:
    first = row(events, "communications")
    assert first["transit"] == 228565
    assert first["wait"] == 3568891
    assert first["began"] == 1736410576431645250
    assert first["dtype"] == "FP32"
    sums = events["bandwidths"].filter(events["bandwidths"]["packet"].is_null())
    assert sums["bytes"][0] == 28647232


def test_columns_of_later_versions(tmp_path: Path) -> None:
    task = {"startNs": T0, "endNs": T0 + 5000, "deviceId": 1, "connectionId": 3, "globalTaskId": 0, "taskType": 0}
    task |= {"contextId": 4294967295, "streamId": 2, "taskId": 8, "modelId": 4294967295}
    kernel = {"name": 1, "globalTaskId": 0, "blockNum": 24, "mixBlockNum": 48, "taskType": 2, "opType": 3}
    kernel |= {"inputShapes": 4, "opState": 5, "hf32Eligible": 6, "blockDim": 7, "gridDim": 7}
    tables: Rows = {
        "STRING_IDS": strings("MIX_AIC", "net/MatMul", "MIX_AIC", "MatMul", '"2,3;3,4"', "static", "YES", "N/A"),
        "TASK": [task, {**task, "globalTaskId": 1, "startNs": T0 + 6000, "endNs": T0 + 9000}],
        "COMPUTE_TASK_INFO": [kernel],
        "MEMCPY_INFO": [{"globalTaskId": 1, "size": 4096, "memcpyOperation": 1}],
        "ENUM_MEMCPY_OPERATION": [{"id": 1, "name": "host to device"}],
        "META_DATA": [{"name": "SCHEMA_VERSION_MAJOR", "value": "2"}, {"name": "note", "value": "plain text"}],
    }
    frames, losses = read(make(tmp_path / "a.db", tables))
    found = row(frames, "tasks")
    assert (found["blocks"], found["mix_blocks"], found["input_shapes"]) == (24, 48, "2,3;3,4")
    assert (found["state"], found["hf32"], found["model"], found.get("context")) == ("static", "YES", 4294967295, None)
    copy = row(frames, "tasks", 1)
    assert (copy["bytes"], copy["direction"], copy["name"]) == (4096, "host to device", "MIX_AIC")
    assert dict(frames["facts"].rows()) == {"note": '"plain text"'}
    assert losses == {"version_unknown": 1}


def test_ranges_garbage_and_calls_of_the_system(tmp_path: Path) -> None:
    mark = {"startNs": T0, "endNs": T0 + 10, "eventType": 2, "message": 0, "globalTid": THREAD, "connectionId": 5}
    task = {"startNs": T0 + 2, "endNs": T0 + 9, "connectionId": 5, "globalTaskId": 0, "taskType": 3}
    tables: Rows = {
        "STRING_IDS": strings("forward", "model", "futex", "MSTX"),
        "MSTX_EVENTS": [{**mark, "domainId": 1}, {**mark, "domainId": 65535, "connectionId": 4294967295}],
        "GC_RECORD": [{"startNs": T0, "endNs": T0 + 7, "globalTid": THREAD}],
        "OSRT_API": [{"name": 2, "globalTid": THREAD, "startNs": T0, "endNs": T0 + 3}],
        "TASK": [task],
    }
    frames, losses = read(make(tmp_path / "a.db", tables))
    by_sort = {one["sort"]: one for one in frames["host"].rows(named=True) if one["domain"] or one["sort"] != "range"}
    assert (by_sort["range"]["name"], by_sort["range"]["domain"]) == ("forward", "model")
    assert (by_sort["range"]["process"], by_sort["range"]["thread"]) == (7, 9)
    assert (by_sort["garbage"]["dur"], by_sort["api"]["name"], by_sort["api"]["level"]) == (7, "futex", "system")
    assert frames["flows"].rows() == [
        (next(i for i, d in enumerate(frames["host"]["domain"]) if d), "tasks", 0, "range")
    ]
    assert losses == {}


def test_counters_of_every_table(tmp_path: Path) -> None:
    at = {"deviceId": 0, "timestampNs": T0}
    tables: Rows = {
        "STRING_IDS": strings("read", "AIC", "OTHERS"),
        "HCCS": [{**at, "txThroughput": 3 << 20, "rxThroughput": 0}],
        "PCIE": [{**at, "txPostAvg": 2 << 20, "txNonpostLatencyAvg": 4000}],
        "ROCE": [{**at, "rxByteRate": 1 << 20, "txDropped": 6, "funcId": 1}],
        "DDR": [{**at, "read": 5 << 20, "write": 0}],
        "QOS": [{**at, "eventName": 2, "bandwidth": 1 << 20}],
        "CPU_USAGE": [{"timestampNs": T0, "cpuId": 3, "usage": 12.5}],
        "NETDEV_STATS": [{**at, "macTxBandwidth": 1 << 20, "roceTxPkt": 8}],
        "SAMPLE_PMU_TIMELINE": [{**at, "totalCycle": 9, "usage": 50, "freq": 1800, "coreId": 2, "coreType": 1}],
    }
    frames, losses = read(make(tmp_path / "a.db", tables))
    found = {(group, name): (value, unit) for _, _, group, name, value, unit in frames["counters"].iter_rows()}
    assert found["HCCS", "Tx"] == (3, "MB/s")
    assert found["PCIe", "PCIe_post/Tx avg"] == (2, "MB/s")
    assert found["PCIe", "PCIe_nonpost_latency/Tx avg"] == (4, "us")
    assert found["RoCE", "Port 1/Rx bandwidth"] == (1, "MB/s")
    assert found["RoCE", "Port 1/Tx dropped"] == (6, "")
    assert found["DDR", "Read"] == (5, "MB/s")
    assert found["QoS", "QoS OTHERS"] == (1, "")
    assert found["Host CPU", "CPU 3"] == (12.5, "%")
    assert found["NIC", "macTxBandwidth"] == (1, "MB/s")
    assert found["NIC", "roceTxPkt"] == (8, "")
    assert found["AI Core Utilization", "AIC 2/Utilization"] == (50, "%")
    assert frames["counters"].filter(frames["counters"]["group"] == "Host CPU")["device"].to_list() == [None]
    assert losses == {}


def test_blocks_are_made_of_changes_where_no_framework_made_them(tmp_path: Path) -> None:
    change = {"operatorName": 0, "addr": 64, "type": 1, "size": 512, "timestampNs": T0, "globalTid": THREAD}
    change |= {"totalAllocate": 512, "totalReserve": 1024, "component": 3, "deviceId": 0}
    later = {**change, "type": 2, "timestampNs": T0 + 9, "totalAllocate": 0}
    again = {**change, "timestampNs": T0 + 20, "operatorName": 4}
    tables: Rows = {
        "STRING_IDS": strings("MatMul", "allocate", "release", "GE", "Add"),
        "NPU_OP_MEM": [change, later, again],
    }
    frames, losses = read(make(tmp_path / "a.db", tables))
    first, second = (row(frames, "blocks", index) for index in (0, 1))
    assert (first["name"], first["ts"], first["release"], first["thread"]) == ("MatMul", T0, T0 + 9, 9)
    assert (second["name"], second.get("release")) == ("Add", None)
    assert losses == {}


def test_foreign_and_missing_tables_are_counted(tmp_path: Path) -> None:
    tables: Rows = {"COMPUTE_TASK_INFO": [{"name": 1, "globalTaskId": 2}], "nothing_of_ours": [{"a": 1}]}
    frames, losses = read(make(tmp_path / "a.db", tables))
    assert frames["tasks"].is_empty()
    assert losses["table_missing"] == 2
    assert losses["table_unknown"] == 1


def test_values_of_another_sort_are_null_and_counted(tmp_path: Path) -> None:
    call = {"startNs": str(T0), "endNs": "soon", "type": 20000, "globalTid": THREAD, "connectionId": 1, "name": 99}
    tables: Rows = {"STRING_IDS": strings("aclInit"), "CANN_API": [call, {**call, "startNs": b"\xff", "name": 0}]}
    frames, losses = read(make(tmp_path / "a.db", tables))
    assert frames["host"].is_empty()
    # Two ends, one start, one name.
    assert losses == {"value_unreadable": 4, "event_bad_time": 2}


def test_names_that_are_no_text_are_replaced_and_counted(tmp_path: Path) -> None:
    tables: Rows = {"STRING_IDS": strings("x"), "CANN_API": [{"startNs": T0, "endNs": T0, "name": 1}]}
    path = make(tmp_path / "a.db", tables)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO STRING_IDS VALUES (1, CAST(x'61ff' AS TEXT))")
        connection.commit()
    frames, losses = read(path)
    assert frames["host"]["name"].to_list() == ["a\N{REPLACEMENT CHARACTER}"]
    assert losses == {"text_not_utf8": 1}


@pytest.mark.parametrize("part", [0.02, 0.3, 0.5, 0.9, 0.99])
def test_a_cut_file_gives_what_is_there_or_one_error(part: float, real: Path, tmp_path: Path, events: Frames) -> None:
    whole = (real / "ascend_pytorch_profiler_0.db").read_bytes()
    cut = tmp_path / "cut.db"
    cut.write_bytes(whole[: int(len(whole) * part)])
    try:
        frames, losses = read(cut)
    except DamagedTraceError as error:
        assert str(cut) in error.message
        assert part < 0.5
    else:
        assert losses["database_damaged"] > 0
        assert 0 < frames["tasks"].height <= events["tasks"].height


def test_damage_in_the_middle_keeps_other_tables(real: Path, tmp_path: Path) -> None:
    data = bytearray((real / "ascend_pytorch_profiler_0.db").read_bytes())
    data[400_000:440_000] = os.urandom(40_000)
    path = tmp_path / "damaged.db"
    path.write_bytes(data)
    frames, losses = read(path)
    assert losses.get("database_damaged", 0) + losses.get("value_unreadable", 0) > 0
    assert sum(frame.height for frame in frames.values()) > 1000


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0", b"SQLite format 3\0" + b"\xff" * 4096, b"{}"])
def test_what_is_no_database_is_one_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(content)
    with pytest.raises(DamagedTraceError):
        read(path)


def test_a_missing_file_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read(tmp_path / "a.db")


def test_nothing_is_written_beside_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "run #1?mode=rw"
    folder.mkdir()
    path = make(folder / "a%20b.db", {"META_DATA": [{"name": "a", "value": "1"}]})
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("INSERT INTO META_DATA VALUES ('b', '2')")
        writer.commit()
        before = {one.name: one.stat().st_mtime_ns for one in folder.iterdir()}
        frames, _ = read(path)
        assert {one.name: one.stat().st_mtime_ns for one in folder.iterdir()} == before
    assert ("a", "1") in frames["facts"].rows()


def test_programs_in_the_file_do_not_run(tmp_path: Path) -> None:
    path = make(tmp_path / "a.db", {"STRING_IDS": strings("x")})
    with closing(sqlite3.connect(path)) as connection:
        endless = (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS startNs, i AS endNs FROM n"
        )
        connection.execute(f"CREATE VIEW TASK AS {endless}")
        connection.execute("CREATE TABLE CANN_API (name, startNs AS (length(zeroblob(1000000000))), endNs)")
        connection.execute("INSERT INTO CANN_API VALUES (0, 1)")
        connection.commit()
    frames, _ = read(path)
    assert frames["tasks"].is_empty()
    assert frames["host"].is_empty()
