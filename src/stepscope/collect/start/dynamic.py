"""Windows in a running job, requested by editing a JSON file: ``stepscope.dynamic``.

The file has the keys and codings of MindSpore's dynamic profiler, and our options; it serves every framework.
``step()`` looks at it, at most every ``poll_interval`` seconds; no process runs beside the training, and
no thread but, from the first window on, the one that writes the times of the steps.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.collect.hooks.training_error import pass_on
from stepscope.collect.options import DEFAULT_OUTPUT, Options
from stepscope.collect.ranks import find_job_rank
from stepscope.collect.schedule import Schedule
from stepscope.collect.session.recorded import RecordedWindow
from stepscope.collect.session.rehearsal import rehearse
from stepscope.collect.session.session import Session
from stepscope.collect.session.step_times import StepTimes
from stepscope.collect.session.window import Settings, Window, one_line
from stepscope.collect.start.agreement import NOTHING, Agreement, Proposal
from stepscope.collect.start.json_options import DYNAMIC, options_of, read_options, unavailable
from stepscope.collect.start.profile import absolute, program_name, record
from stepscope.errors import LifecycleError, OutputError, UsageError
from stepscope.trace.run_directory import make_private

_LOG = logging.getLogger("stepscope")

#: Name of the file in its directory.
CONFIG = "profiler_config.json"

#: Keys that a new file does not hold: it has those of MindSpore's documents.
_OURS = {"record_shape", "output", "with_flops", "with_modules", "host_pipeline", "data_process"}
_OURS |= {"counters_hz", "stacks_hz", "pcie", "collector", "sample", "argv"}

#: Seconds that the constructor waits for the other ranks.
_OPENING = 10.0
#: How often a window moves to later steps because a rank saw it too late.
_ATTEMPTS = 5


class WatchedFile:
    """The file that users edit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._signature: tuple[int, int, int] | None = None
        self._broken: tuple[int, int, int] | None = None

    def create(self) -> None:
        """Write the defaults unless the file exists."""
        make_private(self.path.parent)
        document = {key: option.default for key, option in DYNAMIC.items() if key not in _OURS}
        try:
            with self.path.open("x", encoding="utf-8") as file:
                json.dump(document, file, indent=4)
        except FileExistsError:
            return

    def news(self) -> dict[str, Any] | None:
        """Return the file's values by name if it has changed since the last look, else None."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        signature = (status.st_mtime_ns, status.st_size, status.st_ino)
        if signature == self._signature:
            return None
        try:
            reading = read_options(self.path.read_text(encoding="utf-8"), DYNAMIC)
        except (OSError, ValueError) as error:
            if signature == self._broken:  # at the first look at it, the file may be half written
                self._signature = signature
                _LOG.warning("stepscope: %s is not JSON (%s); it is not followed until it changes.", self.path, error)
            self._broken = signature
            return None
        self._signature = signature
        for warning in reading.warnings:
            _LOG.warning("stepscope: %s: %s.", self.path, warning)
        return reading.values


class Conductor:
    """Opens and closes the windows that a file requests; its caller reports every step.

    Args:
        path: Directory of :data:`CONFIG`, shared by all ranks; made if it does not exist.
        output: Directory of runs, unless the file's ``output`` or ``prof_path`` names another.
        poll_interval: Seconds between two looks at the file.
        subfolder: Name of a separate directory for each window, with ``{rank}``, ``{start}`` and ``{stop}``.

    Raises:
        OutputError: The directory of the file cannot be made.
    """

    def __init__(self, path: Path, output: Path, poll_interval: float, subfolder: str = "") -> None:
        self._file = WatchedFile(path / CONFIG)
        self._default_output = output
        self._subfolder = subfolder
        self._interval = poll_interval
        self._place = find_job_rank()
        self._process = os.getpid()
        self._session: Session | None = None
        self._times = StepTimes(None, lasts=True)
        # A program that never calls `close` drops its monitor, or ends: without this, the thread, the file and the
        # hooks would stay, and the last steps would not be written.
        weakref.finalize(self, self._times.close)
        self._plan: Proposal | None = None
        self._last_stop = 0
        self._attempts = 0
        self._next_look = 0.0
        self._steps, self._begun = 0, time.monotonic()
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
        """Begin the job with step ``number``. Waits for the other ranks, ten seconds at most."""
        self._guarded(self._open, number)

    def arrive(self, number: int) -> None:
        """Note that step ``number`` begins and that the one before it has ended."""
        if os.getpid() == self._process:
            self._guarded(self._arrive, number)

    def restart_step(self) -> None:
        """Let the current step begin now: what came before does not belong to it."""
        if self._session is not None:
            self._session.restart_step()
        else:
            self._times.begin_step(time.perf_counter_ns())

    def close(self) -> None:
        """End the open window, if any, and the times of steps."""
        self._end_window()
        self._times.close()

    def _end_window(self) -> None:
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
        rehearse(Options())  # the switches of windows are not known yet
        self._times.install()
        self._times.begin_step(time.perf_counter_ns())
        if self._agreement is not None and self._place.rank == 0:
            self._agreement.propose(NOTHING)
        elif self._agreement is not None:
            self._agreement.wait_for_opening(_OPENING)
        self._look()
        self._begin_window(_OPENING)

    def _arrive(self, number: int) -> None:
        self._steps += 1
        if self._session is not None:
            self._advance(self._session, number)
        else:
            self._times.number = self.number
            self._times.end_step()
        self.number = number
        if self._session is None:
            if time.monotonic() >= self._next_look:
                self._look()
            self._begin_window(0.0)

    def _advance(self, session: Session, number: int) -> None:
        """Report the step to the open window; end the window after its last step, or if the count starts again."""
        if number != self.number + 1:
            session.end(f"ended at step {self.number}: the next one is step {number}")
        session.boundary()
        if number > self._last_stop or not session.running:
            self._end_window()

    def _look(self) -> None:
        self._next_look = time.monotonic() + self._interval
        agreement = self._agreement
        if agreement is None or self._place.rank == 0:
            values = self._file.news()
            if values is not None:
                self._ask(values)
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

    def _ask(self, values: dict[str, Any]) -> None:
        """Propose the window that the file requests, in place of one that it has requested before."""
        if self._plan is not None and self._agreement is not None:
            self._agreement.refuse(self._plan)
        self._plan = None
        start, stop = values["start_step"], values["stop_step"]
        if start == -1 or stop == -1:
            return
        problem = self._problem(start, stop)
        if problem:
            _LOG.warning("stepscope: %s: start_step %d, stop_step %d: %s.", self._file.path, start, stop, problem)
            return
        missing = unavailable(values)
        for name, reason in missing.items():
            _LOG.warning("stepscope: %s: %s records nothing here: %s.", self._file.path, name, reason)
        self._attempts = 0
        proposal = Proposal(start, stop, {**values, "unavailable": missing})
        if self._agreement is None:
            self._plan = proposal
        else:
            self._agreement.propose(proposal)

    def _problem(self, start: int, stop: int) -> str:
        if start < 1:
            return "the first step is 1"
        if stop < start:
            return "stop_step is before start_step"
        if start <= self._last_stop:
            return f"a window must begin after the last step of the one before it, which is {self._last_stop}"
        if start < self.number:
            return f"step {self.number} has begun; name a later one"
        return ""

    def _move(self, refused: Proposal, late: int) -> None:
        """Propose later steps, because a rank had passed the first ones. Only rank 0 does so."""
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
        elapsed = max(time.monotonic() - self._begun, 1e-3)
        expected = min(math.ceil(self._steps * 3 * self._interval / elapsed), 1000)  # steps in three looks at the file
        ahead = expected * 2 ** (self._attempts - 1)
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
        """Begin the planned window if its first step is near and all ranks agree."""
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
        output = self._default_output if values["output"] == "./" else Path(values["output"])
        prepared = Settings(
            options_of(values),
            absolute(output / self._subfolder.format(rank=self._place.rank, start=plan.start, stop=plan.stop)),
            program_name(),
            f"steps {plan.start} to {plan.stop}, requested in {self._file.path}",
            lambda: {"source": "declared", "by": "the dynamic profiler"},
            {"switches_unavailable": values["unavailable"]} if values["unavailable"] else {},
            "profiler_config.json",
        )
        schedule = Schedule(wait=plan.start - 1, warmup=1, active=active, repeat=1)
        analyse = _analyse(values)

        def saved(window: Window) -> None:
            self.recorded.append(record(window, analyse))

        session = Session(prepared, schedule, source="declared", on_saved=saved)
        session.times = self._times
        try:
            session.begin(self.number)
        except (LifecycleError, OutputError) as error:
            _LOG.warning("stepscope: Steps %d to %d are not recorded: %s", plan.start, plan.stop, error)
            return
        self._session = session


def _analyse(values: dict[str, Any]) -> str:
    """Return when results are computed; MindSpore's ``analyse_mode`` counts only if its ``analyse`` is true."""
    if isinstance(values["analyse"], str):
        return str(values["analyse"])
    if not values["analyse"]:
        return "later"
    return "background" if values["analyse_mode"] == 1 else "now"


class dynamic:
    """Records windows that users request while the job runs, by editing ``profiler_config.json``.

    ::

        monitor = stepscope.dynamic("profiling")
        for batch in loader:
            train(batch)
            monitor.step()

    The first step is 1. A window records the steps ``start_step`` to ``stop_step``, both included; the next one must
    begin later than the last one ended. The ranks of a job record the same steps, or none: if one of them sees the
    request too late, the window moves to later steps, and the log says so. See ``docs/environment.md``.

    Args:
        path: Directory of the file, shared by all ranks; rank 0 writes a file with MindSpore's keys if it has none.
        output: Directory of runs, unless the file's ``output`` or ``prof_path`` names another.
        poll_interval: Seconds between two looks at the file.

    Raises:
        UsageError: ``poll_interval`` is not a positive number.
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
            message = f"poll_interval={poll_interval!r} is not a positive number of seconds."
            raise UsageError(message, "Use poll_interval=2.")
        self._conductor = Conductor(absolute(Path(path)), absolute(Path(output)), poll_interval)
        self._conductor.open(1)

    @property
    def step_number(self) -> int:
        """Number of the current step; the first is 1."""
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
        """End the open window, if any, and the times of all steps; so does the end of the program."""
        self._conductor.close()
