"""The recorder of a profile: its session, its steps, and the windows that it has recorded.

A process records one window at a time. A second profile that starts meanwhile shares the window of the first: the
window then belongs to both. When the first stops, the second goes on with a new window.
"""

from __future__ import annotations

import atexit
import dis
import gc
import logging
import shutil
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from stepscope.collect import schedule as collecting
from stepscope.collect.host.thread_use import frames_of_threads
from stepscope.collect.options import Options
from stepscope.collect.session.recorded import RecordedWindow
from stepscope.collect.session.rehearsal import rehearse
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

_PACKAGE = str(Path(__file__).resolve().parents[2])

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
        #: The profile of the program, if it still exists.
        self.handle: Callable[[], object | None] = lambda: None
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

    def copy_captures(self) -> None:
        """Copy the files that MindSpore wrote for the last window to the directory of runs, as MindSpore 1.x did."""
        for recorded in self.recorded[-1:]:
            recorded.wait()
            for pattern in ("capture/mindspore/cpu_*", "capture/mindspore/minddata/*", "results/minddata_*"):
                for path in recorded.rank_path.glob(pattern):
                    shutil.copy2(path, self.plan.output)

    def _lead(self) -> None:
        """Open a session for this recorder."""
        global _leader
        log = OptimizerLog() if self.plan.schedule is None else None
        schedule = collecting.always if self.plan.schedule is None else _Acting(self)
        if self.plan.schedule is not None:
            rehearse(self.plan.options)
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
            "mindspore",
        )

    def act(self, number: int) -> collecting.Action:
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


class _Acting:
    """The schedule of a recorder, as its session calls it."""

    def __init__(self, recorder: MindSporeRecorder) -> None:
        self._recorder = recorder
        self.repeat = getattr(recorder.plan.schedule, "repeat", None)

    def __call__(self, step: int) -> collecting.Action:
        return self._recorder.act(step)

    def peek(self, step: int) -> collecting.Action:
        """Return the action of a step without its transition."""
        return ACTIONS[ask(self._recorder.plan.schedule or always, step)]


def end_replaced(maker: FrameType | None) -> None:
    """End the running recording if the profile that ``maker`` is making takes its place."""
    end_abandoned()
    leader = running_leader()
    handle = leader.handle() if leader is not None else None
    if leader is not None and handle is not None and maker is not None and _is_replaced(handle, maker):
        leader.end(COMPLETE, {"ended_by": "another profile that takes its place"})


def _is_replaced(profile: object, maker: FrameType) -> bool:
    """Return whether nothing but a name that is about to be bound anew, and finished frames, refers to a profile.

    ``p = Profiler()``, run again in the cell of a notebook, makes the new profile before the old one is finalized. A
    caught exception keeps the frames that it passed through, and with them the profile whose call raised it.

    Args:
        profile: The profile that records.
        maker: The frame that makes another one.
    """
    name, wanted = _bound_next(maker), id(profile)  # a variable of a comprehension would refer to the profile, too
    alive = [frame for first in frames_of_threads().values() for frame in _stack(first)]
    theirs = [frame for frame in alive if not frame.f_code.co_filename.startswith(_PACKAGE)]
    bound = False
    for frame in theirs:  # the collector does not see the variables of a frame that runs
        names = [key for key, value in frame.f_locals.items() if id(value) == wanted]
        if names and not (frame is maker and names == [name]):
            return False
        bound = bound or bool(names)
    spaces = {id(space) for space in (maker.f_globals, maker.f_locals)}
    gc.collect()  # what nothing reaches any more may still refer to it
    finished = [one for one in gc.get_referrers(profile) if isinstance(one, FrameType) and one not in alive]
    for referrer in gc.get_referrers(profile):
        if isinstance(referrer, dict) and id(referrer) in spaces:
            if [key for key, value in referrer.items() if id(value) == wanted] != [name]:
                return False
            bound = True
        elif not isinstance(referrer, FrameType) and not _variables_of_finished(referrer, alive):
            return False
    return bound or bool(finished)


def _variables_of_finished(referrer: object, alive: list[FrameType]) -> bool:
    """Return whether an object holds the variables of a finished frame, as somebody asked for who shows a traceback."""
    frames = [one for one in gc.get_referrers(referrer) if isinstance(one, FrameType) and one.f_globals is not referrer]
    return isinstance(referrer, dict) and bool(frames) and not any(one in alive for one in frames)


def _bound_next(frame: FrameType) -> str | None:
    """Return the name that the result of the call in progress is assigned to; None if it is not assigned to a name."""
    following = (
        one for one in dis.get_instructions(frame.f_code) if one.offset > frame.f_lasti and one.opname != "CACHE"
    )
    one = next(following, None)
    assigned = one is not None and one.opname in ("STORE_NAME", "STORE_GLOBAL", "STORE_FAST")
    return str(one.argval) if one is not None and assigned else None


def _stack(frame: FrameType | None) -> list[FrameType]:
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


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
