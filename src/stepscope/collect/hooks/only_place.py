"""Windows in a framework with room for one profiler: the program's own gets it, and exit and fork find them ended."""

from __future__ import annotations

import atexit
import logging
import os
from abc import ABC, abstractmethod
from functools import cache
from pathlib import Path

from stepscope.collect.hooks.methods import MethodHooks

_LOG = logging.getLogger("stepscope")


class OnlyPlace(ABC):
    """Base of a collector that takes a framework's only place for a profiler during its window.

    A window ends once: by :meth:`stop`, by :meth:`_give_way` where the program makes a profiler of its own, or at exit,
    before the framework is taken down. In a forked child it never ends: that has no recording.
    """

    def __init__(self) -> None:
        self._guard = MethodHooks()
        self._process = os.getpid()
        self._description: dict[str, object] = {}

    def stop(self) -> list[Path]:
        """Close the window, and return the files that are or will be written."""
        if os.getpid() != self._process:
            return []
        try:
            self._end()
        finally:
            self._release()
        return self._written()

    def describe(self) -> dict[str, object]:
        """Return the version, how the framework records, and what could not be recorded."""
        return self._description

    @abstractmethod
    def _end(self) -> None:
        """End the recording, if it has not been."""

    @abstractmethod
    def _release(self) -> None:
        """Take away what is installed in the program, and leave the place."""

    @abstractmethod
    def _written(self) -> list[Path]: ...

    @abstractmethod
    def _fall_silent(self) -> None:
        """Make a forked child's copy of the recording harmless."""

    def _opened(self) -> None:
        _end_at_exit()
        _OPEN.add(self)

    def _closed(self) -> None:
        _OPEN.discard(self)

    def _give_way(self, why: str) -> None:
        """End early: the framework has room for one profiler."""
        self._description["ended_early"] = why
        try:
            self._end()
        except Exception as error:  # noqa: BLE001 - law 1: the program's profiler goes on
            self._description["failed"] = " ".join(f"{type(error).__name__}: {error}".split())
        finally:
            self._release()


#: Collectors whose window is open.
_OPEN: set[OnlyPlace] = set()


@cache
def _end_at_exit() -> None:
    """Have open windows ended before the framework is taken down; once, as Python keeps a place for each request."""
    atexit.register(_end_open)


def _end_open() -> None:
    for collector in list(_OPEN):
        collector._end()


def _after_fork() -> None:
    try:
        while _OPEN:
            _OPEN.pop()._fall_silent()
    except Exception:  # noqa: BLE001 - law 1: the child works on, with a recording that grows
        _LOG.debug("stepscope: a framework records on in a forked child", exc_info=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
