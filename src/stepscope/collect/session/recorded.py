"""One recorded window, as ``on_trace_ready`` receives it."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import stepscope
from stepscope.collect.session import background
from stepscope.collect.session.window import COMPLETE, INCOMPLETE, UNWRITTEN, Window, one_line
from stepscope.errors import InputError
from stepscope.trace.manifest import Manifest


class RecordedWindow:
    """A recorded window. A background thread may still write its files, and a process compute its results.

    Args:
        window: The finished window.
        analyse: ``"background"`` computes the results at once in a process of low priority; ``"later"`` does not.
    """

    def __init__(self, window: Window, analyse: str) -> None:
        # Until its files are complete: it has 30 KiB of journal and collectors, and `profile.recorded` keeps every one.
        self._window: Window | None = window
        self._directory = window.directory
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
        return self.rank_path.parent

    @property
    def rank_path(self) -> Path:
        """Directory of this rank in it."""
        return self._directory.path

    @property
    def manifest(self) -> Manifest:
        """The current manifest.

        Raises:
            InputError: The run is complete, and its manifest was removed or damaged since.
        """
        window = self._window
        return self._directory.read_manifest() if window is None else window.manifest()

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

    def note(self, key: str, value: object) -> None:
        """Add an entry to the manifest."""
        window = self._window
        if window is not None:
            window.note(key, value)
            return
        with suppress(OSError, InputError):  # the disk is full, or the user has removed the run
            self._directory.write_manifest({**self._directory.read_manifest(), key: value})

    def count_loss(self, what: str, message: str) -> None:
        """Count a loss of the catalogue that shows after the window has closed."""
        window = self._window
        if window is not None:
            window.count_loss(what, message)
            window.write_manifest()
            return
        with suppress(OSError, InputError):
            found = self._directory.read_manifest()
            losses, messages = found.get("losses", {}), [*found.get("messages", []), f"{what}: {message}"]
            whole = found["status"] != COMPLETE or what not in UNWRITTEN
            status = found["status"] if whole else INCOMPLETE
            losses = {**losses, what: losses.get(what, 0) + 1}
            self._directory.write_manifest({**found, "status": status, "losses": losses, "messages": messages})

    def exchange(self, other: RecordedWindow) -> None:
        """Wait until the files of both are complete, and let the two change places, unless the program removed them."""
        self.wait()
        other.wait()
        aside = self.rank_path.with_name(f".{self.rank_path.name}")
        try:
            self.rank_path.rename(aside)
            other.rank_path.rename(self.rank_path)
            aside.rename(other.rank_path)
        except OSError:
            return
        self._directory, other._directory = other._directory, self._directory
        for recorded in (self, other):
            if recorded._window is not None:
                recorded._window.directory = recorded._directory

    def remove(self) -> None:
        """Wait until the files are complete, and remove them; ranks of other processes in the run stay."""
        self.wait()
        shutil.rmtree(self.rank_path, ignore_errors=True)
        with suppress(OSError):  # it holds other ranks of the job
            self.path.rmdir()

    def _complete(self) -> None:
        """Wait for the files, then start the analysis. The interpreter waits for this thread before it ends."""
        process, window = None, self._window
        try:
            if window is not None:
                window.settle()
                self._directory = window.directory
                self._window = window if window.unwritten else None
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
        self.note("analysis", reason)


def _on_a_thread(work: Callable[[], None], name: str, *, daemon: bool) -> None:
    """Run ``work`` on a new thread; on this one if the interpreter is ending and cannot start threads."""
    if threading.main_thread().is_alive():
        try:
            threading.Thread(target=work, name=name, daemon=daemon).start()
        except RuntimeError:
            work()
    elif not daemon:
        work()
