"""The recorder of PyTorch's operators: C++ that is built against the installed torch, behind ctypes.

It has no twin in Python: its callbacks run where Python's lock is not held, and cost less than taking it.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

#: Of the functions below, as ``recorder.cpp`` numbers them.
VERSION = 3

#: Bytes of chunks that wait for the disk at most.
MEMORY = 64 << 20


class PythonCalls(ctypes.Structure):
    """What is recorded of Python, and what is not the program's; texts are lines of UTF-8.

    Attributes:
        functions: Whether calls of functions are recorded.
        modules: Whether calls of ``torch.nn.Module`` are recorded.
        roots: Directories, each with its separator, that files are named without; longest first.
        ours: Prefixes of files whose functions are left out.
        engine: Prefixes of files whose functions are left out with all that they call.
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
        AttributeError: It is of another version.
    """

    def __init__(self, path: Path) -> None:
        # With Python's lock: what they do takes microseconds, and no fork of Python's can come between.
        self.locked = ctypes.PyDLL(str(path))
        # Without it: what waits for the disk.
        self.free = ctypes.CDLL(str(path))
        for library in (self.locked, self.free):
            _declare(library)
        if self.locked.ssr_version() != VERSION:
            message = f"{path.name} is of another version"
            raise AttributeError(message)

    @property
    def clock(self) -> str:
        """What ticks are: ``tsc``, or ``monotonic`` for ns of CLOCK_MONOTONIC."""
        return "tsc" if self.locked.ssr_ticks_are_tsc() else "monotonic"

    @property
    def chunk(self) -> int:
        """Words of a full chunk."""
        return int(self.locked.ssr_chunk_words())

    def watch_thread(self) -> None:
        """Watch calls on the calling thread, too."""
        self.locked.ssr_watch_thread()

    def ignore_python(self) -> None:
        """Watch calls no more; threads find that out at their next one."""
        self.locked.ssr_ignore_python()

    def forget(self) -> None:
        """In a forked child: take out of torch what it inherited."""
        self.locked.ssr_forget()


class NativeRecording:
    """One recording into one file; used once: ``append``, ``begin``, ``end``, ``settle``, ``append``, ``close``.

    Args:
        library: The recorder.
        file: Descriptor of the file, opened for appending; it is closed in the end.
        memory: Bytes of chunks that may wait for the disk.

    Raises:
        MemoryError: There is none.
    """

    def __init__(self, library: RecorderLibrary, file: int, memory: int = MEMORY) -> None:
        self._library = library
        self._session: int | None = library.locked.ssr_new(file, memory)
        if self._session is None:
            os.close(file)
            raise MemoryError

    def append(self, payload: bytes) -> None:
        """Write a block; not while it records.

        Raises:
            OSError: The disk refuses it.
        """
        _check(self._library.free.ssr_append(self._session, payload, len(payload)))

    def begin(self, *, inputs: bool, memory: bool, fraction: float = 1.0) -> None:
        """Record from now on.

        Args:
            inputs: Shapes, types and values of inputs, too.
            memory: What the calling thread takes and frees, too; ``end`` must then be called on this thread.
            fraction: As of :meth:`listen`.

        Raises:
            OSError: Another recording runs in this process, or no thread can be started.
        """
        _check(self._library.locked.ssr_begin(self._session, inputs, memory, fraction))

    def listen(self, fraction: float) -> None:
        """Record this fraction of the operators from now on: each is drawn by itself; with 0 no ranges either.

        Raises:
            OSError: torch refuses it.
        """
        _check(self._library.locked.ssr_listen(self._session, fraction))

    def watch_python(self, calls: PythonCalls) -> None:
        """Record calls of Python on the calling thread; those that are going on begin now.

        Raises:
            OSError: This Python lacks a function of its public interface.
        """
        _check(self._library.locked.ssr_watch_python(ctypes.byref(calls)))

    def end_memory(self) -> None:
        """Record no more memory: torch's own profiler needs the place."""
        self._library.locked.ssr_end_memory()

    def end(self) -> None:
        """Record no more; what is left is written meanwhile."""
        _check(self._library.locked.ssr_end(self._session))

    def settle(self, seconds: float) -> None:
        """Wait until everything is written.

        Raises:
            TimeoutError: It takes longer; the recording must then be left as it is.
        """
        _check(self._library.free.ssr_settle(self._session, seconds))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        session, self._session = self._session, None
        if session is not None:
            self._library.free.ssr_delete(session)

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return int(self._library.locked.ssr_bytes(self._session))

    @property
    def lost(self) -> int:
        """Operators that were not written, because the disk did not follow."""
        return int(self._library.locked.ssr_lost(self._session))

    @property
    def error(self) -> OSError | None:
        """What ended the writing, if anything did."""
        number = self._library.locked.ssr_error(self._session)
        return OSError(number, os.strerror(number)) if number else None


def _check(error: int) -> None:
    if error:
        raise OSError(error, os.strerror(error))


def _declare(library: ctypes.CDLL) -> None:
    """Give every function its types."""
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
