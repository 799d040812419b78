"""What paddle.profiler writes, as protobuf and as JSON → tables: eager and static training, and a GPU's, made here."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stepscope.cli.main import main
from stepscope.errors import DamagedTraceError
from stepscope.read import read_files
from stepscope.read.sniff import look
from stepscope.trace.tables import Frames
from tests import paddle_schemas

DATA = Path(__file__).resolve().parents[3] / "data" / "paddle"
START = 1_700_000_000_000_000_000
US = 1000


def losses(frames: Frames) -> dict[str, int]:
    return dict(frames["losses"].select(pl.col("what").cast(pl.String), "count").iter_rows())


def text(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.String)


def test_eager_training_which_paddle_cannot_read_itself() -> None:
    content = (DATA / "paddle331_dygraph.pb").read_bytes()
    assert not paddle_schemas.node_trees().FromString(content).IsInitialized()
    frames = read_files([DATA / "paddle331_dygraph.pb"])
    spans = frames["spans"]
    assert dict(spans.group_by(text("kind")).len().iter_rows()) == {
        "step": 4,
        "data": 4,
        "phase": 20,
        "operator": 132,
        "annotation": 392,
    }
    assert frames["steps"]["number"].to_list() == [8, 9, 10, 11]
    assert set(frames["steps"]["source"]) == {"declared"}
    assert losses(frames) == {}


def test_phases_and_modules_of_eager_training() -> None:
    frames = read_files([DATA / "paddle331_dygraph.pb"])
    operators = frames["spans"].filter(kind="operator")
    phases = dict(operators.group_by(text("phase")).len().iter_rows())
    assert phases == {"forward": 32, "backward": 56, "optimizer": 16, "other": 28}
    assert set(operators.filter(text("name").str.starts_with("Global_"))["phase"]) == {"backward"}
    modules = frames["operators"].join(frames["spans"].select(span="id", name=text("name")), on="span")
    found = dict(modules.select("name", text("module")).drop_nulls().iter_rows())
    assert found == {
        "conv2d dygraph": "Net/Conv2D",
        "relu dygraph": "Net",
        "pool2d dygraph": "Net",
        "flatten dygraph": "Net",
        "matmul dygraph": "Net/Linear",
        "add dygraph": found["add dygraph"],
        "reshape dygraph": "Net/Conv2D",
    }
    # Both layers add their bias.
    assert set(modules.filter(name="add dygraph")["module"].cast(pl.String)) == {"Net/Conv2D", "Net/Linear"}


def test_threads_memory_and_facts() -> None:
    frames = read_files([DATA / "paddle331_dygraph.pb"])
    tracks = frames["tracks"].select("process", "thread", "name").rows()
    assert tracks == [(19536, 19536, "MainThread"), (19536, 19610, "Dataloader_140412119957456")]
    memory = frames["allocations"]
    assert memory.height == 222
    assert memory["device"].cast(pl.String).unique().to_list() == ["cpu"]
    assert memory["allocated"].max() == 5_192_520
    assert memory["span"].null_count() < memory.height / 2
    assert '"1.0.2"' in frames["metadata"]["value"].to_list()


@pytest.mark.parametrize("name", ["dygraph", "static"])
def test_json_and_protobuf_say_the_same(name: str, shared_data: Path) -> None:
    binary, document = (read_files([shared_data / "paddle" / f"paddle331_{name}.{kind}"]) for kind in ("pb", "json"))
    assert binary["spans"].drop("ts").equals(document["spans"].drop("ts"))
    assert binary["steps"].drop("ts").equals(document["steps"].drop("ts"))
    for table in ("operators", "tracks", "stacks"):
        assert binary[table].equals(document[table]), table
    # The JSON has whole µs; with what its arguments say the ns come back, to a few.
    assert (binary["spans"]["ts"] - document["spans"]["ts"]).abs().max() < 10  # type: ignore[operator]
    columns = ("device", "address", "bytes", "allocated", "reserved", "thread")
    assert binary["allocations"].select(columns).equals(document["allocations"].select(columns))
    assert losses(document) == {}


def test_static_training_runs_on_other_threads() -> None:
    frames = read_files([DATA / "paddle331_static.pb"])
    tracks = dict(frames["tracks"].select("id", "name").iter_rows())
    operators = frames["spans"].filter(kind="operator")
    assert {tracks[track].rstrip("0123456789") for track in operators["track"]} == {"HostTasks_thread_"}
    assert dict(operators.group_by(text("name")).len().iter_rows()) == {
        "feed": 7,
        "conv2d": 7,
        "elementwise_add": 7,
        "fetch_v2": 7,
    }


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fluid185/all_total.pb", "fluid"),
        ("paddle331_static.pb", "paddle"),
        ("paddle331_static.json.gz", "paddle_json"),
    ],
)
def test_every_format_is_known_and_imported(
    name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [capture.format for capture in look(DATA / name)] == [kind]
    assert main(["import", str(DATA / name), "--output", str(tmp_path), "--quiet"]) == 0
    run = Path(capsys.readouterr().out.strip())
    assert (run / "rank0" / "results" / "op_statistic.csv").read_text().count("conv2d") >= 1
    assert json.loads((run / "rank0" / "manifest.json").read_text())["format"] == kind


def test_the_host_stands_in_the_name(tmp_path: Path) -> None:
    path = tmp_path / "host_node-7pid_4711_time_2026_11_21_10_00_00_1.paddle_trace.pb"
    path.write_bytes((DATA / "paddle331_static.pb").read_bytes())
    assert look(path)[0].host == "node-7"


def a_gpu_trace() -> Any:
    """Return a trace of one operator that launches a kernel, copies and fills, in Paddle's own schema."""
    trace = paddle_schemas.node_trees()(version="1.0.2", span_index=3)
    tree = trace.thread_trees.add(thread_id=11)
    root = {"name": "root node", "type": 7, "start_ns": 0, "end_ns": (1 << 64) - 1, "process_id": 0, "thread_id": 0}
    tree.host_nodes.add(id=0, parentid=-1, host_trace_event=root)
    event = {
        "name": "matmul",
        "type": 0,
        "start_ns": START,
        "end_ns": START + 100 * US,
        "process_id": 7,
        "thread_id": 11,
    }
    node = tree.host_nodes.add(id=1, parentid=0, host_trace_event=event)
    supplement = node.op_supplement_nodes.add().op_supplement_event
    supplement.timestamp_ns, supplement.op_type, supplement.op_id = START, "matmul", 1
    supplement.process_id, supplement.thread_id = 7, 11
    supplement.callstack = "  File train.py, line 3, in step\n  File net.py, line 9, in forward"
    for key, sizes, kind in (("X", [[4, 8], []], "float32"), ("Y", [[8, 2]], "float16")):
        supplement.input_shapes.key.append(key)
        vector = supplement.input_shapes.shape_vecs.add()
        for size in sizes:
            vector.shapes.add().size.extend(size)
        supplement.dtypes.key.append(key)
        supplement.dtypes.dtype_vecs.add().dtype.append(kind)
    work: list[tuple[str, int, dict[str, Any]]] = [
        ("gemm<float>", 4, {"kernel_info": _kernel()}),
        ("MEMCPY_HtoD", 5, {"memcpy_info": {"num_bytes": 3000, "copy_kind": "H", "src_kind": "H", "dst_kind": "D"}}),
        ("MEMSET", 6, {"memset_info": {"num_bytes": 64, "memory_kind": "Device", "value": 0}}),
    ]
    for number, (name, kind_of_work, details) in enumerate(work):
        start = START + (10 + 20 * number) * US
        call = {"name": "cudaLaunch", "start_ns": start, "end_ns": start + 2 * US, "process_id": 7, "thread_id": 11}
        launched = node.runtime_nodes.add(runtime_trace_event={**call, "correlation_id": 50 + number, "callback_id": 0})
        device = {"start_ns": start + 5 * US, "end_ns": start + 8 * US, "device_id": 1, "context_id": 1, "stream_id": 7}
        device = {"name": name, "type": kind_of_work, "correlation_id": 50 + number, **device}
        launched.device_nodes.add(device_event={**device, **details})
    memory = {
        "addr": (1 << 63) + 5,
        "process_id": 7,
        "thread_id": 11,
        "place": "Place(gpu:1)",
        "current_allocated": 512,
    }
    memory.update(current_reserved=4096, peak_allocated=512, peak_reserved=4096)
    for type_, size in ((0, 512), (2, 4096)):
        node.mem_nodes.add(mem_event={**memory, "timestamp_ns": START + 5 * US, "type": type_, "increase_bytes": size})
    trace.extra_info.add(key="11", value="MainThread")
    trace.device_property.add(id=1, name="NVIDIA H200", **dict.fromkeys(_NUMBERS, 9))
    return trace


def _kernel() -> dict[str, Any]:
    sizes = {"block_x": 128, "block_y": 2, "block_z": 1, "grid_x": 3, "grid_y": 4, "grid_z": 5}
    memory = {"dynamic_shared_memory": 100, "static_shared_memory": 28, "registers_per_thread": 40}
    rest = dict.fromkeys(("local_memory_per_thread", "local_memory_total", "queued", "submitted", "completed"), 0)
    return {**sizes, **memory, **rest, "blocks_per_sm": 0.5, "warps_per_sm": 4.0, "occupancy": 0.25}


_NUMBERS = [
    field.name
    for field in paddle_schemas.node_trees().DESCRIPTOR.fields_by_name["device_property"].message_type.fields
    if field.name not in ("id", "name")
]


@pytest.fixture
def gpu_frames(tmp_path: Path) -> Frames:
    path = tmp_path / "gpu.pb"
    path.write_bytes(a_gpu_trace().SerializeToString())
    frames = read_files([path])
    assert losses(frames) == {}
    return frames


def test_work_on_a_device_belongs_to_its_operator(gpu_frames: Frames) -> None:
    kernels = gpu_frames["kernels"].join(
        gpu_frames["spans"].select("id", "dur", "correlation", name=text("name"), kind=text("kind")),
        left_on="span",
        right_on="id",
    )
    assert kernels.select("name", "kind", "device", "stream", "bytes", "correlation", "dur").sort(
        "correlation"
    ).rows() == [
        ("gemm<float>", "kernel", 1, 7, None, 50, 3 * US),
        ("MEMCPY_HtoD", "memcpy", 1, 7, 3000, 51, 3 * US),
        ("MEMSET", "memset", 1, 7, 64, 52, 3 * US),
    ]
    [operator] = gpu_frames["spans"].filter(kind="operator")["id"].to_list()
    assert kernels["operator"].to_list() == [operator] * 3
    gemm = kernels.row(by_predicate=pl.col("name") == "gemm<float>", named=True)
    assert (gemm["grid"], gemm["block"], gemm["registers"], gemm["shared_memory"]) == ([3, 4, 5], [128, 2, 1], 40, 128)
    assert (gemm["occupancy"], gemm["blocks_per_sm"], gemm["warps_per_sm"]) == (25.0, 0.5, 4.0)
    assert kernels.row(by_predicate=pl.col("kind") == "memcpy", named=True)["bandwidth"] == 1.0


def test_inputs_and_stack_of_an_operator(gpu_frames: Frames) -> None:
    [row] = gpu_frames["operators"].select(text("shapes"), text("dtypes"), "stack").rows()
    assert row == ("[[4, 8], [], [8, 2]]", '["float32", "float16"]', 0)
    [frames] = gpu_frames["stacks"]["frames"].to_list()
    assert [frame["function"].strip() for frame in frames] == [
        "File train.py, line 3, in step",
        "File net.py, line 9, in forward",
    ]


def test_memory_of_a_device(gpu_frames: Frames) -> None:
    memory = gpu_frames["allocations"].select(text("device"), "bytes", "allocated", "reserved", "address", "span")
    [operator] = gpu_frames["spans"].filter(kind="operator")["id"].to_list()
    address = 5 - (1 << 63)
    # What the allocator reserves for itself takes nothing.
    assert memory.rows() == [
        ("cuda:1", 512, 512, 4096, address, operator),
        ("cuda:1", 0, 512, 4096, address, operator),
    ]


def test_properties_of_devices_are_facts(gpu_frames: Frames) -> None:
    facts = dict(gpu_frames["metadata"].iter_rows())
    [device] = json.loads(facts["deviceProperties"])
    assert (device["name"], device["smCount"]) == ("NVIDIA H200", 9)


def a_json_trace(directory: Path, events: list[dict[str, Any]], **document: Any) -> Path:
    path = directory / "trace.json"
    head = {"displayTimeUnit": "ms", "schemaVersion": "1.0.2", "span_index": "0"}
    path.write_text(json.dumps({**head, "traceEvents": [*events, {}], **document}))
    return path


def complete(name: str, ts: float, dur: float, kind: str = "Operator", **arguments: Any) -> dict[str, Any]:
    """Return an event as Paddle writes it, ``ts`` and ``dur`` in µs since START."""
    times = {"start_time": f"{ts:.3f} us", "end_time": f"{ts + dur:.3f} us"}
    return {
        "name": f"{name}[{dur:.3f} us]",
        "pid": 7,
        "tid": "11(C++)",
        "ts": START // US + int(ts),
        "dur": dur,
        "ph": "X",
        "cat": kind,
        "args": {**times, **arguments},
    }


def test_events_of_a_device_in_json(tmp_path: Path) -> None:
    details = {"context": 1, "correlation id": 50, "registers per thread": 40, "shared memory": 128}
    details |= {"blocks per SM": 0.5, "warps per SM": 4.0, "grid": [3, 4, 5], "block": [128, 2, 1]}
    details |= {"theoretical achieved occupancy %": 25.0}
    kernel = complete("gemm<float>", 15, 3, "Kernel", device=1, stream=7, **details) | {"pid": 1, "tid": 7}
    copy = complete("MEMCPY_HtoD", 35, 3, "Memcpy", stream=7, bytes=3000, **{"correlation id": 51}) | {
        "pid": 1,
        "tid": 7,
    }
    copy["args"]["memory bandwidth (GB/s)"] = 1.0
    calls = [complete("cudaLaunch", at, 2, "CudaRuntime", **{"correlation id": n}) for at, n in ((10, 50), (30, 51))]
    inputs = {
        "input_shapes": {"X": [[4, 8], []], "Y": [[8, 2]]},
        "input_dtypes": {"X": ["float32"]},
        "callstack": "a\nb",
    }
    arrow = {"name": "launch", "id": 50, "pid": 7, "tid": "11(C++)", "ts": START // US + 11, "ph": "s", "cat": "async"}
    frames = read_files([a_json_trace(tmp_path, [complete("matmul", 0, 100, **inputs), *calls, kernel, copy, arrow])])
    assert losses(frames) == {}
    kernels = frames["kernels"].select(
        "device", "stream", "grid", "registers", "occupancy", "bytes", "bandwidth", "operator"
    )
    assert kernels.rows() == [(1, 7, [3, 4, 5], 40, 25.0, None, None, 0), (1, 7, None, None, None, 3000, 1.0, 0)]
    [operator] = frames["operators"].select(text("shapes"), text("dtypes")).rows()
    assert operator == ("[[4, 8], [], [8, 2]]", '["float32"]')


def test_what_lies_in_each_other_still_does_when_the_arguments_lose_digits(tmp_path: Path) -> None:
    # Given events an hour after the first, whose times in the arguments have 24 bits: steps of 256 µs
    hour = 3_600_000_000
    events = [complete("first", 0, 5), complete("outer", hour, 300.25), complete("inner", hour, 300.0)]
    events[1]["args"] = events[2]["args"] = {"start_time": f"{hour}.000 us", "end_time": f"{hour + 256}.000 us"}
    frames = read_files([a_json_trace(tmp_path, events)])
    spans = {
        name: (ts, dur, depth)
        for name, ts, dur, depth in frames["spans"].select(text("name"), "ts", "dur", "depth").rows()
    }
    # Then durations are as written, starts within their µs, and the inner one within the outer one
    assert spans["outer"][1:] == (300_250, 0)
    assert spans["inner"][1:] == (300_000, 1)
    assert losses(frames) == {}


def test_names_with_brackets_keep_them(tmp_path: Path) -> None:
    frames = read_files([a_json_trace(tmp_path, [complete("at[3.5 ms]", 0, 5), complete("x[2]", 6, 5)])])
    assert frames["spans"]["name"].cast(pl.String).to_list() == ["at[3.5 ms]", "x[2]"]


def test_unquoted_names_spoil_only_themselves(tmp_path: Path) -> None:
    # Paddle does not escape what users put into names.
    path = a_json_trace(tmp_path, [complete("one", 0, 5), complete("tw@o", 6, 5), complete("three", 12, 5)])
    path.write_text(path.read_text().replace("tw@o", 'tw"o'))
    frames = read_files([path])
    assert {"one", "three"} <= set(frames["spans"]["name"].cast(pl.String))
    assert losses(frames)["event_damaged"] >= 1


def test_values_of_wrong_types_are_left_out_and_counted(tmp_path: Path) -> None:
    events = [complete("a", 0, 5, grid="x"), complete("b", 6, 5, bytes=1 << 70), complete("c", 12, 5)]
    memory = {"name": "[memory]", "pid": 7, "tid": "11(C++)", "ts": START // US, "ph": "i", "cat": "Allocate"}
    events.append(memory | {"args": {"place": 5}})
    frames = read_files([a_json_trace(tmp_path, events)])
    assert frames["spans"].height == 3
    assert losses(frames) == {"value_unreadable": 3, "event_damaged": 1}


def test_a_trace_without_events(tmp_path: Path) -> None:
    frames = read_files([a_json_trace(tmp_path, [])])
    assert frames["spans"].is_empty()
    assert losses(frames) == {}


def test_compressed_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.pb.gz"
    path.write_bytes(gzip.compress((DATA / "paddle331_static.pb").read_bytes()))
    assert read_files([path])["spans"].equals(read_files([DATA / "paddle331_static.pb"])["spans"])


def test_a_file_that_ends_before_its_first_event_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "trace.pb"
    path.write_bytes((DATA / "paddle331_static.pb").read_bytes()[:9])
    with pytest.raises(DamagedTraceError, match="before its first event"):
        read_files([path])


def test_a_cut_file_gives_what_comes_before_the_cut(tmp_path: Path) -> None:
    content = (DATA / "paddle331_static.pb").read_bytes()
    whole = read_files([DATA / "paddle331_static.pb"])["spans"]
    path = tmp_path / "trace.pb"
    path.write_bytes(content[: len(content) // 2])
    frames = read_files([path])
    assert 20 < frames["spans"].height < whole.height
    assert losses(frames)["file_cut"] == 1
    known = set(whole.select("ts", "dur", text("name")).rows())
    assert set(frames["spans"].select("ts", "dur", text("name")).rows()) <= known


def test_a_type_of_a_later_version_keeps_its_time_and_is_named(tmp_path: Path) -> None:
    document = json.loads(gzip.decompress((DATA / "paddle331_static.json.gz").read_bytes()))
    operators = [event for event in document["traceEvents"] if event.get("cat") == "Operator"]
    for event in operators[:2]:
        event["cat"] = "Graph"
    # Work of a device, of a type without a name.
    arguments = {**operators[2]["args"], "device": 0, "context": 1, "stream": 7, "correlation id": 1}
    document["traceEvents"].append({**operators[2], "cat": "Fused", "args": arguments})
    path = tmp_path / "later.paddle_trace.json"
    path.write_text(json.dumps(document))
    frames, before = read_files([path]), read_files([DATA / "paddle331_static.json.gz"])
    assert frames["spans"].height == before["spans"].height + 1
    other = frames["spans"].filter(kind="other")
    assert other.height == 3
    assert set(other["dur"]) <= set(before["spans"]["dur"])
    rows = frames["losses"].filter(text("what") == "kind_unknown")
    assert sorted(row.split(". ")[0] for row in rows["advice"]) == [
        "Events of the type Fused",
        "Events of the type Graph",
    ]


def test_kernels_of_a_communication_library_communicate(tmp_path: Path) -> None:
    """Given a kernel of NCCL, which Paddle calls a kernel like any other, then it is a collective by its name."""
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    kernel = complete(name, 15, 3, "Kernel", device=1, stream=7, correlation_id=4) | {"pid": 1, "tid": 7}
    frames = read_files([a_json_trace(tmp_path, [kernel])])
    assert frames["spans"]["kind"].to_list() == ["collective"]
    assert frames["collectives"].select(text("operation"), text("transport")).rows() == [("allreduce", "nccl")]


@pytest.mark.parametrize(("digits", "lost"), [("200000000", 0), ("9999999999", 9), ("176411111111111111", 9)])
def test_steps_with_numbers_of_many_digits(tmp_path: Path, digits: str, lost: int) -> None:
    content = json.loads(gzip.decompress((DATA / "paddle331_static.json.gz").read_bytes()))
    for event in content["traceEvents"]:
        event["name"] = str(event.get("name", "")).replace("ProfileStep#", f"ProfileStep#{digits}")
    path = tmp_path / "paddle_trace.json"
    path.write_text(json.dumps(content))
    frames = read_files([path])
    assert frames["steps"]["number"].to_list() == ([] if lost else [int(digits) * 10 + step for step in range(9)])
    assert losses(frames).get("step_number_large", 0) == lost
