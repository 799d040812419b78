"""How many threads of a kernel fit on a multiprocessor of an NVIDIA GPU, from its registers and shared memory.

The rules are those of the CUDA Occupancy Calculator (``cuda_occupancy.h`` of the CUDA toolkit): registers are given to
warps in units of 256 and to four warps at a time, shared memory in units of 128 bytes (256 before compute capability
8.0), and from 8.0 on the system takes 1 KiB a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.read.common.nesting import Integers

_REGISTER_UNIT, _WARP_UNIT = 256, 4
_SYSTEM = 1024


@dataclass(frozen=True)
class CudaDevice:
    """What one multiprocessor of a GPU has, and how many there are.

    Attributes:
        major: Compute capability, its first number.
        multiprocessors: How many there are.
        threads: Most threads on one.
        warp_threads: Threads in a warp.
        blocks: Most blocks on one.
        registers: Registers of one.
        registers_per_block: Most registers of a block.
        shared_memory: Bytes of shared memory of one.
    """

    major: int
    multiprocessors: int
    threads: int
    warp_threads: int
    blocks: int
    registers: int
    registers_per_block: int
    shared_memory: int


def cuda_device(described: Mapping[str, Any]) -> CudaDevice | None:
    """Return the device that a mapping describes by the attributes' names; None where one is missing or no number."""
    values = {field.name: described.get(field.name) for field in fields(CudaDevice)}
    numbers = {name: value for name, value in values.items() if isinstance(value, int) and 0 < value < 1 << 40}
    return CudaDevice(**numbers) if len(numbers) == len(values) else None


def active_blocks(device: CudaDevice, threads: Integers, registers: Integers, shared: Integers) -> Integers:
    """Return how many blocks of each kernel fit on a multiprocessor; 0 where not even one does.

    Args:
        device: The GPU.
        threads: Threads of a block.
        registers: Registers of a thread.
        shared: Bytes of shared memory of a block, static and dynamic together.
    """
    warps = np.maximum(-(-threads // device.warp_threads), 1)
    limit = np.minimum(device.threads // device.warp_threads // warps, device.blocks)
    of_warp = np.maximum(-(-registers * device.warp_threads // _REGISTER_UNIT) * _REGISTER_UNIT, 1)
    warps_of_registers = device.registers_per_block // of_warp // _WARP_UNIT * _WARP_UNIT
    by_registers = warps_of_registers // warps * (device.registers // device.registers_per_block)
    limit = np.where(registers > 0, np.minimum(limit, by_registers), limit)
    unit, system = (128, _SYSTEM) if device.major >= 8 else (256, 0)
    of_block = np.maximum(-(-(shared + system) // unit) * unit, 1)
    by_memory = device.shared_memory // of_block
    found: Integers = np.where(shared + system > 0, np.minimum(limit, by_memory), limit)
    return found


def theoretical(device: CudaDevice, threads: Integers, active: Integers) -> npt.NDArray[np.float64]:
    """Return active warps over the most there can be, between 0 and 1."""
    warps = -(-threads // device.warp_threads)
    return np.asarray(active * warps / (device.threads // device.warp_threads), np.float64)


def achieved(device: CudaDevice, blocks: Integers, threads: Integers, active: Integers) -> npt.NDArray[np.float64]:
    """Return the share of a multiprocessor's threads that a grid of so many blocks fills, in whole %, as Kineto has it.

    But for kernels with more than 48 KiB of dynamic shared memory, of which Kineto says 0 %.
    """
    # In the floats that Kineto uses, so that halves are rounded to the same side.
    each = np.minimum(active.astype(np.float32), blocks.astype(np.float32) / np.float32(device.multiprocessors))
    share = np.minimum(each * threads.astype(np.float32) / np.float32(device.threads), np.float32(1))
    whole: npt.NDArray[np.float64] = np.floor(share.astype(np.float64) * 100 + 0.5)
    return whole
