"""Makes small Ascend captures as CANN, torch_npu and MindSpore write them: one step, three kernels, one all-reduce."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

#: µs of the step's start, as the files write it.
START = 1_736_412_474_700_000
HOST, NPU, CANN, HCCL, HBM, OVERLAP = 4242, 4344288, 4344096, 4344352, 4344416, 4344608
GROUP = "11022204950826225271"
OUTPUT = "ASCEND_PROFILER_OUTPUT"
#: Lanes of Overlap Analysis with the all-reduce.
LANES = ("Communication", "Communication(Not Overlapped)")


def us(at: float) -> str:
    """Return a time so many µs after the start as the files write it."""
    return f"{START + int(at)}.{round(at % 1 * 1000):03d}"


def event(name: str, process: int, thread: int, at: float, dur: float, **more: Any) -> dict[str, Any]:
    """Return a complete event."""
    return {"name": name, "pid": process, "tid": thread, "ts": us(at), "dur": dur, "ph": "X", **more}


def named(process: int, name: str, threads: dict[int, str]) -> list[dict[str, Any]]:
    """Return the names of a process of the trace and of its threads."""
    names = [{"name": "process_name", "pid": process, "tid": 0, "args": {"name": name}, "ph": "M"}]
    return names + [
        {"name": "thread_name", "pid": process, "tid": thread, "args": {"name": title}, "ph": "M"}
        for thread, title in threads.items()
    ]


def kernel(place: int) -> dict[str, Any]:
    """Return a kernel's slice."""
    at = 100.0 + 50 * place
    arguments = {"Model Id": 4294967295, "Task Type": "AI_CORE", "Physic Stream Id": 2, "Task Id": 11 + place}
    arguments |= {"Batch Id": 0, "Subtask Id": 4294967295, "connection_id": 900 + place}
    return event(f"aclnnAdd_Add_{place}", NPU, 2, at + 0.125, 20.5, args=arguments)


def trace(kernels: int = 3) -> list[dict[str, Any]]:
    """Return the events of ``trace_view.json``."""
    events = [
        {"ph": "X", "name": "ProfilerStep#7", "pid": HOST, "tid": HOST, "ts": us(0), "dur": 1000, "cat": "cpu_op"},
        *named(HOST, "Python", {HOST: "Thread 4242"}),
        *named(NPU, "Ascend Hardware", {2: "Stream 2"}),
        *named(CANN, "CANN", {4243: "Thread 4243"}),
        *named(HCCL, "HCCL", {0: "Group 0 Communication", 1: "Plane 0"}),
        *named(HBM, "HBM", {}),
        *named(OVERLAP, "Overlap Analysis", {0: "Computing", **dict(enumerate(LANES, start=1))}),
    ]
    for place in range(kernels):
        at = 20.0 + 50 * place
        call = {"Input Dims": "2,3;\r\n;\r\n3", "Input type": "float;\r\nScalar;\r\nint", "Sequence number": place}
        stack = "train.py(3): step;\r\ntrain.py(9): <module>"
        arguments = {**call, "Fwd thread id": 0, "Call stack": stack}
        launch = {"level": "node", "connection_id": 900 + place, "item_id": "x"}
        done = kernel(place)
        number = 1_736_412_474_000_000_000 + place
        events += [
            event("aten::add", HOST, HOST, at, 10.25, cat="cpu_op", args=arguments),
            event("Enqueue", HOST, HOST, at + 2, 1, cat="enqueue", args={"correlation_id": place}),
            event("Dequeue@Add", HOST, 4243, at + 4, 30, cat="dequeue", args={"correlation_id": place}),
            event("Node@launch", CANN, 4243, at + 5, 4.5, args=launch),
            done,
            event("Computing", OVERLAP, 0, at, 20.5),
            {"ph": "s", "bp": "e", "name": "torch_to_npu", "id": number, "pid": HOST, "tid": HOST, "ts": us(at)}
            | {"cat": "async_npu"},
            {"ph": "f", "bp": "e", "name": "torch_to_npu", "id": number, "pid": NPU, "tid": 2, "ts": done["ts"]}
            | {"cat": "async_npu"},
        ]
    # Those behind the sixth run beside the all-reduce.
    hidden = 20.5 * min(max(kernels - 6, 0), 4)
    events += [event(LANES[0], OVERLAP, 1, 400, 200.5), event(LANES[1], OVERLAP, 2, 400, 200.5 - hidden)]
    called = {"level": "node", "connection_id": 990, "item_id": "hcom_allReduce_"}
    events.append(event("Node@launch", CANN, 4243, 380, 4, args=called))
    events.append(
        event("hcom_allReduce__271_0_1", HCCL, 0, 400, 200.5, args={"connection_id": 990, "data_type": "FP32"})
    )
    events[-1]["args"] |= {"count": 1000, "alg_type": "MESH"}
    moving = {"notify_id": "18446744073709551615", "stream id": 4, "task id": 80, "context id": 0, "src rank": 0}
    moving |= {"dst rank": 1, "transport type": "SDMA", "size(Byte)": 4000, "link type": "HCCS", "data type": "FP32"}
    events.append(event("Memcpy", HCCL, 1, 410, 30, args={**moving, "bandwidth(GB/s)": 0.13}))
    events.append({"name": "HBM 0/Read", "ts": us(50), "pid": HBM, "tid": 0, "args": {"Read(MB/s)": 12.5}, "ph": "C"})
    return events


KERNELS = "\n".join(
    [
        "Step Id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),"
        "Wait Time(us),Block Dim,Input Shapes,Context ID,aic_mac_ratio,aiv_vec_time(us),Mix Block Dim,HF32 Eligible,"
        "Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats",
        *(
            f"7,4294967295,{11 + n},2,aclnnAdd_Add_{n},Add,dynamic,AI_VECTOR_CORE,{us(100.125 + 50 * n)}\t,20.5,"
            f'{n * 29.5},{8 + n},"""2,3;3""",N/A,0.5,N/A,0' + 6 * ",N/A"
            for n in range(3)
        ),
        f"7,4294967295,N/A,N/A,hcom_allReduce__271_0_1,hcom_allReduce_,N/A,HCCL,{us(400)}\t,200.5,0,0" + 11 * ",N/A",
        "",
    ]
)
MEMORY = (
    "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Stream Ptr,Device Type\n"
    f"APP,{us(10)}\t,,2048.5,,,NPU:0\nPTA,{us(20)}\t,1.0,4.0,1.0,99,NPU:0\n"
)
BLOCKS = (
    "Name,Size(KB),Allocation Time(us),Release Time(us),Active Release Time(us),Duration(us),Active Duration(us),"
    "Allocation Total Allocated(MB),Allocation Total Reserved(MB),Allocation Total Active(MB),"
    "Release Total Allocated(MB),Release Total Reserved(MB),Release Total Active(MB),Stream Ptr,Device Type\n"
    f"aten::add,0.5,{us(21)}\t,{us(90)}\t,{us(80)}\t,69,59,1.0,4.0,1.0,0.5,4.0,0.5,99,NPU:0\n"
    f"aten::add,512,{us(22)}\t,,,,,1.0,4.0,1.0,,,,99,NPU:0\n"
)
MODULES = f"Component,Timestamp(us),Total Reserved(KB),Device\nHCCL,{us(5)}\t,1024,NPU:0\nGE,{us(5)}\t,-1,NPU:0\n"
L2 = "Stream Id,Task Id,Hit Rate,Victim Rate,Op Name\n2,11,N/A,0.25,aclnnAdd_Add_0\n2,12,0.5,0.75,aclnnAdd_Add_1\n"
STATIC = (
    "Device_id,Op Name,Model Name,Graph ID,Node Index Start,Node Index End,Size(KB)\n"
    "0,add,net,1,0,4294967295,2\n0,TOTAL,net,1,0,0,2\n"
)


def communication() -> dict[str, Any]:
    """Return ``communication.json``."""
    times = {"Start Timestamp(us)": START + 400.2, "Elapse Time(ms)": 0.2005, "Transit Time(ms)": 0.03}
    times |= {"Wait Time(ms)": 0.02, "Synchronization Time(ms)": 0.01, "Idle Time(ms)": 0.1505}
    nothing = {"Transit Size(MB)": 0, "Transit Time(ms)": 0, "Bandwidth(GB/s)": 0, "Size Distribution": {}}
    moved: dict[str, Any] = {
        "Transit Size(MB)": 0.004,
        "Transit Time(ms)": 0.03,
        "Bandwidth(GB/s)": 0.1333,
        "Large Packet Ratio": 0.5,
    }
    moved["Size Distribution"] = {"0.002": [2, 0.03]}
    bandwidth = {"RDMA": nothing, "HCCS": moved, "SDMA": moved | {"Size Distribution": {}}}
    entry = {"Communication Time Info": times, "Communication Bandwidth Info": bandwidth}
    return {"step7": {"p2p": {}, "collective": {f"hcom_allReduce__271_0_1@{GROUP}": entry, "Total Op Info": entry}}}


def matrix() -> dict[str, Any]:
    """Return ``communication_matrix.json``."""
    link = {"Transport Type": "HCCS", "Transit Size(MB)": 0.004, "Transit Time(ms)": 0.03, "Bandwidth(GB/s)": 0.1333}
    return {
        "step7": {
            "p2p": {},
            "collective": {f"allreduce-top1@{GROUP}": {"0-1": {**link, "Op Name": "hcom_allReduce__271_0_1"}}},
        }
    }


def capture(directory: Path, rank: int = 0, kernels: int = 3) -> Path:
    """Write a capture of torch_npu and return its directory; the first three kernels have details."""
    root = directory / f"host_1_ascend_pt_{rank}"
    output = root / OUTPUT
    output.mkdir(parents=True)
    (root / f"profiler_info_{rank}.json").write_text(json.dumps({"rank_id": rank, "config": {"level": "Level2"}}))
    groups = {GROUP: {"group_name": "default_group", "group_rank": rank, "global_ranks": [0, 1]}}
    (root / "profiler_metadata.json").write_text(json.dumps({"parallel_group_info": groups}))
    files = {
        "trace_view.json": json.dumps(trace(kernels)),
        "kernel_details.csv": KERNELS,
        "memory_record.csv": MEMORY,
        "operator_memory.csv": BLOCKS,
        "npu_module_mem.csv": MODULES,
        "l2_cache.csv": L2,
        "static_op_mem.csv": STATIC,
        "communication.json": json.dumps(communication()),
        "communication_matrix.json": json.dumps(matrix()),
        "hbm.csv": "Device_id,Metric,Read(MB/s),Write(MB/s)\n0,Average,1.5,2.5\n",
        "op_statistic.csv": "OP Type,Core Type,Count\nAdd,AI_VECTOR_CORE,3\n",
    }
    for name, text in files.items():
        (output / name).write_text(text)
    return root


def record(fixed: struct.Struct, values: tuple[Any, ...], texts: dict[int, str], sort: int = 1) -> bytes:
    """Return one record as MindSpore's raw files have them."""
    body = fixed.pack(*values)
    for number, text in texts.items():
        body += struct.pack("<HI", number, len(text.encode())) + text.encode()
    return struct.pack("<HI", sort, len(body)) + body
