"""What the callbacks of all trainers share: a profile that follows a training, and its findings at the end."""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, ClassVar, TypeAlias

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.options import ALL_STEPS, Door, check_given, options_at, step_range
from stepscope.collect.schedule import Action, Schedule
from stepscope.collect.session.recorded import RecordedWindow
from stepscope.collect.session.window import one_line
from stepscope.collect.start.profile import profile
from stepscope.errors import StepscopeError, UsageError

_LOG = logging.getLogger("stepscope")

#: Seconds that the end of a training waits for its findings, and of them in silence.
_PATIENCE = 120.0
SILENCE = 2.0
#: Findings that are logged; the command that shows all stands below.
_MOST = 3
#: Recorded steps whose figures loggers get: the last ones. A logger may ask a server at each.
_STEPS = 1000

#: Gives figures to a trainer's loggers: those of a recorded step, counted from 0 in this training, or of all (None).
Log: TypeAlias = Callable[[dict[str, float], int | None], None]


class EpochSchedule:
    """Records the steps of some epochs.

    Not a pure function of the step's number, as other schedules: which epoch a step belongs to, only the trainer knows.

    Attributes:
        epoch: Of the step that begins next; the trainer's callback says it.
        words: The schedule in words.
    """

    def __init__(self, first: int, last: int) -> None:
        self._recorded = range(first, last + 1)
        self.epoch = 0
        self.words = f"epochs {first} to {last}"

    def __call__(self, _step: int) -> Action:
        """Return the action of a step of the current epoch."""
        return Action.RECORD if self.epoch in self._recorded else Action.NONE


class _TrainerProfile(profile):
    _door = "trainer"


class TrainerRecording:
    """Records a training that a trainer drives; no error of the recording reaches the trainer.

    Args:
        options: Those of :func:`stepscope.profile`, and ``steps`` or ``epochs`` in place of ``schedule``.

    Raises:
        UsageError: An option cannot have the value given, or two of them select steps.

    Attributes:
        profile: The profile, whose ``step_number`` counts the steps.
        running: Whether it records.
        doing: What the trainer does besides training; None: it trains.
    """

    #: The one that has begun and not ended: its training may have failed, which not every trainer says.
    _open: ClassVar[TrainerRecording | None] = None

    def __init__(self, options: dict[str, Any]) -> None:
        given = {name: options[name] for name in options_at(Door.TRAINER) if options.get(name) is not None}
        values = check_given(Door.TRAINER, given)
        self._epochs, schedule = _selected(values["steps"], values["epochs"], options.get("schedule"))
        others = {name: value for name, value in options.items() if name not in ("steps", "epochs")}
        self.profile = _TrainerProfile(**{**others, "schedule": schedule})
        self._first = 0
        self._waits = options.get("analyse", "background") != "later"
        self._hooks = MethodHooks()
        self._thread = 0
        self._known = id(None)
        self.doing: str | None = None
        self.running = False

    def begin(self, epoch: int = 0) -> None:
        """Begin at step 0, in an epoch of the trainer's count; one of this thread that did not end is closed first."""
        unended = TrainerRecording._open
        if unended is not None and unended._thread == threading.get_ident():
            unended.end(error=unended._uncaught())
        self._thread, self._known = threading.get_ident(), id(_last_error())
        self._first = len(self.profile.recorded)
        self.epoch(epoch)
        try:
            self.profile.start()
        except StepscopeError as error:
            _LOG.warning("stepscope: this training is not recorded: %s", error)
            return
        self._hooks = MethodHooks()
        self.running = True
        TrainerRecording._open = self
        atexit.register(self._at_exit)

    def epoch(self, number: int) -> None:
        """Note to which epoch the next step belongs, by the trainer's count from 0."""
        if self._epochs is not None:
            self._epochs.epoch = number

    def step(self, following: int | None = None) -> None:
        """Note that the trainer's step has ended.

        Args:
            following: Epoch of the next step, as for :meth:`epoch`: a window opens and closes where a step ends. None
                where the trainer learns only afterwards that the epoch has ended: the window is then a step late.
        """
        if self.running:
            self.doing = None
            if following is not None:
                self.epoch(following)
            self.profile.step()

    def phase(self, name: str | None) -> None:
        """Note what the trainer does besides training, from here on; None: it trains."""
        if self.running:
            self.doing = name
            self.profile.phase(name)

    def around(self, owner: type | ModuleType, function: str, around: Callable[..., Any]) -> None:
        """Until the end of the training, call ``around(original, *args, **kwargs)`` for a trainer's own function."""
        if self.running:
            self._hooks.around(owner, function, around)

    def named(self, owner: type, function: str, name: str) -> None:
        """Let the calls of a trainer's own function be a phase until the end of the training."""

        def during(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the function's
            if self.doing is not None:  # a part of what the trainer said already
                return original(*args, **kwargs)
            self.phase(name)
            try:
                return original(*args, **kwargs)
            finally:
                self.phase(None)

        self.around(owner, function, during)

    def end(
        self,
        say: Callable[[str], None] | None = None,
        log: Log | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Close the recording; idempotent. The first rank tells what was found.

        Args:
            say: Writes a line into the trainer's log; it gets the findings. None: nothing is said.
            log: Gives figures to the trainer's loggers, such as TensorBoard: those of each recorded step, then of all.
            error: The error that ended the training.
        """
        if not self.running:
            return
        self.phase(None)
        self.running = False
        TrainerRecording._open = None
        atexit.unregister(self._at_exit)
        self._hooks.remove()
        self.profile.__exit__(None if error is None else type(error), error, None)
        windows = self.profile.recorded[self._first :] if error is None else []
        if windows and say is not None:
            try:
                self._tell(windows, say, log)
            except Exception as failed:  # noqa: BLE001 - law 1: the training has ended well
                _LOG.warning("stepscope: what was found in %s is not told: %s", windows[-1].path, one_line(failed))

    def _uncaught(self) -> BaseException | None:
        """Return the error that has reached the interpreter, or a notebook's cell, since the training began."""
        error = _last_error()
        return None if id(error) == self._known else error

    def _at_exit(self) -> None:
        error = self._uncaught()
        if error is not None:  # else the session ends itself
            self.end(error=error)

    def _tell(self, windows: Sequence[RecordedWindow], say: Callable[[str], None], log: Log | None) -> None:
        from stepscope.advise.run_findings import findings
        from stepscope.report.annotations import message
        from stepscope.report.metrics import flat, metrics_of
        from stepscope.run import Run

        recorded, until = windows[-1], time.monotonic() + _PATIENCE
        if recorded.manifest.get("rank", 0):
            return
        more = f"stepscope report --findings {recorded.path}"
        if not self._waits or not _analysed(recorded, say):
            say(f"stepscope: {more} shows where the steps go.")
            return
        run = Run(recorded.rank_path)
        found = findings(run)
        if log is not None:
            for number, figures in _figures(windows, until):
                log(figures, number)
            log(flat(metrics_of(run.ranks[0].summary, found)), None)
        for finding in found[:_MOST]:
            say(f"stepscope: {message(finding)}")
        say(f"stepscope: {more} shows {'all' if found else 'the steps; nothing stands out'}.")


def _last_error() -> BaseException | None:
    return getattr(sys, "last_value", None)


def _analysed(recorded: RecordedWindow, say: Callable[[str], None]) -> bool:
    """Return whether a window was analysed before our patience ended; Ctrl-C ends the wait, not the program."""
    begin = time.monotonic()
    if recorded.wait(SILENCE):
        return True
    left = begin + _PATIENCE - time.monotonic()
    if left > _PATIENCE - SILENCE:  # the analysis has failed
        return False
    try:
        say(f"stepscope: looking where the steps go, for {_PATIENCE / 60:.0f} minutes at most. Ctrl-C skips it.")
        return recorded.wait(left)
    except KeyboardInterrupt:
        return False


def _selected(steps: str, epochs: str, schedule: Any) -> tuple[EpochSchedule | None, Any]:  # noqa: ANN401
    """Return the schedule of epochs, if any, and the schedule; None records everything."""
    given = {"steps": steps != ALL_STEPS, "epochs": epochs != ALL_STEPS, "schedule": schedule is not None}
    if sum(given.values()) > 1:
        message = f"{' and '.join(name for name in given if given[name])} each say what is recorded."
        raise UsageError(message, "Give one of steps, epochs and schedule.")
    if given["steps"]:
        first, last = step_range(steps)
        warmup = min(first, 1)
        return None, Schedule(first - warmup, warmup, last - first + 1, repeat=1)
    if given["epochs"]:
        by_epoch = EpochSchedule(*step_range(epochs))
        return by_epoch, by_epoch
    return None, schedule


def _figures(windows: Sequence[RecordedWindow], until: float) -> list[tuple[int, dict[str, float]]]:
    """Return the last recorded steps in order, each with its figures; windows are read until a time of the clock."""
    from stepscope.report.metrics import step_figures
    from stepscope.run import Run

    found: list[tuple[int, dict[str, float]]] = []
    for window in reversed(windows):
        left = until - time.monotonic()
        if len(found) >= _STEPS or left <= 0 or not window.wait(left):
            break
        found = [*step_figures(Run(window.rank_path).ranks[0].tables), *found]
    return found[-_STEPS:]


def not_installed(module: str, error: ImportError) -> UsageError:
    """Return the error of an integration whose package, which has the name of the module, cannot be imported."""
    message = f"{module} needs {module.rpartition('.')[2]}, which cannot be imported: {one_line(error)}."
    return UsageError(message, "Install it in this environment; stepscope does not depend on it.")
