"""What each thread of the process used between the beginning and the end of the window, as the kernel counts it."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from stepscope.collect.journal.values import text
from stepscope.collect.protocol import NothingHere

if TYPE_CHECKING:
    from stepscope.collect.journal.journal import Journal
    from stepscope.collect.protocol import Context

_TASKS = "/proc/self/task"
#: Threads that are read, about 40 µs each.
_MOST = 256
#: Places in ``stat`` behind the name, as ``proc(5)`` numbers them from 3 on.
_MINOR, _MAJOR = 10 - 3, 12 - 3


def frames_of_threads() -> dict[int, FrameType]:
    """Return the frame that each thread executes, by its number.

    Python before 3.12 holds the lock of its threads meanwhile. Garbage that is collected then can wait for the same
    lock for ever (CPython's issue 106883), so none is.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()


class ThreadUseCollector:
    """Writes the fact ``threads``: one object a thread, the busiest first."""

    name = "threads"

    def __init__(self) -> None:
        self._journal: Journal | None = None
        self._before: dict[int, dict[str, int]] | None = None
        self._threads = 0

    def available(self) -> str | None:
        """Return why threads cannot be read: only Linux has a directory of them."""
        return None if Path(_TASKS).is_dir() else NothingHere("this system has no /proc/self/task")

    def prepare(self, context: Context) -> None:
        """Keep the journal for the facts."""
        self._journal = context.journal

    def start(self) -> None:
        """Read all threads."""
        self._before = _all_threads()

    def stop(self) -> list[Path]:
        """Read them again, and write what each has used since; of a thread that began since, all."""
        before, self._before = self._before, None
        if before is None or self._journal is None:
            return []
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        rows: list[tuple[int, dict[str, object]]] = []
        for thread, now in _all_threads().items():
            then = before.get(thread, {})
            used = {key: value - then.get(key, 0) for key, value in now.items()}
            name = text(names.get(thread) or _name(thread))
            rows.append((used.get("cpu", 0), {"thread": thread, "name": name, **used}))
        rows.sort(key=lambda row: -row[0])
        self._threads = len(rows)
        self._journal.metadata("threads", json.dumps([row for _, row in rows]))
        return []

    def describe(self) -> dict[str, object]:
        """Return the number of threads."""
        return {"threads": self._threads}


def _all_threads() -> dict[int, dict[str, int]]:
    """Return what the kernel has counted for each thread; a figure that it does not give is missing."""
    found = {}
    for name in os.listdir(_TASKS)[:_MOST]:  # noqa: PTH208 - a Path for each thread takes longer than reading it
        figures: dict[str, int] = {}
        try:
            cpu, delay, slices = (int(value) for value in _read(name, "schedstat").split())
            if slices:
                figures |= {"cpu": cpu, "delay": delay}
            values = _read(name, "stat").rpartition(b")")[2].split()
            figures |= {"minor_faults": int(values[_MINOR]), "major_faults": int(values[_MAJOR])}
            status = dict(line.split(b":", 1) for line in _read(name, "status").splitlines() if b":" in line)
            figures["voluntary_switches"] = int(status[b"voluntary_ctxt_switches"])
            figures["involuntary_switches"] = int(status[b"nonvoluntary_ctxt_switches"])
            counted = dict(line.split(b": ") for line in _read(name, "io").splitlines())
            figures |= {"read": int(counted[b"read_bytes"]), "written": int(counted[b"write_bytes"])}
        except (OSError, ValueError, LookupError):  # the thread has ended, or this kernel does not count that
            if not figures:
                continue
        found[int(name)] = figures
    return found


def _read(thread: str, file: str) -> bytes:
    handle = os.open(f"{_TASKS}/{thread}/{file}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(handle, 1 << 13)
    finally:
        os.close(handle)


def _name(thread: int) -> str:
    """Return the name of a thread that Python did not start."""
    try:
        return _read(str(thread), "comm").decode("utf-8", "replace").strip()
    except OSError:
        return ""
