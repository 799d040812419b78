"""The profile of an unchanged program: ``stepscope run`` finds the training steps and records some of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from stepscope.collect.frameworks import FRAMEWORKS, begin_early
from stepscope.collect.hooks.post_import import when_imported
from stepscope.collect.hooks.training_error import pass_on
from stepscope.collect.options import ALL_STEPS, step_range
from stepscope.collect.schedule import Schedule, ScheduleFunction, always
from stepscope.collect.session.recorded import RecordedWindow
from stepscope.collect.session.session import AT_EXIT, Session
from stepscope.collect.session.window import COMPLETE, Settings, Window, one_line
from stepscope.collect.steps import StepHooks, Stepped, StepsSeen, make_hooks
from stepscope.errors import LifecycleError

_LOG = logging.getLogger("stepscope")


@dataclass(frozen=True)
class Selection:
    """Which steps are recorded.

    Attributes:
        skip: Steps before the first one recorded.
        active: Steps recorded; 0 means the whole program.
        find: Whether steps are looked for if the whole program is recorded; without steps, the program is one step.
    """

    skip: int = 5
    active: int = 5
    find: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any], *, find: bool = False, least_skip: int = 0) -> Selection:
        """Return the selection that the options ``steps``, ``skip`` and ``active`` name; ``steps`` counts more."""
        skip, active = values["skip"], values["active"] or 0
        if values["steps"] not in (None, ALL_STEPS):
            first, last = step_range(values["steps"])
            skip, active = first, last - first + 1
        return cls(max(skip, least_skip), active, find)

    @property
    def whole(self) -> bool:
        """Whether the whole program is recorded."""
        return self.active == 0

    def schedule(self, number: int) -> ScheduleFunction:
        """Return the schedule that warms up in step ``number`` or, from step 0 on, records at once."""
        if self.whole:
            return always
        begin = min(self.skip, 1)
        return Schedule(wait=number, warmup=begin, active=self.active, repeat=1)

    def describe(self) -> str:
        """Return the selection in words."""
        if self.whole:
            return "the whole program" if self.find else "the whole program as one step"
        return f"skip {self.skip}, active {self.active}"


class Automatic:
    """Finds the training steps of the program, whatever framework it trains with, and records the selected ones.

    Args:
        settings: Called when the recording begins, with a function that describes how steps are found.
        selection: Which steps to record.
    """

    def __init__(self, settings: Callable[[Callable[[], dict[str, Any]]], Settings], selection: Selection) -> None:
        self.recorded: RecordedWindow | None = None
        self.problem: str | None = None
        self.gave_way = False
        self._settings = settings
        self._selection = selection
        self._session: Session | None = None
        self._seen = StepsSeen()
        self._hooks: list[StepHooks] = []
        self._withdraw: list[Callable[[], None]] = []
        self.frameworks: list[str] = []

    @property
    def steps(self) -> int:
        """Number of training steps seen."""
        return self._session.number if self._session is not None else self._seen.finder.number

    def install(self) -> None:
        """Wait for the program to import a framework."""
        self._withdraw = [when_imported(name, partial(self._imported, name)) for name in FRAMEWORKS]

    def end(self, status: str = COMPLETE, notes: Mapping[str, object] = AT_EXIT) -> None:
        """End the recording in whatever state it is, and remove all hooks from the program."""
        self._remove_hooks()
        if self._session is not None:
            self._session.end(status, notes, whole=self._selection.whole and not self.steps)

    def _imported(self, framework: str) -> None:
        try:
            self.frameworks.append(framework)
            begin_early(framework, self._settings(self._describe_steps).options)
            if self._selection.find or not self._selection.whole:
                hooks = make_hooks(framework, self._stepped)
                self._hooks.append(hooks)
                hooks.install(late=False)
            if self._session is not None:
                self._session.admit()
            elif self._selection.skip <= 1:
                self._begin(0)
        except Exception as error:  # noqa: BLE001 - law 1: the program runs on; the message is said at its end
            self._fail(error)

    def _stepped(self, stepped: Stepped) -> None:
        """A step was seen: this runs inside the program's training loop."""
        try:
            if stepped.late and self._session is not None and not self._session.recording:
                return  # this step ended before the window that is about to open
            if self._seen.add(stepped, learning=self._session is None):
                self._boundary(stepped)
        except Exception as error:  # noqa: BLE001 - law 1: the program runs on; the message is said at its end
            self._fail(error)
        pass_on()

    def _boundary(self, stepped: Stepped) -> None:
        if self._session is not None:
            # The hook's time is exact. A window that is about to open begins its first step when it opens.
            at_ns = stepped.at_ns if self._session.recording else 0
            self._session.boundary(self._seen.source, at_ns)
            return
        number = self._seen.finder.number
        alone = self._seen.finder.optimizers == 1
        if number >= self._selection.skip - 1 and not (alone and any(hooks.may_wait(number) for hooks in self._hooks)):
            self._begin(number)

    def _begin(self, number: int) -> None:
        session = Session(
            self._settings(self._describe_steps),
            self._selection.schedule(number),
            source="inferred",
            on_saved=self._saved,
            give_way=self._give_way,
        )
        try:
            session.begin(number)
        except LifecycleError:  # the program runs a profile of its own
            self.gave_way = True
            self._remove_hooks()
            return
        self._session = session

    def _saved(self, window: Window) -> None:
        self.recorded = RecordedWindow(window, "later")
        self._remove_hooks()

    def _give_way(self) -> None:
        """End this recording: the program starts a profile of its own, which takes precedence."""
        self.gave_way = True
        self.end(COMPLETE, {"ended_by": "the program's own stepscope.profile"})

    def _fail(self, error: Exception) -> None:
        self.problem = one_line(error)
        _LOG.warning("stepscope: steps are not recorded (%s); the program runs on.", self.problem)
        self.end("failed", {"exception": self.problem})

    def _remove_hooks(self) -> None:
        for withdraw in self._withdraw:
            withdraw()
        for hooks in self._hooks:
            hooks.remove()

    def _describe_steps(self) -> dict[str, Any]:
        if self._selection.whole and not self.steps:
            return {"source": "inferred", "by": "the whole program is one step"}
        return self._seen.describe()
