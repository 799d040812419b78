"""What kinds of spans Ascend's tasks and calls are, and how they are called."""

from __future__ import annotations

import re

import polars as pl

from stepscope.read.common.distinct import of_each
from stepscope.trace.ascend_columns import LAYERS
from stepscope.trace.tables import dtype

#: Pattern of a task's type or name → kind; the first that fits. A task with a core is always a kernel.
_KIND_OF_TASK: tuple[tuple[str, str], ...] = (
    (r"(?i)memset", "memset"),
    (r"(?i)memcpy|SDMA|DMA_SQE|REDUCE_ASYNC", "memcpy"),
    (r"(?i)wait|notify|event|write.?value|barrier|sync", "sync"),
    (r"(?i)^(AI_|AIV|AIC|MIX|KERNEL|DSA|FFTS|FUSION|VECTOR|HCCL|COMMUNICATION)|VECTOR_CORE", "kernel"),
)
#: Types of ranges on a stream, which lie on a lane of their own.
RANGES: tuple[str, ...] = ("MSTX", "STEP_TRACE", "MSTX_TASK")
#: ``sort`` of a row of the host → kind.
KIND_OF_SORT = {
    "operator": "operator",
    "api": "runtime",
    "python": "python",
    "enqueue": "runtime",
    "dequeue": "runtime",
    "range": "annotation",
    "step": "step",
    "data": "data",
    "garbage": "garbage",
}
#: Level of a call of CANN → prefix of its name on the timeline.
_LAYERS = {level: layer for _, level, layer in LAYERS} | {"communication": "Hccl"}
_WAITS = re.compile(r"(?i)notify|wait|barrier")
_OPERATION = re.compile(r"(?:^|/)(?:hcom_|hccl_)?([A-Za-z]+?)(?:_+\d.*|_?-op\d.*|_)?$")
_WORDS = {
    "allreduce": "allreduce",
    "allgather": "allgather",
    "allgatherv": "allgatherv",
    "reducescatter": "reduce_scatter",
    "reducescatterv": "reduce_scatterv",
    "alltoall": "alltoall",
    "alltoallv": "alltoallv",
    "alltoallvc": "alltoallvc",
    "receive": "recv",
    "batchsendrecv": "send_recv",
    "sendrecv": "send_recv",
}


def kind_of_task(type_: str, name: str, *, is_kernel: bool) -> str:
    """Return the kind of a task on a stream."""
    if is_kernel:
        return "kernel"
    for pattern, kind in _KIND_OF_TASK:
        if re.search(pattern, type_) or (kind == "memcpy" and re.search(r"(?i)memcpy", name)):
            return kind
    return "overhead"


def task_kinds(tasks: pl.DataFrame) -> pl.Series:
    """Return the kind of every task, ranges on streams included."""
    return of_each(_kind_of, tasks["type"], tasks["name"], tasks["core"], dtype=dtype("enum:kind")).alias("kind")


def _kind_of(type_: str | None, name: str | None, core: str | None) -> str:
    return "annotation" if type_ in RANGES else kind_of_task(type_ or "", name or "", is_kernel=core is not None)


def plane_kind(name: str | None) -> str:
    """Return the kind of a part of communication."""
    return "sync" if _WAITS.search(name or "") else "collective"


def call_name(name: str | None, sort: str, level: str | None) -> str:
    """Return how a row of the host is called on the timeline: a call of CANN with its layer in front."""
    if name is None:
        return "unknown"
    layer = _LAYERS.get(level or "") if sort == "api" else None
    return name if layer is None else f"{layer}@{name}"


def operation(name: str) -> str:
    """Return the operation of a name: ``hcom_allReduce__271_0_1`` → ``allreduce``, ``Default/Send-op3`` → ``send``."""
    match = _OPERATION.search(name)
    word = (match[1] if match else name).lower()
    return _WORDS.get(word, word)


def npu(device: int | None) -> str:
    """Return the device's name of its number: ``npu:0``."""
    return f"npu:{device or 0}"
