"""What ``on_trace_ready`` is given: one recorded window."""

from __future__ import annotations

import importlib
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.collect import background
from stepscope.collect.window import Window, one_line
from stepscope.errors import UsageError
from stepscope.trace.run_directory import Manifest

#: When results are computed: at once in a process of low priority, or when somebody asks.
ANALYSE = ("background", "later")


def check_analyse(analyse: str) -> str:
    """Return ``analyse`` unless it is unknown.

    Raises:
        UsageError: It is none of :data:`ANALYSE`.
    """
    if analyse not in ANALYSE:
        message = f"analyse={analyse!r} is unknown."
        raise UsageError(message, f"Use one of {', '.join(map(repr, ANALYSE))}.")
    return analyse


class Recorded:
    """A window that was recorded; its files may still be written, and its results computed, in the background.

    Args:
        window: The window, finished.
        analyse: One of :data:`ANALYSE`.
    """

    def __init__(self, window: Window, analyse: str) -> None:
        self._window = window
        self._analyse = analyse
        self._process: subprocess.Popen[bytes] | None = None
        self._done = threading.Event()
        _on_a_thread(self._complete)

    def __repr__(self) -> str:
        return f"Recorded({str(self.rank_path)!r})"

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
        """The manifest as it stands."""
        return self._window.manifest()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the files are whole and the background analysis, if any, has ended.

        Args:
            timeout: Seconds to wait at most for each of both.

        Returns:
            Whether both are done, and the analysis succeeded.
        """
        if not self._done.wait(timeout):
            return False
        if self._process is None:
            return self._analyse == "later"
        try:
            return self._process.wait(timeout) == 0
        except subprocess.TimeoutExpired:
            return False

    def open(self) -> Any:  # noqa: ANN401 - a stepscope.Run, which lives on a floor above this one
        """Wait until the files are whole and open the run; see :func:`stepscope.open`."""
        self._window.wait()
        return importlib.import_module("stepscope").open(self.path)

    def _complete(self) -> None:
        """Wait for the files, then start the analysis."""
        try:
            self._window.settle()
            if self._analyse == "background":
                self._process = background.start_analysis(self.rank_path)
        except Exception as error:  # noqa: BLE001 - law 1: the capture is there; the manifest says what is not
            self._window.note("analysis", one_line(error))
        finally:
            self._done.set()


def _on_a_thread(work: Callable[[], None]) -> None:
    """Run ``work`` beside the training; here and now where the interpreter is ending and waits for no more threads."""
    if not threading.main_thread().is_alive():
        work()
        return
    try:
        # No daemon: the interpreter waits for it at its end, so that the file becomes whole.
        threading.Thread(target=work, name="stepscope-settle", daemon=False).start()
    except RuntimeError:
        work()
