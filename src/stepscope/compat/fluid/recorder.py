"""The recorder of ``fluid.profiler``: blocks, each from a start to its stop, and the windows recorded for them.

A process records one window at a time. When a block begins or ends inside another, or is reset, the open window closes
and the next one opens: each block has the windows that lie in it. Windows are runs in a temporary directory, which is
removed with the last block, unless :data:`RUNS` names a directory to keep them in.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.collect.options import Activity, Options
from stepscope.collect.schedule import always
from stepscope.collect.session.recorded import RecordedWindow
from stepscope.collect.session.session import AT_EXIT, Session
from stepscope.collect.session.window import Settings, Window, one_line
from stepscope.collect.start.profile import absolute, program_name
from stepscope.collect.steps import OptimizerLog
from stepscope.errors import StepscopeError

_LOG = logging.getLogger("stepscope")

#: Variable of the environment: the directory to keep the runs in.
RUNS = "STEPSCOPE_FLUID_RUNS"


@dataclass(eq=False)
class Block:
    """The time from a start to its stop, which one report covers.

    Attributes:
        state: Whose time counts: ``CPU``, ``GPU`` or ``All``.
        tracer_option: How much detail is shown.
        windows: What was recorded in it, in order.
    """

    state: str
    tracer_option: str
    windows: list[RecordedWindow] = field(default_factory=list)


class FluidRecorder:
    """Records while blocks are open.

    Attributes:
        blocks: The open ones, outermost first.
        halted: Whether ``stop_profiler`` stopped recording inside them.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.halted = False
        self._session: Session | None = None
        self._directory: Path | None = None
        self._process = os.getpid()

    @property
    def running(self) -> bool:
        """Whether a block is open and not halted; true also if its window could not be opened."""
        return bool(self.blocks) and not self.halted

    @property
    def in_child(self) -> bool:
        """Whether this is a fork of the process that records."""
        return os.getpid() != self._process

    def open(self, block: Block) -> None:
        """Open a block. Errors are logged; the program goes on."""
        self._end_window()
        self.blocks.append(block)
        self.halted = False
        self._begin_window()

    @contextmanager
    def closing(self, block: Block) -> Iterator[None]:
        """Close a block: its windows exist while the context lasts; then recording for the other blocks goes on."""
        self._end_window()
        self.blocks.remove(block)
        try:
            yield
        finally:
            self._go_on()

    @contextmanager
    def halting(self) -> Iterator[None]:
        """Stop recording inside open blocks, which keep their windows until they end."""
        self._end_window()
        self.halted = True
        yield

    def reset(self) -> None:
        """Drop what has been recorded."""
        self._end_window()
        for window in {window for block in self.blocks for window in block.windows}:
            window.remove()
        for block in self.blocks:
            block.windows.clear()
        if not self.halted:
            self._begin_window()

    def keep(self) -> None:
        """Keep the runs on disk, because their report failed."""
        self._directory = None

    def end_at_exit(self) -> None:
        """Close the window that the program left open, and log its path."""
        if not self.blocks or self.in_child:
            return
        self._end_window(at_exit=True)
        for window in self.blocks[0].windows:
            window.wait()
            _LOG.warning(
                "stepscope: the profiler was started but not stopped, so no report was printed. Call stop_profiler(), "
                "or read the recorded run: stepscope report %s",
                window.path,
            )

    def _begin_window(self) -> None:
        log = OptimizerLog()
        try:
            session = Session(self._settings(log), always, source="declared", on_saved=self._saved, log=log)
            session.begin()
            self._session = session
            # atexit runs handlers in reverse order of registration: registered last, ours runs before the framework's.
            atexit.unregister(_end_at_exit)
            atexit.register(_end_at_exit)
        except Exception as error:  # noqa: BLE001 - law 1: what cannot be recorded does not end the program
            text = str(error) if isinstance(error, StepscopeError) else one_line(error)
            _LOG.error("stepscope: nothing is recorded: %s", text)

    def _end_window(self, *, at_exit: bool = False) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.end(notes=AT_EXIT if at_exit else {})

    def _saved(self, window: Window) -> None:
        recorded = RecordedWindow(window, "later")
        for block in self.blocks:
            block.windows.append(recorded)

    def _go_on(self) -> None:
        if self.blocks:
            if not self.halted:
                self._begin_window()
            return
        self.halted = False
        if self._directory is not None and RUNS not in os.environ:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._directory = None

    def _settings(self, log: OptimizerLog) -> Settings:
        if self._directory is None:
            kept = os.environ.get(RUNS)
            self._directory = absolute(Path(kept)) if kept else Path(tempfile.mkdtemp(prefix="stepscope-fluid-"))
        return Settings(
            self._options(),
            self._directory,
            program_name(),
            "everything between start and stop",
            lambda: log.describe() or {"source": "declared", "by": "step()"},
            door="code",
        )

    def _options(self) -> Options:
        """Return what is recorded.

        No memory with PyTorch: its memory profiling covers one thread, and only that thread can stop it.
        """
        only_cpu = all(block.state == "CPU" for block in self.blocks)
        memory = "paddle" in sys.modules and "torch" not in sys.modules
        return Options(
            activities=(Activity.CPU,) if only_cpu else (), profile_memory=memory, counters_hz=0, stacks_hz=0
        )


_recorder = FluidRecorder()


def recorder() -> FluidRecorder:
    """Return the recorder of this process; a forked child gets a new one."""
    global _recorder
    if _recorder.in_child:
        _recorder = FluidRecorder()
    return _recorder


def _end_at_exit() -> None:
    _recorder.end_at_exit()
