"""What the events of JAX and XLA are, by their names and by the lines that they lie on."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.common.communication import transport_of_kernel
from stepscope.read.common.part_builder import KIND_CODE

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
