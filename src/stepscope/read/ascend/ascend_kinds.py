"""What kinds of spans Ascend's tasks and calls are, and how they are called."""

from __future__ import annotations

import re

import polars as pl

from stepscope.read.ascend.ascend_frames import conform, empty
from stepscope.read.common.distinct import found, of_each
from stepscope.trace.ascend_columns import LAYERS
from stepscope.trace.tables import dtype

#: Pattern of a task's type or name → kind; the first that fits. A task with a core is always a kernel.
_KIND_OF_TASK: tuple[tuple[str, str], ...] = (
    (r"(?i)memset", "memset"),
    (r"(?i)memcpy|SDMA|DMA_SQE|REDUCE_ASYNC", "memcpy"),
    (r"(?i)wait|notify|event|write.?value|barrier|sync", "sync"),
    (r"(?i)^(AI_|AIV|AIC|MIX|KERNEL|DSA|FFTS|FUSION|VECTOR|HCCL|COMMUNICATION)|VECTOR_CORE", "kernel"),
    # What the runtime does for itself: it holds a place, switches streams and models, and starts the profiler.
    (
        r"(?i)^(PLACE_?HOLDER|PROFIL(ING|ER)_|MAINTENANCE|MODEL_|STREAM_|LABEL_|CREATE_|FLIP|CMO|DATA_?DUMP|PCTRACE)",
        "overhead",
    ),
)
#: Names that the runtime gives to its own tasks, for those without a known type: ``EVENT_RECORD``, ``Notify Wait``.
_NAMED_BY_RUNTIME = re.compile(r"[A-Z][A-Z_]+|Notify (Wait|Record)|Write Value")
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
    """Return the kind of a task on a stream: ``other`` if neither its type nor its name is known."""
    if is_kernel:
        return "kernel"
    said = (type_, name) if _NAMED_BY_RUNTIME.fullmatch(name) else (type_,)
    for text in said:
        for pattern, kind in _KIND_OF_TASK:
            if re.search(pattern, text):
                return kind
    return "other"


def task_kinds(tasks: pl.DataFrame) -> pl.Series:
    """Return the kind of every task, ranges on streams included."""
    # Only kernels have a core, or a number of cores that they were cut for; files of the lowest level have the latter.
    is_kernel = (tasks["core"].is_not_null() | tasks["blocks"].is_not_null()).alias("is_kernel")
    return of_each(_kind_of, tasks["type"], tasks["name"], is_kernel, dtype=dtype("enum:kind")).alias("kind")


def _kind_of(type_: str | None, name: str | None, is_kernel: bool) -> str:  # noqa: FBT001
    return "annotation" if type_ in RANGES else kind_of_task(type_ or "", name or "", is_kernel=is_kernel)


def parted(tasks: pl.DataFrame, communications: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the tasks without those that are parts of communication, and the parts.

    A task that moves data or waits, and shares its connection with an operation within whose time it begins, is a part
    of it: at the lowest level CANN writes no lanes of planes.
    """
    known = communications.with_row_index("row").drop_nulls("connection")
    owner = found(tasks["connection"], known["connection"])
    own = known[owner]
    inside = tasks["ts"].is_between(own["ts"], own["ts"] + own["dur"]).fill_null(value=False)
    is_part = inside & task_kinds(conform("tasks", tasks)).is_in(["memcpy", "sync"])
    if not is_part.any():
        return tasks, empty("communication_tasks")
    places = own.select(pl.col("row").cast(pl.Int64), "lane")
    parts = conform("tasks", tasks).hstack(places).filter(is_part).with_columns(name="type")
    return tasks.filter(~is_part), conform("communication_tasks", parts)


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
    """Return the device's name of its number: ``npu:0``; ``npu`` where no file says the number."""
    return "npu" if device is None else f"npu:{device}"
