"""What the events of JAX and XLA on host threads are, by their names."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.xplane_marks import THREAD_MARK

#: Marks of thread pools, and of the ends of operators, whose ends are known: half of all events, and no work.
_NOISE = re.compile(r"ThreadpoolListener::|end: ")
#: Python's functions, as the Python tracer names them: ``$file.py:12 function``.
_PYTHON = re.compile(r"\$")
_MEMORY = re.compile(r"Memory(?:Allocation|Deallocation)$")
#: What JAX, PjRt, XLA's compiler and executors call their own work, where it runs on the threads of the program.
_INTERNAL = re.compile(
    r".*::|PJRT_|PjitFunction\(|Pjit |pjit|cpp_pjit|ParseArguments$|ShardArg|shard_arg|DevicePut|device_put|CopyTo"
    r"|BatchedCopy|batched_copy|ExecuteReplicated|ExecutePortable|lower_sharding|trace_to_jaxpr|jaxpr_to|backend_compile|compile_or"
    r"|xla_compile|XLA|Wait |Wait:|Handle |AllocateOutput|MakeOutputBuffers|Build buffer|Resolve constant|Rendezvous"
    r"|InvokeRendezvous|RecordUsage|ThenExecuteCallback|ComputeSemaphore|Dispatch|.*:XLA |\[\d+\] "
)

DROPPED, PYTHON, MEMORY, INTERNAL, MARK, OTHER = range(6)
_CLASSES = (
    (re.compile(re.escape(THREAD_MARK) + "$"), MARK),
    (_NOISE, DROPPED),
    (_PYTHON, PYTHON),
    (_MEMORY, MEMORY),
    (_INTERNAL, INTERNAL),
)


def classes(names: pl.Series) -> npt.NDArray[np.uint8]:
    """Return the class of each name of host events."""
    return np.fromiter(map(class_of, names.to_list()), np.uint8, len(names))


def class_of(name: str) -> int:
    """Return the class of a name of host events."""
    return next((number for pattern, number in _CLASSES if pattern.match(name)), OTHER)
