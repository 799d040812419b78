"""One window: its directory, journal and collectors, from its preparation until its files are complete."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import stepscope
from stepscope.collect.annotations import bind, unbind
from stepscope.collect.frameworks import imported_frameworks
from stepscope.collect.journal.journal import Journal
from stepscope.collect.options import Options
from stepscope.collect.protocol import Collector, Context, NothingHere, StepMarks
from stepscope.collect.ranks import find_job_rank
from stepscope.collect.registry import make_collectors
from stepscope.collect.session.command_line import command_line
from stepscope.collect.session.patience import Patience
from stepscope.collect.session.placement import create_rank_directory, move_to_job
from stepscope.errors import OutputError
from stepscope.trace.blocks import write_failure
from stepscope.trace.losses import CATALOGUE
from stepscope.trace.manifest import Manifest
from stepscope.trace.run_directory import JOURNAL, STEP_TIMES, RankDirectory

_Value = TypeVar("_Value")

#: Status of a run in its manifest; a run that fails adds the step.
RECORDING = "recording"
COMPLETE = "complete"
INCOMPLETE = "incomplete: not everything could be written"

#: Bytes of a file that reserves space for the last manifest, which reports a full disk.
_RESERVED = 1 << 16

#: Seconds without work after which a collector that opens or closes its recording counts as hung.
OPENING, CLOSING = 30.0, 10.0

#: Losses that a file cannot hold, because it cannot be written when they occur; the run is then incomplete.
UNWRITTEN = ("disk_full", "capture_not_written")


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
        door: How the recording was started; see :func:`stepscope.collect.options.asked`.
    """

    options: Options
    output: Path
    worker: str
    schedule: str
    steps: Callable[[], dict[str, Any]]
    notes: Mapping[str, object] = field(default_factory=dict)
    door: str = ""


@dataclass
class _Member:
    """A collector of one window, and its state."""

    collector: Collector
    unavailable: str | None = None
    failures: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    works: bool = True
    #: Loss of the catalogue if a file of it could not be written to its end.
    unwritten: str = ""

    def ask(self) -> None:
        """Ask the collector whether it can record here."""
        self.unavailable = self.attempt(self.collector.available)
        self.works = self.works and self.unavailable is None

    def attempt(self, action: Callable[..., _Value], *args: object, within: Patience | None = None) -> _Value | None:
        """Call a method of the collector; an error is kept in ``failures`` and never reaches the training."""
        try:
            return action(*args) if within is None else within.call(action, *args)
        except Exception as error:  # noqa: BLE001 - law 1: counted as collector_failed in the manifest
            self.works = False
            if isinstance(error, OSError) and action in (self.collector.stop, getattr(self.collector, "settle", None)):
                self.unwritten = write_failure(error)[0]
            if one_line(error) not in self.failures:
                self.failures.append(one_line(error))
            return None

    def describe(self) -> dict[str, Any]:
        if self.unavailable is not None:
            unused = isinstance(self.unavailable, NothingHere) or self._of_another_framework()
            return {"unused" if unused else "unavailable": str(self.unavailable)}
        described = self.attempt(self.collector.describe) or {}
        failed = {"failed": "; ".join(self.failures)} if self.failures else {}
        return {**described, **failed, **({"unwritten": True} if self.unwritten else {})}

    def _of_another_framework(self) -> bool:
        """Whether the collector is for a framework that the program does not use, so that nothing is lost."""
        framework = getattr(self.collector, "framework", None)
        return framework is not None and framework not in sys.modules and bool(imported_frameworks())


class Window:
    """One window of a profile; used once: ``prepare``, ``start``, steps, ``finish`` — or ``prepare``, ``discard``.

    Args:
        settings: What all windows of the profile share.
        directory: Where to record, if not in a new run in ``settings.output``.

    Attributes:
        settled: Set when every file is complete.
        due: Number of the next step whose beginning a collector marks; earlier steps need :meth:`add_step` only.

    Raises:
        OSError: The run's directory or its journal cannot be created.
    """

    def __init__(self, settings: Settings, directory: RankDirectory | None = None) -> None:
        begin = time.perf_counter_ns()
        self.settings = settings
        self.place = self._joined = find_job_rank()
        self.started = False
        self.steps = 0
        self.due = 0
        self.settled = threading.Event()
        self._losses: dict[str, int] = {}
        self._notes: dict[str, Any] = dict(settings.notes)
        self._cost: dict[str, int] = {}
        self._wall: dict[str, int] = {}
        self._lock = threading.Lock()
        self._parts = [_Member(collector) for collector in make_collectors(settings.options)]
        # By their classes: isinstance() with a protocol costs 0.2 ms with cold caches, for each collector.
        self._markers: list[Any] = [part for part in self._parts if hasattr(type(part.collector), "step_marks")]
        self._marking: list[tuple[_Member, StepMarks]] = []
        if directory is None:
            directory = create_rank_directory(settings.output, settings.worker, self.place)
        else:
            directory.create()
        self.directory = directory
        self._recorded_in = directory.path
        self._journal = Journal(self.directory.capture / JOURNAL)
        self._status = RECORDING
        self._prepared = False
        self._reserve = self.directory.path / ".reserve"
        self._reserve.write_bytes(bytes(_RESERVED))
        self._cost["prepare_ns"] = time.perf_counter_ns() - begin

    def prepare(self) -> None:
        """Do the slow part of collectors, and write the manifest, so that a killed process leaves a readable run.

        A second call prepares those that were unavailable at the first.
        """
        begin = time.perf_counter_ns()
        waiting = [part for part in self._parts if not self._prepared or part.unavailable is not None]
        self._prepared = True
        with Patience(OPENING) as patience:
            for part in waiting:
                self._prepare(part, patience)
        if any(part.works for part in waiting):
            self.write_manifest()
        self._cost["prepare_ns"] += time.perf_counter_ns() - begin

    def admit(self) -> None:
        """Start collectors that were unavailable until the program imported another framework."""
        with Patience(OPENING) as patience:
            for part in self._parts:
                if part.unavailable is not None:
                    self._prepare(part, patience)
                    if part.works and self.started:
                        part.attempt(part.collector.start, within=patience)
        self._ask_markers()

    def _ask_markers(self) -> None:
        """Collect the callbacks that mark steps."""
        working = [part for part in self._markers if part.works]
        self._marking = [(part, part.collector.step_marks) for part in working if part.collector.step_marks is not None]
        self.due = 0

    def _prepare(self, part: _Member, patience: Patience) -> None:
        part.works = True
        part.ask()
        if part.works:
            context = Context(self.place.rank, self.directory.capture, self.settings.options, self._journal)
            part.attempt(part.collector.prepare, context, within=patience)

    def start(self, metadata: Mapping[str, str]) -> None:
        """Open the window.

        Args:
            metadata: JSON texts by key, for the journal.
        """
        begin = time.perf_counter_ns()
        for key, text in metadata.items():
            self._journal.metadata(key, text)
        with Patience(OPENING) as patience:
            for part in self._parts:
                if part.works:
                    part.attempt(part.collector.start, within=patience)
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
        self._joined = find_job_rank()
        unbind()
        self._stop_parts()
        self._journal.close()
        self._status = status
        self._notes.update(notes)
        self._cost["stop_ns"] = time.perf_counter_ns() - begin
        self._give_room_back()
        self.write_manifest()

    def discard(self) -> None:
        """End a window that holds no step, and remove its files."""
        self._end_unused()
        shutil.rmtree(self.directory.path, ignore_errors=True)
        with suppress(OSError):  # it holds other ranks of the job
            self.directory.path.parent.rmdir()

    def leave(self, status: str, notes: Mapping[str, object]) -> None:
        """End a window that holds no step, but leave its run: it has the times of steps that were not recorded.

        Args:
            status: How the recording ended.
            notes: Further entries of the manifest.
        """
        self._end_unused()
        self._prepared = False
        self._status = status
        self._notes.update(notes)
        self._give_room_back()
        self.write_manifest()

    def _give_room_back(self) -> None:
        with suppress(OSError):  # the directory is gone, or another one by now
            self._reserve.unlink(missing_ok=True)

    def _end_unused(self) -> None:
        if self._prepared:
            unbind()
            self._stop_parts()
        self._journal.close()
        if self._prepared:
            self._settle_parts()

    def settle(self) -> None:
        """Wait until every file is complete, then write the manifest with the failures. Runs on any thread."""
        self._settle_parts()
        if self._joined.world_size > self.place.world_size:  # the program joined its job after the window had opened
            try:
                self.directory = move_to_job(self.directory, self.settings.worker, self._joined)
                self.place = self._joined
            except (OSError, OutputError) as error:  # it stays a run of its own
                self._notes["not_moved"] = one_line(error)
        self.write_manifest()
        failures = [failure for part in self._parts if part.unwritten for failure in part.failures]
        if failures:
            self._journal.warn(self.directory.path, failures[0])
        self.settled.set()

    def _stop_parts(self) -> None:
        with Patience(CLOSING) as patience:
            for part in self._parts:
                if part.unavailable is None:
                    part.files = part.attempt(part.collector.stop, within=patience) or []

    def _settle_parts(self) -> None:
        for part in self._parts:
            settle = getattr(part.collector, "settle", None)
            if part.works and settle is not None:
                part.attempt(settle)

    def count_loss(self, what: str, message: str, count: int = 1) -> None:
        """Count a loss of the catalogue in the manifest, with a message."""
        if what not in CATALOGUE:
            raise KeyError(what)
        with self._lock:
            self._losses[what] = self._losses.get(what, 0) + count
            self._notes.setdefault("messages", []).append(f"{what}: {message}")

    def warn(self, path: Path, reason: str) -> None:
        """Log that a file of this window could not be written; only the first one."""
        self._journal.warn(path, reason)

    def note(self, key: str, value: object) -> None:
        """Add an entry to the manifest and write it again."""
        self._notes[key] = value
        self.write_manifest()

    @property
    def unwritten(self) -> bool:
        """Whether the disk does not have the manifest."""
        return "manifest" in self._notes

    def write_manifest(self) -> None:
        """Write the current manifest; an error of the disk becomes the entry ``manifest`` of the next one."""
        try:
            with self._lock:
                self.directory.write_manifest(self.manifest())
        except OSError as error:
            self._notes["manifest"] = one_line(error)

    def manifest(self) -> Manifest:
        """Return the manifest: process, machine, times, options, and the description of each collector."""
        losses = Counter({row.what: row.count for row in self._journal.ledger.rows() if row.what in UNWRITTEN})
        losses.update(part.unwritten for part in self._parts if part.unwritten)
        losses.update(self._losses)
        whole = self._status != COMPLETE or losses.keys().isdisjoint(UNWRITTEN)
        return {
            "stepscope": stepscope.__version__,
            "status": self._status if whole else INCOMPLETE,
            "worker": self.settings.worker,
            "rank": self.place.rank,
            "world_size": self.place.world_size,
            "local_rank": self.place.local_rank,
            "rank_found_by": self.place.found_by,
            "host": socket.gethostname(),
            "process": os.getpid(),
            **({"cores": sorted(os.sched_getaffinity(0))} if hasattr(os, "sched_getaffinity") else {}),
            **({"arguments": command_line()} if self.settings.options.argv else {}),
            "python": platform.python_version(),
            "door": self.settings.door,
            "options": self.settings.options.describe(),
            "schedule": self.settings.schedule,
            "steps": {**self.settings.steps(), "recorded": self.steps},
            "collectors": {part.collector.name: part.describe() for part in self._parts} if self._prepared else {},
            "losses": losses,
            "window": dict(self._wall),
            "captures": self._captures(),
            "cost": dict(self._cost),
            **self._notes,
        }

    def _captures(self) -> list[str]:
        files = [self._journal.path, *(path for part in self._parts for path in part.files)]
        found = {path.relative_to(self._recorded_in).as_posix() for path in files}
        if (self.directory.capture / STEP_TIMES).exists():
            found.add(f"{self.directory.capture.name}/{STEP_TIMES}")
        return sorted(found)


def at_step(step: int | None) -> str:
    """Return a number in the words of a status; nothing where the whole program is one step."""
    return "" if step is None else f" at step {step}"


def ending(step: int | None, error: BaseException | None) -> tuple[str, dict[str, object]]:
    """Return status and notes of a program that ends in a step, for the manifest.

    Args:
        step: Number of the step; None if the program is one step.
        error: What it ends with. Leaving with a code, and Ctrl-C, are not failures of the program.
    """
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return COMPLETE, {}
    notes: dict[str, object] = {"exception": type(error).__name__}
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
        return f"ended{at_step(step)} with exit code {code}", notes
    if isinstance(error, KeyboardInterrupt):
        return f"interrupted{at_step(step)}", notes
    return f"failed{at_step(step)}", notes


def one_line(error: BaseException) -> str:
    """Return an exception as one line of text."""
    return " ".join(f"{type(error).__name__}: {error}".split())
