"""The recording of a notebook's cell: all of it, or some of the training steps in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from stepscope.analyse.quantities import count_text
from stepscope.collect.frameworks import FRAMEWORKS, build_early
from stepscope.collect.hooks.post_import import when_imported
from stepscope.collect.machine.reference_speeds import speeds_of_program
from stepscope.collect.options import ALL_STEPS, make_options
from stepscope.collect.ranks import find_job_rank
from stepscope.collect.session import background
from stepscope.collect.session.recorded import RecordedWindow
from stepscope.collect.session.rehearsal import rehearse
from stepscope.collect.session.session import Session
from stepscope.collect.session.window import Settings, Window, ending
from stepscope.collect.start.automatic import Automatic, Selection
from stepscope.collect.start.profile import absolute, program_name
from stepscope.collect.steps import OptimizerLog
from stepscope.errors import LifecycleError, UsageError
from stepscope.report.inline import bundle
from stepscope.run import Run

#: How the steps of a cell were found in which none was.
_WHOLE = {"source": "inferred", "by": "the whole cell is one step"}


class CellRecording:
    """Records while a cell runs; once.

    All of it is recorded unless the options select steps. The steps are those that :meth:`step` declares, else those
    of the optimizers; without either the cell is one step.

    Args:
        values: The options of ``stepscope run`` by name, checked.
        declares: Whether the cell can call :meth:`step`, and so selected steps are counted by its calls.

    Attributes:
        recorded: What was recorded; None before the end, or if nothing was.
        analyse: When the results are computed: the option of this name.
    """

    def __init__(self, values: Mapping[str, Any], *, declares: bool) -> None:
        self.recorded: RecordedWindow | None = None
        self.analyse: str = values["analyse"]
        chosen = values["steps"] is not None or values["skip"] == 0 or declares
        self._selection = Selection.of(values, find=True, typical=0 if chosen else values["active"])
        self._options = make_options(values)
        self._output = absolute(Path(values["output"]))
        self._log = OptimizerLog()
        self._withdraw: list[Callable[[], None]] = []
        self._automatic: Automatic | None = None
        self._session: Session | None = None
        if self._selection.whole or declares:
            log = self._log if self._selection.whole else None
            settings = self._settings(self._describe)
            schedule = self._selection.schedule(max(self._selection.skip - 1, 0))
            self._session = Session(settings, schedule, source="inferred", on_saved=self._saved, log=log)
            self._session.one_step = self._selection.whole
        else:
            self._automatic = Automatic(self._settings, self._selection, late=True)

    def _settings(self, describe: Callable[[], dict[str, Any]]) -> Settings:
        selected = "the whole cell" if self._selection.whole else self._selection.describe()
        return Settings(self._options, self._output, program_name("notebook"), selected, describe, door="notebook")

    def _describe(self) -> dict[str, Any]:
        if self._session is not None and self._session.number:
            return {"source": "declared", "by": "step()"}
        return self._log.describe() or _WHOLE

    def _saved(self, window: Window) -> None:
        self.recorded = RecordedWindow(window, "later")

    def begin(self) -> None:
        """Begin to record.

        Raises:
            LifecycleError: Another profile is running.
            OutputError: The output directory cannot be made or written.
        """
        build_early(self._options)
        if self._automatic is not None:
            self._automatic.install()
        if self._session is not None:
            if not self._selection.whole:
                rehearse(self._options)
            self._session.begin()
            new = [name for name in FRAMEWORKS if name not in sys.modules]
            self._withdraw = [when_imported(name, partial(Session.admit, self._session)) for name in new]

    def step(self) -> None:
        """Note that a step has ended.

        Raises:
            LifecycleError: The cell does not run.
        """
        if self._session is None or not self._session.may_step:
            message = "step() was called outside its cell."
            raise LifecycleError(message, "Call it in the cell that begins with %%stepscope and this name.")
        self._session.boundary("declared")

    def end(self, error: BaseException | None = None) -> None:
        """End the recording, and compute its results when the option ``analyse`` says.

        Args:
            error: What ended the cell; None at its end.
        """
        for withdraw in self._withdraw:
            withdraw()
        if self._automatic is not None:
            self._automatic.end(*ending(self._automatic.reached, error))
            self.recorded = self._automatic.recorded
        if self._session is not None:
            self._session.end(*ending(self._session.reached, error))
        if self.recorded is None:
            return
        self.recorded.wait()
        if self.analyse == "now" and find_job_rank().world_size == 1:
            self.recorded.note("speeds", speeds_of_program())
        elif self.analyse == "background":
            background.start_analysis(self.recorded.rank_path)

    @property
    def run(self) -> Run:
        """The run.

        Raises:
            UsageError: Nothing was recorded, or the cell is still running.
        """
        if self.recorded is not None:
            return self.recorded.open()
        if self._session is not None and self._session.running:
            message = "The cell is still running."
            raise UsageError(message, "Ask after its end.")
        automatic = self._automatic
        if automatic is not None and automatic.problem is not None:
            message = f"Nothing was recorded: {automatic.problem}."
            raise UsageError(message)
        steps = automatic.steps if automatic is not None else self._session.number if self._session else 0
        message = f"Nothing was recorded: the cell ended after {count_text(steps, 'step')}, before the first to record."
        raise UsageError(message, f"Select earlier ones, or record the whole cell with --steps {ALL_STEPS}.")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:  # noqa: ANN401, ARG002
        try:
            return bundle(self.run)
        except UsageError as error:
            return {"text/plain": str(error)}
