"""Which steps are recorded: a pure function from a step's number to its action."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from stepscope.errors import UsageError


class Action(Enum):
    """What happens during one step; names and meaning are those of ``torch.profiler.ProfilerAction``."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3

    # Called in every step: identity suffices because members are singletons, and Enum's own hash is Python code.
    __hash__ = object.__hash__


#: Step number → action, or the member of ``torch.profiler.ProfilerAction`` with the same name.
ScheduleFunction: TypeAlias = Callable[[int], object]


@dataclass(frozen=True)
class Schedule:
    """A repeating cycle of waiting, warming up and recording; call it with the number of a step, from 0.

    Attributes:
        wait: Idle steps at the start of each cycle.
        warmup: Steps in which collectors prepare; nothing is recorded.
        active: Steps that are recorded.
        repeat: Number of cycles; 0 means until the training ends.
        skip_first: Steps before the first cycle.
    """

    wait: int
    warmup: int
    active: int
    repeat: int = 0
    skip_first: int = 0

    def __post_init__(self) -> None:
        negative = [name for name, value in vars(self).items() if value < 0]
        if negative or self.active == 0:
            message = (
                f"Schedule {self}: {'active must be at least 1' if not negative else f'{negative[0]} is negative'}."
            )
            raise UsageError(message, "Use stepscope.schedule(wait=1, warmup=1, active=3).")

    def __call__(self, step: int) -> Action:
        """Return the action of step number ``step``."""
        step -= self.skip_first
        cycle = self.wait + self.warmup + self.active
        if step < 0 or (self.repeat and step >= self.repeat * cycle):
            return Action.NONE
        phase = step % cycle
        if phase < self.wait:
            return Action.NONE
        if phase < self.wait + self.warmup:
            return Action.WARMUP
        return Action.RECORD if phase < cycle - 1 else Action.RECORD_AND_SAVE

    def changes_after(self, step: int) -> int:
        """Return the first step after ``step`` at which the action may be another one."""
        cycle = self.wait + self.warmup + self.active
        done = step - self.skip_first
        if done < 0:
            return self.skip_first
        if self.repeat and done >= self.repeat * cycle:
            return sys.maxsize
        ends = (self.wait, self.wait + self.warmup, cycle - 1, cycle)
        return step + next(end for end in ends if end > done % cycle) - done % cycle


def schedule(*, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0) -> Schedule:
    """Return a schedule; the parameters have the meaning they have in ``torch.profiler.schedule``.

    Args:
        wait: Idle steps at the start of each cycle.
        warmup: Steps in which collectors prepare; nothing is recorded.
        active: Steps that are recorded.
        repeat: Number of cycles; 0 means until the training ends.
        skip_first: Steps before the first cycle.

    Raises:
        UsageError: A number is negative, or ``active`` is 0.
    """
    return Schedule(wait, warmup, active, repeat, skip_first)


#: Most steps of one recording that :func:`steps_missing` counts: a schedule may be any function.
_FURTHEST = 10_000


def always(_step: int) -> Action:
    """Record everything between ``start`` and ``stop``: the schedule of a profile without one."""
    return Action.RECORD


def unchanged_until(function: ScheduleFunction, step: int) -> int:
    """Return the first step after ``step`` at which the action may change."""
    if function is always:
        return sys.maxsize
    return function.changes_after(step) if isinstance(function, Schedule) else step + 1


def steps_missing(function: ScheduleFunction, step: int) -> int:
    """Return how many steps the recording that contains ``step`` still lacks when it ends in it; 0 if it has no end.

    A schedule that has side effects offers the same answers without them as ``peek``.
    """
    peek: ScheduleFunction = getattr(function, "peek", function)
    for missing in range(_FURTHEST if function is not always else 0):
        action = action_of(peek, step + missing)
        if action is not Action.RECORD:
            return missing + (action is Action.RECORD_AND_SAVE)
    return 0


def action_of(function: ScheduleFunction, step: int) -> Action:
    """Return the action of ``step`` by any schedule, including one of ``torch.profiler.schedule``.

    Raises:
        UsageError: The schedule did not return an action.
    """
    answer = function(step)
    if isinstance(answer, Action):
        return answer
    name = str(getattr(answer, "name", ""))
    if name not in Action.__members__:
        message = f"The schedule returned {answer!r} for step {step}."
        raise UsageError(message, "Return stepscope.collect.schedule.Action members, or use stepscope.schedule(…).")
    return Action[name]
