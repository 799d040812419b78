"""SIGTERM, SIGHUP and SIGINT during a recording: save it, then deliver the signal to the program's handler.

In a window, :class:`TerminationGuard` comes before the program's handler. Outside of windows a program that handles or
ignores a signal is left alone; if the signal ends the process, :func:`watch` has it wait for the recording.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeAlias

from stepscope import native

#: Signals that ask a program to end: a scheduler's, and that of a terminal that closes.
TERMINATION = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))

#: Seconds after which a signal that is watched ends the process, whatever it does: `docker stop` waits for ten.
LIMIT = 9

#: Bytes enough for the ``struct sigaction`` of any libc; it begins with the address of the handler.
_SIGACTION = 512

_Action: TypeAlias = Callable[[str, Callable[[], None]], None]


class TerminationGuard:
    """Calls ``action`` when one of the signals :data:`TERMINATION` arrives, and then the previous handler.

    It is installed only on the main thread, the only one on which Python runs handlers, and not for a signal that the
    program ignores (``nohup``).

    Args:
        action: Called with the signal's name and a function that delivers it to the previous handler; it must call it
            once.
    """

    def __init__(self, action: _Action) -> None:
        self._action: _Action | None = action
        self._previous: dict[int, Any] = {}
        #: What the system does at the signal; C code, such as Paddle's, may have replaced what Python knows.
        self._in_c: dict[int, ctypes.Array[ctypes.c_char]] = {}

    def install(self) -> bool:
        """Install the handlers; return False if none can or must be."""
        if threading.current_thread() is not threading.main_thread():
            return False
        for number in TERMINATION:
            previous = signal.getsignal(number)
            if previous is not None and previous is not signal.SIG_IGN:
                self._previous[number], self._in_c[number] = previous, _sigaction(number)
                signal.signal(number, self._handle)
        return bool(self._previous)

    def remove(self) -> None:
        """Restore the previous handlers, unless the program has replaced ours."""
        self._action = None
        if threading.current_thread() is threading.main_thread():
            for number, previous in self._previous.items():
                if signal.getsignal(number) == self._handle:
                    by_python = _handler(_sigaction(number))
                    signal.signal(number, previous)
                    if _handler(self._in_c[number]) != by_python:
                        _sigaction(number, self._in_c[number])

    def _handle(self, number: int, frame: FrameType | None) -> None:
        def deliver() -> None:
            by_python = _handler(_sigaction(number))
            self.remove()
            previous = self._previous[number]
            if callable(previous) and _handler(self._in_c[number]) == by_python:
                previous(number, frame)
            else:
                _sigaction(number, self._in_c[number])
                library = native.loaded()
                if library is not None and library.ss_termination_pass(number):
                    threading.Event().wait()  # the process dies as soon as the run is complete
                os.kill(os.getpid(), number)

        if self._action is None:  # after the window, a handler that the program set later may still call ours
            deliver()
        else:
            self._action(signal.Signals(number).name, deliver)


def watch() -> None:
    """Let a signal that would end the process wait, :data:`LIMIT` seconds at most, until :func:`end_watch`.

    Only from the main thread, on which no handler of the program can be set meanwhile. Python does not know of it:
    ``signal.getsignal`` says what it said, and a handler that the program sets replaces it. A fork dies at once.
    """
    library = native.loaded()
    if library is not None and threading.current_thread() is threading.main_thread():
        for number in TERMINATION:
            library.ss_termination_watch(number, LIMIT)


def waiting() -> str:
    """Return the name of the signal that waits; empty without one."""
    library = native.loaded()
    number = library.ss_termination_waiting() if library is not None else 0
    return signal.Signals(number).name if number else ""


def end_watch() -> None:
    """End what :func:`watch` began; the process dies of the signal that waits."""
    library = native.loaded()
    if library is not None:
        library.ss_termination_end()


def _sigaction(number: int, new: ctypes.Array[ctypes.c_char] | None = None) -> ctypes.Array[ctypes.c_char]:
    """Return the ``struct sigaction`` of a signal, and replace it by ``new`` if given."""
    before = ctypes.create_string_buffer(_SIGACTION)
    ctypes.CDLL(None).sigaction(number, new, before)
    return before


def _handler(of: ctypes.Array[ctypes.c_char]) -> int:
    return int.from_bytes(of.raw[: ctypes.sizeof(ctypes.c_void_p)], "little")


@contextmanager
def interrupt_postponed() -> Iterator[None]:
    """Defer the first Ctrl-C until the block has ended, so that no file is truncated; a second one interrupts at once.

    A no-op on other threads, because Python interrupts only the main thread.
    """
    previous = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(previous):
        yield
        return
    waiting: list[FrameType | None] = []

    def wait(number: int, frame: FrameType | None) -> None:
        waiting.append(frame)
        if len(waiting) > 1:
            previous(number, frame)

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is wait:
            signal.signal(signal.SIGINT, previous)
    if waiting:
        previous(signal.SIGINT, waiting[0])
