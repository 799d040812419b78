"""SIGTERM and SIGINT during a recording: save it, then deliver the signal to the program's handler."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class TerminationGuard:
    """Calls ``action`` when SIGTERM arrives, and then the previous handler.

    It is installed only on the main thread, the only one on which Python runs handlers, and not if the program ignores
    the signal.

    Args:
        action: Called with a function that delivers the signal to the previous handler; it must call it once.
    """

    def __init__(self, action: Callable[[Callable[[], None]], None]) -> None:
        self._action: Callable[[Callable[[], None]], None] | None = action
        self._previous: Any = signal.SIG_DFL

    def install(self) -> bool:
        """Install the handler; return False if it cannot or must not be."""
        if threading.current_thread() is not threading.main_thread():
            return False
        previous = signal.getsignal(signal.SIGTERM)
        if previous is None or previous is signal.SIG_IGN:
            return False
        self._previous = previous
        signal.signal(signal.SIGTERM, self._handle)
        return True

    def remove(self) -> None:
        """Restore the previous handler, unless the program has replaced ours."""
        self._action = None
        here_is_main = threading.current_thread() is threading.main_thread()
        if here_is_main and signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        def deliver() -> None:
            self.remove()
            if callable(self._previous):
                self._previous(number, frame)
            else:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)

        if self._action is None:  # after the window, a handler that the program set later may still call ours
            deliver()
        else:
            self._action(deliver)


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
