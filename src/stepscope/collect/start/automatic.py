"""The profile of an unchanged program: ``stepscope run`` finds the training steps and records some of them."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from stepscope.collect.frameworks import FRAMEWORKS, begin_early
from stepscope.collect.hooks.post_import import when_imported
from stepscope.collect.hooks.training_error import pass_on
from stepscope.collect.options import ALL_STEPS, step_range
from stepscope.collect.ranks import find_job_rank
from stepscope.collect.schedule import Action, Schedule, ScheduleFunction, always
from stepscope.collect.session.recorded import RecordedWindow
from stepscope.collect.session.rehearsal import rehearse
from stepscope.collect.session.session import AT_EXIT, Session, make_room, running_options
from stepscope.collect.session.step_times import StepTimes
from stepscope.collect.session.window import COMPLETE, Settings, Window, at_step, one_line
from stepscope.collect.start.takes import SETTLING, Takes
from stepscope.collect.steps import StepHooks, Stepped, StepsSeen, make_hooks
from stepscope.errors import LifecycleError
from stepscope.trace.schema import STEPS_RECOUNT

_LOG = logging.getLogger("stepscope")

#: Seconds that a signal waits for the end of the current step.
_STEP = 1.0


class _Again(Schedule):
    """The schedule of a further window. Nobody asked for its steps: if the program ends in it, none is missing."""

    @staticmethod
    def peek(_: int) -> Action:
        """Return that nothing is to be recorded."""
        return Action.NONE


@dataclass(frozen=True)
class Selection:
    """Which steps are recorded.

    Attributes:
        skip: Steps before the first one recorded.
        active: Steps recorded; 0 means the whole program.
        find: Whether steps are looked for if the whole program is recorded; without steps, the program is one step.
        typical: The most steps of a later window, which is kept instead if it is more typical of the program; 0: the
            first window is the only one.
        named: Whether somebody chose the steps by their numbers.
    """

    skip: int = 5
    active: int = 5
    find: bool = False
    typical: int = 0
    named: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any], *, find: bool = False, least_skip: int = 0, typical: int = 0) -> Selection:
        """Return the selection that the options ``steps``, ``skip`` and ``active`` name; ``steps`` counts more."""
        skip, active = values["skip"], values["active"] or 0
        named = values["steps"] not in (None, ALL_STEPS)
        if named:
            first, last = step_range(values["steps"])
            skip, active = first, last - first + 1
        return cls(max(skip, least_skip), active, find, typical if find_job_rank().world_size == 1 else 0, named)

    @property
    def whole(self) -> bool:
        """Whether the whole program is recorded."""
        return self.active == 0

    def schedule(self, number: int, again: int = 0) -> ScheduleFunction:
        """Return the schedule that warms up in step ``number`` or, from step 0 on, records at once.

        Args:
            number: The current step.
            again: Steps of a window after the first; 0 for the first. It takes its time, so that loaders are as they
                were before it was prepared, even if another process had the core meanwhile.
        """
        if self.whole:
            return always
        if again:
            return _Again(wait=number, warmup=SETTLING, active=again, repeat=1)
        return Schedule(wait=number, warmup=min(self.skip, 1), active=self.active, repeat=1)

    def describe(self) -> str:
        """Return the selection in words."""
        if self.whole:
            return "the whole program" if self.find else "the whole program as one step"
        return f"skip {self.skip}, active {self.active}{', or later ones that are typical' if self.typical else ''}"


class Automatic:
    """Finds the training steps of the program, whatever framework it trains with, and records the selected ones.

    Args:
        settings: Called when the recording begins, with a function that describes how steps are found.
        selection: Which steps to record.
        trains: Whether this process is known to train, so that the import of a framework may take longer for it.
        late: Whether the program may have made its optimizers already.

    Attributes:
        awaited: Class of an optimizer that never stepped, for whose first step the window has waited; else empty.
        last_words: Called when a signal has ended the recording, and will end the process.
    """

    def __init__(
        self,
        settings: Callable[[Callable[[], dict[str, Any]]], Settings],
        selection: Selection,
        *,
        trains: bool = True,
        late: bool = False,
    ) -> None:
        self.recorded: RecordedWindow | None = None
        self.problem: str | None = None
        self.gave_way = False
        self.awaited = ""
        self.last_words: Callable[[], None] = lambda: None
        self._ready = False
        # Set when the training waits for the end of the process, while another thread ends the recording.
        self._held: threading.Event | None = None
        self._settings = settings
        self._selection = selection
        self._trains = trains
        self._late = late
        self._session: Session | None = None
        self._beginning = threading.Lock()
        self._times: StepTimes | None = None
        self._takes = Takes(selection.active, selection.typical)
        self._seen = StepsSeen()
        self._hooks: list[StepHooks] = []
        self._withdraw: list[Callable[[], None]] = []
        self.frameworks: list[str] = []

    @property
    def steps(self) -> int:
        """Number of training steps seen."""
        return self._session.number if self._session is not None else self._seen.finder.number

    @property
    def reached(self) -> int | None:
        """Number of the step that the program is in; None if it is one step."""
        return self.steps if self.steps or not self._selection.whole else None

    @property
    def timed(self) -> Path | None:
        """Directory with the times of the steps, where none of them was recorded; None without one."""
        return self._times.directory if self._times is not None else None

    def install(self) -> None:
        """Wait for the program to import a framework."""
        self._withdraw = [when_imported(name, partial(self._imported, name)) for name in FRAMEWORKS]

    def hold(self) -> None:
        """Wait for the end of the process if a signal ends it: the recording belongs to another thread by now."""
        if self._held is not None:
            self._held.set()
            threading.Event().wait()

    def _terminated(self, name: str) -> None:
        self._held = threading.Event()
        self._held.wait(_STEP)  # a training that hangs does not come
        self.end(f"ended{at_step(self.reached)} by {name}", {})
        self.last_words()

    def end(self, status: str = COMPLETE, notes: Mapping[str, object] = AT_EXIT) -> None:
        """End the recording in whatever state it is, and remove all hooks from the program."""
        self._remove_hooks()
        if self._seen.finder.conclude():
            self._add_missed(self._seen.finder.ends_ns())
        failed = status != COMPLETE and self._session is not None and self._session.recording
        if self._session is not None:
            self._session.end(status, notes)
            self.problem = self.problem or self._session.problem
        if self._times is not None:
            self._times.close(status, notes)
        self.recorded = self._takes.keep_best(last=failed)  # after all files are complete: it removes runs
        if self.recorded is not None and self._times is not None and self._times.failure[0]:
            self.recorded.count_loss(*self._times.failure)
            self._times.failure = ("", "")

    def _imported(self, framework: str) -> None:
        try:
            self.frameworks.append(framework)
            settings = self._settings(self._describe_steps)
            begin_early(framework, settings.options)
            if self._selection.skip and self._trains:
                rehearse(settings.options)
            if self._times is None:
                self._times = StepTimes(settings, lasts=True)
                self._times.terminated = self._terminated
                self._times.install()
            if self._selection.find or not self._selection.whole:
                hooks = make_hooks(framework, self._stepped)
                self._hooks.append(hooks)
                hooks.install(late=self._late)
            if self._session is not None:
                self._session.admit()
            elif self._selection.skip <= 1:
                self._begin(0)
        except Exception as error:  # noqa: BLE001 - law 1: the program runs on; the message is said at its end
            self._fail(error)

    def _stepped(self, stepped: Stepped) -> None:
        """A step was seen: this runs inside the program's training loop."""
        self.hold()
        try:
            session = self._session
            if stepped.late and session is not None and session.prepared and not session.recording:
                return  # this step ended before the window that is about to open
            finder, before = self._seen.finder, self._seen.finder.closer
            learning = session is None or self._selection.whole or not session.prepared
            ends_step = self._seen.add(stepped, learning=learning)
            if finder.closer != before and finder.counts_with(before):
                self._recount(finder.number - ends_step)
            elif finder.closer != before:
                self._add_missed(finder.ends_ns()[:-1])
            if ends_step:
                self._boundary(stepped)
        except Exception as error:  # noqa: BLE001 - law 1: the program runs on; the message is said at its end
            self._fail(error)
        pass_on()

    def _add_missed(self, ends_ns: list[int]) -> None:
        """Count the steps of a stage of the program whose optimizers have stepped for some time before they counted."""
        session, times = self._session, self._times
        if session is None or times is None:
            return
        for end_ns in ends_ns:
            if end_ns > times.last_end:
                session.boundary(self._seen.source, end_ns, late=True)
        self._takes.restart_step(times.last_end)

    def _recount(self, number: int) -> None:
        """Steps end elsewhere than it seemed: the current one is ``number``. What was recorded is replaced."""
        session = self._session
        until = self._times.last_end if self._times is not None else 0
        text = json.dumps({"until": until, "ends": self._seen.finder.ends_ns()})
        if self._times is not None:
            self._times.recount(text)
        if session is not None and self._selection.whole:
            session.times.number = number
            session.metadata(STEPS_RECOUNT, text)
        elif session is not None and not session.prepared:
            session.end()
            self._session = None
            self._takes.outdate()

    def _boundary(self, stepped: Stepped) -> None:
        if stepped.late and self._times is not None and stepped.at_ns <= self._times.last_end:
            return  # it lies within a step that was reported before it
        session = self._session
        if session is not None:
            # The hook's time is exact. A window that is about to open begins its first step when it opens.
            recording = session.recording
            whole = self._selection.whole
            again = not whole and self._takes.step(stepped.at_ns or perf_counter_ns(), recorded=recording)
            session.boundary(self._seen.source, stepped.at_ns if recording else 0)
            again = again and find_job_rank().world_size == 1  # ranks could not agree to record again
            if again:
                self._session = None
                session.end()
                self._begin(session.number)
            if again or session.recording != recording:
                self._takes.restart_step(perf_counter_ns())
            return
        if self._beginning.locked():
            return  # another thread that trains opens the window, whose schedule counts from that thread's step
        number = self._seen.finder.number
        if self._times is not None:
            self._times.number = number - 1
            self._times.end_step(stepped.at_ns, late=stepped.late)
        if stepped.late:  # others follow that have ended already
            return
        self._alone(lambda: self._approach(number))

    def _approach(self, number: int) -> None:
        """Begin to record if the step is the one to begin in, and make the window ready before it."""
        if self._times is not None:
            self._make_ready(self._times, number)
        if number >= self._selection.skip - 1:
            others = (hooks.may_wait(number) for hooks in self._hooks if self._seen.finder.optimizers == 1)
            other = next(filter(None, others), "")
            self.awaited = other or self.awaited
            if not other:
                self._session = self._begun(number)

    def _make_ready(self, times: StepTimes, number: int) -> None:
        """Do what the first window can have done before: the step that is about to begin does not count it."""
        settings = times.settings or self._settings(self._describe_steps)
        slow = rehearse(settings.options)  # if it could not be before the first step
        free = running_options() is None  # the program's own profile takes precedence: it needs the collectors
        if free and not self._ready and number >= self._selection.skip - SETTLING:
            self._ready = slow = True
            times.prepare_window()
            make_room(self._give_way)
        if slow:
            times.begin_step(perf_counter_ns())

    def _begin(self, number: int) -> None:
        def begin() -> None:
            self._session = self._begun(number)

        self._alone(begin)

    def _alone(self, begin: Callable[[], None]) -> None:
        """Call what may begin to record; of several threads that train, the first one does."""
        if not self._beginning.acquire(blocking=False):
            return
        try:
            if self._session is None and not self.gave_way:
                begin()
        finally:
            self._beginning.release()

    def _begun(self, number: int) -> Session | None:
        """Return a session that has begun; None if the program runs a profile of its own."""
        made = self._times.settings if self._times is not None else None
        settings = made or self._settings(self._describe_steps)
        schedule = self._selection.schedule(number, again=self._takes.active if self.recorded is not None else 0)
        self._say_if_later(schedule)
        session = Session(
            settings,
            schedule,
            source="inferred",
            on_saved=self._saved,
            give_way=self._give_way,
        )
        session.one_step = self._selection.whole
        session.times = self._times or session.times
        session.times.place = self._takes.place()
        self._make_no_room()
        try:
            session.begin(number)
        except LifecycleError:
            self._yield()
            return None
        return session

    def _say_if_later(self, schedule: ScheduleFunction) -> None:
        """Say that the steps which somebody chose are over, if they are: others are recorded instead."""
        chosen = self._selection
        if isinstance(schedule, Schedule) and chosen.named:
            first, active = schedule.wait + schedule.warmup, schedule.active
            if first > chosen.skip:
                why = f"{self.awaited} could still step" if self.awaited else "it was not known what ends a step"
                asked = f"{chosen.skip} to {chosen.skip + active - 1}"
                text = "stepscope: steps %d to %d are recorded instead of %s: until then %s."
                _LOG.warning(text, first, first + active - 1, asked, why)
            self.awaited = ""

    def _saved(self, window: Window) -> None:
        self.recorded = RecordedWindow(window, "later")
        self._takes.add(self.recorded)

    def _give_way(self) -> None:
        """End this recording: the program starts a profile of its own, which takes precedence."""
        self._yield()
        self.end(COMPLETE, {"ended_by": "the program's own stepscope.profile"})

    def _yield(self) -> None:
        self.gave_way = True
        self._remove_hooks()
        if self._times is not None:
            self._times.abandon()

    def _fail(self, error: Exception) -> None:
        self.problem = one_line(error).rstrip(".")
        _LOG.warning("stepscope: steps are not recorded (%s); the program runs on.", self.problem)
        with suppress(Exception):  # law 1: what could not be recorded may be impossible to end, too
            self.end("failed", {"exception": self.problem})

    def _make_no_room(self) -> None:
        if self._ready:
            make_room(None)

    def _remove_hooks(self) -> None:
        self._make_no_room()
        for withdraw in self._withdraw:
            withdraw()
        for hooks in self._hooks:
            hooks.remove()

    def _describe_steps(self) -> dict[str, Any]:
        if self._selection.whole and not self.steps:
            return {"source": "inferred", "by": "the whole program is one step"}
        return self._seen.describe()
