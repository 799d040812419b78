"""Calls of collectors that may hang: after some seconds without work, the training goes on without them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TypeVar

_Value = TypeVar("_Value")

#: Seconds between two looks at a call.
_TICK = 0.25


class CollectorHangs(Exception):
    """A collector waited for too long."""


class Patience:
    """Interrupts calls on the main thread that hang: :class:`CollectorHangs` after ``seconds`` without work.

    A call hangs if its thread waits and uses no processor, so a slow one is not interrupted. The interruption is a
    real-time signal, which ends whatever Ctrl-C would end: waits for locks, threads, processes, pipes. Calls on other
    threads are not bounded, because Python interrupts only the main one.

    Args:
        seconds: Time without work after which a call counts as hung.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._number = getattr(signal, "SIGRTMAX", 0)
        self._since = 0.0
        self._inside = False
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> Patience:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside = False
        self._over.set()
        if self._watcher is not None:
            # The watcher ends before the handler is removed: by default a late signal would end the process.
            self._watcher.join()
            signal.signal(self._number, signal.SIG_DFL)

    def call(self, action: Callable[..., _Value], *args: object) -> _Value:
        """Call ``action``.

        Raises:
            CollectorHangs: It hung.
        """
        if self._watcher is None:
            self._begin()
        self._since, self._inside = time.monotonic(), True
        try:
            return action(*args)
        finally:
            self._inside = False

    def _begin(self) -> None:
        here = threading.current_thread()
        if here is not threading.main_thread() or signal.getsignal(self._number or 1) is not signal.SIG_DFL:
            return
        watcher = threading.Thread(target=self._watch, args=(here,), name="stepscope-patience", daemon=True)
        try:
            watcher.start()
        except RuntimeError:  # the interpreter is ending
            return
        signal.signal(self._number, self._interrupt)
        self._watcher = watcher

    def _watch(self, thread: threading.Thread) -> None:
        used: list[bytes] = []
        while not self._over.wait(_TICK):
            now = _ticks_of(thread.native_id or 0)
            if now != used:
                self._since, used = time.monotonic(), now
            elif self._inside and time.monotonic() - self._since > self._seconds:
                signal.pthread_kill(thread.ident or 0, self._number)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._inside:
            self._since = time.monotonic()  # another interruption follows if something swallows this one
            message = f"it hung for {self._seconds:.0f} s, and the training went on without it"
            raise CollectorHangs(message)


def _ticks_of(thread: int) -> list[bytes]:
    """Return the processor time of a thread in hundredths of a second; empty if the system does not say it."""
    try:
        with open(f"/proc/self/task/{thread}/stat", "rb") as file:  # noqa: PTH123 - pathlib adds nothing here
            return file.read().rpartition(b")")[2].split()[11:13]
    except OSError:
        return []
