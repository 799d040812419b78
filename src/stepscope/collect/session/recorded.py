"""One recorded window, as ``on_trace_ready`` receives it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import stepscope
from stepscope.collect.session import background
from stepscope.collect.session.window import Window, one_line
from stepscope.trace.run_directory import Manifest


class RecordedWindow:
    """A recorded window. A background thread may still write its files, and a process compute its results.

    Args:
        window: The finished window.
        analyse: ``"background"`` computes the results at once in a process of low priority; ``"later"`` does not.
    """

    def __init__(self, window: Window, analyse: str) -> None:
        self._window = window
        self._analyse = analyse
        self._failed = False
        self._written = threading.Event()
        self._analysed = threading.Event()
        _on_a_thread(self._complete, "stepscope-settle", daemon=False)

    def __repr__(self) -> str:
        return f"RecordedWindow({str(self.rank_path)!r})"

    @property
    def path(self) -> Path:
        """Directory of the run, shared by the ranks of a job."""
        return self._window.directory.path.parent

    @property
    def rank_path(self) -> Path:
        """Directory of this rank in it."""
        return self._window.directory.path

    @property
    def manifest(self) -> Manifest:
        """The current manifest."""
        return self._window.manifest()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the files are complete and the background analysis, if any, has ended.

        Args:
            timeout: Maximum number of seconds to wait.

        Returns:
            Whether both have ended without an error.
        """
        return self._analysed.wait(timeout) and not self._failed

    def open(self) -> stepscope.Run:
        """Wait until the files are complete and open the run; see :func:`stepscope.open`.

        It calls the package's public function because ``collect`` must not import the rooms that read runs.
        """
        self._written.wait()
        return stepscope.open(self.path)

    def _complete(self) -> None:
        """Wait for the files, then start the analysis. The interpreter waits for this thread before it ends."""
        process = None
        try:
            self._window.settle()
            if self._analyse == "background":
                process = background.start_analysis(self.rank_path)
        except Exception as error:  # noqa: BLE001 - law 1: the capture is kept; the manifest has the reason
            self._fail(one_line(error))
        self._written.set()
        if process is None:
            self._analysed.set()
        else:
            _on_a_thread(partial(self._wait_for, process), "stepscope-analysis", daemon=True)

    def _wait_for(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the analysis; it goes on if the interpreter ends first."""
        code = process.wait()
        if code:
            self._fail(f"exit code {code}; see {background.LOG}")
        self._analysed.set()

    def _fail(self, reason: str) -> None:
        self._failed = True
        self._window.note("analysis", reason)


def _on_a_thread(work: Callable[[], None], name: str, *, daemon: bool) -> None:
    """Run ``work`` on a new thread; on this one if the interpreter is ending and cannot start threads."""
    if threading.main_thread().is_alive():
        try:
            threading.Thread(target=work, name=name, daemon=daemon).start()
        except RuntimeError:
            work()
    elif not daemon:
        work()
