"""Words of PyTorch's profilers: the kind of an event by its category and name, names of devices, declared steps."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import polars as pl

from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import KIND_CODE, PartBuilder, whole_number
from stepscope.trace.tables import of_arrays

#: Keys before or after the list of events that only files in the form of PyTorch's profilers have.
KEYS_OF_KINETO = frozenset({"schemaVersion", "deviceProperties", "baseTimeNanoseconds", "traceName"})

#: Category of an event → kind of its span.
KIND_OF_CATEGORY = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "mtia_ccp_events": "kernel",
    "gpu_memcpy": "memcpy",
    "Memcpy": "memcpy",
    "gpu_memset": "memset",
    "Memset": "memset",
    "cuda_sync": "sync",
    "overhead": "overhead",
    "gpu_user_annotation": "annotation",
    "cuda_profiler_range": "annotation",
    "cuda_runtime": "runtime",
    "Runtime": "runtime",
    "mtia_runtime": "runtime",
    "xpu_runtime": "runtime",
    "privateuse1_runtime": "runtime",
    "cuda_driver": "driver",
    "xpu_driver": "driver",
    "privateuse1_driver": "driver",
    "cpu_op": "operator",
    "Operator": "operator",
    "user_annotation": "annotation",
    "python_function": "python",
    # viztracer: functions, "function entry and exit"
    "fee": "python",
    "FEE": "python",
}

#: Categories whose events lie on a device, not on a host thread.
DEVICE_CATEGORIES = frozenset(
    {
        "kernel",
        "Kernel",
        "mtia_ccp_events",
        "gpu_memcpy",
        "Memcpy",
        "gpu_memset",
        "Memset",
        "cuda_sync",
        "gpu_user_annotation",
    }
)

#: The profiler's account of itself; not an event of the program.
SKIPPED_CATEGORIES = frozenset({"Trace"})

STEP_NAME = re.compile(r"ProfilerStep\s*#(\d+)$")
DATA_NAME = "enumerate(DataLoader)#"
#: The call of torch.distributed, whose arguments say which collective it is.
_CALL = "record_param_comms"
#: What annotations of collectives begin with: the backend.
COLLECTIVE_PREFIXES = tuple(
    f"{backend}:"
    for backend in ("nccl", "rccl", "gloo", "mpi", "ucc", "hccl", "xccl", "ccl", "oneccl", "mscclpp", "nvshmem")
)
_DEVICE_COPY = re.compile(r"dma")
_DEVICE_WAIT = re.compile(r"event_(wait|record)$")
_FRAME_TEXT = re.compile(r"(.+)\((\d{1,18})\): (.*)", re.DOTALL)

#: ``c10::DeviceType`` by number; PyTorch's programs call GPUs of AMD ``cuda``, too.
HIP = 6
_DEVICE_TYPES = {
    0: "cpu", 1: "cuda", HIP: "cuda", 9: "xla", 12: "xpu", 13: "mps", 14: "meta", 15: "hpu", 18: "ipu", 19: "mtia",
    20: "privateuseone",
}  # fmt: skip

#: How a name may change the kind that the category gives.
NAME_CLASSES = 6
NAME_PLAIN, NAME_STEP, NAME_DATA, NAME_COLLECTIVE, NAME_COPY, NAME_WAIT = range(NAME_CLASSES)


def name_class(name: str) -> int:
    """Return what a name says about the kind, one of the ``NAME_`` numbers."""
    if STEP_NAME.match(name):
        return NAME_STEP
    if name.startswith(DATA_NAME):
        return NAME_DATA
    if name == _CALL or name.startswith(COLLECTIVE_PREFIXES):
        return NAME_COLLECTIVE
    if _DEVICE_COPY.match(name):
        return NAME_COPY
    return NAME_WAIT if _DEVICE_WAIT.match(name) else NAME_PLAIN


def kind_of(category: str, name: int) -> int:
    """Return the number of the kind of a complete event; one of an unknown category is a range of the user.

    Which kernels communicate, :mod:`~stepscope.read.common.communication` knows.
    """
    kind = KIND_OF_CATEGORY.get(category, "annotation")
    if kind in ("operator", "annotation") and category not in DEVICE_CATEGORIES:
        host = {NAME_STEP: "step", NAME_DATA: "data", NAME_COLLECTIVE: "collective"}
        kind = host.get(name, kind)
    elif category == "mtia_ccp_events":
        # One category holds everything that the device's command processor does; names distinguish it.
        kind = {NAME_COPY: "memcpy", NAME_WAIT: "sync"}.get(name, kind)
    return KIND_CODE[kind]


def parse_frame(text: str) -> dict[str, Any]:
    """Return file, line and function of a frame as PyTorch writes it: ``file.py(12): function``."""
    match = _FRAME_TEXT.fullmatch(text)
    if match is None:
        return {"file": None, "line": None, "function": text}
    return {"file": match[1], "line": int(match[2]), "function": match[3]}


def device_name(kind: int, index: int) -> str:
    """Return the name of a device: ``cpu``, ``cuda:0``.

    Args:
        kind: Number of its ``c10::DeviceType``.
        index: Its index; negative where the source gives none.
    """
    name = _DEVICE_TYPES.get(kind, f"device{kind}")
    return name if index < 0 or name == "cpu" else f"{name}:{index}"


def add_steps(part: PartBuilder, names: Iterable[str], ts: Integers, dur: Integers) -> None:
    """Add the steps that the program marked by calling ``step()``.

    Args:
        part: Takes them.
        names: Names of the spans, as :data:`STEP_NAME` has them.
        ts: Starts, ns since the Unix epoch.
        dur: Durations, ns.
    """
    numbers = pl.Series([whole_number(name.rpartition("#")[2]) for name in names], dtype=pl.Int64)
    part.add_steps(of_arrays({"number": numbers, "ts": ts, "dur": dur}), "declared")
