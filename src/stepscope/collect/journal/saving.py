"""Write a large file while training goes on, in a forked child if that delays training less than waiting.

Kineto writes its file on the calling thread while it holds the GIL: 1.7 µs per event, 3.3 µs with shapes (1.8 s and
3.3 s for a million events). A forked child has the same events in its memory and writes them while the parent goes on;
the fork takes 0.03–0.05 s. But every page that the parent then writes to is copied first, which took 2.5 s per GB of
training's own memory on the machine where it was measured; writing took 1.2 s per GB of events. So it forks only if
training's own memory is less than half of the capture's. Callers do not fork if a device's driver is initialised,
because a driver does not survive a fork.
"""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path

#: Seconds without progress after which a child counts as hung.
HUNG_AFTER = 10.0
#: Bytes of events below which a fork never pays off.
_SMALL = 64 << 20
#: Bytes that importing torch allocates and that are not written again, so that a fork never copies them.
_IDLE = 128 << 20
#: Bytes at the end of a truncated file that are given back to the disk, for the manifest.
_ROOM = 16 << 10
#: Size in bytes of requests that make the C allocator merge freed chunks, and how many of them merge all chunks.
_LARGE, _MERGES = 5000, 500


class SavedFile:
    """A file that ``save`` writes: at once, or in a forked child while the caller goes on.

    The file appears under its name only when it is complete. ``save`` is kept until :meth:`settle`, because this
    process writes the file itself if the child fails.

    Args:
        path: Path of the file.
        save: Writes the whole file to the path that it is called with.
        fork: Whether to write in a forked child; if the fork fails, this process writes.
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
        """Wait until the file is complete; if the child failed, write it here.

        Raises:
            OSError: It cannot be written; the partial file is kept.
        """
        if not self._child:
            return
        self._wait_for_child()
        self._child = 0
        if not self.path.exists():
            self.forked = False
            self._write()
        elif not self._is_whole(self.path):
            raise self._truncated()

    def _write(self) -> None:
        self._save(str(self._temporary))
        partial = self._temporary.with_name(f"{self._temporary.name}.tmp")  # Kineto writes this one first
        if not self._temporary.exists() and _size(partial) > _ROOM:
            os.truncate(partial, _size(partial) - _ROOM)
            partial.replace(self._temporary)
        if not self._temporary.exists():
            partial.unlink(missing_ok=True)
            message = f"{self.path} was not written: the disk is full or not writable"
            raise OSError(message)
        complete = self._is_whole(self._temporary)
        self._temporary.chmod(0o600)
        self._temporary.replace(self.path)
        if not complete:
            raise self._truncated()

    def _truncated(self) -> OSError:
        return OSError(f"{self.path} is truncated: the disk is full or not writable")

    def _wait_for_child(self) -> None:
        """Wait for the child while its file grows; kill the child if the file stops growing."""
        size, since, pause = -1, time.monotonic(), 0.005
        while not _ended(self._child):
            now = _size(self._temporary)
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > HUNG_AFTER:
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
    """Return whether a forked child saves time; see the module's docstring.

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
            # Python warns about forking a process with threads. The child needs none: it writes a file and ends.
            warnings.simplefilter("ignore")
            child = os.fork()
    except OSError:
        return 0
    if child:
        return child
    code = 1
    try:
        for number in (
            signal.SIGINT,
            signal.SIGTERM,
            signal.SIGHUP,
        ):  # sent to the process group, but the child must finish the file
            signal.signal(number, signal.SIG_IGN)
        work()
        code = 0
    finally:
        os._exit(code)


def _merge_freed_memory() -> None:
    """Make the C allocator merge the chunks that the end of the recording has freed, before a fork shares their pages.

    It merges them at its next larger requests, ten thousand chunks per request, and writes to each chunk: 0.4 s for a
    million events. After a fork the parent would copy every page for it: 2.4 s.
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
