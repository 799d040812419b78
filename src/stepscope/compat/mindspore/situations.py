"""Calls in the wrong state: the documented exception, and the log line of MindSpore 2.10.

The documents promise a ``RuntimeError``; MindSpore 2.10 logs a line and goes on. Here the exception is raised, unless
the environment sets ``STEPSCOPE_MINDSPORE_STRICT=0``: then MindSpore's line is logged.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from stepscope.errors import StateError, StepscopeError

_LOG = logging.getLogger("stepscope")

#: ``0`` turns the documented exceptions into log lines.
STRICT = "STEPSCOPE_MINDSPORE_STRICT"


@dataclass(frozen=True)
class Situation:
    """A call in the wrong state.

    Attributes:
        message: What happened.
        remedy: What to do.
        logged: The line that MindSpore 2.10 logs.
        level: The level of that line.
    """

    message: str
    remedy: str
    logged: str
    level: int


STARTED_TWICE = Situation(
    "start() was called, but the profile has started already.",
    "Call stop() first.",
    "The {kind} has already started. Do not turn on again in the open state.",
    logging.WARNING,
)
STARTED_BY_CONSTRUCTOR = Situation(
    "start() was called, but the profile was made with start_profile=True: its constructor has started it.",
    "Pass start_profile=False to the constructor, or leave start() out.",
    STARTED_TWICE.logged,
    logging.WARNING,
)
PIPELINE_STOPPED = Situation(
    "start() was called after stop(), but collection of the data pipeline cannot start twice.",
    "Make a new profile for the second window, or use data_process=False.",
    "",
    logging.WARNING,
)
NOT_STARTED = Situation(
    "stop() was called, but the profile has not started.",
    "Call start() before stop().",
    "The {kind} has not started. Do not turn off again in the closed state.",
    logging.ERROR,
)
STEP_STOPPED = Situation(
    "step() was called, but the profile has not started, or has stopped.",
    "Call step() between start() and stop().",
    "{name} is stopped, step takes no effect!",
    logging.ERROR,
)
STEP_WITHOUT_SCHEDULE = Situation(
    "step() was called, but the profile has no schedule.",
    "Pass schedule=schedule(wait=1, warmup=1, active=2), or leave step() out.",
    "With no schedule in the {name}, step takes no effect!",
    logging.ERROR,
)


def strict() -> bool:
    """Return whether the documented exceptions are raised."""
    return os.environ.get(STRICT, "1").strip().lower() not in ("0", "false", "off", "no")


def refuse(situation: Situation, name: str) -> None:
    """Raise the documented exception, or log the line of MindSpore 2.10.

    Args:
        situation: What happened.
        name: Name of the class: ``profile`` or ``Profiler``.

    Raises:
        StateError: Always, unless the environment turns exceptions off.
    """
    logged = situation.logged.format(kind=name.lower(), name=name)
    deliver(StateError(situation.message, situation.remedy), logged, situation.level)


def deliver(error: StepscopeError, logged: str, level: int = logging.ERROR) -> None:
    """Raise ``error``; if exceptions are turned off, log MindSpore's line instead, unless it is empty."""
    if strict():
        raise error
    if logged:
        _LOG.log(level, "%s", logged)
