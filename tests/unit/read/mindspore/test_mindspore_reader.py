"""Directories of MindSpore on a CPU: every trap of the formats, and every way in which files may be damaged."""

from __future__ import annotations

import json
import random
import shutil
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stepscope.analyse.results import RESULTS, compute
from stepscope.errors import DamagedTraceError, FormatVersionError, InputError, NotATraceError
from stepscope.read import read_files, sniff
from stepscope.read.mindspore.mindspore_operators import details, lanes
from stepscope.trace.schema import TABLES
from stepscope.trace.tables import Frames, conform, lazy
from tests.conftest import files_in
from tests.sizes import Size

DATA = Path(__file__).resolve().parents[3] / "data" / "mindspore_cpu"
T0 = 1_795_225_717_661_445_312


def write(directory: Path, **files: str | bytes) -> Path:
    """Write files by sort: times, framework, details, memory, events, said, pipeline, cpu, batches."""
    names = {
        "times": "cpu_op_execute_timestamp_0.txt",
        "framework": "cpu_framework_0.txt",
        "details": "cpu_op_detail_info_0.csv",
        "memory": "cpu_ms_memory_record_0.txt",
        "events": "rank_0/RuntimeProfilerDetail17.csv",
        "said": "stepscope.json",
        "pipeline": "minddata/pipeline_profiling_0.json",
        "cpu": "minddata/minddata_cpu_utilization_0.json",
        "batches": "minddata/dataset_iterator_profiling_0.txt",
    }
    for sort, content in files.items():
        path = directory / names[sort]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return directory


def times(*calls: tuple[str, int, float]) -> str:
    """Return a file of times: full name, start in ns after :data:`T0`, duration in ms."""
    return "".join(f"{name};HostCpuOps;{T0 + start},{ms:g},0 \n" for name, start, ms in calls)


def event(name: str, op: str, start: int, end: int, thread: int = 7, module: str = "Kernel") -> str:
    return (
        f"module:{module}, event:{name}, op:{op}, start_time:{T0 + start}, end_time:{T0 + end}, "
        f"dur_time:,{(end - start) % (1 << 64)},ns, tid:{thread}, pid:5\n"
    )


def losses(frames: Frames) -> dict[str, int]:
    return dict(frames["losses"].select(pl.col("what").cast(pl.String), "count").rows())


def operators(frames: Frames) -> list[tuple[object, ...]]:
    spans = frames["spans"].filter(pl.col("kind").is_in(["operator", "collective"])).sort("ts", "id")
    return spans.select(pl.col("name").cast(pl.String), pl.col("ts") - T0, "dur").rows()


# Operators


def test_times_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    content = f"Default/A-op0;HostCpuOps;{T0},5e-05,0 {T0 + 7},1.35924,0 {T0 + 4_000_001},0.000001,0 \n"
    frames = read_files([write(tmp_path, times=content)])
    assert operators(frames) == [("A", 0, 50), ("A", 7, 1_359_240), ("A", 4_000_001, 1)]


@pytest.mark.parametrize(
    ("full", "name", "module", "phase"),
    [
        ("Default/network-W/fc-Dense/MatMul-op12", "MatMul", "network-W/fc-Dense", "forward"),
        ("Gradients/Default/network-W/fc-Dense/Grad_MatMul/MatMul-op0", "MatMul", "network-W/fc-Dense", "backward"),
        ("Default/optimizer-Momentum/AssignAdd-op0", "AssignAdd", "optimizer-Momentum", "optimizer"),
        ("Default/ApplyMomentum-op3", "ApplyMomentum", None, "optimizer"),
        ("Default/BiasAddGrad-op0", "BiasAddGrad", None, "backward"),
        ("Default/net-N/optional-Dense/Mul-op0", "Mul", "net-N/optional-Dense", "forward"),
        ("Default/net-N/adapter-AdapterBlock/Mul-op0", "Mul", "net-N/adapter-AdapterBlock", "forward"),
        ("Default/opt-MyOwn/Mul-op0", "Mul", "opt-MyOwn", "optimizer"),
        ("Default/AllReduce-op0", "AllReduce", None, "communication"),
        ("DistCommAllGather", "DistCommAllGather", None, "communication"),
        ("MatMul", "MatMul", None, "other"),
        ("Default/MatMul-op0", "MatMul", None, "other"),
        ("a;b, c/Odd;name-op1", "Odd;name", "a;b, c", "forward"),
        ("-op3", "-op3", None, "other"),
    ],
)
def test_what_a_name_says(tmp_path: Path, full: str, name: str, module: str | None, phase: str) -> None:
    frames = read_files([write(tmp_path, times=times((full, 0, 1)))])
    (row,) = frames["spans"].join(frames["operators"], left_on="id", right_on="span").to_dicts()
    assert (row["name"], row["module"], row["phase"]) == (name, module, phase)


def test_in_a_compiled_graph_all_that_is_not_gradient_is_forward(tmp_path: Path) -> None:
    said = json.dumps({"format": 1, "mode": "graph"})
    frames = read_files([write(tmp_path, times=times(("Default/ReLU-op0", 0, 1)), said=said)])
    assert frames["spans"]["phase"].to_list() == ["forward"]


@pytest.mark.parametrize(
    ("kind", "operation"),
    [
        ("AllReduce", "allreduce"),
        ("AllGather", "allgather"),
        ("ReduceScatter", "reduce_scatter"),
        ("Broadcast", "broadcast"),
        ("AlltoAll", "alltoall"),
        ("Send", "send"),
        ("Receive", "recv"),
        ("InnerCommAllReduce", "allreduce"),
        ("DistCommIsend", "send"),
        ("DistCommScatter", "scatter"),
    ],
)
def test_communication_has_its_operation(tmp_path: Path, kind: str, operation: str) -> None:
    frames = read_files([write(tmp_path, times=times((f"Default/{kind}-op0", 0, 1)))])
    assert frames["spans"]["kind"].to_list() == ["collective"]
    assert frames["collectives"]["operation"].to_list() == [operation]
    document = compute("communication", lazy(frames))
    assert isinstance(document, dict)
    sort = "p2p" if operation in ("send", "recv") else "collective"
    assert f"{operation}__0@" in document["step0"][sort]


@pytest.mark.parametrize("kind", ["ReduceSum", "BroadcastTo", "Scatter", "GatherD", "reduce", "SendUV"])
def test_what_only_sounds_like_communication_computes(tmp_path: Path, kind: str) -> None:
    frames = read_files([write(tmp_path, times=times((f"Default/{kind}-op0", 0, 1)))])
    assert frames["spans"]["kind"].to_list() == ["operator"]


def test_what_the_collector_knows_of_a_collective_is_in_its_row(tmp_path: Path) -> None:
    known = {"group": "world", "group_size": 2, "group_ranks": [0, 1], "parameter_types": {"[64, 64]": "Float32"}}
    said = json.dumps({"format": 1, **known})
    calls = times(("Default/AllReduce-op0", 0, 1), ("Default/AllReduce-op1", 2, 1))
    shapes = "AllReduce;AllReduce-op0;1;input_1:[64, 64];\nAllReduce;AllReduce-op1;1;input_1:[7];\n"
    frames = read_files([write(tmp_path, times=calls, framework=shapes, said=said)])
    known_type, unknown_type = frames["collectives"].to_dicts()
    assert (known_type["group"], known_type["group_size"], known_type["group_ranks"]) == ("world", 2, "[0, 1]")
    assert (known_type["dtype"], known_type["bytes_in"], known_type["bytes_out"]) == ("Float32", 16384, 16384)
    assert (unknown_type["group"], unknown_type["dtype"], unknown_type["bytes_in"]) == ("world", None, None)


@pytest.mark.parametrize(
    ("operation", "shapes", "dtypes", "moved"),
    [
        ("allreduce", "[[64,64],[]]", '["Float32","Scalar"]', ("Float32", 16384, 16384)),
        ("broadcast", "[[2],[3]]", '["Float16","Float16"]', ("Float16", 10, 10)),
        ("allgather", "[[2],[3]]", '["Int64","Bool"]', (None, 19, None)),
        ("allreduce", "[[]]", '["Float64"]', ("Float64", 8, 8)),
        ("allreduce", "[[2]]", None, (None, None, None)),
        ("allreduce", "[[-1]]", '["Float32"]', (None, None, None)),
        ("allreduce", '[["x"]]', '["Float32"]', (None, None, None)),
        ("allreduce", "[[2]]", '["Float32","Float32"]', (None, None, None)),
        ("allreduce", "7", "8", (None, None, None)),
    ],
)
def test_bytes_of_a_collective_are_those_of_its_inputs(
    operation: str, shapes: str, dtypes: str | None, moved: tuple[object, ...]
) -> None:
    row = {"span": 3, "short": "A-op0", "operation": operation, "shapes": shapes, "dtypes": dtypes}
    found = details(pl.DataFrame([row], schema_overrides={"dtypes": pl.String}), {})
    assert found.select("dtype", "bytes_in", "bytes_out").rows() == [moved]


def test_shapes_follow_the_order_of_calls(tmp_path: Path) -> None:
    framework = (
        "MatMul;MatMul-op0;1;input_1:[2, 3];input_2:NoShape;input_3:[];\n"
        ";;1;\n"
        "MatMul;MatMul-op0;1;input_1:[-1, 4];\n"
        "Same;Same-op0;1;input_1:[5];\n"
        "Other;Other-op0;1;input_1:[1];\nOther;Other-op0;1;input_1:[2];\n"
    )
    calls = [("Default/MatMul-op0", 9, 1e-6), ("Gradients/Default/MatMul-op0", 5, 1e-6)]
    calls += [("Default/Same-op0", 20, 1e-6), ("Default/Same-op0", 30, 1e-6)]
    frames = read_files(
        [write(tmp_path, times=times(*calls, ("Default/Other-op0", 40, 1e-6), ("Mul", 50, 1e-6)), framework=framework)]
    )
    rows = frames["spans"].join(frames["operators"], left_on="id", right_on="span").sort("ts")
    assert rows["shapes"].to_list() == ["[[2,3],[],[]]", "[[-1,4]]", "[[5]]", "[[5]]", None, None]


def test_operators_that_run_at_once_get_lanes(tmp_path: Path) -> None:
    calls = [("A", 0, 0.01), ("B", 1, 0.001), ("C", 2_000, 0.001), ("D", 20_000, 0.001)]
    frames = read_files([write(tmp_path, times=times(*calls))])
    names = dict(frames["tracks"].select("id", "name").rows())
    rows = frames["spans"].sort("ts").select("name", "track", "depth").rows()
    assert [(name, names[track], depth) for name, track, depth in rows] == [
        ("A", "CPU kernels", 0),
        ("B", "CPU kernels (2)", 0),
        ("C", "CPU kernels (2)", 0),
        ("D", "CPU kernels", 0),
    ]


def test_no_two_intervals_of_a_lane_overlap() -> None:
    chance = random.Random(3)
    for _ in range(60):
        starts = sorted(chance.randrange(200) for _ in range(chance.randrange(40)))
        ends = [start + chance.choice([0, 1, 3, 30, 90]) for start in starts]
        found = lanes(np.array(starts, np.int64), np.array(ends, np.int64)).tolist()
        for lane in set(found):
            mine = [(start, end) for start, end, one in zip(starts, ends, found, strict=True) if one == lane]
            assert all(before[1] <= after[0] for before, after in pairwise(mine))
        # First fit, told in other words.
        free: list[int] = []
        for start, end, lane in zip(starts, ends, found, strict=True):
            expected = next((number for number, until in enumerate(free) if until <= start), len(free))
            assert lane == expected
            free[lane : lane + 1] = [end]


# Host events


def test_an_operator_lies_on_the_thread_of_its_launch(tmp_path: Path) -> None:
    events = "[Step:1 step_time:9ns, module_total_time:9ns]\n" + event("KernelLaunch", "MatMul", 10, 900, thread=8)
    events += event("KernelLaunch", "MatMul", 1_020, 1_900, thread=9) + "\n"
    calls = [("Default/MatMul-op0", 0, 0.001), ("Default/MatMul-op0", 1_010, 0.001), ("Default/ReLU-op0", 5_000, 0.001)]
    frames = read_files([write(tmp_path, times=times(*calls), events=events)])
    rows = (
        frames["spans"].join(frames["tracks"].select(track="id", thread="thread", lane="name"), on="track").sort("ts")
    )
    chosen = rows.filter(pl.col("kind") == "operator").select("thread", "lane").rows()
    assert chosen == [(8, "thread 8"), (9, "thread 9"), (None, "CPU kernels")]
    assert losses(frames) == {}


def test_names_with_commas_waits_and_marks_of_queues(tmp_path: Path) -> None:
    events = (
        event("RunOp", "x, start_time:3, op:odd", 0, 10, module="PynativeFramework")
        + event("Wait", "frontend_queue", 20, 30, module="PynativeFramework")
        + event("Default", "flow", 50, 40, module="Default")
        + event("Default", "typeof", 60, 70, module="PynativeFramework")
        + event("Default", "", 80, 90).replace("module:Kernel", "stage:RunGraph")
        + event("AcquireGil", "", 95, 99)
        + event("PreLaunch", "A", 120, 110)
    )
    frames = read_files([write(tmp_path, events=events)])
    spans = frames["spans"].select(pl.col("name", "kind").cast(pl.String)).rows()
    assert spans == [
        ("RunOp", "runtime"),
        ("Wait", "sync"),
        ("typeof", "runtime"),
        ("RunGraph", "runtime"),
        ("AcquireGil", "sync"),
    ]
    values = frames["arguments"].select(pl.col("key", "value").cast(pl.String)).rows()
    assert values == [("operator", '"x, start_time:3, op:odd"'), ("operator", '"frontend_queue"')]
    assert losses(frames) == {"event_not_an_interval": 1, "event_negative_duration": 1}
    assert frames["tracks"]["process"].to_list() == [5]


# Memory


def test_memory_is_what_changed(tmp_path: Path) -> None:
    head = "Timestamp(ns),Total Allocated(Byte),Total Reserved(Byte),Total Active(Byte)\n"
    memory = head + f"{T0 - 9},512,4096,512\n{T0 - 5},1536,4096,1024\n{T0 + 2},1024,4096,1024\nrubbish\n{T0},,1,1\n"
    frames = read_files([write(tmp_path, memory=memory, times=times(("Default/A-op0", 0, 1e-6)))])
    rows = frames["allocations"].select("bytes", "allocated", "active", "span").rows()
    assert rows == [(0, 512, 512, None), (1024, 1536, 1024, 0), (-512, 1024, 1024, None)]
    assert losses(frames) == {"event_damaged": 2}
    record = compute("memory_record", lazy(frames))
    assert isinstance(record, pl.DataFrame)
    assert record["Total Active(MB)"].to_list() == [512 / 2**20, 1 / 1024, 1 / 1024]


def test_memory_of_earlier_recordings_is_left_out(tmp_path: Path) -> None:
    # MindSpore repeats it; the directory's name says when the recording began.
    memory = f"Timestamp(ns)\n{T0 - 2 * 10**9},9,9,9\n{T0 - 5},512,4096,512\n"
    made = datetime.fromtimestamp(T0 // 10**9, tz=UTC).strftime("%Y%m%d%H%M%S")
    directory = write(tmp_path / f"node_5_{made}000_ascend_ms", memory=memory, times=times(("A", 0, 1)))
    assert read_files([directory])["allocations"]["allocated"].to_list() == [512]
    elsewhere = Path(shutil.copytree(directory, tmp_path / "renamed"))
    assert read_files([elsewhere])["allocations"].height == 2


# Data pipeline


def test_samples_written_twice_and_samples_that_lack_the_first(tmp_path: Path) -> None:
    pipeline = {"sampling_interval": 10, "op_info": [{"op_id": 0, "op_type": "BatchOp", "metrics": None}]}
    cpu = {
        "time_stamp": [100, 110, 120],
        "device_info": {"runnable_process": [1, 1, 2, 2, 3, 3], "user_utilization": [7, 8, 9]},
        "process_info": {"user_utilization": [50, 60]},
    }
    said = json.dumps({"format": 1, "anchors": [[100_000_000, T0], [200_000_000, T0 + 100_000_000]]})
    frames = read_files([write(tmp_path, pipeline=json.dumps(pipeline), cpu=json.dumps(cpu), said=said)])
    found = frames["counters"].select(pl.col("name").cast(pl.String), pl.col("ts") - T0, "value").rows()
    ms = 1_000_000
    assert [row for row in found if row[0] == "runnable processes"] == [
        ("runnable processes", 0, 1),
        ("runnable processes", 10 * ms, 2),
        ("runnable processes", 20 * ms, 3),
    ]
    assert [row[1:] for row in found if row[0] == "process user"] == [(10 * ms, 50), (20 * ms, 60)]
    assert [row[2] for row in found if row[0] == "machine user"] == [7, 8, 9]
    assert losses(frames) == {}


def test_without_pairs_of_clocks_the_pipeline_begins_with_the_rest(tmp_path: Path) -> None:
    frames = read_files([write(tmp_path, batches="0 0 1 5 2094228\n1 16 1 3 2094230\n", times=times(("A", 0, 1)))])
    assert (frames["counters"]["ts"] - T0).to_list() == [0, 2_000_000]
    assert losses(frames) == {"clock_unknown": 2}


def test_a_sample_of_the_pipeline_beyond_64_bits_costs_itself(tmp_path: Path) -> None:
    batches = f"0 0 1 {1 << 63} 2094228\n1 16 1 3 2094230\n"
    frames = read_files([write(tmp_path, batches=batches, times=times(("A", 0, 1)))])
    assert frames["counters"]["value"].to_list() == [3.0]
    assert losses(frames) == {"clock_unknown": 1, "event_damaged": 1}


# Directories


def test_what_a_directory_is(tmp_path: Path) -> None:
    (found,) = sniff.look(DATA / "two_ranks" / "graph_rank1")
    assert (found.format, found.rank, found.root.parent) == ("mindspore", 1, DATA / "two_ranks" / "graph_rank1")
    assert [capture.rank for capture in sniff.look(DATA / "two_ranks")] == [0, 1]
    assert sniff.look(DATA / "minddata")[0].rank == 0
    with pytest.raises(NotATraceError, match="2 ranks"):
        read_files([DATA / "two_ranks"])
    only_said = write(tmp_path, said='{"rank": 3}', events=event("A", "", 0, 1))
    (only_said / "rank_0").rename(tmp_path / "events")
    shutil.move(tmp_path / "events" / "RuntimeProfilerDetail17.csv", tmp_path)
    assert sniff.look(only_said)[0].rank == 3


def test_files_of_two_ranks_in_one_directory_are_refused(tmp_path: Path) -> None:
    write(tmp_path, times=times(("A", 0, 1)))
    shutil.copy(tmp_path / "cpu_op_execute_timestamp_0.txt", tmp_path / "cpu_op_execute_timestamp_1.txt")
    with pytest.raises(NotATraceError, match="ranks 0, 1"):
        sniff.look(tmp_path)


@pytest.mark.parametrize("name", ["", "a/b/c", "logs"])
def test_a_directory_without_files_of_mindspore(tmp_path: Path, name: str) -> None:
    (tmp_path / "x" / name).mkdir(parents=True)
    (tmp_path / "x" / name / "notes.txt").write_text("hello")
    with pytest.raises(NotATraceError, match=r"holds no capture.*MindSpore on a CPU"):
        read_files([tmp_path / "x"])


def test_empty_files_are_damaged_not_empty_tables(tmp_path: Path) -> None:
    with pytest.raises(DamagedTraceError, match="nothing that was recorded"):
        read_files([write(tmp_path, times="", events="", said="")])


def test_a_link_to_the_directory_above_ends(tmp_path: Path) -> None:
    write(tmp_path, times=times(("A", 0, 1)))
    (tmp_path / "again").symlink_to(tmp_path, target_is_directory=True)
    assert len(sniff.look(tmp_path)) == 1


def test_a_newer_description_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatVersionError, match="Upgrade"):
        read_files([write(tmp_path, said='{"format": 2}', times=times(("A", 0, 1)))])


# Damage


def attempt(directory: Path) -> Frames | None:
    """Read what may be damaged, and compute every result: tables that hold, or an error of ours in one line."""
    try:
        frames = read_files([directory])
    except InputError as error:
        assert "\n" not in str(error)
        return None
    for name in TABLES:
        assert conform(name, frames[name]).equals(frames[name])
    assert (frames["spans"]["dur"] >= 0).all()
    return frames


def test_five_hundred_damaged_directories(tmp_path: Path, size: Size) -> None:
    chance = random.Random(20)
    rows = read_files([DATA / "collected_graph"])["spans"].height
    for number in range(size.many(500)):
        directory = Path(shutil.copytree(DATA / "collected_graph", tmp_path / "d"))
        for path in chance.sample(files_in(directory), chance.randint(1, 3)):
            content = bytearray(path.read_bytes())
            for _ in range(chance.randint(1, 6)):
                start = chance.randrange(max(1, len(content)))
                content[start : start + chance.randint(0, 12)] = chance.choice(
                    [chance.randbytes(chance.randint(0, 12)), b"\n", b"9" * 25, b"-1", b"NaN", b";", b",", b'{"']
                )
            path.write_bytes(content)
        frames = attempt(directory)
        assert frames is None or frames["spans"].height <= rows + 60
        if frames is not None and number % 20 == 0:
            for name in RESULTS:
                compute(name, lazy(frames))
        shutil.rmtree(directory)


@pytest.mark.parametrize("sort", ["cpu_op_execute", "cpu_framework", "cpu_ms_memory", "RuntimeProfilerDetail", ".json"])
def test_cut_at_many_lengths_what_is_before_stays(tmp_path: Path, sort: str) -> None:
    whole = read_files([DATA / "collected_graph"])
    for path in files_in(DATA / "collected_graph"):
        if sort not in path.name:
            continue
        content = path.read_bytes()
        seen = 0
        for length in np.linspace(0, len(content) - 1, 25).astype(int).tolist():
            directory = Path(shutil.copytree(DATA / "collected_graph", tmp_path / "d"))
            (directory / path.relative_to(DATA / "collected_graph")).write_bytes(content[:length])
            frames = attempt(directory)
            assert frames is not None
            count = frames["spans"].height + frames["allocations"].height
            assert seen <= count <= whole["spans"].height + whole["allocations"].height
            seen = count
            shutil.rmtree(directory)


def test_a_cut_file_of_times_is_noticed_even_at_the_end_of_a_line(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(DATA / "own_graph", tmp_path / "d"))
    (path,) = directory.rglob("cpu_op_execute_timestamp_0.txt")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-2]))
    frames = read_files([directory])
    assert losses(frames) == {"operators_missing": 4, "total_differs": 1}  # calls, and their time


@pytest.mark.parametrize(
    "missing", ["cpu_framework", "cpu_op_detail", "cpu_op_type", "cpu_ms", "Runtime", ".json", ".txt"]
)
def test_any_file_may_be_missing(tmp_path: Path, missing: str) -> None:
    directory = Path(shutil.copytree(DATA / "collected_pynative", tmp_path / "d"))
    for path in files_in(directory):
        if missing in path.name:
            path.unlink()
    frames = attempt(directory)
    assert frames is not None
    assert frames["spans"].height > 30


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00A" * 9, "名前;HostCpuOps;é,1,0 \n".encode("utf-16"), b"\x00" * 99, b"[" * 99_999, b"\n" * 9],
)
def test_files_in_wrong_encodings(tmp_path: Path, content: bytes) -> None:
    for name in ("times", "framework", "details", "memory", "events", "said", "pipeline", "cpu", "batches"):
        directory = write(tmp_path / name, **{"times": times(("A", 0, 1)), name: content})
        frames = attempt(directory)
        assert frames is not None or name == "times"
        assert frames is None or losses(frames) or not content.strip()


def test_names_that_are_no_utf8_are_replaced_and_counted(tmp_path: Path) -> None:
    content = times(("Default/Odd-op0", 0, 1)).encode().replace(b"Odd", b"O\xffd")
    frames = read_files([write(tmp_path, times=content)])
    assert frames["spans"]["name"].to_list() == ["O\ufffdd"]
    assert losses(frames) == {"text_not_utf8": 1}


@pytest.mark.parametrize(
    "document",
    [
        {"op_info": [None, 3, {"op_id": "a"}, {"op_id": 0, "op_type": 5}]},
        {"op_info": {"op_id": 0}},
        {"op_info": [{"op_id": 0, "op_type": "A", "children": [0, 1, "x", None], "num_workers": -3}]},
        {"op_info": [{"op_id": n, "op_type": "MapOp", "children": [1 - n]} for n in (0, 1)]},
        {
            "op_info": [
                {"op_id": 0, "op_type": "A", "metrics": {"output_queue": {"length": 0, "size": [1, None, 1e400]}}}
            ]
        },
        {"op_info": [{"op_id": 10**30, "op_type": "A"}, {"op_id": 1, "op_type": "B"}], "sampling_interval": 10**40},
        {"op_info": [{"op_id": 0, "op_type": "A\ud800"}, {"op_id": 1, "op_type": "\udc00"}]},
    ],
)
def test_a_pipeline_that_makes_no_sense(tmp_path: Path, document: dict[str, object]) -> None:
    cpu = {"time_stamp": [1, "x", 10**40], "op_info": [{"op_id": 0, "metrics": {"user_utilization": [1, "a"]}}, 7]}
    directory = write(tmp_path, pipeline=json.dumps(document), cpu=json.dumps(cpu), times=times(("A", 0, 1)))
    frames = attempt(directory)
    assert frames is not None
    for name in ("minddata_pipeline_raw", "minddata_pipeline_summary", "dataset"):
        compute(name, lazy(frames))
