"""NVIDIA's driver, through ctypes: list the GPUs, and wait until they are idle."""

from __future__ import annotations

import ctypes
from typing import Any

#: Attributes of a device (``CUdevice_attribute``) by their names in the capture.
_ATTRIBUTES = {
    "threads_per_block": 1,
    "warp_threads": 10,
    "registers_per_block": 12,
    "multiprocessors": 16,
    "threads": 39,
    "major": 75,
    "minor": 76,
    "shared_memory": 81,
    "registers": 82,
    "blocks": 106,
}
#: ``CUstreamCaptureMode`` that lets this thread synchronize while another one captures a graph.
_RELAXED = 2


class Driver:
    """NVIDIA's driver.

    Args:
        handle: The loaded ``libcuda``.
    """

    def __init__(self, handle: ctypes.CDLL) -> None:
        self._handle = handle

    def devices(self) -> list[dict[str, Any]]:
        """Return number, name and attributes of every GPU; empty if the driver fails."""
        count = ctypes.c_int()
        if self._handle.cuInit(0) or self._handle.cuDeviceGetCount(ctypes.byref(count)):
            return []
        return [self._device(number) for number in range(count.value)]

    def _device(self, number: int) -> dict[str, Any]:
        device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
        self._handle.cuDeviceGet(ctypes.byref(device), number)
        self._handle.cuDeviceGetName(name, len(name), device)
        described: dict[str, Any] = {"device": number, "name": name.value.decode(errors="replace")}
        value = ctypes.c_int()
        for attribute, code in _ATTRIBUTES.items():
            if not self._handle.cuDeviceGetAttribute(ctypes.byref(value), code, device):
                described[attribute] = value.value
        return described

    def wait(self) -> None:
        """Synchronize every GPU that this process uses; the calling thread keeps its current context."""
        mode = ctypes.c_int(_RELAXED)
        self._handle.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        count = ctypes.c_int()
        if not self._handle.cuDeviceGetCount(ctypes.byref(count)):
            for number in range(count.value):
                self._wait_for(number)
        self._handle.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))

    def _wait_for(self, number: int) -> None:
        device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
        self._handle.cuDeviceGet(ctypes.byref(device), number)
        self._handle.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
        context = ctypes.c_void_p()
        if not active.value or self._handle.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
            return
        if not self._handle.cuCtxPushCurrent_v2(context):
            self._handle.cuCtxSynchronize()
            self._handle.cuCtxPopCurrent_v2(ctypes.byref(context))
        self._handle.cuDevicePrimaryCtxRelease_v2(device)
