"""What each kind of event becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from stepscope.read import read_files
from stepscope.trace.tables import Frames
from tests.conftest import WriteTrace

Read = Callable[..., Frames]


@pytest.fixture
def read(write_trace: WriteTrace) -> Read:
    """Read a document of these events."""

    def read_events(*events: dict[str, Any], **document: Any) -> Frames:
        return read_files([write_trace(events, **document)])

    return read_events


def host(name: str, ts: float, dur: float, cat: str = "cpu_op", tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def device(name: str, ts: float, dur: float, cat: str = "kernel", stream: int = 7, **args: Any) -> dict[str, Any]:
    given = {"device": 0, "stream": stream, **args}
    return {"cat": cat, "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": given}


def column(tables: Frames, table: str, name: str) -> list[Any]:
    series = tables[table][name]
    return series.cast(pl.String).to_list() if series.dtype in (pl.Categorical, pl.Enum) else series.to_list()


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (host("aten::add", 1, 1), "operator"),
        (host("aten::add", 1, 1, "Operator"), "operator"),
        (host("my range", 1, 1, "user_annotation"), "annotation"),
        (host("ProfilerStep#7", 1, 1, "user_annotation"), "step"),
        (host("ProfilerStep#7", 1, 1, "Operator"), "step"),
        (host("enumerate(DataLoader)#_Single.__next__", 1, 1, "user_annotation"), "data"),
        (host("record_param_comms", 1, 1), "collective"),
        (host("nccl:all_reduce", 1, 1, "user_annotation"), "collective"),
        (host("gloo:all_reduce", 1, 1, "user_annotation"), "collective"),
        (host("anything", 1, 1, **{"Collective name": "broadcast"}), "collective"),
        (host("cudaStreamSynchronize", 1, 1, "cuda_runtime"), "runtime"),
        (host("cuLaunchKernel", 1, 1, "cuda_driver"), "driver"),
        (host("hipLaunchKernel", 1, 1, "Runtime"), "runtime"),
        (host("file.py(1): f", 1, 1, "python_function"), "python"),
        (host("f (file.py:1)", 1, 1, "fee"), "python"),
        (host("Lazy Function Loading", 1, 1, "overhead"), "overhead"),
        (host("of somebody else", 1, 1, "their category"), "annotation"),
        (device("vectorized_elementwise_kernel", 1, 1), "kernel"),
        (device("gemm", 1, 1, "Kernel"), "kernel"),
        (device("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 1, 1), "collective"),
        (device("void rcclGenericKernel", 1, 1), "collective"),
        (device("any name", 1, 1, **{"Collective name": "all_gather"}), "collective"),
        (device("Memcpy HtoD", 1, 1, "gpu_memcpy"), "memcpy"),
        (device("Memset", 1, 1, "gpu_memset"), "memset"),
        (device("Stream Sync", 1, 1, "cuda_sync"), "sync"),
        (device("my range", 1, 1, "gpu_user_annotation"), "annotation"),
        (device("nccl:all_reduce", 1, 1, "gpu_user_annotation"), "annotation"),
        (device("fc-dtype_Float", 1, 1, "mtia_ccp_events"), "kernel"),
        (device("dma_request", 1, 1, "mtia_ccp_events"), "memcpy"),
        (device("event_wait", 1, 1, "mtia_ccp_events"), "sync"),
    ],
)
def test_kinds(read: Read, event: dict[str, Any], kind: str) -> None:
    assert column(read(event), "spans", "kind") == [kind]


def test_the_profilers_account_of_itself_is_no_span(read: Read) -> None:
    tables = read({"cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "x", "ts": 1, "dur": 9})
    assert tables["spans"].is_empty()
    assert tables["losses"].is_empty()


def test_times_are_since_the_epoch_in_whole_nanoseconds(read: Read) -> None:
    tables = read(host("a", 4371323315486.714, 0.001), baseTimeNanoseconds=1_790_857_026_000_000_000)
    assert tables["spans"].select("ts", "dur").rows() == [(1_790_857_026_000_000_000 + 4371323315486714, 1)]


def test_threads_streams_and_lanes_are_tracks(read: Read) -> None:
    # Given events of a thread, a stream, and what must not mix with them
    thread_name = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": " thread 1 (python) "}}
    tables = read(
        device("k", 5, 1),
        device("k", 5, 1, stream=20),
        device("Stream Sync", 4, 9, "cuda_sync"),
        device("range", 4, 9, "gpu_user_annotation"),
        host("worker", 1, 1, tid=2),
        host("aten::add", 1, 1),
        {**host("Buffer", 1, 1, "overhead"), "pid": -1, "tid": 0},
        thread_name,
        {"ph": "C", "name": "GPU 0 Utilization", "pid": 0, "ts": 1, "args": {"GPU Utilization": 0.5}},
    )
    # Then each has its own, the main thread first, then threads, streams and the rest
    found = tables["tracks"].select("kind", "device", "process", "thread", "stream", "name", "order").rows()
    assert found == [
        ("thread", "cpu", 1, 1, None, "thread 1 (python)", 0),
        ("thread", "cpu", 1, 2, None, "thread 2", 1),
        ("stream", "cuda:0", None, None, 7, "stream 7", 2),
        ("stream", "cuda:0", None, None, 20, "stream 20", 3),
        ("annotation", "cuda:0", None, None, 7, "stream 7 annotations", 4),
        ("other", "cpu", -1, None, None, "profiler overhead", 5),
        ("other", "cuda:0", None, None, 7, "stream 7 synchronisation", 6),
        ("counter", "cpu", 0, None, None, "GPU 0 Utilization", 7),
    ]


def test_streams_named_by_text_are_those_of_the_arguments(read: Read) -> None:
    old = {"cat": "Kernel", "name": "k", "pid": 0, "tid": "stream 7", "ts": 1, "dur": 1, "args": {}}
    tables = read(old, device("k", 5, 1))
    assert tables["tracks"]["stream"].to_list() == [7]


def test_begin_and_end_are_matched_innermost_first(read: Read) -> None:
    def mark(phase: str, ts: int, name: str = "x", tid: int = 1) -> dict[str, Any]:
        return {"ph": phase, "name": name, "pid": 1, "tid": tid, "ts": ts}

    tables = read(mark("B", 1, "outer"), mark("B", 2, "inner"), mark("E", 3), mark("B", 2, "other", 2), mark("E", 9))
    spans = tables["spans"].select(pl.col("name").cast(pl.String), "ts", "dur", "depth").rows()
    assert spans == [("outer", 1000, 8000, 0), ("inner", 2000, 1000, 1)]
    assert tables["losses"].select(pl.col("what").cast(pl.String), "count").rows() == [("event_unmatched_begin", 1)]


def test_kernels_have_their_details(read: Read) -> None:
    details = {"context": 1, "registers per thread": 32, "shared memory": 49152, "blocks per SM": 0.5, "queued": 0}
    details |= {"warps per SM": 4, "grid": [1, 2, 3], "block": [128, 1, 1], "est. achieved occupancy %": 25}
    details |= {"graph id": 4, "graph node id": 5, "priority": 0, "correlation": 9}
    copy = {"bytes": 4096, "memory bandwidth (GB/s)": 1.5}
    tables = read(device("k", 1, 1, **details), device("Memcpy", 3, 1, "gpu_memcpy", **copy))
    kernel, memcpy = tables["kernels"].to_dicts()
    assert kernel == {
        "span": 0, "device": 0, "context": 1, "stream": 7, "grid": [1, 2, 3], "block": [128, 1, 1], "registers": 32,
        "shared_memory": 49152, "occupancy": 25.0, "blocks_per_sm": 0.5, "warps_per_sm": 4.0, "bytes": None,
        "bandwidth": None, "graph": 4, "graph_node": 5, "priority": 0, "launch": None, "operator": None,
    }  # fmt: skip
    assert (memcpy["bytes"], memcpy["bandwidth"], memcpy["grid"]) == (4096, 1.5, None)


def test_operators_have_their_details(read: Read) -> None:
    args = {"Input Dims": [[8, 3], []], "Input type": ["float", "Scalar"], "Input Strides": [[3, 1], []], "flops": 12}
    args |= {"Concrete Inputs": ["", "2"], "External id": 5, "Record function id": 0, "Sequence number": 3}
    args |= {"Fwd thread id": 0, "Module Hierarchy": "TOP(Net).fc", "Call stack": "b.py(2): g;a.py(1): <module>"}
    tables = read(host("aten::add", 1, 1, **args), host("aten::mul", 3, 1, **{"Input dims": [[1]], "Call stack": ""}))
    add, mul = tables["operators"].to_dicts()
    assert add == {
        "span": 0, "shapes": "[[8,3],[]]", "dtypes": '["float","Scalar"]', "strides": "[[3,1],[]]", "flops": 12,
        "concrete": '["","2"]', "module": "TOP(Net).fc", "scope": 0, "stack": 0, "external": 5, "forward_thread": 0,
        "instruction": None,
    }  # fmt: skip
    assert (mul["shapes"], mul["stack"]) == ("[[1]]", None)
    assert tables["spans"]["sequence"].to_list() == [3, None]
    assert tables["stacks"]["frames"].to_list() == [
        [{"file": "b.py", "line": 2, "function": "g"}, {"file": "a.py", "line": 1, "function": "<module>"}]
    ]


def test_python_spans_give_stacks_and_modules(read: Read) -> None:
    # Given an operator in a module in a module in a function, and another outside
    tables = read(
        host("train.py(10): step", 0, 100, "python_function"),
        host("nn.Module: Net_0", 5, 80, "python_function"),
        host("nn.Module: Linear_0", 10, 20, "python_function"),
        host("<built-in method linear of type object at 0x7f>", 11, 10, "python_function"),
        host("aten::linear", 12, 5),
        host("aten::zeros", 90, 5),
        host("aten::ones", 200, 5),
    )
    # Then each has the stack that is around it, innermost first, and its modules, outermost first
    inside, beside, outside = tables["operators"].sort("span").to_dicts()
    stacks = dict(tables["stacks"].iter_rows())
    assert [frame["function"] for frame in stacks[inside["stack"]]] == [
        "<built-in method linear of type object at 0x7f>",
        "nn.Module: Linear_0",
        "nn.Module: Net_0",
        "step",
    ]
    assert stacks[beside["stack"]] == [{"file": "train.py", "line": 10, "function": "step"}]
    assert outside["stack"] is None
    assert [inside["module"], beside["module"], outside["module"]] == ["Net_0/Linear_0", None, None]


def test_collectives_have_sizes_and_groups(read: Read) -> None:
    args = {"Collective name": "AllReduce", "In msg nelems": 10, "Out msg nelems": 20, "Group size": 2, "Seq": 4}
    args |= {"dtype": "BFloat16", "Process Group Name": "3", "Process Group Ranks": "[0, 1]", "Src Rank": 0}
    document = {"distributedInfo": {"backend": "nccl", "rank": 1}}
    (row,) = read(host("record_param_comms", 1, 1, **args), **document)["collectives"].to_dicts()
    assert row["operation"] == "allreduce"
    assert (row["bytes_in"], row["bytes_out"], row["dtype"]) == (20, 40, "BFloat16")
    assert (row["group"], row["group_ranks"], row["group_size"]) == ("3", "[0, 1]", 2)
    assert (row["source"], row["destination"], row["sequence"], row["transport"]) == (0, None, 4, "nccl")


def test_the_kernel_of_a_collective_says_what_its_call_says(read: Read) -> None:
    # Given a kernel that the call of a collective launched, under a name that says nothing
    args = {"Collective name": "all_gather", "In msg nelems": 8, "dtype": "Float", "Group size": 4}
    tables = read(
        host("record_param_comms", 0, 20, **args),
        host("cudaLaunchKernel", 5, 2, "cuda_runtime", correlation=3),
        device("special_kernel", 10, 30, correlation=3),
        device("gemm", 50, 30, correlation=99),
    )
    # Then it is a collective with those details, and the other is a kernel
    assert column(tables, "spans", "kind") == ["collective", "runtime", "collective", "kernel"]
    row = tables["collectives"].filter(pl.col("span") == 2).to_dicts()[0]
    assert (row["operation"], row["bytes_in"], row["group_size"]) == ("all_gather", 32, 4)


def test_memory_events_are_allocations(read: Read) -> None:
    args = {"Device Type": 1, "Device Id": 2, "Bytes": 512, "Addr": (1 << 64) - 16}
    args |= {"Total Allocated": 1024, "Total Reserved": 2048}
    taken = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 5, "args": args}
    freed = {**taken, "ts": 50, "args": {"Device Type": 0, "Device Id": -1, "Bytes": -512}}
    tables = read(host("aten::empty", 1, 10), taken, freed)
    untold = dict.fromkeys(("block", "name", "component", "stream", "unused", "stack"))
    assert tables["allocations"].to_dicts() == [
        {**untold, "ts": 5000, "device": "cuda:2", "address": -16, "bytes": 512, "allocated": 1024, "reserved": 2048,
         "active": None, "span": 0, "thread": 1},
        {**untold, "ts": 50000, "device": "cpu", "address": None, "bytes": -512, "allocated": None, "reserved": None,
         "active": None, "span": None, "thread": 1},
    ]  # fmt: skip


def test_counter_events_are_samples(read: Read) -> None:
    one = {"ph": "C", "name": "load", "pid": 1, "ts": 2, "args": {"value": 0.25}}
    two = {"ph": "C", "name": "memory", "pid": 1, "ts": 3, "args": {"used": 5, "free": 7, "who": "x"}}
    tables = read(one, two)
    found = tables["counters"].select("ts", pl.col("name").cast(pl.String), "value").rows()
    assert found == [(2000, "load", 0.25), (3000, "memory: used", 5.0), (3000, "memory: free", 7.0)]


def test_measured_ranges_are_kernel_counters_and_no_computing(read: Read) -> None:
    # Given CUPTI's ranges, whose times mean nothing, and the launches they belong to, in order
    args = {"smsp__inst_executed.sum": 7, "dram__bytes.sum": 2.5}
    ranges = [{**device(f"k{ts}", ts, 10, "cuda_profiler_range"), "args": args} for ts in (100, 110)]
    launches = [host("cudaLaunchKernel", ts, 1, "cuda_runtime", correlation=ts) for ts in (1, 5)]
    tables = read(*ranges, *launches)
    # Then there are counters, no kernels, and arrows from the launches
    assert tables["kernels"].is_empty()
    assert tables["kernel_counters"]["value"].to_list() == [7.0, 2.5, 7.0, 2.5]
    names = dict(zip(tables["spans"]["id"].to_list(), column(tables, "spans", "name"), strict=True))
    arrows = [(names[begin], names[end]) for begin, end, _ in tables["flows"].iter_rows()]
    assert arrows == [("cudaLaunchKernel", "k100"), ("cudaLaunchKernel", "k110")]


def test_arguments_of_the_users_ranges_are_kept(read: Read) -> None:
    tables = read(
        host("range", 1, 1, "user_annotation", **{"External id": 3, "Ev Idx": 4, "mine": {"a": [1]}}),
        host("theirs", 3, 1, "their category", **{"x": "=1+1"}),
    )
    found = tables["arguments"].select("span", pl.col("key").cast(pl.String), "value").rows()
    assert found == [(0, "mine", '{"a":[1]}'), (1, "x", '"=1+1"')]


def test_metadata_is_kept_as_json(read: Read) -> None:
    tables = read(deviceProperties=[{"id": 0, "name": "NVIDIA"}], mine={"a": [1, 2]})
    found = dict(tables["metadata"].iter_rows())
    assert found == {"schemaVersion": "1", "deviceProperties": '[{"id": 0, "name": "NVIDIA"}]', "mine": '{"a": [1, 2]}'}


def test_other_devices_have_other_names(read: Read) -> None:
    tables = read({**device("fc", 1, 1, "mtia_ccp_events"), "pid": 9, "args": {"stream": 102}})
    assert tables["tracks"].select(pl.col("device").cast(pl.String), "stream").rows() == [("mtia:9", 102)]
    tables = read(device("k", 1, 1), host("urEnqueueKernelLaunch", 0, 1, "xpu_runtime"))
    assert tables["tracks"].filter(kind="stream")["device"].cast(pl.String).to_list() == ["xpu:0"]


def test_a_call_that_another_thread_carries_out_is_one_collective_with_its_range(read: Read) -> None:
    said = {"Collective name": "_allgather_base", "dtype": "Float", "In msg nelems": 4, "Out msg nelems": 8}
    events = [
        event
        for ts in (10, 50)
        for event in (
            host("c10d::_allgather_base_", ts, 9),
            host("record_param_comms", ts + 1, 7, **said),
            host("gloo:_all_gather_base", ts + 5, 30, "user_annotation", tid=2),
        )
    ]
    early = host("gloo:_all_gather_base", 2, 3, "user_annotation", tid=2)
    tables = read(early, *events)
    rows = tables["collectives"].join(tables["spans"].select("id", "ts", "dur"), left_on="span", right_on="id")
    assert rows.sort("ts").select(pl.col("ts") // 1000 % 1000, "dur", "bytes_in").rows() == [
        (2, 3_000, None),
        (15, 30_000, 16),
        (55, 30_000, 16),
    ]
