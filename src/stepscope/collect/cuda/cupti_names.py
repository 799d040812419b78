"""Names of kernels: from CUPTI's pointers to texts, and from the compiler's spelling to C++."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from functools import cached_property
from typing import Any

#: Bytes read at once, and of one name at most; C++ templates make names of some thousand.
_PIECE, _LONGEST = 512, 1 << 16
#: Longer names stay as the compiler spells them, as Kineto has it.
_DEMANGLED = 1024


class KernelNames:
    """The names that a recording has met.

    Memory is read through the system, which answers an error where nothing is: a wrong pointer costs its name and not
    the training.
    """

    def __init__(self) -> None:
        self._known: dict[int, str] = {}
        try:
            self._memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._memory = -1

    def new(self, pointers: Iterable[int]) -> list[tuple[int, str, str]]:
        """Return pointer, name and C++ name of those that were not returned before, or point to another name now."""
        found = []
        for pointer in pointers:
            name = self._read(pointer)
            if name is not None and self._known.get(pointer) != name:
                self._known[pointer] = name
                found.append((pointer, name, self.demangled(name)))
        return found

    def close(self) -> None:
        """Read no more; a second call does nothing."""
        memory, self._memory = self._memory, -1
        if memory >= 0:
            os.close(memory)

    def _read(self, pointer: int) -> str | None:
        """Return the text at an address; None where it cannot be read."""
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
        """The C++ library's own function; None where there is none."""
        try:
            function = getattr(ctypes.CDLL("libstdc++.so.6"), "__cxa_demangle")
        except (OSError, AttributeError):
            return None
        function.restype = ctypes.c_void_p
        function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        return function
