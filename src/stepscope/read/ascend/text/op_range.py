"""MindSpore's raw records: ``FRAMEWORK/mindspore.op_range``, ``memory_usage`` and ``record_shapes`` → frames.

A file is a row of records, each a number of 16 bits, a length of 32 and so many bytes: a structure of fixed size, then
texts with the same head. Times are values of the processor's counter; the files of CANN beside them give one value of
the counter with its time. The layout is that of MindSpore 2.7 to 2.10.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.read.ascend.ascend_frames import Frames, complete
from stepscope.read.common.plain_text import printable
from stepscope.read.common.source import Progress, read_blocks
from stepscope.trace.losses import LossLedger

_HEAD = struct.Struct("<HI")
_RANGE = struct.Struct("<5Qi3Hb3?")
_MEMORY = struct.Struct("<i11QI4B")
_NOTHING_FIXED = struct.Struct("")
_NAME, _FULL_NAME, _MODULE, _EVENT = 13, 14, 15, 16
_OWNER = 13
_FREED = (1 << 64) - 1
_MOST = 1 << 62
#: A longer record is damage.
_LONGEST = 1 << 24
#: Marks of MindSpore's queues, which end before they begin.
_FLOW = "flow"
_EPOCH = 100_000_000_000_000_000
_STEP = "ProfilerStep#"

_STAGES = (
    *("Default", "Python", "Capture", "RunGraph", "RunGrad", "RunOp", "Asnumpy", "CompileGradGraph", "WaitPipeline"),
    "SyncStream",
)
_MODULES = (
    *("Default", "GraphExecutorPy", "RuntimeFramework", "PynativeFramework", "Kernel", "Python", "Capture", "Other"),
)
_EVENTS = (
    *("Default", "KernelInfer", "KernelResize", "KernelInferAndResize", "KernelLaunch", "KernelLaunckCallback"),
    *("KernelUpdate", "KernelPrepareData", "GraphLaunch", "InputProcess", "OutputProcess", "WaitTaskFinish"),
    *("PreLaunch", "PostLaunch", "SendOutput", "MemoryAlloc", "MemoryFree", "CopyData", "StreamSync"),
    *("ProcessMultiStream", "WaitKernelsInferFinish", "WaitKernelsResizeFinish", "WaitKernelsLaunchFinish"),
    *("KernelInferInner", "KernelInferDataSync", "KernelResizeInner", "KernelLaunchInner", "BackendGraphRunInner"),
    *("RunOp", "PyNativeFrontendTask", "PyNativeBackendTask", "PyNativeDeviceTask", "PyNativeLaunchTask"),
    *("PyNativeBpropTask", "Wait", "PyNativeGilAcquire", "PyNativeCast", "PyNativeInfer", "PyNativeOpCompile"),
    *("PyNativeGradExpander", "PyNativeGradUpdateSens", "PyNativeGradClearTopCell", "PyNativeGradClearAutoGradCell"),
    *("PyBoostInferOutput", "PyBoostInferByOpDef", "PyBoostCreateOutputTensor", "PyBoostDeviceTask"),
    *("PyBoostMallocInput", "PyBoostMallocOutput", "PyBoostLaunchAclnn", "PyBoostLaunchAtb", "PyNativeNewGraph"),
    *("PyNativeEndGraph", "PythonObserved", "CaptureRunGraph", "CaptureProcess", "CaptureCompile", "CaptureGuard"),
    *("AclnnHitCacheStage1", "AclnnHitCacheStage2", "AclnnMissCacheStage1", "AclnnMissCacheStage2"),
    *("AclnnUpdateAddress", "AclnnRunOp", "RunExpanderFunc", "EmitOp", "Execute", "ReleaseResource", "NativeFunc"),
)


@dataclass(frozen=True)
class CpuCounter:
    """The processor's counter: at ``start`` it was ``epoch`` ns since the epoch; it goes ``mhz`` steps a µs."""

    start: int = 0
    epoch: int = 0
    mhz: float = 1000.0

    def ns(self, value: int) -> int:
        """Return the time of a value of the counter; one that is a time since the epoch already stays."""
        if value >= _EPOCH:
            return value
        # Thousandths of MHz keep the arithmetic whole.
        return self.epoch + (value - self.start) * 1_000_000 // max(1, round(self.mhz * 1000))


def ranges(path: Path, ledger: LossLedger, progress: Progress | None = None, *, counter: CpuCounter | None) -> Frames:
    """Return the frame ``host`` and the steps of ``mindspore.op_range``.

    Raises:
        InputError: It cannot be read.
        DamagedTraceError: It is empty.
    """
    clock = counter or CpuCounter()
    rows: list[tuple[Any, ...]] = []
    for fixed, texts in _records(path, _RANGE, ledger, progress):
        thread, _, step, start, end, process, module, event, stage, _, is_graph, is_stage, is_stack = fixed
        name = texts.get(_NAME, "")
        if name == _FLOW or end < start:
            ledger.add("event_not_an_interval")
            continue
        if max(start, end, thread) > _MOST:
            ledger.add("event_bad_time")
            continue
        full = texts.get(_FULL_NAME, "")
        if is_stack:
            shown, sort = name, "python"
        elif is_graph:
            shown, sort = f"{texts.get(_MODULE, '')}::{texts.get(_EVENT, '')}::{name}", "operator"
        elif is_stage:
            shown, sort = _named(_STAGES, stage), "operator"
        else:
            shown, sort = f"{_named(_MODULES, module)}::{_named(_EVENTS, event)}::{full}", "operator"
        sort = "step" if name.startswith(_STEP) else sort
        shown = name if sort == "step" else shown
        begin = clock.ns(start)
        rows.append((begin, clock.ns(end) - begin, process, thread, shown, sort, full or None, step))
    schema = {"ts": pl.Int64, "dur": pl.Int64, "process": pl.Int64, "thread": pl.Int64}
    schema |= {"name": pl.String, "sort": pl.String, "module": pl.String, "step": pl.UInt64}  # type: ignore[dict-item]
    host = pl.DataFrame(rows, schema=schema, orient="row")
    ledger.add("start_unknown", int(counter is None and bool(host.filter(pl.col("ts") < _EPOCH).height)))
    number = pl.col("name").str.strip_prefix(_STEP).cast(pl.Int64, strict=False)
    steps = host.filter(pl.col("sort") == "step").select("ts", "dur", number=number).drop_nulls()
    return complete({"host": host, "steps": steps})


def memory(path: Path, ledger: LossLedger, progress: Progress | None = None, *, counter: CpuCounter | None) -> Frames:
    """Return the frame ``blocks`` of ``mindspore.memory_usage``: a block is an allocation and its release.

    Raises:
        InputError: It cannot be read.
        DamagedTraceError: It is empty.
    """
    clock = counter or CpuCounter()
    rows = []
    for fixed, texts in _records(path, _MEMORY, ledger, progress):
        device, thread, _, at, address, size, used, _, reserved, _, _, stream, *_ = fixed
        if max(at, used, reserved, thread) > _MOST or (size != _FREED and size > _MOST):
            ledger.add("value_unreadable")
            continue
        freed = size == _FREED
        place = (clock.ns(at), device, thread, _signed(address))
        rows.append((*place, None if freed else size, used, reserved, _signed(stream), texts.get(_OWNER) or None))
    names = ("ts", "device", "thread", "address", "bytes", "allocated", "reserved", "stream")
    schema = {**dict.fromkeys(names, pl.Int64), "name": pl.String}
    events = pl.DataFrame(rows, schema=schema, orient="row").sort("ts", maintain_order=True)
    following = events.with_columns(
        pl.col(name).shift(-1).over("device", "address").alias(f"next_{name}") for name in ("ts", "bytes", *_TOTALS)
    )
    taken = following.filter(pl.col("bytes").is_not_null())
    freed = pl.col("next_ts").is_not_null() & pl.col("next_bytes").is_null()
    return complete(
        {
            "blocks": taken.with_columns(
                active="allocated",
                release=pl.when(freed).then("next_ts"),
                released_allocated=pl.when(freed).then("next_allocated"),
                released_reserved=pl.when(freed).then("next_reserved"),
                released_active=pl.when(freed).then("next_allocated"),
            )
        }
    )


def inputs(path: Path, ledger: LossLedger, progress: Progress | None = None) -> pl.DataFrame:
    """Return the operators of ``mindspore.record_shapes`` in order: name, shapes, dtypes.

    Raises:
        InputError: It cannot be read.
        DamagedTraceError: It is empty.
    """
    texts = [said for _, said in _records(path, _NOTHING_FIXED, ledger, progress)]
    columns = {"name": 0, "shapes": 1, "dtypes": 2}
    return pl.DataFrame(
        {name: [said.get(place) for said in texts] for name, place in columns.items()},
        schema=dict.fromkeys(columns, pl.Categorical),
    )


_TOTALS = ("allocated", "reserved")


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _named(names: tuple[str, ...], place: int) -> str:
    return names[place] if 0 <= place < len(names) else names[0]


def _records(
    path: Path, fixed: struct.Struct, ledger: LossLedger, progress: Progress | None
) -> Iterator[tuple[tuple[Any, ...], dict[int, str]]]:
    """Yield the fixed part and the texts of every record; the file ends at an impossible one."""
    pending = b""
    for block in read_blocks(path, ledger, progress):
        pending += block
        at = 0
        while at + _HEAD.size <= len(pending):
            _, length = _HEAD.unpack_from(pending, at)
            if length > _LONGEST:
                ledger.add("event_damaged")
                return
            end = at + _HEAD.size + length
            if end > len(pending):
                break
            record = pending[at + _HEAD.size : end]
            at = end
            if length < fixed.size:
                ledger.add("event_damaged")
                continue
            yield fixed.unpack_from(record), _texts(record, fixed.size, ledger)
        pending = pending[at:]
    if pending:
        ledger.add_cut()


def _texts(record: bytes, at: int, ledger: LossLedger) -> dict[int, str]:
    found = {}
    while at + _HEAD.size <= len(record):
        sort, length = _HEAD.unpack_from(record, at)
        end = at + _HEAD.size + length
        if end > len(record):
            ledger.add("value_unreadable")
            break
        found[sort] = printable(record[at + _HEAD.size : end].decode("utf-8", "surrogateescape"))
        at = end
    return found
