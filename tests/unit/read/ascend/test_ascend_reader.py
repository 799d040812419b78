"""Ascend captures as text: every file reaches its table, and files of one thing say it together."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepscope
from stepscope.analyse import results
from stepscope.errors import NotATraceError
from stepscope.read import read_files, sniff
from stepscope.read.ascend.ascend_frames import FRAMES, complete
from stepscope.read.ascend.ascend_kinds import kind_of_task, operation
from stepscope.read.ascend.ascend_tables import shapes_json, texts_json
from stepscope.read.ascend.text import text_values
from stepscope.read.ascend.text.op_range import CpuCounter
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import Frames, lazy
from tests.unit import ascend_build as build
from tests.unit.ascend_build import GROUP, OUTPUT, START, capture, us
from tests.unit.read.ascend.database.test_event_database import make

T0 = START * 1000


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Frames:
    return read_files([capture(tmp_path_factory.mktemp("ascend"))])


def rows(frame: pl.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return frame.select(columns).rows()


def spans(read: Frames, kind: str) -> pl.DataFrame:
    return read["spans"].filter(pl.col("kind") == kind).sort("ts")


def losses(read: Frames) -> dict[str, str]:
    return dict(read["losses"].select("what", "source").iter_rows())


def test_nothing_is_lost_of_a_sound_capture(read: Frames) -> None:
    assert losses(read) == {}


def test_steps(read: Frames) -> None:
    assert rows(read["steps"], "number", "ts", "dur", "source") == [(7, T0, 1_000_000, "declared")]


def test_kernels_lie_on_their_stream_to_the_nanosecond(read: Frames) -> None:
    kernels = spans(read, "kernel")
    assert rows(kernels, "ts", "dur", "step") == [(T0 + 100_125 + 50_000 * n, 20_500, 7) for n in range(3)]
    (track,) = kernels["track"].unique()
    place = read["tracks"].row(track, named=True)
    assert (place["kind"], place["device"], place["stream"]) == ("stream", "npu:0", 2)


def test_kernels_know_their_launch_and_their_operator(read: Frames) -> None:
    kernels = read["kernels"].join(spans(read, "kernel").select(pl.col("id").alias("span")), on="span")
    names = dict(read["spans"].select("id", "name").iter_rows())
    assert [names[launch] for launch in kernels["launch"]] == ["Node@launch"] * 3
    assert [names[operator] for operator in kernels["operator"]] == ["aten::add"] * 3
    assert kernels["grid"].to_list() == [[8 + n, 1, 1] for n in range(3)]


def test_tasks_have_what_kernel_details_says(read: Frames) -> None:
    told = read["tasks"].filter(pl.col("core") == "AI_VECTOR_CORE")
    assert rows(told, "task", "operation", "blocks", "input_shapes", "wait", "step", "type") == [
        (11 + n, "Add", 8 + n, "2,3;3", 29_500 * n, 7, "AI_CORE") for n in range(3)
    ]


def test_counters_of_kernels(read: Frames) -> None:
    assert sorted(rows(read["kernel_counters"], "name", "value", "unit")) == [
        ("Hit Rate", 0.5, ""),
        ("Victim Rate", 0.25, ""),
        ("Victim Rate", 0.75, ""),
        *[("aic_mac_ratio", 0.5, "")] * 3,
    ]


def test_operators(read: Frames) -> None:
    details = read["operators"].drop_nulls("shapes")
    assert rows(details, "shapes", "dtypes") == [("[[2,3],[],[3]]", '["float", "Scalar", "int"]')] * 3
    (stack,) = read["stacks"]["frames"].to_list()
    assert stack[0] == {"file": "train.py", "line": 3, "function": "step"}
    assert [frame["line"] for frame in stack] == [3, 9]


def test_communication(read: Frames) -> None:
    (row,) = read["collectives"].to_dicts()
    expected = {"operation": "allreduce", "group": "default_group", "group_ranks": "[0, 1]", "group_size": 2}
    expected |= {"bytes_in": 4000, "transit": 30_000, "wait": 20_000, "synchronisation": 10_000, "transport": "HCCS"}
    assert {key: row[key] for key in expected} == expected
    (span,) = spans(read, "collective").filter(pl.col("id") == row["span"]).to_dicts()
    assert (span["ts"], span["dur"]) == (T0 + 400_000, 200_500)


def test_transfers_and_links(read: Frames) -> None:
    columns = ("transport", "link", "packet", "count", "bytes", "transit")
    assert set(rows(read["transfers"].drop_nulls("span"), *columns)) == {
        ("HCCS", None, None, None, 4000, 30_000),
        ("HCCS", None, 2000, 2, None, 30_000),
        ("SDMA", None, None, None, 4000, 30_000),
        ("SDMA", "HCCS", None, None, 4000, 30_000),
    }
    assert read["transfers"]["span"].null_count() == 3
    assert rows(read["links"], "step", "operation", "place", "group", "source", "destination", "bytes", "transit") == [
        (7, "allreduce", "top1", GROUP, 0, 1, 4000, 30_000)
    ]


def test_memory(read: Frames) -> None:
    taken, other, freed = rows(read["allocations"], "ts", "bytes", "allocated", "block", "name", "unused", "stream")
    assert taken == (T0 + 21_000, 512, 1 << 20, 0, "aten::add", None, 99)
    assert other == (T0 + 22_000, 512 << 10, 1 << 20, 1, "aten::add", None, 99)
    assert freed == (T0 + 90_000, -512, 1 << 19, 0, "aten::add", T0 + 80_000, 99)
    assert rows(read["static_memory"], "name", "device", "graph", "last_node", "bytes") == [
        ("add", "npu:0", 1, None, 2048)
    ]


def test_samples(read: Frames) -> None:
    lanes = read["counters"].join(read["tracks"].select(pl.col("id").alias("track"), lane="name"), on="track")
    assert sorted(rows(lanes, "lane", "name", "value", "unit")) == [
        ("HBM", "HBM 0/Read", 12.5, "MB/s"),
        ("Memory of APP", "reserved", 2048.5 * (1 << 20), "bytes"),
        ("Memory of PTA", "active", float(1 << 20), "bytes"),
        ("Memory of PTA", "allocated", float(1 << 20), "bytes"),
        ("Memory of PTA", "reserved", float(4 << 20), "bytes"),
        ("NPU module memory", "HCCL", float(1 << 20), "bytes"),
    ]


@pytest.mark.parametrize(("written", "per_cent"), [((0.84, 0.125), [84.0, 12.5]), ((84.0, 0.5), [84.0, 0.5])])
def test_hits_of_the_last_level_cache_are_per_cent(
    written: tuple[float, float], per_cent: list[float], tmp_path: Path
) -> None:
    """CANN's timeline writes parts of one under ``Hit Rate(%)``, its database per cent."""
    root = capture(tmp_path)
    path = root / OUTPUT / "trace_view.json"
    events = json.loads(path.read_text()) + build.named(77, "LLC", {})
    for number, value in enumerate(written):
        sample = {"ph": "C", "name": "LLC 0 Read/Hit Rate", "pid": 77, "tid": 0, "ts": us(100 + number)}
        events.append(sample | {"args": {"Hit Rate(%)": value}})
    path.write_text(json.dumps(events))
    found = read_files([root])["counters"].filter(pl.col("unit").cast(pl.String) == "%").sort("ts")
    assert rows(found, "name", "value") == [("LLC 0 Read/Hit Rate", value) for value in per_cent]


def test_facts(read: Frames) -> None:
    facts = {key: json.loads(value) for key, value in read["metadata"].iter_rows()}
    assert facts["config"] == {"level": "Level2"}
    assert facts["hbm.csv"] == [{"Device_id": "0", "Metric": "Average", "Read(MB/s)": "1.5", "Write(MB/s)": "2.5"}]


def test_every_result_can_be_computed(read: Frames) -> None:
    computed = results.Results(lazy(read))
    assert computed["l2_cache"].height == 2  # type: ignore[union-attr]
    assert computed["static_op_mem"].height == 1  # type: ignore[union-attr]
    details = computed["kernel_details"]
    assert isinstance(details, pl.DataFrame)
    assert details["aic_mac_ratio"].to_list() == [0.5, 0.5, 0.5, None]
    document = computed["communication"]
    assert isinstance(document, dict)
    entry = document["step7"]["collective"]["hcom_allReduce__271_0_1@default_group"]
    assert entry["Communication Bandwidth Info"]["HCCS"]["Size Distribution"] == {"0.002": [2, 0.03]}
    assert entry["Communication Time Info"]["Wait Time Ratio"] == 0.4


def test_captures_open_where_they_lie_and_nothing_is_written(tmp_path: Path) -> None:
    for rank in (0, 1):
        capture(tmp_path / "job", rank)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    run = stepscope.open(tmp_path / "job")
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert run.ranks[1].result("op_statistic").height  # type: ignore[union-attr]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def without(root: Path, *names: str) -> Path:
    for name in names:
        (root / OUTPUT / name).unlink()
    return root


def test_kernels_without_a_timeline(tmp_path: Path) -> None:
    read = read_files([without(capture(tmp_path), "trace_view.json")])
    assert spans(read, "kernel").height == 3
    assert spans(read, "collective").height == 1
    assert rows(read["steps"], "number", "ts", "dur", "source") == [(7, T0 + 100_125, 500_375, "inferred")]


def test_a_timeline_without_kernel_details(tmp_path: Path) -> None:
    read = read_files([without(capture(tmp_path), "kernel_details.csv")])
    assert spans(read, "kernel").height == 3
    assert read["tasks"]["operation"].drop_nulls().to_list() == ["hcom_allReduce_"]


def test_communication_files_alone(tmp_path: Path) -> None:
    root = capture(tmp_path)
    for path in (root / OUTPUT).iterdir():
        if not path.name.startswith("communication"):
            path.unlink()
    read = read_files([root])
    assert rows(spans(read, "collective"), "name", "dur") == [("hcom_allReduce__271_0_1", 200_500)]
    assert read["links"].height == 1


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "cut trace": ("trace_view.json", lambda text: text[: len(text) // 2], "file_cut"),
    "foreign trace": ("trace_view.json", lambda _: b"PK\x03\x04 not JSON", "file_unreadable"),
    "empty trace": ("trace_view.json", lambda _: b"", "file_unreadable"),
    "cut kernels": ("kernel_details.csv", lambda text: text[:-20], "file_cut"),
    "endless quote": ("kernel_details.csv", lambda text: text.replace(b'3"""', b'3""', 1), "file_cut"),
    "no communication": ("communication.json", lambda _: b"[1, 2", "file_unreadable"),
    "odd matrix": ("communication_matrix.json", lambda _: b'{"step1": 5}', "value_unreadable"),
    "odd number": ("memory_record.csv", lambda text: text.replace(b"2048.5", b"=1+2"), "value_unreadable"),
    "damaged facts": ("../profiler_info_0.json", lambda _: b"{", "metadata_damaged"),
    "counters of nothing": ("l2_cache.csv", lambda text: text.replace(b"2,11,", b"9,99,"), "counters_unmatched"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_costs_itself_and_is_counted(tmp_path: Path, damage: str) -> None:
    name, change, loss = DAMAGES[damage]
    root = capture(tmp_path)
    path = root / OUTPUT / name
    path.write_bytes(change(path.read_bytes()))
    read = read_files([root])
    assert loss in losses(read)
    assert spans(read, "kernel").height or "kernel" in name
    assert read["static_memory"].height == 1


@pytest.mark.parametrize(
    "name",
    [
        *("trace_view.json", "kernel_details.csv", "memory_record.csv", "operator_memory.csv", "communication.json"),
        "communication_matrix.json",
    ],
)
def test_a_file_that_is_missing_is_one_line(name: str, tmp_path: Path) -> None:
    read = read_files([without(capture(tmp_path), name)])
    missing = read["losses"].filter(pl.col("what").cast(pl.String) == "file_missing")
    assert rows(missing, "source", "count", "severity") == [(name, 1, "info")]


def test_a_cell_with_a_formula_is_text(tmp_path: Path) -> None:
    root = capture(tmp_path)
    path = root / OUTPUT / "kernel_details.csv"
    path.write_text(path.read_text().replace("aclnnAdd_Add_0", '"=HYPERLINK(""x"")"'))
    read = read_files([without(root, "trace_view.json")])
    assert '=HYPERLINK("x")' in read["spans"]["name"].cast(pl.String).to_list()


def test_a_name_of_a_fact_that_is_no_text_is_escaped(tmp_path: Path) -> None:
    directory = capture(tmp_path)
    (directory / "profiler_metadata.json").write_text(r'{"\ud800": 3}')
    frames = read_files([directory])
    assert r"\xed\xa0\x80" in frames["metadata"]["key"].to_list()


def test_older_and_newer_headers(tmp_path: Path) -> None:
    root = without(capture(tmp_path), "trace_view.json")
    path = root / OUTPUT / "kernel_details.csv"
    header, rest = path.read_text().split("\n", 1)
    path.write_text(header.replace("Step Id", "Step ID").replace("Block Dim", "Block Num") + ",New Column\n" + rest)
    read = read_files([root])
    assert read["tasks"]["step"].unique().to_list() == [7]
    assert read["tasks"]["blocks"].drop_nulls().to_list() == [8, 9, 10]


def test_a_directory_of_nothing(tmp_path: Path) -> None:
    (tmp_path / OUTPUT).mkdir()
    (tmp_path / OUTPUT / "communication_statistic.csv").write_text("OP Type\n")
    with pytest.raises(NotATraceError):
        read_files([tmp_path])


def test_intact_files_without_events_are_not_damaged(tmp_path: Path) -> None:
    (tmp_path / OUTPUT).mkdir()
    (tmp_path / OUTPUT / "kernel_details.csv").write_text("Step Id,Name,Type,Accelerator Core,Start Time(us)\n")
    read = read_files([tmp_path])
    assert losses(read)["files_without_events"] == tmp_path.name
    assert read["spans"].is_empty()


def test_links_to_directories_and_pipes_are_not_followed(tmp_path: Path) -> None:
    root = capture(tmp_path / "a")
    (root / "PROF_1_2_A").symlink_to(tmp_path)
    assert [found.root for found in sniff.look(tmp_path)] == [root]


def test_what_a_directory_is(tmp_path: Path) -> None:
    root = capture(tmp_path, rank=3)
    (found,) = sniff.look(root)
    assert (found.format, found.rank, found.root) == ("ascend", 3, root)
    assert sniff.look(tmp_path) == [found]
    assert {path.name for path in found.all} >= {"trace_view.json", "profiler_info_3.json", "hbm.csv"}


def test_mindspore_on_a_cpu_stays_what_it_is(shared_data: Path) -> None:
    for folder in (shared_data / "mindspore_cpu" / "ms210_cpu_graph", shared_data / "mindspore_cpu"):
        assert {found.format for found in sniff.look(folder)} == {"mindspore"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1736412474730135.222\t", 1736412474730135222),
        ("1736412474730135", 1736412474730135000),
        ("55.1610625", 55161),
        ("27.9805625", 27981),
        ("0", 0),
        ("1.5e3", 1_500_000),
        ("N/A", None),
        ("", None),
        ("=1+2", None),
        ("9" * 30, None),
    ],
)
def test_times(text: str, expected: int | None) -> None:
    ledger = LossLedger("test")
    assert text_values.ns(pl.Series([text]), ledger).to_list() == [expected]
    unreadable = text in ("=1+2", "9" * 30)
    assert bool(ledger.rows()) == unreadable


def test_milliseconds() -> None:
    assert text_values.ns(pl.Series(["438068.41592"]), LossLedger("test"), scale=1000).to_list() == [438068415920]


@pytest.mark.parametrize(
    ("type_", "name", "kernel", "kind"),
    [
        ("AI_CORE", "Add", False, "kernel"),
        ("MIX_AIV", "Add", True, "kernel"),
        ("DSA_SQE", "Dropout", True, "kernel"),
        ("PCIE_DMA_SQE", "MEMCPY_ASYNC", False, "memcpy"),
        ("EVENT_WAIT_SQE", "EVENT_WAIT", False, "sync"),
        ("Notify Wait", "Notify Wait", False, "sync"),
        ("PLACE_HOLDER_SQE", "PROFILING_ENABLE", False, "overhead"),
        ("KERNEL_AIVEC", "Add", False, "kernel"),
        ("Other", "aclnnAdd_AddAiCore_Add", False, "other"),
        ("Other", "MEMCPY_ASYNC", False, "memcpy"),
        ("STARS_COMMON", "aclnnInplaceWait_Sync", False, "other"),
        ("UNKNOWN", "Notify Wait", False, "sync"),
        ("PROFILING_ENABLE", "PROFILING_ENABLE", False, "overhead"),
    ],
)
def test_kinds_of_tasks(type_: str, name: str, kernel: bool, kind: str) -> None:
    assert kind_of_task(type_, name, is_kernel=kernel) == kind


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hcom_allReduce__271_0_1", "allreduce"),
        ("hcom_reduceScatter__822_10_1", "reduce_scatter"),
        ("hcom_receive__5_0", "recv"),
        ("Default/AllReduce-op534_0", "allreduce"),
        ("hcom_alltoallv_", "alltoallv"),
        ("hcom_broadcast__483_0", "broadcast"),
    ],
)
def test_operations(name: str, expected: str) -> None:
    assert operation(name) == expected


def test_shapes_and_types_as_json() -> None:
    assert shapes_json("32,3;;64") == "[[32,3],[],[64]]"
    assert texts_json("float;Scalar") == '["float", "Scalar"]'


def test_missing_frames_are_empty() -> None:
    frames = complete({"tasks": pl.DataFrame({"ts": [1]})})
    assert list(frames) == list(FRAMES)
    assert frames["tasks"].height == 1
    assert frames["host"].is_empty()


RANGE, MEMORY = struct.Struct("<5Qi3Hb3?"), struct.Struct("<i11QI4B")


def a_mindspore_capture(directory: Path) -> Path:
    """Raw records of MindSpore, with the clock of CANN beside them: 100 steps of the counter a µs."""
    root = directory / "host_1_ascend_ms"
    framework, host = root / "FRAMEWORK", root / "PROF_1_2_A" / "host"
    framework.mkdir(parents=True)
    host.mkdir(parents=True)
    (root / "profiler_info_0.json").write_text('{"ms_profiler_info": {"rank_id": 0, "device_id": 3}}')
    (host / "host_start.log").write_text("[Host]\nclock_monotonic_raw = 5000\ncntvct = 1000\n")
    (host / "start_info").write_text(json.dumps({"collectionTimeBegin": str(START), "clockMonotonicRaw": "5000"}))
    operator = (11, 0, 1, 1100, 1300, 4242, 3, 28, 0, 0, False, False, False)
    flow = (11, 0, 1, 1300, 1200, 4242, 3, 28, 0, 0, False, False, False)
    (framework / "mindspore.op_range").write_bytes(
        build.record(RANGE, operator, {13: "MatMul", 14: "Default/MatMul-op1"})
        + build.record(RANGE, flow, {13: "flow"})
        + build.record(RANGE, (*operator[:10], False, True, False), {13: "x"})
    )
    taken = (3, 11, 4242, T0 + 10, 0xFF00, 512, 512, 512, 1024, 0, 0, 77, 1, 0, 0, 0, 0)
    freed = (*taken[:3], T0 + 90, 0xFF00, (1 << 64) - 1, 0, 512, 1024, 0, 0, 77, 1, 0, 0, 0, 0)
    (framework / "mindspore.memory_usage").write_bytes(
        build.record(MEMORY, taken, {13: "Default/MatMul-op1"}) + build.record(MEMORY, freed, {})
    )
    return root


def test_raw_records_of_mindspore(tmp_path: Path) -> None:
    read = read_files([a_mindspore_capture(tmp_path)])
    assert set(rows(spans(read, "operator"), "name", "ts", "dur")) == {
        ("Default", T0 + 1000, 2000),
        ("PynativeFramework::RunOp::Default/MatMul-op1", T0 + 1000, 2000),
    }
    assert rows(read["allocations"], "ts", "bytes", "allocated", "name", "device") == [
        (T0 + 10, 512, 512, "Default/MatMul-op1", "npu:3"),
        (T0 + 90, -512, 0, "Default/MatMul-op1", "npu:3"),
    ]
    assert "event_not_an_interval" in losses(read)


def test_numbers_of_raw_records_that_cannot_be(tmp_path: Path) -> None:
    root = a_mindspore_capture(tmp_path)
    path = root / "FRAMEWORK" / "mindspore.memory_usage"
    taken = (3, 1 << 63, 4242, T0 + 10, 0xFF00, 512, 512, 512, 1024, 0, 0, 77, 1, 0, 0, 0, 0)
    path.write_bytes(path.read_bytes() + build.record(MEMORY, taken, {}) + b"\x01\x00\xff\xff\xff\xff")
    read = read_files([root])
    assert read["allocations"].height == 2
    assert {"value_unreadable", "event_damaged"} <= set(losses(read))


def test_the_counter_of_the_processor() -> None:
    assert CpuCounter(start=1000, epoch=T0, mhz=100.0).ns(1100) == T0 + 1000
    assert CpuCounter().ns(T0) == T0


def test_the_folder_of_mindspore_1(tmp_path: Path) -> None:
    (tmp_path / "output_timeline_data_1.txt").write_text(
        "op_name, stream_id, start_time(ms), duration(ms)\nDefault/Add-op1,519,438068.41592,0.00266\n"
    )
    (tmp_path / "step_trace_raw_1_detail_time.csv").write_text(
        "step_num,start_point,end_point,total\n1,43806841500,43806842000,500\n-,1,2,3\n"
    )
    (tmp_path / "framework_raw_1.csv").write_text(
        "task_id,stream_id,block_dim,full_kernel_name,op_name,kernel_name,kernel_type,subgraph,op_info\n"
        '4,519,2,Default/Add-op1,Default/Add-op1,Add-op1,Add,Default,"{""input_0"": {""shape"": ""1,2"", '
        '""data_type"": ""NUMBER_TYPE_FLOAT32"", ""format"": ""ND""}}"\n'
    )
    read = read_files([tmp_path])
    assert rows(spans(read, "kernel"), "name", "ts", "dur", "step") == [("Default/Add-op1", 438068415920, 2660, 1)]
    assert rows(read["tasks"], "operation", "blocks", "input_shapes", "input_dtypes") == [("Add", 2, "1,2", "FLOAT32")]
    assert losses(read)["start_unknown"].endswith("output_timeline_data_1.txt")
    assert sniff.look(tmp_path)[0].rank == 1


def test_a_timeline_of_cann(tmp_path: Path) -> None:
    """Older CANN: numbers instead of texts, times since the start of the machine, no names of planes."""
    device = tmp_path / "PROF_000001_20230818142704322_ABC" / "device_1"
    (device / "timeline").mkdir(parents=True)
    began = {"collectionTimeBegin": str(START), "clockMonotonicRaw": "1000000000"}
    (device / "start_info.1").write_text(json.dumps(began) + "filesize:130")
    (device / "info.json.1").write_text('{"hostname": "box", "pid": "42", "rank_id": 1, "DeviceInfo": [{"id": 1}]}')
    arguments = {"Task Type": "AI_CORE", "Stream Id": 2, "Task Id": 4, "Batch Id": 0, "Aicore Time(ms)": 21}
    moving = {"stream id": 12, "task id": 2, "task type": "Memcpy", "src rank": 0, "dst rank": 1, "size(Byte)": 8}
    events = [
        *build.named(3, "Ascend Hardware", {2: "Stream 2"}),
        *build.named(5, "HCCL", {0: "HCCL"}),
        {"name": "Default/Add", "pid": 3, "tid": 2, "ts": 1000001.5, "dur": 23.1, "args": arguments, "ph": "X"},
        {"name": "Iteration 1", "pid": 3, "tid": 9, "ts": 1000000, "dur": 100, "cat": "Iteration Time", "ph": "X"}
        | {"args": {"Iteration ID": 1}},
        {"name": "Memcpy", "pid": 5, "tid": 1, "ts": 1000030, "dur": 3, "args": moving, "ph": "X"},
        {"name": "Default/AllReduce-op1_0", "pid": 5, "tid": 70000, "ts": 1000030, "dur": 40, "ph": "X"},
    ]
    (device / "timeline" / "msprof_1_2_1.json").write_text(json.dumps(events))
    assert sniff.look(tmp_path)[0].rank == 1
    read = read_files([tmp_path])
    assert rows(spans(read, "kernel"), "ts", "dur", "step") == [(T0 + 1500, 23_100, 1)]
    assert rows(read["collectives"], "operation") == [("allreduce",)]
    assert read["transfers"].height == 1
    assert read["tracks"]["device"].cast(pl.String).unique().to_list() == ["npu:1"]
    assert read["tracks"]["host"].unique().to_list() == ["box"]


def test_times_are_written_as_the_builder_says() -> None:
    assert us(100.125) == f"{START + 100}.125"


def test_operators_of_mindspore_beside_a_database(tmp_path: Path) -> None:
    """MindSpore's databases hold the device's and CANN's events; its operators are in the raw records."""
    root = a_mindspore_capture(tmp_path)
    (root / OUTPUT).mkdir()
    thread = 4242 << 32 | 11
    tables: dict[str, list[dict[str, object]]] = {
        "STRING_IDS": [{"id": 1, "value": "launch"}],
        "CANN_API": [
            {"startNs": T0 + 1100, "endNs": T0 + 1900, "type": 10000, "globalTid": thread, "connectionId": 5, "name": 1}
        ],
        "TASK": [{"startNs": T0 + 5000, "endNs": T0 + 6000, "deviceId": 3, "connectionId": 5, "globalTaskId": 1}],
    }
    make(root / OUTPUT / "ascend_mindspore_profiler_0.db", tables)
    read = read_files([root])
    assert set(rows(spans(read, "operator"), "name", "ts")) == {
        ("Default", T0 + 1000),
        ("PynativeFramework::RunOp::Default/MatMul-op1", T0 + 1000),
    }
    assert rows(spans(read, "runtime"), "name", "dur") == [("Node@launch", 800)]
    assert read["allocations"].height == 2


@pytest.mark.parametrize("number", [1_234_567_897, 1_764_111_111_111_111_111])
def test_a_step_number_of_many_digits_is_kept_or_counted(tmp_path: Path, number: int) -> None:
    directory = capture(tmp_path)
    for path in (directory / OUTPUT).glob("*.json"):
        text = path.read_text().replace("ProfilerStep#7", f"ProfilerStep#{number}").replace("step7", f"step{number}")
        path.write_text(text)
    frames = read_files([directory])
    large = number >= 1 << 31
    assert frames["steps"]["number"].to_list() == [7 if large else number]  # as kernel_details.csv says
    assert any(row["count"] for row in frames["losses"].to_dicts() if row["what"] == "value_unreadable") == large
