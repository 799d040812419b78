"""The recorder of PyTorch's operators: C++ that is built against the installed torch and called through ctypes.

It has no fallback in Python: its callbacks run without the GIL, and cost less than acquiring it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import cache
from pathlib import Path

#: Version of the functions below, as ``recorder.cpp`` numbers it.
VERSION = 6

#: Maximum bytes of chunks that wait for the disk.
MEMORY = 64 << 20

#: Numbers of classes whose targets are counted.
_TARGETS = 8


class Noted(IntEnum):
    """Of which operators shapes, types and values of inputs are recorded, as ``observer.h`` numbers it."""

    NONE = 0
    OF_LAUNCHES = 1  # those of torch.distributed
    ALL = 2


class PythonCalls(ctypes.Structure):
    """Which Python calls are recorded, and which files are left out; texts are lines of UTF-8.

    Attributes:
        functions: Whether calls of functions are recorded.
        modules: Whether calls of ``torch.nn.Module`` are recorded.
        roots: Directories, each with its separator, to remove from the names of files; longest first.
        ours: Prefixes of files whose functions are left out.
        engine: Prefixes of files whose functions are left out, with all calls that they make.
        module_call: ``id`` of the code of ``torch.nn.Module.__call__``.
    """

    _fields_ = [
        ("functions", ctypes.c_bool),
        ("modules", ctypes.c_bool),
        ("roots", ctypes.c_char_p),
        ("ours", ctypes.c_char_p),
        ("engine", ctypes.c_char_p),
        ("module_call", ctypes.c_void_p),
    ]


class RecorderLibrary:
    """The functions of a built recorder, a shared library; torch must be imported before it is loaded.

    Raises:
        OSError: It cannot be loaded.
        AttributeError: It has another version.
    """

    def __init__(self, path: Path) -> None:
        # Functions that hold the GIL: they take microseconds, and os.fork() of another thread cannot interrupt them.
        self.locked = ctypes.PyDLL(str(path))
        # Functions that release the GIL: they wait for the disk.
        self.free = ctypes.CDLL(str(path))
        for library in (self.locked, self.free):
            _declare(library)
        if self.locked.ssr_version() != VERSION:
            message = f"{path.name} has another version"
            raise AttributeError(message)

    @property
    def clock(self) -> str:
        """Clock of the ticks: ``tsc``, or ``monotonic`` for ns of CLOCK_MONOTONIC."""
        return "tsc" if self.locked.ssr_ticks_are_tsc() else "monotonic"

    @property
    def chunk(self) -> int:
        """Words of a full chunk."""
        return int(self.locked.ssr_chunk_words())

    def watch_thread(self) -> None:
        """Watch Python calls on the calling thread, too."""
        self.locked.ssr_watch_thread()

    def ignore_python(self) -> None:
        """Stop watching Python calls; each thread stops at its next call."""
        self.locked.ssr_ignore_python()

    def targets(self) -> list[tuple[int, int, int]]:
        """Return, of each number of classes that a loss had in the last recording, its targets and those it ignores."""
        numbers = (ctypes.c_int64 * (3 * _TARGETS))()
        count = self.locked.ssr_targets(numbers, _TARGETS)
        return [(numbers[3 * place], numbers[3 * place + 1], numbers[3 * place + 2]) for place in range(count)]

    def forget(self) -> None:
        """In a forked child: remove the inherited callbacks from torch."""
        self.locked.ssr_forget()


@contextmanager
def hushed() -> Iterator[None]:
    """Keep torch's warning about memory that was allocated before a recording off standard error.

    The library is built with the package if a C++ compiler exists; without it, the warning stays.
    """
    library = _hush()
    if library is None:
        yield
        return
    library.ss_hush(1)
    try:
        yield
    finally:
        library.ss_hush(0)


@cache
def _hush() -> ctypes.PyDLL | None:
    """Return the library of ``hush.cpp`` alone, which needs no compiler where stepscope is installed as a wheel."""
    for path in Path(__file__).parents[1].glob("_hush*.so"):
        try:
            library = ctypes.PyDLL(str(path))  # holds the GIL: the count of nested recordings is not locked
            library.ss_hush.argtypes, library.ss_hush.restype = [ctypes.c_int], None
        except (OSError, AttributeError):
            continue
        return library
    return None


class NativeRecording:
    """One recording into one file; used once: ``append``, ``begin``, ``end``, ``settle``, ``append``, ``close``.

    Args:
        library: The recorder.
        file: Descriptor of the file, opened for appending; :meth:`close` closes it.
        memory: Maximum bytes of chunks that wait for the disk.

    Raises:
        MemoryError: The recording cannot be allocated.
    """

    def __init__(self, library: RecorderLibrary, file: int, memory: int = MEMORY) -> None:
        self._library = library
        self._session: int | None = library.locked.ssr_new(file, memory)
        if self._session is None:
            os.close(file)
            raise MemoryError

    def append(self, payload: bytes) -> None:
        """Write a block; not allowed while it records.

        Raises:
            OSError: The block cannot be written.
        """
        _check(self._library.free.ssr_append(self._session, payload, len(payload)))

    def begin(self, *, inputs: Noted, memory: bool, fraction: float = 1.0) -> None:
        """Record from now on.

        Args:
            inputs: Of which operators to record shapes, types and values of inputs.
            memory: Whether to record allocations and frees of the calling thread; ``end`` must then be called on it.
            fraction: As in :meth:`listen`.

        Raises:
            OSError: Another recording runs in this process, or no thread can be started.
        """
        _check(self._library.locked.ssr_begin(self._session, inputs, memory, fraction))

    def listen(self, fraction: float) -> None:
        """Record this fraction of the operators from now on, each drawn independently; 0 also turns off ranges.

        Raises:
            OSError: torch rejects the callback.
        """
        _check(self._library.locked.ssr_listen(self._session, fraction))

    def watch_python(self, calls: PythonCalls) -> None:
        """Record Python calls on the calling thread; calls in progress count as begun now.

        Raises:
            OSError: This Python lacks a function of the public C API.
        """
        _check(self._library.locked.ssr_watch_python(ctypes.byref(calls)))

    def end_memory(self) -> None:
        """Stop recording memory, because torch's own profiler needs its callback."""
        self._library.locked.ssr_end_memory()

    def end(self) -> None:
        """Stop recording; the remaining chunks are written in the background."""
        _check(self._library.locked.ssr_end(self._session))

    def settle(self, seconds: float) -> None:
        """Wait until everything is written.

        Raises:
            TimeoutError: It takes longer than ``seconds``; the recording must then not be closed.
        """
        _check(self._library.free.ssr_settle(self._session, seconds))

    def close(self) -> None:
        """Close the file; idempotent."""
        session, self._session = self._session, None
        if session is not None:
            self._library.free.ssr_delete(session)

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return int(self._library.locked.ssr_bytes(self._session))

    @property
    def lost(self) -> int:
        """Number of operators that were dropped because the disk was too slow."""
        return int(self._library.locked.ssr_lost(self._session))

    @property
    def error(self) -> OSError | None:
        """The error that ended the writing; None if none did."""
        number = self._library.locked.ssr_error(self._session)
        return OSError(number, os.strerror(number)) if number else None


def _check(error: int) -> None:
    if error:
        raise OSError(error, os.strerror(error))


def _declare(library: ctypes.CDLL) -> None:
    """Declare the types of every function."""
    pointer, whole, number = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64
    functions: dict[str, tuple[object, list[object]]] = {
        "ssr_version": (whole, []),
        "ssr_ticks_are_tsc": (whole, []),
        "ssr_chunk_words": (number, []),
        "ssr_new": (pointer, [whole, number]),
        "ssr_append": (whole, [pointer, ctypes.c_char_p, number]),
        "ssr_begin": (whole, [pointer, whole, whole, ctypes.c_double]),
        "ssr_listen": (whole, [pointer, ctypes.c_double]),
        "ssr_end": (whole, [pointer]),
        "ssr_end_memory": (None, []),
        "ssr_watch_python": (whole, [ctypes.POINTER(PythonCalls)]),
        "ssr_watch_thread": (None, []),
        "ssr_ignore_python": (None, []),
        "ssr_settle": (whole, [pointer, ctypes.c_double]),
        "ssr_targets": (number, [ctypes.POINTER(ctypes.c_int64), number]),
        "ssr_bytes": (number, [pointer]),
        "ssr_lost": (number, [pointer]),
        "ssr_error": (whole, [pointer]),
        "ssr_delete": (None, [pointer]),
        "ssr_forget": (None, []),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
