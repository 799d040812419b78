"""MindSpore's data pipelines, recorded by MindSpore itself: queues, and the processor time of every operation.

MindSpore records only pipelines whose iterator is made during the recording, so it begins as early as possible:
`stepscope run` calls :func:`begin_early` when the program has imported MindSpore. A second start of MindSpore's
recorder without a new `init` crashes the process in the next pipeline, so only this module starts it.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.collect.options import Options

#: Milliseconds between two looks at a pipeline. MindSpore's own are 1000: too few for a window of five steps.
SAMPLING_INTERVAL_MS = 50

#: What records now, if anything does.
_recording: _Recording | None = None


class _Recording:
    """One recording of all pipelines of this process, from its making until :meth:`save`."""

    def __init__(self) -> None:
        self._config = _dataset().config
        self._interval = self._config.get_monitor_sampling_interval()
        self._manager: Any = sys.modules["mindspore._c_dataengine"].GlobalContext.profiling_manager()
        self._config.set_monitor_sampling_interval(SAMPLING_INTERVAL_MS)
        try:
            self._manager.init()
            self._manager.start()
        except RuntimeError:
            self._config.set_monitor_sampling_interval(self._interval)
            raise
        self.begin_ns = time.perf_counter_ns()

    def save(self, directory: Path) -> None:
        """End, and write into ``directory``; MindSpore writes nothing where it saw no pipeline that is still there."""
        try:
            self._manager.stop()
            self._manager.save(str(directory))  # writes the interval as it is set now
        finally:
            self._config.set_monitor_sampling_interval(self._interval)


def begin() -> None:
    """Record from now on, unless that is so already.

    Raises:
        RuntimeError: MindSpore's pipelines are being recorded or tuned by somebody else.
    """
    global _recording
    if _recording is None:
        _recording = _Recording()


def begin_early(options: Options) -> None:
    """Record pipelines from the program's import of MindSpore on, if that is asked for; a window ends it."""
    if options.data_process:
        with suppress(RuntimeError):  # the collector tries again, and reports the reason
            begin()


def end(directory: Path) -> int:
    """End the recording and save it.

    Args:
        directory: Takes the files; it exists.

    Returns:
        When it began, of ``time.perf_counter_ns``; 0 where nothing was recording.
    """
    global _recording
    recording, _recording = _recording, None
    if recording is None:
        return 0
    recording.save(directory)
    return recording.begin_ns


def _dataset() -> ModuleType:
    return sys.modules["mindspore.dataset"]
