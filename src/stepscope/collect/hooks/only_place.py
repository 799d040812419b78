"""Windows of frameworks that allow one profiler at a time: they yield to the program's own, and end at exit."""

from __future__ import annotations

import atexit
import logging
import os
from abc import ABC, abstractmethod
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.collect.hooks.methods import MethodHooks

if TYPE_CHECKING:
    from stepscope.collect.journal.journal import Journal

_LOG = logging.getLogger("stepscope")


class OnlyPlace(ABC):
    """Base of a collector that is the framework's only profiler during its window.

    A window ends once: by :meth:`stop`, by :meth:`_give_way` when the program makes its own profiler, or at exit,
    before the framework is torn down. In a forked child it never ends, because the child has no recording.
    """

    def __init__(self) -> None:
        self._guard = MethodHooks()
        self._process = os.getpid()
        self._journal: Journal | None = None
        self._description: dict[str, object] = {}

    def stop(self) -> list[Path]:
        """Close the window and return its files; writing them may still go on."""
        if os.getpid() != self._process:
            return []
        try:
            self._end()
        finally:
            self._release()
        return self._written()

    def describe(self) -> dict[str, object]:
        """Return the framework's version, how it records, and what it could not record."""
        return self._description

    @abstractmethod
    def _end(self) -> None:
        """End the recording, unless it has ended."""

    @abstractmethod
    def _release(self) -> None:
        """Remove the hooks in the program, and release the framework's profiler."""

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
        """End early, because the framework allows one profiler at a time and the program starts its own."""
        if self._journal is not None:
            self._description["ended_early"] = self._journal.ended_early(why)
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
    """Register the end of open windows, before the framework's exit; cached, as atexit keeps every registration."""
    atexit.register(_end_open)


def _end_open() -> None:
    for collector in list(_OPEN):
        collector._end()


def _after_fork() -> None:
    try:
        while _OPEN:
            _OPEN.pop()._fall_silent()
    except Exception:  # noqa: BLE001 - law 1: the child goes on; its copy of the recording grows
        _LOG.debug("stepscope: a framework's recording goes on in a forked child", exc_info=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
