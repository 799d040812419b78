"""A program that uses CUDA without any framework: NVIDIA's driver through ctypes, and one kernel in PTX."""

from __future__ import annotations

import ctypes
from typing import Any

#: ``spin(unsigned int*, unsigned int)``: counts for so many rounds.
_PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry _Z4spinPjj(.param .u64 target, .param .u32 rounds)
{
    .reg .pred %again;
    .reg .u32 %i, %n, %v;
    .reg .u64 %a;
    ld.param.u64 %a, [target];
    ld.param.u32 %n, [rounds];
    mov.u32 %i, 0;
    mov.u32 %v, 1;
LOOP:
    mad.lo.u32 %v, %v, 1664525, 1013904223;
    add.u32 %i, %i, 1;
    setp.lt.u32 %again, %i, %n;
    @%again bra LOOP;
    cvta.to.global.u64 %a, %a;
    st.global.u32 [%a], %v;
    ret;
}
"""
NAME, SPELLED = "_Z4spinPjj", "spin(unsigned int*, unsigned int)"
GRID, BLOCK, BYTES = (4, 2, 1), (64, 2, 1), 1 << 20


class Program:
    """One GPU, one kernel, one block of memory."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._device, self._context = ctypes.c_int(), ctypes.c_void_p()
        module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self._memory = ctypes.c_uint64()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(self._device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self._call("cuCtxSetCurrent", self._context)
        self._call("cuModuleLoadData", ctypes.byref(module), _PTX)
        self._call("cuModuleGetFunction", ctypes.byref(self._kernel), module, NAME.encode())
        self._call("cuMemAlloc_v2", ctypes.byref(self._memory), ctypes.c_size_t(BYTES))

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._cuda, function)(*arguments)
        if code:
            message = f"{function} failed with {code}"
            raise RuntimeError(message)

    def work(self, launches: int, rounds: int = 20_000) -> float:
        """Copy up, launch, fill, copy down; return the µs that the launches took by the device's own events."""
        host, size = ctypes.create_string_buffer(BYTES), ctypes.c_size_t(BYTES)
        begin, end, took = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float()
        for event in (begin, end):
            self._call("cuEventCreate", ctypes.byref(event), 0)
        self._call("cuMemcpyHtoD_v2", self._memory, host, size)
        pointers = [ctypes.addressof(self._memory), ctypes.addressof(count := ctypes.c_uint32(rounds))]
        values = (ctypes.c_void_p * 2)(*pointers)
        self._call("cuEventRecord", begin, None)
        for _ in range(launches):
            self._call("cuLaunchKernel", self._kernel, *GRID, *BLOCK, 0, None, values, None)
        self._call("cuEventRecord", end, None)
        self._call("cuEventSynchronize", end)
        self._call("cuEventElapsedTime", ctypes.byref(took), begin, end)
        self._call("cuMemsetD8_v2", self._memory, ctypes.c_ubyte(1), size)
        self._call("cuMemcpyDtoH_v2", host, self._memory, size)
        self._call("cuCtxSynchronize")
        assert count.value == rounds
        return took.value * 1000
