"""MindSpore's data pipelines, recorded by MindSpore itself: queues, and the processor time of every operation.

MindSpore records only pipelines whose iterator is created during the recording. Therefore `stepscope run` calls
:func:`begin_early` as soon as the program has imported MindSpore. Only this module may start MindSpore's recorder: if
it is started again without ``init()``, MindSpore crashes in the next pipeline.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.collect.hooks.methods import MethodHooks

if TYPE_CHECKING:
    from stepscope.collect.options import Options

#: Milliseconds between two samples of a pipeline. With MindSpore's default, 1000, a window of five steps has none.
SAMPLING_INTERVAL_MS = 50

#: The open recording, if any.
_recording: _PipelineRecording | None = None


class _PipelineRecording:
    """One recording of all pipelines of this process, from its construction until :meth:`save`.

    MindSpore has one recorder. If the program initialises it for itself, ours ends and is dropped.

    Attributes:
        taken: Whether the program has taken the recorder. It is never ours again: to initialise it would drop what the
            program has recorded and not saved yet.
    """

    def __init__(self) -> None:
        self.taken = False
        self._config: Any = sys.modules["mindspore.dataset"].config
        self._interval = self._config.get_monitor_sampling_interval()
        self._manager: Any = sys.modules["mindspore._c_dataengine"].GlobalContext.profiling_manager()
        self._config.set_monitor_sampling_interval(SAMPLING_INTERVAL_MS)
        try:
            self._manager.init()
            self._manager.start()
        except RuntimeError:
            self._restore_interval()
            raise
        self._guard = MethodHooks()
        self._guard.once_before(type(self._manager), "init", self._give_way)
        self.begin_ns = time.perf_counter_ns()

    def save(self, directory: Path) -> None:
        """End, and write into ``directory``; MindSpore writes nothing if it recorded no pipeline that still exists."""
        self._guard.remove()
        try:
            self._manager.stop()
            self._manager.save(str(directory))  # also writes the interval that is set at this moment
        finally:
            self._restore_interval()

    def _give_way(self) -> None:
        self.taken = True
        try:
            self._manager.stop()
        finally:
            self._restore_interval()

    def _restore_interval(self) -> None:
        if self._config.get_monitor_sampling_interval() == SAMPLING_INTERVAL_MS:  # the program has not set its own
            self._config.set_monitor_sampling_interval(self._interval)


def begin() -> None:
    """Begin to record, unless a recording is open.

    Raises:
        RuntimeError: Something else records or tunes MindSpore's pipelines.
    """
    global _recording
    require()
    if _recording is None:
        _recording = _PipelineRecording()


def require() -> None:
    """Raise unless the recorder can be ours.

    Raises:
        RuntimeError: The program has taken it.
    """
    if _recording is not None and _recording.taken:
        message = "the program records its data pipelines itself, and MindSpore has one recorder"
        raise RuntimeError(message)


def begin_early(options: Options) -> None:
    """Record pipelines from the program's import of MindSpore on, if the options request it; a window ends it."""
    if options.data_process:
        with suppress(RuntimeError):  # the collector tries again, and reports the reason
            begin()


def end(directory: Path) -> int:
    """End the recording and save it.

    Args:
        directory: Where to write the files; it exists.

    Returns:
        When it began, in ns of ``time.perf_counter_ns``; 0 if no recording was open.
    """
    global _recording
    recording, _recording = _recording, None
    if recording is None:
        return 0
    recording.save(directory)
    return recording.begin_ns
