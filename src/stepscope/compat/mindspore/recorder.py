"""The recorder of a profile: its session, its steps, and the windows that it has recorded.

A process records one window at a time. A second profile that starts meanwhile shares the window of the first: the
window then belongs to both. When the first stops, the second goes on with a new window.
"""

from __future__ import annotations

import atexit
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.collect import schedule as collecting
from stepscope.collect.options import Options
from stepscope.collect.session.recorded import RecordedWindow
from stepscope.collect.session.session import AT_EXIT, Session
from stepscope.collect.session.window import COMPLETE, Settings, Window, one_line
from stepscope.collect.start.profile import absolute
from stepscope.collect.steps import OptimizerLog
from stepscope.compat.mindspore import results
from stepscope.compat.mindspore.schedules import ACTIONS, TRANSITIONS, ScheduleFunction, Transition, always, ask
from stepscope.compat.mindspore.situations import strict
from stepscope.compat.mindspore.vocabulary import ProfilerAction
from stepscope.errors import StepscopeError

_LOG = logging.getLogger("stepscope")

_NO_NOTES: Mapping[str, object] = {}
_NOTHING = Transition()

#: The recorder whose session runs in this process.
_leader: MindSporeRecorder | None = None
#: Recorders whose profile was deleted while it ran. A finalizer can run at any bytecode, also inside this module, so it
#: only appends here; `deque.append` is atomic. :func:`end_abandoned` ends them.
_abandoned: deque[MindSporeRecorder] = deque()


@dataclass(frozen=True)
class Plan:
    """The settings of a profile.

    Attributes:
        options: What collectors record.
        output: Directory of runs.
        worker: First part of a run's name.
        formats: Formats of results, separated by commas.
        schedule: Step number → action; None records everything between start and stop.
        unserved: Switches that this device cannot serve, and why.
    """

    options: Options
    output: Path
    worker: str
    formats: str
    schedule: ScheduleFunction | None = None
    unserved: Mapping[str, str] = field(default_factory=dict)


class MindSporeRecorder:
    """One profile's recording; it may start and stop any number of times, and goes on counting steps.

    Args:
        plan: The settings of the profile.

    Attributes:
        on_ready: Called when a window is ready by the documents' definition; None if the program has no handler.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.on_ready: Callable[[], object] | None = None
        self.step_number = 0
        self.recorded: list[RecordedWindow] = []
        self.running = False
        self.handing_over = False
        self._schedule = plan.schedule or always
        self.action = ask(self._schedule, 0)
        self._transition = _NOTHING
        self._session: Session | None = None
        self._leader: MindSporeRecorder | None = None
        self._followers: list[MindSporeRecorder] = []
        #: Followers, past and present, that the open window belongs to.
        self._sharers: list[MindSporeRecorder] = []
        self._analysed = 0

    def start(self) -> None:
        """Begin to record at the current step. Errors are logged; training goes on."""
        end_abandoned()
        self.running = True
        leader = running_leader()
        if leader is None:
            self._lead()
        else:
            self._follow(leader)

    def boundary(self) -> None:
        """End the current step and begin the next one."""
        session = self._session
        if session is None:
            self._count_alone()
            return
        session.boundary()
        self.step_number = session.number
        if not self.running:  # the handler has stopped it
            session.end()
        if not session.running:  # or the schedule has failed
            self._hand_on()

    def end(self, status: str = COMPLETE, notes: Mapping[str, object] = _NO_NOTES) -> None:
        """Close the open window; during a call of the handler, after it has returned. Idempotent."""
        if not self.running:
            return
        self.running = False
        if self._leader is not None:
            self._leader._followers.remove(self)
            self._leader = None
        elif self._session is not None and not self._session.in_child and not self.handing_over:
            self._note(self.action, None)
            self._session.end(status, notes)
            self._hand_on()

    def abandon(self) -> None:
        """Queue the end of a deleted profile. Called by finalizers, in which closing a window is not safe."""
        if self.running:
            _abandoned.append(self)

    def analyse(self, request: results.Request) -> None:
        """Compute the results of the windows not yet analysed; if all are, of the last one again."""
        if not self.recorded:
            _LOG.warning("stepscope: analyse() has nothing to analyse: %s.", self._why_nothing())
            return
        first = min(self._analysed, len(self.recorded) - 1)
        self._analysed = len(self.recorded)
        for recorded in self.recorded[first:]:
            results.write(recorded, request)

    def _lead(self) -> None:
        """Open a session for this recorder."""
        global _leader
        log = OptimizerLog() if self.plan.schedule is None else None
        schedule = collecting.always if self.plan.schedule is None else self._act
        try:
            self._session = Session(self._settings(log), schedule, source="declared", on_saved=self._saved, log=log)
            _leader = self
            # atexit runs handlers in reverse order of registration: ours must run before MindSpore's, which shuts
            # MindSpore down.
            atexit.unregister(_end_at_exit)
            atexit.register(_end_at_exit)
            self._session.begin(self.step_number)
        except Exception as error:  # noqa: BLE001 - law 1: an output that cannot be written does not end training
            self._session = _leader = None
            text = str(error) if isinstance(error, StepscopeError) else one_line(error)
            _LOG.error("stepscope: nothing is recorded: %s", text)

    def _follow(self, leader: MindSporeRecorder) -> None:
        """Share the window of a profile that is already recording."""
        self._leader = leader
        leader._followers.append(self)
        leader._sharers.append(self)
        _LOG.warning(
            "stepscope: another profile is already recording; this one shares its window, steps and switches until "
            "that one stops."
        )

    def _hand_on(self) -> None:
        """Restart the followers after the session has ended: the first one leads, the others follow it."""
        global _leader
        self._session = _leader = None
        followers, self._followers = self._followers, []
        for follower in followers:
            follower._leader = None
            follower.start()

    def _why_nothing(self) -> str:
        leader = running_leader()
        if leader is not None and self in leader._sharers:
            return "what it recorded lies in the window of another profile, which is still open"
        return "it is still recording; call stop() first" if self.running else "nothing was recorded"

    def _settings(self, log: OptimizerLog | None) -> Settings:
        schedule, unserved = self.plan.schedule, self.plan.unserved
        return Settings(
            self.plan.options,
            absolute(self.plan.output),
            self.plan.worker,
            "everything between start and stop" if schedule is None else repr(schedule),
            lambda: (log.describe() if log else {}) or {"source": "declared", "by": "step()"},
            {"switches_unavailable": dict(unserved)} if unserved else {},
        )

    def _act(self, number: int) -> collecting.Action:
        """Return the session's action for step ``number``, and handle the documented transition to it."""
        if number != self.step_number:  # the action of the first step is known already
            before, self.action = self.action, ask(self._schedule, number)
            self.step_number = number
            self._note(before, self.action)
        return ACTIONS[self.action]

    def _count_alone(self) -> None:
        """Count a step without a session: another profile has it, or it could not begin."""
        self.step_number += 1
        try:
            self.action = ask(self._schedule, self.step_number)
        except Exception as error:  # noqa: BLE001 - law 1: the schedule is the program's own
            _LOG.warning("stepscope: the schedule failed (%s); training goes on.", one_line(error))

    def _note(self, before: ProfilerAction, following: ProfilerAction | None) -> None:
        self._transition = TRANSITIONS.get((before, following), _NOTHING)
        # Without a schedule "Incorrect schedule" is wrong, but MindSpore logs it; here only in the non-strict mode.
        if self._transition.warning and (self.plan.schedule is not None or not strict()):
            _LOG.warning("%s", self._transition.warning)

    def _saved(self, window: Window) -> None:
        """Give a closed window to this recorder and to all that shared it."""
        recorded = RecordedWindow(window, "later")
        transition, self._transition = self._transition, _NOTHING
        sharers, self._sharers = self._sharers, list(self._followers)
        self._receive(recorded, window, ready=transition.ready)
        for sharer in sharers:
            sharer._receive(recorded, window, ready=True)

    def _receive(self, recorded: RecordedWindow, window: Window, *, ready: bool) -> None:
        self.recorded.append(recorded)
        if not ready or self.on_ready is None:
            return
        self.handing_over = True
        try:
            self.on_ready()
        except Exception as error:  # noqa: BLE001 - law 1: a handler must not end the training
            window.count_loss("handler_failed", one_line(error))
            window.write_manifest()
            _LOG.warning("stepscope: on_trace_ready raised %s; training goes on.", one_line(error))
        finally:
            self.handing_over = False


def end_abandoned() -> None:
    """End the recordings of deleted profiles."""
    while _abandoned:
        _abandoned.popleft().end(COMPLETE, {"ended_by": "the end of the profile object"})


def running_leader() -> MindSporeRecorder | None:
    """Return the recorder whose session runs in this process; None in a forked child."""
    session = _leader._session if _leader is not None else None
    return _leader if session is not None and session.running and not session.in_child else None


def _end_at_exit() -> None:
    """Close the window that the program left open, and call its handler."""
    end_abandoned()
    while (leader := running_leader()) is not None:
        _LOG.warning("profile is stopped at the end of the program.")
        followers, leader._followers = leader._followers, []
        for follower in followers:
            follower._leader, follower.running = None, False
        leader.end(COMPLETE, AT_EXIT)
