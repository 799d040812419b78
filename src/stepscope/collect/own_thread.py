"""Threads of our own, which the program that is recorded does not see.

A thread of Python's is in ``threading.enumerate()`` and ``sys._current_frames()``, and every profiler and debugger that
the program uses itself shows it. These wait in C (native/own_thread.c) and have a thread state of Python's only while
they work. Without the C library they are threads of Python's.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Callable

from stepscope import native

#: Seconds that the end of the process waits for a thread that is working.
_AT_EXIT = 1.0

_Work = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int)


class OwnThread:
    """Calls ``work`` again and again on a thread of its own, until it is stopped or the process ends; used once.

    Args:
        name: Name of the thread for the system, which keeps 15 bytes of it.
        work: Returns the seconds until its next call. It gets whether this is the last call; what it then returns is
            not used. If it raises or returns 0, the thread ends.
    """

    def __init__(self, name: str, work: Callable[[bool], float]) -> None:
        self._name = name
        self._work = work
        self._process = os.getpid()
        self._here = 0
        self._called = _Work(self._call)  # a cycle of references, up to the end of the thread
        self._in_c: int | None = None
        self._in_python: threading.Thread | None = None
        self._stopping = threading.Event()
        self._last = True

    @property
    def here(self) -> bool:
        """Whether ``work`` asks this, on the thread itself."""
        return self._here == threading.get_ident()

    def start(self, first: float) -> None:
        """Start it; ``work`` is called after ``first`` seconds.

        Raises:
            RuntimeError: No thread can be started.
        """
        if _ended:
            message = "can't start new thread at interpreter shutdown"
            raise RuntimeError(message)
        for thread in list(_RUNNING):
            if thread._stopping.is_set():
                thread.stop(0)  # it was stopped by its own work, or took too long then
        library = native.loaded()
        _RUNNING.add(self)
        if library is not None:
            self._in_c = library.ss_thread_start(self._called, self._name.encode(), first)
        if self._in_c is None:
            self._in_python = threading.Thread(target=self._loop, args=(first,), name=self._name, daemon=True)
            try:
                self._in_python.start()
            except RuntimeError:
                _RUNNING.discard(self)
                raise

    def stop(self, timeout: float, *, last: bool = True) -> bool:
        """Let it end, and wait ``timeout`` seconds at most until it has; nothing is waited for if ``work`` calls this.

        A fork has no such thread.

        Args:
            timeout: Seconds to wait.
            last: Whether ``work`` is called for the last time.

        Returns:
            Whether it has ended, or never began.
        """
        if self not in _RUNNING or os.getpid() != self._process:
            _RUNNING.discard(self)
            return True
        self._last = last
        self._stopping.set()
        library, here = native.loaded(), self.here
        if library is not None and self._in_c is not None:
            library.ss_thread_stop(self._in_c, last)
            ended = not here and bool(library.ss_thread_join(self._in_c, timeout))
        elif self._in_python is not None and not here:
            self._in_python.join(timeout)
            ended = not self._in_python.is_alive()
        else:
            ended = False
        if ended:
            _RUNNING.discard(self)
            del self._called
        return ended

    def _call(self, last: int) -> float:
        self._here = threading.get_ident()
        try:
            return self._work(bool(last))
        finally:
            self._here = 0

    def _loop(self, wait: float) -> None:
        while not self._stopping.wait(wait):
            wait = self._call(last=False)
            if wait <= 0:
                return
        if self._last:
            self._call(last=True)


#: The threads that run: what C calls must not be freed.
_RUNNING: set[OwnThread] = set()
_ended = False


@atexit.register
def _end_all() -> None:
    """Let no thread call Python when it is gone. What is not complete by now stays so: nothing is called once more."""
    global _ended
    _ended = True
    for thread in list(_RUNNING):
        if thread._in_python is None:  # Python ends its daemons itself
            thread.stop(_AT_EXIT, last=False)
