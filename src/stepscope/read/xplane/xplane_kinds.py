"""What the events of JAX and XLA are, by their names and by the lines that they lie on."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.common.communication import transport_of_kernel
from stepscope.read.common.part_builder import KIND_CODE
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

#: Work on devices by its name; all else is a kernel.
_DEVICE = (
    (re.compile(r"(?i)mem ?cpy|copy(host|device)to|__amd_rocclr_copy"), "memcpy"),
    (re.compile(r"(?i)mem ?set|__amd_rocclr_fill"), "memset"),
)

#: The text of an instruction, which TPUs call their operations by: ``%add.1 = f32[8]{0} add(f32[8]{0} %x, …)``.
_INSTRUCTION = re.compile(r"%([\w.-]+) = .*? ([a-z][a-z0-9-]*)\(", re.DOTALL)
#: Opcode → kind of what a TPU does besides computing: instructions that hold others, and copies that run beside them.
_KIND_OF_OPCODE = {
    **dict.fromkeys(("while", "call", "conditional"), "annotation"),
    **dict.fromkeys(("copy-start", "copy-done", "infeed", "outfeed"), "memcpy"),
}

#: Programs of several devices talk through these; ``-start`` and ``-done`` are the two halves of one.
_COLLECTIVE = re.compile(
    r"(all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute|collective-broadcast"
    r"|send|recv)(-start|-done)?(?:\.\d+)?$"
)
#: As the table ``collectives`` names the operations of all frameworks.
OPERATIONS = {
    "all-reduce": "allreduce",
    "all-gather": "allgather",
    "all-to-all": "alltoall",
    "ragged-all-to-all": "alltoall",
    "collective-permute": "permute",
    "collective-broadcast": "broadcast",
}


def classes(names: pl.Series) -> npt.NDArray[np.uint8]:
    """Return the class of each name of host events."""
    found = (next((number for pattern, number in _CLASSES if pattern.match(name)), OTHER) for name in names.to_list())
    return np.fromiter(found, np.uint8, len(names))


def device_kinds(names: pl.Series) -> npt.NDArray[np.uint8]:
    """Return the number of the kind of each name of work on devices."""
    return np.array([KIND_CODE[_device_kind(name)] for name in names.to_list()], np.uint8)


def _device_kind(name: str) -> str:
    if instruction := _INSTRUCTION.match(name):
        own, opcode = instruction.groups()
        if kind := _KIND_OF_OPCODE.get(opcode):
            return kind
        return "collective" if operation(opcode) or operation(own) else "kernel"
    kind = next((kind for pattern, kind in _DEVICE if pattern.match(name)), None)
    return kind or ("kernel" if transport_of_kernel(name) is None else "collective")


def operation(opcode: str) -> str | None:
    """Return the operation of a collective by its opcode, or by the name it has from that; None where it is none."""
    match = _COLLECTIVE.match(opcode)
    return OPERATIONS.get(match[1], match[1].replace("-", "_")) if match else None
