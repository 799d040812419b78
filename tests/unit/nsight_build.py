"""A database as ``nsys export --type sqlite`` writes it, after the manual's “SQLite Schema Reference”.

No report of Nsight Systems was at hand: tables, columns, numbers and words are those of the documentation.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

BEGIN = 1_790_000_000_000_000_000
PROCESS, MAIN, BACKWARD_THREAD = 4711, 4711, 4801
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE ThreadNames (nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT,
    totalMemory INTEGER, smCount INTEGER, cuDevice INTEGER, threadsPerWarp INTEGER, computeMajor INTEGER,
    computeMinor INTEGER);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL,
    nameEnum INTEGER NOT NULL, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
    registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL,
    blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL,
    dynamicSharedMemory INTEGER NOT NULL, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    value INTEGER NOT NULL, bytes INTEGER NOT NULL, memKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
    callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start INTEGER NOT NULL, end INTEGER NOT NULL,
    deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, syncType INTEGER NOT NULL, eventId INTEGER NOT NULL);
CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start INTEGER NOT NULL, globalPid INTEGER NOT NULL,
    deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, address INTEGER NOT NULL, pc INTEGER NOT NULL,
    bytes INTEGER NOT NULL, memKind INTEGER NOT NULL, memoryOperationType INTEGER NOT NULL, name TEXT);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
    domainId INTEGER, uint64Value INTEGER, jsonText TEXT);
CREATE TABLE OSRT_API (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
    nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, nestingLevel INTEGER, callchainId INTEGER NOT NULL);
CREATE TABLE PROFILER_OVERHEAD (start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER NOT NULL, timestampType INTEGER NOT NULL, source INTEGER NOT NULL,
    severity INTEGER NOT NULL, text TEXT NOT NULL, globalPid INTEGER);
CREATE TABLE ENUM_CUDA_MEMCPY_OPER (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
INSERT INTO ENUM_CUDA_MEMCPY_OPER VALUES (1, 'CUDA_MEMCPY_KIND_HTOD', 'Host-to-Device');
CREATE TABLE ENUM_NSYS_EVENT_TYPE (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
INSERT INTO ENUM_NSYS_EVENT_TYPE VALUES (34, 'NvtxMark', 'NvtxMark'), (59, 'NvtxPushPopRange', 'NvtxPushPopRange'),
    (60, 'NvtxStartEndRange', 'NvtxStartEndRange');
"""
KERNELS = (
    "void at::native::vectorized_elementwise_kernel<4>(int)",
    "ampere_sgemm_128x64_tn",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
)


def global_pid(process: int) -> int:
    """Number of a process: 8 bits of hardware, 8 of the virtual machine, 24 of the process, 24 of the thread."""
    return 1 << 48 | process << 24


def global_tid(process: int, thread: int) -> int:
    return global_pid(process) | thread


class Export:
    """Fills a database, row by row."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self.path = path
        self.connection = sqlite3.connect(path)
        self.connection.executescript(SCHEMA)
        self._texts: dict[str, int] = {}

    def text(self, value: str) -> int:
        if value not in self._texts:
            self._texts[value] = 1000 + len(self._texts)
            self.add("StringIds", id=self._texts[value], value=value)
        return self._texts[value]

    def add(self, table: str, **values: object) -> None:
        columns, marks = ", ".join(f'"{name}"' for name in values), ", ".join("?" * len(values))
        self.connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", list(values.values()))

    def call(self, name: str, start: int, end: int, correlation: int, *, on: tuple[int, int] = (PROCESS, MAIN)) -> None:
        who = {"globalTid": global_tid(*on), "nameId": self.text(name), "correlationId": correlation}
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, eventClass=0, returnValue=0, **who)

    def work(self, table: str, start: int, end: int, correlation: int, process: int = PROCESS, **more: object) -> None:
        where = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": global_pid(process), **more}
        self.add(f"CUPTI_ACTIVITY_KIND_{table}", start=start, end=end, correlationId=correlation, **where)

    def kernel(self, name: str, start: int, end: int, correlation: int, process: int = PROCESS, **more: object) -> None:
        sizes = {"gridX": 8, "gridY": 2, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1, "registersPerThread": 40}
        names = {"demangledName": self.text(name), "shortName": self.text(name.partition("(")[0][:20])}
        shared = {"staticSharedMemory": 1024, "dynamicSharedMemory": 512}
        self.work("KERNEL", start, end, correlation, process, **sizes, **names, **shared, **more)

    def range(
        self, text: str, start: int, end: int | None, thread: int = MAIN, *, registered: bool = False, kind: int = 59
    ) -> None:
        said = {"textId": self.text(text)} if registered else {"text": text}
        who = {"globalTid": global_tid(PROCESS, thread), "domainId": 0}
        self.add("NVTX_EVENTS", start=start, end=end, eventType=kind, **who, **said)

    def close(self) -> Path:
        self.connection.commit()
        self.connection.close()
        return self.path


def filled(path: Path, steps: int = 4, names: Sequence[str] = KERNELS) -> Export:
    """A training under ``emit_nvtx``: steps of 10,000 ns with a copy, an operator forward and one backward."""
    export = Export(path)
    export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=BEGIN)
    export.add("TARGET_INFO_SYSTEM_ENV", globalVid=0, devStateName="", name="Hostname", nameEnum=1, value="node-3")
    export.add("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.16.1")
    gpu = {"totalMemory": 80 << 30, "smCount": 108, "cuDevice": 0, "computeMajor": 8, "computeMinor": 0}
    export.add("TARGET_INFO_GPU", vmId=0, id=0, name="NVIDIA A100-SXM4-80GB", busLocation="0000:07:00.0", **gpu)
    export.add("ThreadNames", nameId=export.text("pt_autograd_0"), globalTid=global_tid(PROCESS, BACKWARD_THREAD))
    memory = {"globalPid": global_pid(PROCESS), "deviceId": 0, "contextId": 1, "pc": 0, "memKind": 2}
    for step in range(steps):
        at, number = 50_000 + 10_000 * step, 10 * step
        export.range(f"step_{step + 5}", at, at + 9_500)
        export.range("aten::to, op_id = 3", at + 50, at + 600, registered=True)
        export.call("cudaMemcpyAsync_v3020", at + 100, at + 400, number + 1)
        export.work("MEMCPY", at + 500, at + 900, number + 1, bytes=4096, copyKind=1, srcKind=1, dstKind=2)
        export.range(
            f"aten::addmm, seq = {step}, op_id = {number + 4}, sizes = [[64], [8, 3], []]", at + 1000, at + 1900
        )
        export.call("cudaLaunchKernel_v7000", at + 1200, at + 1300, number + 2)
        export.kernel(names[step % len(names)], at + 1500, at + 2500, number + 2, graphNodeId=None)
        backward = f"AddmmBackward0, seq = {step}, op_id = {number + 5}"
        export.range(f"autograd::engine::evaluate_function: {backward}", at + 3000, at + 4000, BACKWARD_THREAD)
        export.range(backward, at + 3100, at + 3900, BACKWARD_THREAD, registered=True)
        export.call("cuLaunchKernelEx", at + 3200, at + 3300, number + 3, on=(PROCESS, BACKWARD_THREAD))
        export.kernel(names[(step + 1) % len(names)], at + 3500, at + 5000, number + 3, streamId=13)
        export.work("MEMSET", at + 5200, at + 5300, number + 9, value=0, bytes=256, memKind=2)
        export.call("cudaStreamSynchronize_v3020", at + 6000, at + 7000, number + 4)
        export.work("SYNCHRONIZATION", at + 6100, at + 6900, number + 4, syncType=3, eventId=0)
        os_call = {"globalTid": global_tid(PROCESS, MAIN), "nameId": export.text("poll"), "eventClass": 27}
        export.add("OSRT_API", start=at + 7500, end=at + 8500, returnValue=0, nestingLevel=0, callchainId=0, **os_call)
        for freed in (0, 1):
            more = {"memoryOperationType": freed, "address": 1 << 33, "bytes": 2 << 20}
            export.add("CUDA_GPU_MEMORY_USAGE_EVENTS", start=at + 8600 + freed, **memory, **more)
    own = {"globalTid": global_tid(PROCESS, MAIN), "nameId": export.text("CUDA profiling stop overhead")}
    export.add("PROFILER_OVERHEAD", start=40_000, end=45_000, correlationId=0, returnValue=0, **own)
    return export


def write(path: Path, steps: int = 4, names: Sequence[str] = KERNELS) -> Path:
    return filled(path, steps, names).close()


def again(path: Path, *statements: str) -> Path:
    """Change a database."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return path
