"""Calls in which a host thread waits for the device: it prepares no work, so the device does not wait for a launch."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analyse.intervals import EMPTY, Intervals, subtract, union, unite
from stepscope.analyse.operators.operator_calls import rows_of
from stepscope.analyse.step.activity import Located, of_kinds, span_codes, span_kinds
from stepscope.trace.tables import Tables, columns_of, shared

#: Names of calls of the runtimes and drivers of CUDA, HIP, Ascend (as its host layers spell them), XPU and MTIA: those
#: that return when the device is done. Freeing memory waits for the device on CUDA and HIP.
_ALWAYS = re.compile(
    r"cuda(?:Device|Stream|Event|Thread)Synchronize|cu(?:Ctx|Stream|Event)Synchronize|hip(?:Device|Ctx|Stream|Event)Synchronize"
    r"|cudaFree|hipFree|cuMemFree"
    r"|(?:cuda|cu|hip)Memcpy(?!\w*Async)\w*"
    r"|(?:AscendCL@)?aclrtSynchronize(?:Device|Stream|Event)(?:WithTimeout)?|(?:AscendCL@)?aclrtMemcpy(?:2d)?"
    r"|Runtime@(?:Device|Stream|Event)Synchronize|Runtime@MemCopySync"
    r"|ze(?:CommandQueue|CommandList|Event|Fence)(?:Host)?Synchronize|ur(?:QueueFinish|EventWait)|pi(?:QueueFinish|EventsWait)"
    r"|synchronize(?:Stream)?"
)
#: Copies that wait only sometimes (from or to pageable memory): they do if most of the copy runs before the call ends.
#: A driver hands a large one over piece by piece, and returns while the device copies the last piece.
_COPIES = re.compile(r"(?:cuda|cu|hip)Memcpy\w*Async|(?:AscendCL@)?aclrtMemcpy(?:2d)?Async")
#: Of the time of a copy, one part in so many may follow the call.
_LEFT = 5
#: The operator that copies one number to the host (`.item()`). It waits for the device by a call of the runtime; where
#: a capture has no call that waits (Ascend's level 0), the operator itself is the wait.
_READS_A_NUMBER = "aten::_local_scalar_dense"
#: Copies that a call never waits for, by their own names: within a device, and from or to pinned memory.
_NEVER = r"DtoD|Device -> Device|DeviceToDevice|Pinned"
#: What drivers append to a name: version and kind of the default stream.
_SUFFIX = re.compile(r"(?:_v\d+)?(?:_pt[ds]z?s?)?$")

#: Kinds of spans in which a thread prepares work for the device.
_PREPARING = ("operator", "collective", "runtime", "driver", "compile")


#: Calls that take memory from the driver or give it back.
_ALLOCATES = re.compile(
    r"(?:cuda|hip)(?:Malloc|Free|Host(?:Alloc|Malloc|Free|Register|Unregister))\w*"
    r"|cuMem(?:Alloc|Free|Create|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess|Host\w+)\w*"
    r"|(?:AscendCL@)?aclrt(?:Malloc|Free)\w*"
)


@shared
def waiting(tables: Tables) -> npt.NDArray[np.bool_]:
    """Return which rows of ``spans`` are calls that wait for the device."""
    calls = _calls_named(tables, _ALWAYS)
    result = of_kinds(span_kinds(tables), "sync") | calls
    copies = np.flatnonzero(_calls_named(tables, _COPIES))
    if len(copies):
        result[copies] = _outlasting(tables, copies)
    elif not calls.any() and columns_of(tables, "kernels", "span").height:
        names = columns_of(tables, "spans", "name")["name"]
        result |= (names == _READS_A_NUMBER).fill_null(value=False).to_numpy()
    return result


@shared
def allocating(tables: Tables) -> npt.NDArray[np.bool_]:
    """Return which rows of ``spans`` are calls that take memory from the driver or give it back."""
    return _calls_named(tables, _ALLOCATES)


def _calls_named(tables: Tables, pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
    """Return which rows of ``spans`` are calls of a runtime or driver whose name, without its suffix, fits."""
    result = of_kinds(span_kinds(tables), "runtime", "driver")
    calls = np.flatnonzero(result)
    if not len(calls):
        return result
    names = columns_of(tables, "spans", "name")["name"]
    called = span_codes(tables).name[calls]
    call_of = np.full(int(called.max()) + 1, -1, np.int64)
    call_of[called] = calls
    found = np.flatnonzero(call_of >= 0)
    fits = np.zeros(len(call_of), np.bool_)
    texts = names[pl.Series(call_of[found].astype(np.uint32))].to_list()
    fits[found] = [pattern.fullmatch(_SUFFIX.sub("", text, count=1)) is not None for text in texts]
    result[calls] = fits[called]
    return result


def _outlasting(tables: Tables, calls: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which calls end no earlier than most of the copy that they started."""
    spans = columns_of(tables, "spans", "id", "ts", "dur")
    kernels = columns_of(tables, "kernels", "span", "launch")
    ids, end = spans["id"], (spans["ts"] + spans["dur"]).to_numpy()
    launched, work = rows_of(ids, kernels["launch"]), rows_of(ids, kernels["span"])
    names = columns_of(tables, "spans", "name")["name"].gather(np.maximum(work, 0)).cast(pl.String)
    known = (launched >= 0) & (work >= 0) & ~names.str.contains(_NEVER).to_numpy()
    last = np.full(len(end), np.iinfo(np.int64).max)
    mostly = end[work[known]] - spans["dur"].to_numpy()[work[known]] // _LEFT
    order = np.argsort(mostly, kind="stable")
    last[launched[known][order]] = mostly[order]
    outlasting: npt.NDArray[np.bool_] = last[calls] <= end[calls]
    return outlasting


def idle_waits(tables: Tables, spans: Located) -> Intervals:
    """Return when a host thread waits for the device and no thread prepares work for it.

    Args:
        tables: The tables of a rank with a device.
        spans: What :func:`~stepscope.analyse.step.activity.located` returned.
    """
    waits = waiting(tables)
    if not waits.any():
        return EMPTY
    ids = columns_of(tables, "spans", "id")["id"].to_numpy()[waits]
    spans = spans.of(~spans.on_stream)
    thread, start, end = spans.track, spans.ts, spans.end
    waits = np.isin(spans.id, ids)
    work = of_kinds(spans.kind, *_PREPARING) & ~waits
    threads = np.unique(thread[waits])
    others = work & ~np.isin(thread, threads)
    active = [unite(start[others], end[others])]
    for one in threads.tolist():
        mine, inside = thread == one, (thread == one) & waits
        active.append(subtract(unite(start[mine & work], end[mine & work]), unite(start[inside], end[inside])))
    return subtract(unite(start[waits], end[waits]), union(*active))
