"""``schedule``: which steps are recorded, and what happens between two steps, as in MindSpore's documents."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from stepscope.collect.schedule import Action
from stepscope.compat.mindspore.vocabulary import ProfilerAction
from stepscope.errors import UsageError

_LOG = logging.getLogger("stepscope")

#: Step number → its action.
ScheduleFunction: TypeAlias = Callable[[int], object]


class schedule:
    """A repeating cycle of steps; call it with a step's number, counted from 0. All arguments are keywords.

    An invalid number is replaced with a warning, as in MindSpore.

    Args:
        wait: Idle steps at the start of each cycle.
        active: Steps that are recorded, at least 1.
        warmup: Steps in which the recording is prepared.
        repeat: Number of cycles; 0 means until the training ends.
        skip_first: Steps before the first cycle.
    """

    def __init__(self, *, wait: int, active: int, warmup: int = 0, repeat: int = 0, skip_first: int = 0) -> None:
        self.wait = _number("wait", wait, 0)
        self.warmup = _number("warmup", warmup, 0)
        self.active = _number("active", active, 1)
        self.repeat = _number("repeat", repeat, 0)
        self.skip_first = _number("skip_first", skip_first, 0)
        if self.warmup == 0:
            _LOG.warning("Profiler won't be using warmup, this can skew profiler results")

    def __call__(self, step: int) -> ProfilerAction:
        """Return the action of step number ``step``.

        Raises:
            ValueError: ``step`` is negative.
        """
        if step < 0:
            message = "Invalid parameter step, which must be not less than 0."
            raise ValueError(message)
        cycle = self.wait + self.warmup + self.active
        done, offset = divmod(step - self.skip_first, cycle)
        if step < self.skip_first or 0 < self.repeat <= done or offset < self.wait:
            return ProfilerAction.NONE
        if offset < self.wait + self.warmup:
            return ProfilerAction.WARM_UP
        return ProfilerAction.RECORD if offset < cycle - 1 else ProfilerAction.RECORD_AND_SAVE

    def __repr__(self) -> str:
        return (
            f"Schedule(wait={self.wait!r}, active={self.active!r}, warmup={self.warmup!r}, "
            f"repeat={self.repeat!r}, skip_first={self.skip_first!r})"
        )

    def to_dict(self) -> dict[str, int]:
        """Return the numbers by name."""
        names = ("wait", "active", "warmup", "repeat", "skip_first")
        return {name: getattr(self, name) for name in names}


def is_schedule(value: object) -> bool:
    """Return whether ``value`` is a :class:`schedule`, or MindSpore's own ``Schedule``."""
    return isinstance(value, schedule) or type(value).__name__ == "Schedule"


def _number(name: str, value: object, least: int) -> int:
    """Return a number of steps; a wrong type or a too small number gives ``least`` and MindSpore's (one) warning."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    kind = type(value).__name__
    _LOG.warning("Parameter '%s' should be of type int, but got %s. reset to int %d.", name, kind, least)
    return least


def always(_step: int) -> ProfilerAction:
    """Record every step: what a profile without a schedule does."""
    return ProfilerAction.RECORD


@dataclass(frozen=True)
class Transition:
    """What happens between two steps in addition to the session's own table.

    Attributes:
        warning: The line that MindSpore logs; may be empty.
        ready: Whether ``on_trace_ready`` is called with the window that closes.
    """

    warning: str = ""
    ready: bool = False


_NONE, _WARM_UP, _RECORD, _SAVE = ProfilerAction
_FOLLOWED = "Incorrect schedule: {} followed by {}"

#: (action of the step that ended, action of the step that begins or None if the profile stops) → MindSpore's addition.
#: Missing pairs add nothing. MindSpore drops the window after RECORD→NONE and RECORD→WARM_UP; here it is kept.
TRANSITIONS: dict[tuple[ProfilerAction, ProfilerAction | None], Transition] = {
    (_WARM_UP, _NONE): Transition(_FOLLOWED.format("WARMUP", "NONE")),
    (_RECORD, _NONE): Transition(_FOLLOWED.format("RECORD", "NONE")),
    (_RECORD, _WARM_UP): Transition(_FOLLOWED.format("RECORD", "WARMUP")),
    **{(_SAVE, following): Transition(ready=True) for following in ProfilerAction},
    (_WARM_UP, None): Transition(
        "Incorrect schedule: Stop profiler while current state is WARMUP which will result in empty parsed data."
    ),
    (_RECORD, None): Transition(
        "Incorrect schedule: Stop profiler while current state is RECORD which may result in incomplete parsed data.",
        ready=True,
    ),
    (_SAVE, None): Transition(
        "Stop profiler while current state is RECORD_AND_SAVE, perhaps the scheduling cycle has not yet completed.",
        ready=True,
    ),
}

#: The session's name of each action.
ACTIONS: dict[ProfilerAction, Action] = {
    _NONE: Action.NONE,
    _WARM_UP: Action.WARMUP,
    _RECORD: Action.RECORD,
    _SAVE: Action.RECORD_AND_SAVE,
}


def ask(function: ScheduleFunction, step: int) -> ProfilerAction:
    """Return the action that a schedule gives for a step: ours, MindSpore's, torch's or any function of the program.

    Raises:
        UsageError: It did not return an action.
    """
    answer = function(step)
    name = str(getattr(answer, "name", "")).replace("WARMUP", "WARM_UP")
    if name in ProfilerAction.__members__:
        return ProfilerAction[name]
    message = f"The schedule returned {answer!r} for step {step}."
    raise UsageError(message, "Return ProfilerAction members, or use schedule(wait=…, active=…).")
