"""The protocol of collectors: the context that each gets, and its six members."""

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
    """Where and what a collector records during one window.

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
    """Reason why a collector has nothing to record: its source does not exist on this machine, so nothing is lost."""

    __slots__ = ()


class Collector(Protocol):
    """One source of measurements. A fresh object serves one window, or the rehearsal of one.

    A rehearsal calls all members once before the first step, in a temporary directory, so that what is slow only the
    first time (imports, a recorder's first start) is done. It must not change the training: no operator, no device.

    Any member may raise: the session notes the message in the manifest, counts ``collector_failed`` and goes on with
    the other collectors. ``prepare``, ``start`` and ``stop`` are called in this order on one thread, each at most once;
    ``stop`` is called even if ``start`` failed, and returns within ten seconds or does not touch another thread.

    A collector of one framework names the framework's package in ``framework``: if a program trains with another
    framework, its absence is not a loss.
    """

    @property
    def name(self) -> str:
        """Key in the manifest's ``collectors``."""
        ...

    def available(self) -> str | None:
        """Return why the collector cannot record here, or None if it can; cheap and free of side effects.

        The reason is a :class:`NothingHere` if its source does not exist.
        """
        ...

    def prepare(self, context: Context) -> None:
        """Do the slow part before the window opens."""
        ...

    def start(self) -> None:
        """Begin to record."""
        ...

    def stop(self) -> list[Path]:
        """Stop recording, remove every hook, and return the files written, without the journal."""
        ...

    def describe(self) -> dict[str, object]:
        """Return what was recorded and how, as plain values for the manifest."""
        ...


@dataclass(frozen=True)
class StepMarks:
    """Callbacks of a collector that marks steps.

    Attributes:
        begin: Called with the number of a step that begins; returns the number of the next step it must be called for.
            It may be called for an earlier step, too.
        end: Called at the end of a step whose beginning was marked.
    """

    begin: Callable[[int], int]
    end: Callable[[], None] | None = None


@runtime_checkable
class StepMarking(Protocol):
    """A collector that may need to mark steps."""

    @property
    def thread(self) -> int:
        """Identifier (``threading.get_ident``) of the only thread that can stop it without loss; 0 for any thread."""
        ...

    @property
    def step_marks(self) -> StepMarks | None:
        """The callbacks, or None; read once, when the recording has begun."""
        ...


@runtime_checkable
class Settling(Protocol):
    """A collector that may still write its files when ``stop`` has returned."""

    def settle(self) -> None:
        """Wait until the files are complete; called once after ``stop``, on any thread. May raise."""
        ...
