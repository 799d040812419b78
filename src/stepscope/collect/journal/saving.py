"""Writing a large file while training goes on: by a forked child where that costs training less than waiting.

Kineto writes its file in the calling thread with the interpreter locked: 1.7 µs an event, 3.3 µs with shapes (1.8 s
and 3.3 s for a million events), and nothing else runs meanwhile. A forked child has the same events in its memory and
writes them while the parent goes on; forking takes 0.03–0.05 s there. But every page that the parent then writes to is
copied first: 2.5 s for each GB of training's own memory on the machine where this was measured, against 1.2 s that
writing takes for each GB of events. So a child is forked where training's own memory is less than half of what the
capture took. A device's driver does not survive a fork, so it is not done where one is initialised.
"""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path

#: Seconds without progress after which a child counts as hung.
_STUCK = 10.0
#: Bytes of events below which a fork never pays.
_SMALL = 64 << 20
#: Bytes that importing torch takes and nothing writes to again, so that a fork never copies them.
_IDLE = 128 << 20
#: Requests that the C allocator serves from its larger bins, and how many of them leave it with nothing to merge.
_LARGE, _MERGES = 5000, 500


class SavedFile:
    """A file that ``save`` writes: at once, or in a forked child while the caller goes on.

    The file appears under its name only when it is whole. ``save`` is kept until :meth:`settle`: where the child fails,
    this process writes the file itself.

    Args:
        path: Where the file will be.
        save: Writes the whole file to the path it is given.
        fork: Whether to leave that to a forked child; where no child can be made, it is not.
        is_whole: Returns whether a written file is complete; by default a test for JSON.
    """

    def __init__(
        self,
        path: Path,
        save: Callable[[str], None],
        *,
        fork: bool,
        is_whole: Callable[[Path], bool] | None = None,
    ) -> None:
        self.path = path
        self._temporary = path.with_name(f".{path.name}.part")
        self._save = save
        self._is_whole = is_whole or _ends_as_json
        self._child = _fork(self._write) if fork else 0
        self.forked = self._child > 0
        if not self._child:
            self._write()

    def settle(self) -> None:
        """Wait until the file is whole; write it here where the child could not.

        Raises:
            OSError: It could not be written; the partial file is kept.
        """
        if not self._child:
            return
        self._wait_for_child()
        self._child = 0
        if not self.path.exists():
            self.forked = False
            self._write()

    def _write(self) -> None:
        self._save(str(self._temporary))
        if not self._temporary.exists():
            # Kineto's own half: the manifest, which says what happened, needs the room.
            self._temporary.with_name(f"{self._temporary.name}.tmp").unlink(missing_ok=True)
            message = f"{self.path} was not written: the disk is full or refuses it"
            raise OSError(message)
        complete = self._is_whole(self._temporary)
        self._temporary.chmod(0o600)
        self._temporary.replace(self.path)
        if not complete:
            message = f"{self.path} is cut: the disk is full or refuses it"
            raise OSError(message)

    def _wait_for_child(self) -> None:
        """Wait for the child while its file grows; kill it when it hangs."""
        size, since, pause = -1, time.monotonic(), 0.005
        while not _ended(self._child):
            now = _size(self._temporary)
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > _STUCK:
                _end(self._child)
                return
            time.sleep(pause)
            pause = min(2 * pause, 0.1)


def own_memory() -> int:
    """Return the bytes of this process's memory that a fork would copy on write; 0 if unknown."""
    try:
        with open("/proc/self/status", "rb") as status:  # noqa: PTH123 - pathlib adds nothing here
            for line in status:
                if line.startswith(b"RssAnon:"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        return 0
    return 0


def fork_pays(before: int, after: int) -> bool:
    """Return whether a forked child saves time: see the module's text.

    Args:
        before: :func:`own_memory` when recording began.
        after: :func:`own_memory` now, with all events.
    """
    events = after - before
    return hasattr(os, "fork") and before > 0 and events > _SMALL and before - _IDLE < events // 2


def _fork(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked child and return its pid; 0 if the fork failed."""
    _merge_freed_memory()
    try:
        with warnings.catch_warnings():
            # Python warns of forking beside threads. The child runs none of them: it writes one file and ends.
            warnings.simplefilter("ignore")
            child = os.fork()
    except OSError:
        return 0
    if child:
        return child
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):  # they go to whole groups; the file is worth the moment
            signal.signal(number, signal.SIG_IGN)
        work()
        code = 0
    finally:
        os._exit(code)


def _merge_freed_memory() -> None:
    """Have the C allocator merge now what the end of the recording has freed, before its pages are shared.

    It does so in its next larger requests, ten thousand pieces in each, and writes into all of them: 0.4 s for a
    million events. After a fork every page would be copied for that, in the training's time: 2.4 s.
    """
    for _ in range(_MERGES):
        bytearray(_LARGE)


def _ended(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return not _alive(child)  # another waiter reaped it, or SIGCHLD is ignored


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _end(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        return


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _ends_as_json(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - 64, 0))
        return file.read().rstrip().endswith(b"}")
