"""Windows in a running job, asked for by editing a JSON file: ``stepscope.dynamic``.

The file, its keys and their codings are those of MindSpore's dynamic profiler; it works for every framework. It is
looked at in ``step()``, at most every ``poll_interval`` seconds: there is no process and no thread beside the training.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.collect.hooks.training_error import pass_on
from stepscope.collect.options import DEFAULT_OUTPUT
from stepscope.collect.ranks import find_job_rank
from stepscope.collect.schedule import Schedule
from stepscope.collect.session.recorded import RecordedWindow
from stepscope.collect.session.session import Session
from stepscope.collect.session.window import Settings, Window, one_line
from stepscope.collect.start.agreement import NOTHING, Agreement, Proposal
from stepscope.collect.start.profile import absolute, program_name
from stepscope.collect.start.switches import DYNAMIC, Reading, options_of, read_switches, unavailable
from stepscope.errors import LifecycleError, OutputError, UsageError

_LOG = logging.getLogger("stepscope")

#: Name of the file in its directory.
CONFIG = "profiler_config.json"

#: Keys that a new file holds, with their defaults; the others are spellings and switches of ours.
_WRITTEN = [key for key in DYNAMIC if key not in ("record_shape", "with_flops", "with_modules")]

#: Seconds that the constructor waits for the other ranks.
_OPENING = 10.0
#: How often a window is moved to later steps because a rank came too late.
_ATTEMPTS = 5


class File:
    """The file that is edited.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._signature: tuple[int, int, int] | None = None
        self._broken: tuple[int, int, int] | None = None

    def create(self) -> None:
        """Write the defaults, where there is no file yet."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        document = {key: DYNAMIC[key].default for key in _WRITTEN}
        try:
            with self.path.open("x", encoding="utf-8") as file:
                json.dump(document, file, indent=4)
        except FileExistsError:
            return

    def news(self) -> Reading | None:
        """Return what it says, where the file has changed since the last look; None where it has not."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        signature = (status.st_mtime_ns, status.st_size, status.st_ino)
        if signature == self._signature:
            return None
        try:
            reading = read_switches(self.path.read_text(encoding="utf-8"), DYNAMIC)
        except (OSError, ValueError) as error:
            self._unreadable(signature, error)
            return None
        self._signature = signature
        for warning in reading.warnings:
            _LOG.warning("stepscope: %s: %s.", self.path, warning)
        return reading

    def _unreadable(self, signature: tuple[int, int, int], error: Exception) -> None:
        """Say so where the file stays as it is: at first it may only be half written."""
        if signature == self._broken:
            self._signature = signature
            _LOG.warning("stepscope: %s is no JSON (%s); it is not followed until it changes.", self.path, error)
        self._broken = signature


class Conductor:
    """Opens and closes the windows that a file asks for, told of every step.

    Args:
        path: Directory of :data:`CONFIG`; shared by all ranks, and made where it does not exist.
        output: Directory of runs, where the file's ``prof_path`` names no other.
        poll_interval: Seconds between two looks at the file.
        subfolder: Name of a directory of its own for each window, with ``{rank}``, ``{start}`` and ``{stop}``.

    Raises:
        OutputError: The directory of the file cannot be made.
    """

    def __init__(self, path: Path, output: Path, poll_interval: float, subfolder: str = "") -> None:
        self._file = File(path / CONFIG)
        self._default_output = output
        self._subfolder = subfolder
        self._interval = poll_interval
        self._place = find_job_rank()
        self._process = os.getpid()
        self._session: Session | None = None
        self._plan: Proposal | None = None
        self._last_stop = 0
        self._attempts = 0
        self._next_look = 0.0
        self._pace = _Pace()
        self.number = 0
        self.recorded: list[RecordedWindow] = []
        try:
            if self._place.rank == 0:
                self._file.create()
            self._agreement = Agreement(path, self._place) if self._place.world_size > 1 else None
        except OSError as error:
            message = f"Cannot use {path} for {CONFIG}: {one_line(error)}."
            raise OutputError(message, "Name a directory that all ranks can write.") from None

    @property
    def recording(self) -> bool:
        """Whether a window is open."""
        return self._session is not None and self._session.recording

    def open(self, number: int) -> None:
        """The job begins: step ``number`` is the first. Waits for the other ranks, ten seconds at most."""
        self._guarded(self._open, number)

    def arrive(self, number: int) -> None:
        """Step ``number`` begins now, and the one before it has ended."""
        if os.getpid() == self._process:
            self._guarded(self._arrive, number)

    def restart_step(self) -> None:
        """The step that is going on begins only now: what came before it was no part of it."""
        if self._session is not None:
            self._session.restart_step()

    def close(self) -> None:
        """End the window that is open, if any."""
        session, self._session = self._session, None
        if session is not None:
            session.end()

    def _guarded(self, action: Callable[[int], None], number: int) -> None:
        try:
            action(number)
        except Exception as error:  # noqa: BLE001 - law 1: said once, the training goes on
            _LOG.warning("stepscope: the dynamic profiler cannot go on (%s); training does.", one_line(error))
            self._plan = None
            self._next_look = math.inf
            self.close()

    def _open(self, number: int) -> None:
        self.number = number
        if self._agreement is not None and self._place.rank == 0:
            self._agreement.propose(NOTHING)
        elif self._agreement is not None:
            self._agreement.wait_for_opening(_OPENING)
        self._look()
        self._begin_window(_OPENING)

    def _arrive(self, number: int) -> None:
        self._pace.step()
        if self._session is not None:
            self._advance(self._session, number)
        self.number = number
        if self._session is None:
            if time.monotonic() >= self._next_look:
                self._look()
            self._begin_window(0.0)

    def _advance(self, session: Session, number: int) -> None:
        """Tell the open window of the step; end it where it was the last one, or steps are counted anew."""
        if number != self.number + 1:
            session.end(f"ended at step {self.number}: the next one is step {number}")
        session.boundary()
        if number > self._last_stop or not session.running:
            self.close()

    def _look(self) -> None:
        self._next_look = time.monotonic() + self._interval
        agreement = self._agreement
        if agreement is None or self._place.rank == 0:
            reading = self._file.news()
            if reading is not None:
                self._ask(reading)
        if agreement is None:
            return
        plan = agreement.news() or self._plan
        if plan is None:
            return
        if plan is not self._plan:
            self._plan = plan if agreement.answer(plan, self.number) else None
        if self._place.rank == 0:
            late = agreement.late(plan)
            if late or agreement.refused(plan):
                self._move(plan, late)

    def _ask(self, reading: Reading) -> None:
        """The file asks for a window, or for none any more."""
        if self._plan is not None and self._agreement is not None:
            self._agreement.refuse(self._plan)
        self._plan = None
        start, stop = reading.values["start_step"], reading.values["stop_step"]
        if start == -1 or stop == -1:
            return
        problem = self._problem(start, stop)
        if problem:
            _LOG.warning("stepscope: %s: start_step %d, stop_step %d: %s.", self._file.path, start, stop, problem)
            return
        missing = unavailable(reading)
        for name, reason in missing.items():
            _LOG.warning("stepscope: %s: %s records nothing here: %s.", self._file.path, name, reason)
        self._attempts = 0
        self._propose(Proposal(start, stop, {**reading.values, "unavailable": missing}))

    def _problem(self, start: int, stop: int) -> str:
        if start < 1:
            return "the first step is 1"
        if stop < start:
            return "stop_step is before start_step"
        if start <= self._last_stop:
            return f"a window must begin after the last step of the one before it, which is {self._last_stop}"
        if start < self.number:
            return f"step {self.number} is going on; name a later one"
        return ""

    def _propose(self, proposal: Proposal) -> None:
        if self._agreement is None:
            self._plan = proposal
        else:
            self._agreement.propose(proposal)

    def _move(self, refused: Proposal, late: int) -> None:
        """Propose later steps, because a rank was past the first ones already. Only rank 0 does."""
        agreement = self._agreement
        if agreement is None:
            return
        agreement.refuse(refused)
        self._plan = None
        self._attempts += 1
        if self._attempts >= _ATTEMPTS:
            _LOG.warning(
                "stepscope: Steps %d to %d are not recorded: not every rank answered in time. Call step() in all of "
                "the %d ranks, with the same directory.",
                refused.start,
                refused.stop,
                self._place.world_size,
            )
            return
        ahead = self._pace.steps_in(3 * self._interval) * 2 ** (self._attempts - 1)
        start = max(self.number, late, refused.start) + ahead + 2
        moved = Proposal(start, start + refused.stop - refused.start, refused.values)
        agreement.propose(moved)
        self._next_look = 0.0
        _LOG.warning(
            "stepscope: The window moves from step %d to step %d: not every rank knew of it in time.",
            refused.start,
            start,
        )

    def _begin_window(self, patience: float) -> None:
        """Begin the window that is planned, where its time has come and all ranks agree."""
        plan = self._plan
        if plan is None or self.number < plan.look:
            return
        if self._agreement is not None and not self._agreement.decide(plan, patience):
            if self._place.rank == 0:
                self._move(plan, self._agreement.late(plan))
            self._plan = None
            return
        self._plan = None
        self._last_stop = plan.stop
        self._start(plan)

    def _start(self, plan: Proposal) -> None:
        active = plan.stop - plan.start + 1
        values = plan.values
        prepared = Settings(
            options_of(values),
            absolute(self._output(plan)),
            program_name(),
            f"steps {plan.start} to {plan.stop}, asked for in {self._file.path}",
            lambda: {"source": "declared", "by": "the dynamic profiler"},
            {"switches_unavailable": values["unavailable"]} if values["unavailable"] else {},
        )
        schedule = Schedule(wait=plan.start - 1, warmup=1, active=active, repeat=1)
        analyse = _analyse(values)

        def saved(window: Window) -> None:
            recorded = RecordedWindow(window, "later" if analyse == "later" else "background")
            self.recorded.append(recorded)
            if analyse == "sync":
                recorded.wait()

        session = Session(prepared, schedule, source="declared", on_saved=saved)
        try:
            session.begin(self.number)
        except (LifecycleError, OutputError) as error:
            _LOG.warning("stepscope: Steps %d to %d are not recorded: %s", plan.start, plan.stop, error)
            return
        self._session = session

    def _output(self, plan: Proposal) -> Path:
        """Return the directory of runs: that of the file, where it names one."""
        named = plan.values["prof_path"]
        output = self._default_output if named == "./" else Path(named)
        return output / self._subfolder.format(rank=self._place.rank, start=plan.start, stop=plan.stop)


def _analyse(values: dict[str, Any]) -> str:
    """Return when results are computed: `analyse` counts more than `analyse_mode`."""
    if not values["analyse"]:
        return "later"
    return "background" if values["analyse_mode"] == 1 else "sync"


class _Pace:
    """How fast steps go by."""

    def __init__(self) -> None:
        self.steps = 0
        self._begun = time.monotonic()

    def step(self) -> None:
        self.steps += 1

    def steps_in(self, seconds: float) -> int:
        """Return how many steps may go by in so many seconds; a thousand at most."""
        elapsed = max(time.monotonic() - self._begun, 1e-3)
        return min(math.ceil(self.steps * seconds / elapsed), 1000)


class dynamic:
    """Records windows that somebody asks for while the job runs, by editing ``profiler_config.json``.

    ::

        monitor = stepscope.dynamic("profiling")
        for batch in loader:
            train(batch)
            monitor.step()

    The first step is 1. A window records the steps ``start_step`` to ``stop_step``, both included; the next one must
    begin later than the last one ended. The ranks of a job record the same steps, or none: where one of them learns of
    a window too late, the window moves to later steps, and the log says so. See ``docs/environment.md``.

    Args:
        path: Directory of the file, shared by all ranks; rank 0 writes a file with all keys where there is none.
        output: Directory of runs, where the file's ``prof_path`` names no other.
        poll_interval: Seconds between two looks at the file.

    Raises:
        UsageError: ``poll_interval`` is no positive number.
        OutputError: The directory cannot be made.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        output: str | os.PathLike[str] = DEFAULT_OUTPUT,
        poll_interval: float = 2.0,
    ) -> None:
        if not poll_interval > 0:
            message = f"poll_interval={poll_interval!r} is no positive number of seconds."
            raise UsageError(message, "Use poll_interval=2.")
        self._conductor = Conductor(absolute(Path(path)), absolute(Path(output)), poll_interval)
        self._conductor.open(1)

    @property
    def step_number(self) -> int:
        """Number of the step that is going on; the first is 1."""
        return self._conductor.number

    @property
    def recording(self) -> bool:
        """Whether a window is open."""
        return self._conductor.recording

    @property
    def recorded(self) -> list[RecordedWindow]:
        """The windows so far."""
        return self._conductor.recorded

    def step(self) -> None:
        """Say that a training step has ended. In a forked child this does nothing."""
        self._conductor.arrive(self._conductor.number + 1)
        pass_on()

    def close(self) -> None:
        """End the window that is open, if any; the end of the program does so, too."""
        self._conductor.close()
