"""Sessions: count steps, follow the schedule and drive windows; used by ``profile`` and ``stepscope run``."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType

from stepscope.collect.options import Options
from stepscope.collect.schedule import (
    Action,
    ScheduleFunction,
    action_of,
    steps_missing,
    unchanged_until,
)
from stepscope.collect.session.lifecycle import END, TRANSITIONS, WindowOperation
from stepscope.collect.session.signals import TerminationGuard, end_watch, interrupt_postponed, watch
from stepscope.collect.session.step_times import StepTimes
from stepscope.collect.session.window import COMPLETE, Settings, Window, at_step, one_line
from stepscope.collect.steps import OptimizerLog
from stepscope.errors import LifecycleError, OutputError
from stepscope.trace.run_directory import check_writable

_LOG = logging.getLogger("stepscope")

#: Seconds that the handler of SIGTERM and SIGHUP waits for another thread to finish opening or closing a window, and
#: for the files of the window that it has closed.
_PATIENCE, _WRITING = 20.0, 10.0

_NO_NOTES: Mapping[str, object] = {}

#: Manifest entry of a recording that ended because the program did.
AT_EXIT: Mapping[str, object] = {"ended_by": "the end of the program"}

#: The session that is running in this process.
current_session: Session | None = None
_claim_lock = threading.Lock()

#: Process id, cached: when training has evicted the caches, `getpid` takes 1.5 µs, a sixth of the cost of a step.
_process = os.getpid()

#: Number of sessions begun in this process.
_begun = 0

#: Ends a recording whose window is prepared, and whose session has not begun; see :func:`make_room`.
_prepared: Callable[[], None] | None = None

#: Facts of `add_metadata` as JSON texts; every later window gets them.
_metadata: dict[str, str] = {}


class Session:
    """Counts steps and opens the windows of a schedule; used once.

    Only :meth:`begin` raises errors of the recording; the other methods log an error once and write it into the
    manifest. In a forked child every method is a no-op.

    Args:
        settings: The settings that all windows share.
        schedule: Step number → action.
        source: Source of the steps: ``declared`` or ``inferred``.
        on_saved: Called with every window that has closed; it must not raise.
        give_way: Called when another session wants to run, and ends this one; None refuses the other one.
        log: Finds the steps of a window in which the program declared none.

    Attributes:
        problem: Why a window could not be opened, if one could not.
        one_step: Whether all of the recording is one step if none ends in it.
        times: The times of all steps; an owner that outlives the session may replace them before :meth:`begin`.
    """

    def __init__(
        self,
        settings: Settings,
        schedule: ScheduleFunction,
        *,
        source: str,
        on_saved: Callable[[Window], None],
        give_way: Callable[[], None] | None = None,
        log: OptimizerLog | None = None,
    ) -> None:
        self.settings = settings
        self.times = StepTimes(settings)
        self.give_way = give_way
        self.one_step = False
        self._log = log
        if log is not None:
            log.read = self.times.read
        self._schedule = schedule
        self._source = source
        self._on_saved = on_saved
        self._window: Window | None = None
        self._action = Action.NONE
        # Before this step, a boundary only times the step that ended; no collector and no schedule is called.
        self._until = 0
        self._process = _process
        self._exclusively = _Exclusively()
        self._guard: TerminationGuard | None = None
        self.problem: str | None = None
        self._windows = 0
        self._saved: Window | None = None
        self._warned: set[str] = set()
        self.running = False
        # Set when a signal or an error has ended it: the program does not know, and calls on.
        self._cut_short = False

    @property
    def number(self) -> int:
        """Number of the current step."""
        return self.times.number

    @property
    def reached(self) -> int | None:
        """Number of the step that the program is in, by its own count or by optimizers' steps; None if it is one."""
        found = self._log is not None and self._log.found
        if self.one_step and not self.number and not found:
            return None
        return self.number + (self._log.ended if self._log is not None else 0)

    @property
    def recording(self) -> bool:
        """Whether a window is open."""
        return self._window is not None and self._window.started

    @property
    def prepared(self) -> bool:
        """Whether a window is open, or about to open."""
        return self._window is not None

    @property
    def thread(self) -> int:
        """Identifier of the only thread that can close the open window without loss; 0 if every thread can."""
        return self._window.thread if self._window is not None and self._window.started else 0

    @property
    def may_step(self) -> bool:
        """Whether the program may say that a step has ended: it runs, or has ended without the program's doing."""
        return self.running or self._cut_short or self.in_child

    @property
    def in_child(self) -> bool:
        """Whether this process is a fork of the one that began the session; a fork records nothing."""
        return _process != self._process

    def begin(self, number: int = 0) -> None:
        """Begin the session.

        Args:
            number: Number of its first step.

        Raises:
            LifecycleError: Another session is running and does not give way.
            OutputError: The output directory cannot be created or written.
        """
        check_writable(self.settings.output)
        first = action_of(self._schedule, number)
        self.times.number = number
        _claim(self)
        self.running = True
        if not self.times.lasts:
            self.times.terminated = lambda name: self._terminate(name, end_watch)
            self.times.install()
        with self._exclusively:
            try:
                self._move(first)
                self._check_begun()
                self._begin_step()
                self._until = 0  # another thread may have ended a step meanwhile: the next one asks the schedule
            except BaseException:  # also Ctrl-C: the caller has no way to close what begin() has opened
                self._close("failed", {})
                raise

    def _check_begun(self) -> None:
        if self.problem is not None and self._window is None:
            message = f"Cannot record into {self.settings.output}: {self.problem}."
            raise OutputError(message, "Choose another directory with --output (or output=).")

    def boundary(self, source: str | None = None, at_ns: int = 0, *, late: bool = False) -> None:
        """End the current step and begin the next one.

        Args:
            source: Source of the step that ends; None means the session's.
            at_ns: Its end, of ``time.perf_counter_ns``; 0 means now.
            late: Whether it ended long ago, so that only its wall time is known.
        """
        if not self.running or _process != self._process or self._exclusively.owner == threading.get_ident():
            return  # held here: a signal handler of the program interrupts the opening or closing of a window
        window = self._window
        number, start_ns, end_ns = self.times.end_step(at_ns, late=late)
        if number + 1 < self._until:
            # Fast path of nearly every step, lock-free: with cold caches a lock costs 2 µs and the path below 5 µs, and
            # a step may last 1 ms. Races with other threads, and what keeps them harmless:
            # - A thread that changes the state first sets `_until` to 0 (_move, and the path below). A step that read
            #   `_until` before that is recorded as if it had ended a moment earlier.
            # - A thread closes the window meanwhile: the closed journal drops the step, which is the last one.
            if window is not None and window.started:
                window.add_step(number, start_ns, end_ns, source or self._source)
            return
        with self._exclusively:
            if self.number != number + 1:  # a later step has ended meanwhile, and what begins after it has begun
                if window is not None and window.started:
                    window.add_step(number, start_ns, end_ns, source or self._source)
                return
            self._until = 0
            self._end_step((number, start_ns, end_ns), source)
            try:
                following = action_of(self._schedule, self.number)
            except Exception as error:  # noqa: BLE001 - law 1: it ends the recording, not the training
                self._cut_short, self.problem = True, one_line(error)
                self._warn("the schedule", error)
                self._close(f"failed at step {self.number}", {"exception": one_line(error)})
                return
            if following is not self._action or following is Action.RECORD_AND_SAVE:
                self._move(following)
            self._begin_step(at_ns)

    def restart_step(self) -> None:
        """Set the start of the current step to now: the time before belongs to no step."""
        if self.running and not self.in_child:
            with self._exclusively:
                self.times.begin_step(time.perf_counter_ns())

    def admit(self) -> None:
        """Start the collectors of a framework that the program has just imported, if a window is open."""
        if self.running and not self.in_child:
            with self._exclusively:
                if self._window is not None:
                    self._window.admit()
                    self._until = 0
                    if self._log is not None:
                        self._log.admit()

    def end(self, status: str = COMPLETE, notes: Mapping[str, object] = _NO_NOTES) -> None:
        """Close the open window, if any, and end; idempotent.

        From a signal handler that interrupts our own work, and from ``on_trace_ready``, it ends when that is done.

        Args:
            status: How the recording ended, for the manifest.
            notes: Further entries of the manifest.
        """
        if not self.running or self.in_child:
            return
        if self._exclusively.held_here():
            self._exclusively.afterwards.append(lambda: self.end(status, notes))
            return
        with self._exclusively:
            if self.reached is None:
                self._end_step((self.number, self.times.last_end, time.perf_counter_ns()), None)
            self._close(status, notes)

    def metadata(self, key: str, text: str) -> None:
        """Record a fact, as JSON text, into the open window, if any."""
        if self.recording and self._window is not None and not self.in_child:
            self._window.metadata(key, text)

    def _terminate(self, name: str, deliver: Callable[[], None]) -> None:
        """Handle a signal: end, then deliver it. In a window it runs on the main thread, between any two bytecodes."""
        if self._exclusively.held_here():
            self._exclusively.afterwards.append(lambda: self._terminate(name, deliver))
            return
        self._cut_short = True
        if self._exclusively.lock.acquire(timeout=_PATIENCE):
            try:
                self.end(f"ended{at_step(self.reached)} by {name}")
            finally:
                self._exclusively.lock.release()
        if self.times.lasts:
            self.times.flush()
        if self._saved is not None:  # the signal ends the process, and with it the thread that completes the files
            self._saved.settled.wait(_WRITING)
        deliver()

    def _begin_step(self, at_ns: int = 0) -> None:
        window = self._window
        if window is not None and window.started:
            window.begin_step(self.number)
            due = window.due if self._log is None else 0
        else:
            due = sys.maxsize
        self._until = min(due, unchanged_until(self._schedule, self.number))
        self.times.begin_step(at_ns or time.perf_counter_ns())

    def _end_step(self, step: tuple[int, int, int], source: str | None) -> None:
        """End the current step, given by number, start and end, in the open window, if any."""
        window = self._window
        if window is not None and window.started:
            window.end_step(*step, source or self._source)
            if self._log is not None:  # the program declares its steps, so steps of optimizers are dropped
                self._log.forget()
                self._log = None

    def _close(self, status: str, notes: Mapping[str, object]) -> None:
        """End the session, in any state."""
        window = self._window
        if window is not None and window.started:
            with suppress(Exception):  # the schedule may be the program's
                if missing := steps_missing(self._schedule, self.number):
                    window.count_loss("steps_not_recorded", f"the recording ended in step {self.number}", missing)
        self._move(END, status, notes)
        self.running = False
        if not self.times.lasts:
            self.times.terminated = _ignore  # breaks a reference cycle, as below
            try:
                self.times.close(status, notes)
            except Exception as error:  # noqa: BLE001 - law 1
                self._warn("cannot close the times of the steps", error)
            if self.times.failure[0] and self._saved is not None:
                self._saved.count_loss(*self.times.failure)
                self._saved.write_manifest()
        self._on_saved = _ignore  # breaks a reference cycle: the callback may refer to the owner of this session
        if self._source == "declared" and not self._windows and self.problem is None:
            _LOG.warning(
                "stepscope: Nothing was recorded: the profile ended in step %d, but its schedule (%s) records no step "
                "up to it. Record earlier steps; a loop of your own calls step() after each.",
                self.number,
                self.settings.schedule,
            )
        _release(self)

    def _move(self, following: Action | None, status: str = COMPLETE, notes: Mapping[str, object] = _NO_NOTES) -> None:
        """Perform a transition of the table; if a window cannot be opened, log it once and skip the window."""
        before, self._action = self._action, following or Action.NONE
        self._until = 0
        try:
            for operation in TRANSITIONS[before, following]:
                self._perform(operation, status, notes)
        except Exception as error:  # noqa: BLE001 - law 1: logged, and begin() turns it into an OutputError
            self._window = None
            self._remove_guard()
            self.problem = one_line(error).rstrip(".")
            self._warn("cannot record", error)

    def _perform(self, operation: WindowOperation, status: str, notes: Mapping[str, object]) -> None:
        if operation is WindowOperation.PREPARE:
            self._window = self.times.window(self.settings)
            self._window.prepare()
        window = self._window
        if window is None or operation is WindowOperation.PREPARE:
            return
        if operation is WindowOperation.START:
            self._guard = TerminationGuard(self._terminate)
            self._guard.install()
            window.start(_metadata)
            if self._log is not None:
                self._log.install()
            return
        # An endless schedule opens its next window at once; if the program ends there, that window is empty.
        endless = getattr(self._schedule, "repeat", None) == 0
        empty = window.steps == 0 and self._windows > 0 and endless and status == COMPLETE
        try:
            if operation is WindowOperation.DISCARD or empty:
                if self.times.alone:
                    window.leave(status, notes)
                else:
                    window.discard()
                return
            with interrupt_postponed():
                self._add_steps_found(window)
                window.finish(status, notes)
                self._windows += 1
                self.times.kept = True
                self._saved = window
                self._on_saved(window)
        finally:
            self._remove_guard()
            self._window = None

    def _remove_guard(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.remove()
            watch()

    def _add_steps_found(self, window: Window) -> None:
        if self._log is None:
            return
        self._log.remove()
        if window.steps == 0:
            for number, (last, (end, reading)) in enumerate(self._log.steps(self.times.last_end)):
                window.add_step(number, last[0], end, self._log.source)
                self.times.add_step(number, last, end, reading)

    def _warn(self, what: str, error: BaseException) -> None:
        if what not in self._warned:
            self._warned.add(what)
            _LOG.warning("stepscope: %s (%s); training goes on.", what, one_line(error))


def _ignore(_: object) -> None:
    """Replace callbacks after the end."""


def sessions_begun() -> int:
    """Return how many sessions this process has begun."""
    return _begun


def running_options() -> Options | None:
    """Return the options of the session that runs in this process; None if none runs."""
    session = current_session
    return session.settings.options if session is not None and session.running and not session.in_child else None


def make_room(give_way: Callable[[], None] | None) -> None:
    """Have a window that is prepared for a later session give way to any session that begins before.

    Args:
        give_way: Called when one does; None when the window's own session begins, or the recording has ended.
    """
    global _prepared
    _prepared = give_way


def remember_metadata(key: str, text: str) -> None:
    """Record a fact, as JSON text, into the open window, if any, and into all later ones."""
    _metadata[key] = text
    if current_session is not None:
        current_session.metadata(key, text)


@atexit.register
def _end_at_exit() -> None:
    """End the session that the program has left running."""
    if current_session is not None:
        current_session.end(COMPLETE, AT_EXIT)


class _Exclusively:
    """A re-entrant lock whose holder defers its own signal handlers until it releases the lock.

    Attributes:
        lock: Held while a thread is inside.
        owner: Identifier of that thread; 0 for none.
        afterwards: Actions that signal handlers deferred; the holder runs them after the release.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.afterwards: list[Callable[[], None]] = []
        self.owner = self._depth = 0

    def held_here(self) -> bool:
        """Return whether the calling thread holds the lock."""
        return self.owner == threading.get_ident()

    def __enter__(self) -> None:
        self.lock.acquire()
        self._depth += 1
        self.owner = threading.get_ident()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth:
            self.lock.release()
            return
        self.owner = 0
        self.lock.release()
        while self.afterwards:
            self.afterwards.pop(0)()


def _claim(session: Session) -> None:
    """Make ``session`` the running session of this process.

    Raises:
        LifecycleError: Another session is running and does not give way.
    """
    global current_session, _begun, _prepared
    prepared, _prepared = _prepared, None
    if prepared is not None:
        prepared()
    other = current_session
    if other is not None and other.running and not other.in_child and other.give_way is not None:
        other.give_way()
    with _claim_lock:
        other = current_session
        if other is not None and other.running and not other.in_child:
            message = "Another stepscope profile is running in this process."
            raise LifecycleError(message, "Stop it first; one process records one window at a time.")
        current_session = session
        _begun += 1


def _release(session: Session) -> None:
    global current_session
    with _claim_lock:
        if current_session is session:
            current_session = None


def _after_fork() -> None:
    global _process
    _process = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
