"""Names of kernels: read the texts behind CUPTI's pointers, and demangle them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from functools import cached_property
from typing import Any

#: Bytes per read, and maximum length of a name; C++ templates produce names of some thousand bytes.
_PIECE, _LONGEST = 512, 1 << 16
#: Longer names stay mangled, as in Kineto.
_DEMANGLED = 1024


class KernelNames:
    """The kernel names of a recording.

    It reads memory through ``/proc/self/mem``, which returns an error for an invalid address: a wrong pointer loses its
    name instead of crashing the training.
    """

    def __init__(self) -> None:
        self._known: dict[int, str] = {}
        try:
            self._memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._memory = -1

    def new(self, pointers: Iterable[int]) -> list[tuple[int, str, str]]:
        """Return pointer, name and demangled name of the pointers that are new or whose text has changed."""
        found = []
        for pointer in pointers:
            name = self._read(pointer)
            if name is not None and self._known.get(pointer) != name:
                self._known[pointer] = name
                found.append((pointer, name, self.demangled(name)))
        return found

    def close(self) -> None:
        """Stop reading; idempotent."""
        memory, self._memory = self._memory, -1
        if memory >= 0:
            os.close(memory)

    def _read(self, pointer: int) -> str | None:
        """Return the text at an address; None if it cannot be read."""
        text = b""
        while self._memory >= 0 and len(text) < _LONGEST:
            try:
                piece = os.pread(self._memory, _PIECE, pointer + len(text))
            except (OSError, OverflowError):
                return None
            text, end, _ = (text + piece).partition(b"\0")
            if end:
                return text.decode("utf-8", "backslashreplace")
            if not piece:
                return None
        return None

    def demangled(self, name: str) -> str:
        """Return a name demangled; unchanged if it is not a mangled C++ name or no demangler is available."""
        if not name.startswith("_Z") or len(name) > _DEMANGLED or self._demangle is None:
            return name
        status = ctypes.c_int()
        address = self._demangle(name.encode(), None, None, ctypes.byref(status))
        if not address:
            return name
        text = ctypes.string_at(address).decode("utf-8", "backslashreplace")
        ctypes.CDLL(None).free(ctypes.c_void_p(address))
        return text

    @cached_property
    def _demangle(self) -> Any:  # noqa: ANN401 - a function of ctypes
        """The demangler of the C++ library; None if it is missing."""
        try:
            function = getattr(ctypes.CDLL("libstdc++.so.6"), "__cxa_demangle")
        except (OSError, AttributeError):
            return None
        function.restype = ctypes.c_void_p
        function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        return function
