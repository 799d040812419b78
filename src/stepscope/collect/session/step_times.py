"""Times every training step of the program, recorded or not: wall time, and what the kernel says of its thread.

The end of a step costs two system calls and one append; a thread of its own turns the readings into blocks of the file
``capture/steps.ssj``, which has the format of the journal. The samples of Python stacks, which belong to all steps too,
go into the same blocks. The file lies in the run of every window: the directory of a later window gets a hard link to
it. Steps that end before any window is prepared make the first window's directory early, so that a program that is
killed or ends before its window leaves the times of its steps.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from stepscope.collect.host.batch_times import BatchTimes
from stepscope.collect.host.compilations import Listener, listeners
from stepscope.collect.host.live_objects import LiveObjects
from stepscope.collect.host.stack_samples import StackSampler
from stepscope.collect.host.thread_figures import (
    COLUMNS,
    Figures,
    Reading,
    ThreadFigures,
    ThreadWaits,
    between,
    figures_of,
)
from stepscope.collect.journal.values import text
from stepscope.collect.options import Options
from stepscope.collect.own_thread import OwnThread
from stepscope.collect.session.inside_steps import InsideSteps, evaluations
from stepscope.collect.session.signals import end_watch, waiting, watch
from stepscope.collect.session.window import COMPLETE, Settings, Window, one_line
from stepscope.trace.blocks import FrameWriter, pack, write_failure
from stepscope.trace.clock import take_anchor
from stepscope.trace.run_directory import STEP_TIMES, RankDirectory, check_writable
from stepscope.trace.schema import EVALUATIONS, STEPPING, STEPS_RECOUNT

try:
    import resource
except ImportError:  # not a Unix
    resource = None  # type: ignore[assignment]

#: Asks for the figures of the calling thread; None where only Linux has them, which leaves them unknown.
_OF_THE_THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)

#: Steps in the queue, at most (about 700 bytes each); more are dropped and counted as `journal_overflow`.
_ROOM = 1 << 16
#: Steps in one block, and the length of the queue at which one is written early.
_MANY = 4096
#: Samples of stacks that wait, at which a block is written early.
_MANY_SAMPLES = 1 << 14
#: Compilations that wait, at most: the latest; shorter ones explain no step. JAX traces many parts of a function.
_COMPILATIONS, _SHORTEST_NS = 4096, 100_000
#: Functions that evaluate, at most.
_FUNCTIONS = 16
#: Seconds between looks at the queue, fewer while steps fill a block sooner; between blocks a hundredth of the run's
#: time, within these limits.
_SHORTEST, _TICK, _LONGEST = 0.01, 0.5, 30.0
#: A reading of the scheduler belongs to a time if both were taken within this: a thread is preempted where a system
#: call returns, and the delay would count to the wrong step.
_TOGETHER_NS = 10_000
_ATTEMPTS = 3
#: Seconds that `close` waits for a disk that hangs.
_PATIENCE = 8.0

_LOG = logging.getLogger("stepscope")

#: Number; end of the step before and its reading; end of this one and its reading.
_Ended: TypeAlias = "tuple[int, tuple[int, Reading | None], int, Reading | None]"


class StepTimes:
    """Times the steps of one program, across its windows and sessions.

    In a forked child every method is a no-op.

    Args:
        settings: Of the run that is made if steps end before a window is prepared; None waits for a window, and keeps
            the latest steps until then.
        lasts: Whether the owner ends it by :meth:`close`, and not the session that it serves.

    Attributes:
        number: Number of the current step.
        count: How many steps have ended.
        kept: Whether a window of the program is kept, whose run has the file.
        place: Where the next window records; None: in a run of its own.
        terminated: Called with the name of a signal that will end the process, on a thread of its own.
        failure: Loss of the catalogue and its reason, if the file could not be written to its end.
    """

    def __init__(self, settings: Settings | None, *, lasts: bool = False) -> None:
        self.lasts = lasts
        self.number = self.count = 0
        self.kept = False
        self.place: RankDirectory | None = None
        self.terminated: Callable[[str], None] = lambda _name: None
        self.failure = ("", "")
        self.settings = settings
        self._room = _ROOM
        self._lost = 0
        self._queue: deque[_Ended] = deque(maxlen=_MANY if settings is None else None)
        self._events: deque[tuple[str, int, int]] = deque()
        self._compiled: deque[tuple[str, int, int, Mapping[str, object]]] = deque(maxlen=_COMPILATIONS)
        self._facts: dict[str, str] = {}
        self._evaluating: dict[tuple[str, str], None] = {}
        self._steppers: Counter[int] = Counter()
        self._stepper = os.getpid()  # the number of the main thread
        self._last: tuple[int, Reading | None] = (0, None)
        self._here: ThreadFigures | None = None
        self._waits = ThreadWaits()
        self._batches = BatchTimes()
        self._listener: Listener | None = None
        self._of_evaluation = self._evaluated  # one bound method, like the listener
        self._inside = InsideSteps(self._happened, self._add_wait)
        self._objects = LiveObjects()
        self._stacks: StackSampler | None = None
        self._lock = threading.RLock()
        self._writing = False
        self._window: Window | None = None
        self._latest: Callable[[], Window | None] = lambda: None
        self._path: Path | None = None
        self._frames: FrameWriter | None = None
        self._thread: OwnThread | None = None
        self._starting = threading.Lock()
        self._anchor = take_anchor()
        self._begun = self._written = time.monotonic()
        self._tick = _TICK

    @property
    def directory(self) -> Path | None:
        """Directory of the run that has the times of steps alone; None if there is none."""
        return self._path.parents[2] if self._path is not None and self.alone else None

    @property
    def alone(self) -> bool:
        """Whether there are steps to keep, and no window is kept that has them."""
        return self.count > 0 and not self.kept and self.settings is not None

    def install(self) -> None:
        """Watch for what steps contain besides training, and make ready what samples the stacks of all threads."""
        self._here = ThreadFigures()
        self._inside.install()
        self._objects.install()
        self._batches.install()
        self._listener = self._compilation  # one bound method: `close` removes it by identity
        listeners.append(self._listener)
        evaluations.append(self._of_evaluation)
        if self.settings is None or self.settings.options.stacks_hz:
            self._stacks = StackSampler()
        _OPEN.add(self)
        # Else at the first step. With the session: a later thread could get the identifier of the one that begins it.
        if not self.lasts and self.settings is not None:
            self._start(self.settings.options)

    # Called by the training.

    def begin_step(self, start_ns: int) -> None:
        """Let a step begin now, at ``start_ns`` of ``time.perf_counter_ns``: the time before belongs to none."""
        self._last = start_ns, self.read()[1]

    def end_step(self, at_ns: int = 0, *, late: bool = False) -> tuple[int, int, int]:
        """End the current step, and begin the next one, on the thread that trains.

        Args:
            at_ns: Its end, of ``time.perf_counter_ns``; 0 means now.
            late: Whether it ended long ago, so that only its wall time is known.

        Returns:
            Its number, start and end.
        """
        now, reading = (at_ns, None) if late else self.read()
        end_ns = at_ns or now
        full = len(self._queue) >= self._room
        # Another thread, or a handler of a signal, can end a step only where this one calls something. From here until
        # the step is in the queue nothing is called, so no number is given twice, and numbers ascend. Without a GIL,
        # two threads could have one number.
        number, last = self.number, self._last
        self.number = number + 1
        if late or end_ns >= last[0]:  # one that ended long ago replaces what was a step until now
            self._last = end_ns, reading
        else:  # another step has ended since this one's reading
            end_ns, reading = last[0], None
        self._waits.ready = None
        if not full:
            self._queue.append((number, last, end_ns, reading))
        if not self._room:
            return number, last[0], end_ns
        self._lost += full
        self.count += 1
        if self.count == 1:
            self._inside.first_step()
        if self._inside.evaluating or self._inside.lasted or self._inside.announced is not None:
            self._inside.step_ended(end_ns)
        if self._thread is None and self.settings is not None:
            self._start(self.settings.options)
        return number, last[0], end_ns

    @property
    def last_end(self) -> int:
        """End of the last step, of ``time.perf_counter_ns``; 0 before the first one."""
        return self._last[0]

    def recount(self, text: str) -> None:
        """Note that the steps up to now end elsewhere than :meth:`end_step` was told; see :data:`STEPS_RECOUNT`."""
        self._facts[STEPS_RECOUNT] = text

    def phase(self, name: str | None) -> None:
        """Note that the program begins something other than training; None, or the end of the step, ends it."""
        self._inside.announce(name)

    def add_step(self, number: int, last: tuple[int, Reading | None], end_ns: int, reading: Reading | None) -> None:
        """Add a step that was found later, with the end and reading of the one before it, and with its own."""
        if len(self._queue) < self._room:
            self._queue.append((number, last, end_ns, reading))
            self.count += 1

    def read(self) -> tuple[int, Reading]:
        """Return the time, of ``time.perf_counter_ns``, and what the kernel says of the calling thread."""
        now, here = time.perf_counter_ns(), self._here
        line, file = b"", here.file.number if here is not None else -1
        if file >= 0:
            try:
                for _ in range(_ATTEMPTS):
                    before = now
                    line = os.pread(file, 80, 0)
                    now = time.perf_counter_ns()
                    if now - before < _TOGETHER_NS:
                        break
            except OSError:  # the program has closed all files
                line = b""
        thread = here.thread if here is not None else 0
        used = None if _OF_THE_THREAD is None else resource.getrusage(_OF_THE_THREAD)
        waits = self._waits
        return now, (thread, line, time.thread_time_ns(), used, waits.ns, waits.ready)

    def _happened(self, name: str, start_ns: int, end_ns: int) -> None:
        if len(self._events) < self._room:
            self._events.append((name, start_ns, end_ns))

    def _evaluated(self, start_ns: int, end_ns: int, file: str, function: str) -> None:
        self._happened("evaluation run", start_ns, end_ns)
        if file and (file, function) not in self._evaluating and len(self._evaluating) < _FUNCTIONS:
            self._evaluating[file, function] = None
            self._facts[EVALUATIONS] = json.dumps([[text(part) for part in place] for place in self._evaluating])

    def _compilation(self, name: str, facts: Mapping[str, object], start_ns: int, end_ns: int) -> None:
        if self._room and end_ns - start_ns >= _SHORTEST_NS:
            self._compiled.append((name, start_ns, end_ns, facts))
            if name.startswith("compile"):  # not JAX's tracing and lowering: each compilation is one event
                self._happened("compile", start_ns, end_ns)

    def _add_wait(self, ns: int, ready: int | None) -> None:
        self._waits.ns = (self._waits.ns or 0) + ns
        self._waits.ready = ready

    # Where the file lies.

    def window(self, settings: Settings) -> Window:
        """Return the window of these settings to prepare next, with the file in it.

        It is the one that was made early, or a new one. Both happen under the lock: else the thread could make an early
        one meanwhile, and the program would have two runs.

        Raises:
            OSError: Its directory or journal cannot be made.
        """
        with self._lock:
            window = self._window
            if window is None or settings is not self.settings:
                window = Window(settings, self.place)
            else:
                self._window = None
            self._latest = weakref.ref(window)
            if self._room:
                self._put_into(window.directory.capture, settings.options)
            return window

    def prepare_window(self) -> None:
        """Make and prepare the first window some steps before it opens: what that takes is then over for the loaders.

        Raises:
            OutputError: The directory of runs cannot be made or written.
            OSError: Its directory or journal cannot be made.
        """
        if self.settings is not None:
            check_writable(self.settings.output)  # nobody has before, where no command started the recording
            with self._lock:
                window = self.window(self.settings)
                window.prepare()
                self._window = window

    def _put_into(self, capture: Path, options: Options) -> None:
        try:
            self._open(capture / STEP_TIMES)
        except OSError as error:
            _LOG.warning("stepscope: the times of steps are not in %s (%s).", capture, one_line(error))
            return
        if self.settings is None and self._thread is None:
            self._queue = deque(self._queue)
            self._start(options)

    def _open(self, path: Path) -> None:
        if self._path is None:
            self._frames, self._path = FrameWriter(path), path
        elif self._path != path:
            try:
                path.hardlink_to(self._path)
            except OSError:  # another file system, or one without links: the steps up to now
                shutil.copyfile(self._path, path)
                path.chmod(0o600)

    def close(self, status: str = COMPLETE, notes: Mapping[str, object] | None = None) -> None:
        """Write what is left and end; idempotent. A run without a recorded step gets the status and notes given."""
        self._inside.remove()
        self._objects.remove()
        self._batches.remove()
        if self._listener in listeners:
            listeners.remove(self._listener)
        if self._of_evaluation in evaluations:
            evaluations.remove(self._of_evaluation)
        if self._stacks is not None:
            self._stacks.stop()
        if self._thread is not None:
            self._thread.stop(_PATIENCE, last=False)
            if not self._thread.here:
                end_watch()
        if self._room and self._lock.acquire(timeout=_PATIENCE):
            try:
                self._write(last=True)
                self._batches.close()
                self._room = 0
                if self._frames is not None:
                    self._frames.close()
                if self._window is not None:
                    self._window.leave(status, notes or {})
            finally:
                self._lock.release()
        self._end_samples()
        self._here = None
        _OPEN.discard(self)

    def flush(self) -> None:
        """Write what is known by now: a signal is about to end the process."""
        if self._room and self._lock.acquire(timeout=_PATIENCE):
            try:
                self._write()
            finally:
                self._lock.release()

    def abandon(self) -> None:
        """End, and remove a run that was made for the times of steps alone: another recording begins."""
        self.kept = True
        self._queue.clear()
        with self._lock:
            window, self._window = self._window, None
        self.close()
        if window is not None:
            window.discard()

    # Writing: on the thread, and in `close`.

    def _start(self, options: Options) -> None:
        if not self._starting.acquire(blocking=False):  # of several threads that train, the first one to come does it
            return
        self._begun = time.monotonic()
        watch()
        if self._stacks is not None:
            self._stacks.start(options.stacks_hz)
        self._thread = OwnThread("stepscope-steps", self._write_when_due)
        try:
            self._thread.start(_TICK)
        except RuntimeError:  # the interpreter ends, or there are too many threads: `close` writes
            return

    def _write_when_due(self, _last: bool) -> float:  # noqa: FBT001 - an OwnThread calls it
        if name := waiting():
            self.terminated(name)
            end_watch()
        now = time.monotonic()
        due = now - self._written >= min((now - self._begun) / 100, _LONGEST)
        samples, batches = 0, self._batches.drain()
        if self._stacks is not None:
            self._stacks.follow_workers()
            samples = self._stacks.waiting
        steps = len(self._queue)
        many = steps > _MANY or samples > _MANY_SAMPLES or batches > _MANY
        if (steps or samples) and (due or many):
            with self._lock:
                self._write()
        self._tick = min(max(self._tick * _MANY / max(steps, 1), _SHORTEST), _TICK)
        return self._tick

    def _write(self, *, last: bool = False) -> None:
        if self._writing:  # a signal handler interrupted this very thread
            return
        self._writing = True
        try:
            if self._frames is None and self.settings is not None and self._queue:
                window = Window(self.settings)
                window.write_manifest()
                self._open(window.directory.capture / STEP_TIMES)
                self._window = window
            if self._frames is None:
                return
            self._batches.drain()
            while (
                self._queue
                or self._facts
                or self._events
                or self._compiled
                or self._batches
                or (self._stacks and self._stacks.waiting)
            ):
                self._frames.append(pack(self._block()))
            if last:
                self._frames.append(pack(self._block({"closed": True})))
        except Exception as error:  # noqa: BLE001 - law 1: said once; the training goes on
            self._room = 0
            self._queue.clear()
            self._end_samples()
            self.failure = write_failure(error)
            latest = self._latest()
            if latest is not None and self._path is not None:
                latest.warn(self._path, self.failure[1])  # once, also if other files of it cannot be written
            else:
                _LOG.warning("stepscope: the times of steps are not kept (%s); training goes on.", self.failure[1])
        finally:
            self._written = time.monotonic()
            self._writing = False

    def _end_samples(self) -> None:
        if self._stacks is not None:
            self._stacks.close()

    def _block(self, closing: Mapping[str, object] | None = None) -> dict[str, Any]:
        steps = [self._queue.popleft() for _ in range(min(len(self._queue), _MANY))]
        events = [self._events.popleft() for _ in range(min(len(self._events), _MANY))]
        compiled = [self._compiled.popleft() for _ in range(len(self._compiled))]
        self._steppers.update(reading[0] for *_, reading in steps if reading is not None)
        if self._steppers and (most := self._steppers.most_common(1)[0][0]) != self._stepper:
            self._stepper, self._facts[STEPPING] = most, str(most)
        known, self._facts = self._facts, {}
        before, self._anchor = self._anchor, take_anchor()
        names = sorted({name for name, _, _ in events})
        batches = self._batches.take(names, _MANY) if self._batches else None
        lost, self._lost, self._batches.lost = self._lost + self._batches.lost, 0, 0
        samples = self._stacks.take() if self._stacks is not None else None
        return {
            "process": os.getpid(),
            "host": text(socket.gethostname()),
            "anchors": [(anchor.monotonic, anchor.epoch, anchor.uncertainty) for anchor in (before, self._anchor)],
            "names": names,
            "run_steps": _encoded(steps),
            "events": {
                "name": [names.index(name) for name, _, _ in events],
                "start": [start for _, start, _ in events],
                "dur": [max(end - start, 0) for _, start, end in events],
            },
            **({"metadata": list(known.items())} if known else {}),
            **({"compilations": _compilations(compiled)} if compiled else {}),
            **({"batches": batches} if batches else {}),
            **({"samples": samples} if samples else {}),
            **({"losses": {"journal_overflow": lost}} if lost else {}),
            **(closing or {}),
        }

    def _become_inert(self) -> None:
        """Drop everything in a forked child: files, thread and lock belong to the parent."""
        self._room = 0
        self._queue.clear()
        self._facts = {}
        self._events.clear()
        self._inside.remove()
        self._objects.remove()
        self._compiled.clear()
        if self._stacks is not None:
            self._stacks.become_inert()
        self._lock = threading.RLock()
        self._here = self._window = None
        if self._frames is not None:
            self._frames.close()


def _compilations(rows: list[tuple[str, int, int, Mapping[str, object]]]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {
        "name": [text(name) for name, _, _, _ in rows],
        "start": [start for _, start, _, _ in rows],
        "dur": [max(end - start, 0) for _, start, end, _ in rows],
    }
    for fact in ("function", "arguments", "why"):
        columns[fact] = [text(facts[fact]) if fact in facts else None for _, _, _, facts in rows]
    return columns


def _encoded(steps: list[_Ended]) -> dict[str, list[int | None]]:
    """Return the columns of a block; numbers and starts as differences, which compress to little."""
    rows: list[tuple[int | None, ...]] = []
    number = end = 0
    seen: Reading | None = None
    figures: Figures | None = None
    for step, (start_ns, before), end_ns, reading in steps:
        old = figures if before is seen else figures_of(before)
        seen, figures = reading, figures_of(reading)
        dur = max(end_ns - start_ns, 0) if start_ns else None
        rows.append((step - number, (start_ns or end_ns) - end, dur, *between(old, figures)))
        number, end = step, end_ns
    names = ("number", "gap", "dur", *COLUMNS)
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return dict(zip(names, map(list, columns), strict=True))


_OPEN: weakref.WeakSet[StepTimes] = weakref.WeakSet()


def _after_fork() -> None:
    for times in list(_OPEN):
        times._become_inert()
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
