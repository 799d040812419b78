"""What a Kineto event is: its kind, from its category and, for some, its name."""

from __future__ import annotations

import re
from collections.abc import Iterable

from stepscope.trace.schema import KINDS

_KIND_OF_CATEGORY = {
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

#: The profiler's account of itself: no event of the program.
SKIPPED_CATEGORIES = frozenset({"Trace"})

STEP_NAME = re.compile(r"ProfilerStep\s*#(\d{1,18})$")
DATA_NAME = "enumerate(DataLoader)#"
OPTIMIZER_NAME = "Optimizer.step#"
_HOST_COLLECTIVE = re.compile(r"record_param_comms$|(nccl|rccl|gloo|mpi|ucc|hccl|xccl|mscclpp):")
# Kernels of libraries whose names say it; others are recognised by their arguments, or by what launched them.
_DEVICE_COLLECTIVE = re.compile(
    r"(void )?((\w+|\(anonymous namespace\))::)*"
    r"(ncclKernel|ncclDevKernel|ncclDevFunc|nccl_|ncclx|rccl|msccl|oneccl|cross_device_reduce"
    r"|(one|two)_shot_all_reduce|multimem_(one_shot_)?all_)",
    re.IGNORECASE,
)
_DEVICE_COPY = re.compile(r"dma")
_DEVICE_WAIT = re.compile(r"event_(wait|record)$")

#: Number of a kind in the enumeration of the schema.
KIND_CODE = {name: code for code, name in enumerate(KINDS)}

#: How a name may change the kind that the category gives.
NAME_PLAIN, NAME_STEP, NAME_DATA, NAME_COLLECTIVE, NAME_DEVICE_COLLECTIVE, NAME_COPY, NAME_WAIT = range(7)


def name_class(name: str) -> int:
    """Return what a name says about the kind, one of the ``NAME_`` numbers."""
    if STEP_NAME.match(name):
        return NAME_STEP
    if name.startswith(DATA_NAME):
        return NAME_DATA
    if _HOST_COLLECTIVE.match(name):
        return NAME_COLLECTIVE
    if _DEVICE_COLLECTIVE.match(name):
        return NAME_DEVICE_COLLECTIVE
    if _DEVICE_COPY.match(name):
        return NAME_COPY
    return NAME_WAIT if _DEVICE_WAIT.match(name) else NAME_PLAIN


def name_classes(names: Iterable[str]) -> list[int]:
    """Return :func:`name_class` of each name."""
    return [name_class(name) for name in names]


def kind_of(category: str, name: int) -> int:
    """Return the number of the kind of a complete event.

    Args:
        category: Category as written; unknown ones are ranges that somebody named.
        name: What the name says, see :func:`name_class`.
    """
    kind = _KIND_OF_CATEGORY.get(category, "annotation")
    if kind in ("operator", "annotation") and category not in DEVICE_CATEGORIES:
        host = {NAME_STEP: "step", NAME_DATA: "data", NAME_COLLECTIVE: "collective"}
        kind = host.get(name, kind)
    elif kind == "kernel" and name == NAME_DEVICE_COLLECTIVE:
        kind = "collective"
    elif category == "mtia_ccp_events":
        # One category for all that the device's command processor does; the names tell.
        kind = {NAME_COPY: "memcpy", NAME_WAIT: "sync"}.get(name, kind)
    return KIND_CODE[kind]
