"""What every collector is given, and the six members it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from stepscope.collect.options import Options

if TYPE_CHECKING:
    from stepscope.collect.journal.journal import Journal


@dataclass(frozen=True)
class Context:
    """Where and what a collector records, during one window.

    Attributes:
        rank: Rank of this process in its job.
        capture: Directory that takes the collector's own files; it exists.
        options: What to record.
        journal: Append-only file for spans, counters and losses; timestamps from ``time.perf_counter_ns()``.
    """

    rank: int
    capture: Path
    options: Options
    journal: Journal


class NothingHere(str):
    """Why a collector cannot work, where nothing is lost by that: what it records does not exist on this machine."""

    __slots__ = ()


class Collector(Protocol):
    """One source of measurements. A fresh object serves one window.

    Any member may raise: the session notes the message in the manifest, counts ``collector_failed`` and goes on with
    the other collectors. ``prepare``, ``start`` and ``stop`` are called in this order on one thread, each at most once;
    ``stop`` is called even where ``start`` failed, and returns within ten seconds or does not touch another thread.

    One that is for a framework names its package in ``framework``: where the program trains with another, nothing is
    missing without it.
    """

    @property
    def name(self) -> str:
        """Key in the manifest's ``collectors``."""
        ...

    def available(self) -> str | None:
        """Return why the collector cannot work here, or None where it can. Cheap, and without side effects.

        Where there is nothing that it could record, the reason is a :class:`NothingHere`.
        """
        ...

    def prepare(self, context: Context) -> None:
        """Do what is slow before the window opens."""
        ...

    def start(self) -> None:
        """Begin to record."""
        ...

    def stop(self) -> list[Path]:
        """Stop recording, leave nothing installed, and return the files written besides the journal."""
        ...

    def describe(self) -> dict[str, object]:
        """Return what was recorded and how, as plain values for the manifest."""
        ...


@dataclass(frozen=True)
class StepMarks:
    """Who is told of steps.

    Attributes:
        begin: Called with the number of a step that begins; returns the number of the next one that it must be called
            for. It may be called for one before that, too.
        end: Called where a step ends that it was called for.
    """

    begin: Callable[[int], int]
    end: Callable[[], None] | None = None


@runtime_checkable
class StepMarking(Protocol):
    """A collector that may have to know of steps."""

    @property
    def thread(self) -> int:
        """Identifier (``threading.get_ident``) of the thread that alone can stop it without loss; 0 for any."""
        ...

    @property
    def step_marks(self) -> StepMarks | None:
        """What is told of steps; asked for once, when the recording has begun."""
        ...


@runtime_checkable
class Settling(Protocol):
    """A collector whose files may still be written when ``stop`` has returned."""

    def settle(self) -> None:
        """Wait until the files are whole; called once after ``stop``, on any thread. May raise."""
        ...
