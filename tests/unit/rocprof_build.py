"""Files as rocprofv3 writes them with all of its kinds of records; the real one that tests have holds kernels only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GPU, CPU = 9001, 9000
RUNTIME, COPY, DISPATCH, MARKER, RCCL = range(1, 6)
OPERATIONS = {
    "NONE": [],
    "HIP_RUNTIME_API": ["hipNone", "hipLaunchKernel", "hipMemcpyAsync"],
    "MEMORY_COPY": ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_HOST", "MEMORY_COPY_HOST_TO_DEVICE"],
    "KERNEL_DISPATCH": ["NONE", "ENQUEUE", "COMPLETE"],
    "MARKER_CORE_API": ["roctxMarkA", "roctxThreadRangeA"],
    "RCCL_API": ["ncclAllReduce"],
}
KERNELS = ("void add<float>(float*)", "void mul(float*)", "ncclDevKernel_Generic_1(ncclDevKernelArgs)")


def record(sort: int, operation: int, start: int, end: int, correlation: int, **more: Any) -> dict[str, Any]:
    return {
        "size": 1, "kind": sort, "operation": operation, "thread_id": 77, "start_timestamp": start,
        "end_timestamp": end, "correlation_id": {"internal": correlation, "external": 0}, **more,
    }  # fmt: skip


def document(kernels: int = 20, names: tuple[str, ...] = KERNELS) -> dict[str, Any]:
    """A process that launches kernels 1,000 ns apart, each 10 ns after its call; copies a block before each."""
    times = [100_000 + 1_000 * number for number in range(kernels)]
    dispatch = {
        "agent_id": {"handle": GPU}, "queue_id": {"handle": 3}, "group_segment_size": 512,
        "workgroup_size": {"x": 64, "y": 2, "z": 1}, "grid_size": {"x": 640, "y": 3, "z": 1},
    }  # fmt: skip
    ends = {"dst_agent_id": {"handle": GPU}, "src_agent_id": {"handle": CPU}, "bytes": 4096}
    calls = [record(RUNTIME, 1, at, at + 5, 2 * number + 1) for number, at in enumerate(times)]
    calls += [record(RUNTIME, 2, at - 200, at - 190, 2 * number + 2) for number, at in enumerate(times)]
    tool = {
        "metadata": {"pid": 7, "node": {"hostname": "node-1"}},
        "agents": [
            {"id": {"handle": CPU}, "type": 1, "logical_node_type_id": 0, "name": "EPYC"},
            {"id": {"handle": GPU}, "type": 2, "logical_node_type_id": 1, "product_name": "MI300X"},
        ],
        "strings": {
            "buffer_records": [{"kind": kind, "operations": known} for kind, known in OPERATIONS.items()],
            "marker_api": [{"key": 999, "value": "forward"}],
        },
        "kernel_symbols": [
            {"kernel_id": number, "formatted_kernel_name": name, "arch_vgpr_count": 32}
            for number, name in enumerate(names)
        ],
        "buffer_records": {
            "kernel_dispatch": [
                record(
                    DISPATCH,
                    2,
                    at + 10,
                    at + 110,
                    2 * number + 1,
                    dispatch_info={**dispatch, "kernel_id": number % len(names)},
                )
                for number, at in enumerate(times)
            ],
            "memory_copy": [
                record(COPY, 2, at - 150, at - 100, 2 * number + 2, **ends) for number, at in enumerate(times)
            ],
            "hip_api": calls,
            "marker_api": [record(MARKER, 1, 50_000, 60_000, 999)],
            "rccl_api": [record(RCCL, 0, 70_000, 70_100, 888)],
            "hsa_api": [],
        },
    }
    return {"rocprofiler-sdk-tool": [tool]}


def write(path: Path, kernels: int = 20, names: tuple[str, ...] = KERNELS) -> Path:
    path.write_text(json.dumps(document(kernels, names)))
    return path
