"""Tables of Nsight Systems' export, their columns, and its numbers of processes, threads and devices."""

from __future__ import annotations

import polars as pl

from stepscope.read.common.database.sqlite import Dialect
from stepscope.trace.ascend_columns import INT, NAME, TEXT

PLACE = dict.fromkeys(
    ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "graphNodeId"), INT
)
_CALL = {**dict.fromkeys(("start", "end", "globalTid", "correlationId"), INT), "nameId": NAME}
_AXES = [f"{name}{axis}" for name in ("grid", "block") for axis in "XYZ"]
KERNELS, COPIES, FILLS, GRAPHS, WAITS = (
    f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "SYNCHRONIZATION")
)
_RUNTIME, OVERHEAD, MEMORY = "CUPTI_ACTIVITY_KIND_RUNTIME", "PROFILER_OVERHEAD", "CUDA_GPU_MEMORY_USAGE_EVENTS"
DIAGNOSTICS = "DIAGNOSTIC_EVENT"
#: Tables of calls on host threads → kind; null is said by the name of the call.
CALLS = {_RUNTIME: None, "OSRT_API": "other", "CUDNN_EVENTS": "runtime", "CUBLAS_EVENTS": "runtime",
          OVERHEAD: "overhead"}  # fmt: skip
DIALECT = Dialect(
    {
        KERNELS: {
            **PLACE,
            **dict.fromkeys(("demangledName", "shortName"), NAME),
            **dict.fromkeys(("registersPerThread", "staticSharedMemory", "dynamicSharedMemory", *_AXES), INT),
        },
        COPIES: {**PLACE, **dict.fromkeys(("bytes", "copyKind", "srcKind", "dstKind"), INT)},
        FILLS: {**PLACE, **dict.fromkeys(("bytes", "memKind"), INT)},
        GRAPHS: {**PLACE, "graphId": INT},
        WAITS: {**PLACE, "syncType": INT},
        **dict.fromkeys(CALLS, _CALL),
        "NVTX_EVENTS": {
            **dict.fromkeys(("start", "end", "eventType", "globalTid", "endGlobalTid"), INT),
            **{"text": TEXT, "textId": NAME},
        },
        MEMORY: dict.fromkeys(("start", "deviceId", "address", "bytes", "memKind", "memoryOperationType"), INT),
        DIAGNOSTICS: {"severity": INT, "text": TEXT},
        "ThreadNames": {"nameId": NAME, "globalTid": INT},
        "TARGET_INFO_SESSION_START_TIME": {"utcEpochNs": INT},
        "TARGET_INFO_SYSTEM_ENV": {"name": TEXT, "value": TEXT},
        "META_DATA_EXPORT": {"name": TEXT, "value": TEXT},
        "TARGET_INFO_GPU": {
            "name": TEXT,
            **dict.fromkeys(("id", "cuDevice", "smCount", "totalMemory", "computeMajor", "computeMinor"), INT),
            **dict.fromkeys(("threadsPerWarp", "maxThreadsPerBlock", "maxRegistersPerSm", "maxShmemPerSm"), INT),
        },
    },
    "StringIds",
)


def process(numbers: pl.Series) -> pl.Series:
    """Return the process of each number that names a process or a thread: 24 bits above those of the thread."""
    return (numbers // (1 << 24) % (1 << 24)).alias("process")


def thread(numbers: pl.Series) -> pl.Series:
    """Return the thread of each number that names a thread."""
    return (numbers % (1 << 24)).alias("thread")


def device(rows: pl.DataFrame) -> pl.Series:
    """Return the number of the device of each row; one that is impossible or missing is the first."""
    given = rows["deviceId"]
    return given.set((~given.is_between(0, (1 << 31) - 1)).fill_null(value=True), 0).alias("device")
