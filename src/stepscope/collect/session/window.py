"""One window: its directory, journal and collectors, from its preparation until its files are complete."""

from __future__ import annotations

import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import stepscope
from stepscope.collect.annotations import bind, unbind
from stepscope.collect.frameworks import FRAMEWORKS
from stepscope.collect.journal.journal import Journal
from stepscope.collect.options import Options
from stepscope.collect.protocol import Collector, Context, NothingHere, Settling, StepMarking, StepMarks
from stepscope.collect.ranks import find_job_rank
from stepscope.collect.registry import make_collectors
from stepscope.collect.session.placement import create_rank_directory
from stepscope.trace.losses import CATALOGUE
from stepscope.trace.run_directory import Manifest, RankDirectory

_Value = TypeVar("_Value")

#: Status of a run in its manifest; a run that fails adds the step.
RECORDING = "recording"
COMPLETE = "complete"

#: Bytes of a file that reserves space for the last manifest, which reports a full disk.
_RESERVED = 1 << 16

#: Losses that the journal cannot record itself: it cannot write when they occur.
_UNWRITTEN = ("disk_full", "capture_not_written")


@dataclass(frozen=True)
class Settings:
    """The settings that all windows of one profile share.

    Attributes:
        options: What collectors record.
        output: Directory of runs, absolute.
        worker: First part of a run's name.
        schedule: The schedule in words, for the manifest.
        steps: Returns how steps are found; called for each write of the manifest.
        notes: Further entries of the manifest.
    """

    options: Options
    output: Path
    worker: str
    schedule: str
    steps: Callable[[], dict[str, Any]]
    notes: Mapping[str, object] = field(default_factory=dict)


@dataclass
class _Member:
    """A collector of one window, and its state."""

    collector: Collector
    unavailable: str | None = None
    failures: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    works: bool = True

    def ask(self) -> None:
        """Ask the collector whether it can record here."""
        self.unavailable = self.attempt(self.collector.available)
        self.works = self.works and self.unavailable is None

    def attempt(self, action: Callable[..., _Value], *args: object) -> _Value | None:
        """Call a method of the collector; an error is kept in ``failures`` and never reaches the training."""
        try:
            return action(*args)
        except Exception as error:  # noqa: BLE001 - law 1: counted as collector_failed in the manifest
            self.works = False
            if one_line(error) not in self.failures:
                self.failures.append(one_line(error))
            return None

    def describe(self) -> dict[str, Any]:
        if self.unavailable is not None:
            unused = isinstance(self.unavailable, NothingHere) or self._of_another_framework()
            return {"unused" if unused else "unavailable": str(self.unavailable)}
        described = self.attempt(self.collector.describe) or {}
        return {**described, **({"failed": "; ".join(self.failures)} if self.failures else {})}

    def _of_another_framework(self) -> bool:
        """Whether the collector is for a framework that the program does not use, so that nothing is lost."""
        framework = getattr(self.collector, "framework", None)
        return framework is not None and framework not in sys.modules and not FRAMEWORKS.keys().isdisjoint(sys.modules)


class Window:
    """One window of a profile; used once: ``prepare``, ``start``, steps, ``finish`` — or ``prepare``, ``discard``.

    Args:
        settings: What all windows of the profile share.

    Attributes:
        due: Number of the next step whose beginning a collector marks; earlier steps need :meth:`add_step` only.

    Raises:
        OSError: The run's directory or its journal cannot be created.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.place = find_job_rank()
        self.started = False
        self.steps = 0
        self.due = 0
        self._losses: dict[str, int] = {}
        self._notes: dict[str, Any] = dict(settings.notes)
        self._cost: dict[str, int] = {}
        self._wall: dict[str, int] = {}
        self._lock = threading.Lock()
        self._parts = [_Member(collector) for collector in make_collectors(settings.options)]
        # Cached: isinstance() with a protocol costs 8 µs, and a step may last 1 ms.
        self._markers: list[Any] = [part for part in self._parts if isinstance(part.collector, StepMarking)]
        self._marking: list[tuple[_Member, StepMarks]] = []
        self.directory = create_rank_directory(settings.output, settings.worker, self.place)
        self._journal = Journal(self.directory.capture / "journal.ssj")
        self._status = RECORDING
        self._reserve = self.directory.path / ".reserve"
        self._reserve.write_bytes(bytes(_RESERVED))

    def prepare(self) -> None:
        """Do the slow part of collectors, and write the manifest, so that a killed process leaves a readable run."""
        begin = time.perf_counter_ns()
        for part in self._parts:
            self._prepare(part)
        self.write_manifest()
        self._cost["prepare_ns"] = time.perf_counter_ns() - begin

    def admit(self) -> None:
        """Start collectors that were unavailable until the program imported another framework."""
        for part in self._parts:
            if part.unavailable is not None:
                part.works = True
                self._prepare(part)
                if part.works and self.started:
                    part.attempt(part.collector.start)
        self._ask_markers()

    def _ask_markers(self) -> None:
        """Collect the callbacks that mark steps."""
        working = [part for part in self._markers if part.works]
        self._marking = [(part, part.collector.step_marks) for part in working if part.collector.step_marks is not None]
        self.due = 0

    def _prepare(self, part: _Member) -> None:
        part.ask()
        if part.works:
            context = Context(self.place.rank, self.directory.capture, self.settings.options, self._journal)
            part.attempt(part.collector.prepare, context)

    def start(self, metadata: Mapping[str, str]) -> None:
        """Open the window.

        Args:
            metadata: JSON texts by key, for the journal.
        """
        begin = time.perf_counter_ns()
        for key, text in metadata.items():
            self._journal.metadata(key, text)
        for part in self._parts:
            if part.works:
                part.attempt(part.collector.start)
        self._ask_markers()
        bind(self._journal)
        self.started = True
        self._wall["start_ns"] = time.time_ns()
        self._cost["start_ns"] = time.perf_counter_ns() - begin

    @property
    def thread(self) -> int:
        """Identifier of the only thread that can finish the window without loss; 0 for any thread."""
        return next((part.collector.thread for part in self._markers if part.works), 0)

    def begin_step(self, number: int) -> None:
        """Mark the beginning of a step in collectors that need it."""
        following = [part.attempt(marks.begin, number) for part, marks in self._marking if part.works]
        self.due = min((due for due in following if due is not None), default=sys.maxsize)

    def end_step(self, number: int, start_ns: int, end_ns: int, source: str) -> None:
        """Mark the end of a step and record it; times of ``time.perf_counter_ns``."""
        for part, marks in self._marking:
            if part.works and marks.end is not None:
                part.attempt(marks.end)
        self.add_step(number, start_ns, end_ns, source)

    def add_step(self, number: int, start_ns: int, end_ns: int, source: str) -> None:
        """Record a step that no collector marks."""
        self._journal.step(number, start_ns, end_ns, source)
        self.steps += 1

    def metadata(self, key: str, text: str) -> None:
        """Record a fact as JSON text."""
        self._journal.metadata(key, text)

    def finish(self, status: str, notes: Mapping[str, object]) -> None:
        """Close the window: stop the collectors, end the journal, write the manifest.

        Files may still be written when this returns: :meth:`settle` waits for them.

        Args:
            status: How the recording ended.
            notes: Further entries of the manifest.
        """
        begin = time.perf_counter_ns()
        self._wall["end_ns"] = time.time_ns()
        unbind()
        for part in self._parts:
            if part.unavailable is None:
                part.files = part.attempt(part.collector.stop) or []
        self._journal.close()
        self._status = status
        self._notes.update(notes)
        self._cost["stop_ns"] = time.perf_counter_ns() - begin
        self._reserve.unlink(missing_ok=True)
        self.write_manifest()

    def discard(self) -> None:
        """End a window that was prepared but never opened, and remove its files."""
        for part in self._parts:
            if part.unavailable is None:
                part.attempt(part.collector.stop)
        self._journal.close()
        _remove_empty_run(self.directory, self._journal.path, self._reserve)

    def settle(self) -> None:
        """Wait until every file is complete, then write the manifest with the failures. Runs on any thread."""
        for part in self._parts:
            if part.works and isinstance(part.collector, Settling):
                part.attempt(part.collector.settle)
        self.write_manifest()

    def count_loss(self, what: str, message: str) -> None:
        """Count a loss of the catalogue in the manifest, with a message."""
        if what not in CATALOGUE:
            raise KeyError(what)
        with self._lock:
            self._losses[what] = self._losses.get(what, 0) + 1
            self._notes.setdefault("messages", []).append(f"{what}: {message}")

    def note(self, key: str, value: object) -> None:
        """Add an entry to the manifest and write it again."""
        self._notes[key] = value
        self.write_manifest()

    def write_manifest(self) -> None:
        """Write the current manifest; an error of the disk becomes the entry ``manifest`` of the next one."""
        try:
            with self._lock:
                self.directory.write_manifest(self.manifest())
        except OSError as error:
            self._notes["manifest"] = one_line(error)

    def manifest(self) -> Manifest:
        """Return the manifest: process, machine, times, options, and the description of each collector."""
        return {
            "stepscope": stepscope.__version__,
            "status": self._status,
            "worker": self.settings.worker,
            "rank": self.place.rank,
            "world_size": self.place.world_size,
            "local_rank": self.place.local_rank,
            "rank_found_by": self.place.found_by,
            "host": socket.gethostname(),
            "process": os.getpid(),
            "arguments": list(getattr(sys, "orig_argv", sys.argv)),
            "python": platform.python_version(),
            "options": self.settings.options.describe(),
            "schedule": self.settings.schedule,
            "steps": {**self.settings.steps(), "recorded": self.steps},
            "collectors": {part.collector.name: part.describe() for part in self._parts},
            "losses": {row.what: row.count for row in self._journal.ledger.rows() if row.what in _UNWRITTEN}
            | self._losses,
            "window": dict(self._wall),
            "captures": self._captures(),
            "cost": dict(self._cost),
            **self._notes,
        }

    def _captures(self) -> list[str]:
        files = [self._journal.path, *(path for part in self._parts for path in part.files)]
        return sorted({path.relative_to(self.directory.path).as_posix() for path in files})


def one_line(error: BaseException) -> str:
    """Return an exception as one line of text."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _remove_empty_run(directory: RankDirectory, *files: Path) -> None:
    """Remove the files and directories of a window that never opened, and nothing else."""
    try:
        for path in (*files, directory.manifest_path):
            path.unlink(missing_ok=True)
        for path in (directory.capture, directory.path, directory.path.parent):
            path.rmdir()
    except OSError:
        return  # another rank uses the directory, or a collector left a file: it stays, but is not a run
