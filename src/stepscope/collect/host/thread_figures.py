"""What the kernel says of a thread at one moment, and what that makes between two: the figures of a step."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from operator import itemgetter, sub
from typing import TypeAlias

#: Native thread; line of `schedstat`; CPU time in ns; what `getrusage` says of the thread, which only Linux does; ns
#: waited for data, and batches that stood ready.
Reading: TypeAlias = "tuple[int, bytes, int, Sequence[float] | None, int | None, int | None]"

#: Of what the kernel counts for a thread: page faults, blocks of 512 bytes read and written, switches.
_COUNTS = itemgetter(6, 7, 9, 10, 14, 15)
_COUNTED = ("minor", "major", "read", "written", "voluntary", "involuntary")
_BLOCK = 512
#: What :func:`between` returns.
COLUMNS = ("cpu", "delay", *_COUNTED, "data", "ready")
_UNKNOWN = (None,) * len(_COUNTED)

#: Of a reading: thread, CPU time, run-queue delay, what is counted, wait for data, and batches that stood ready.
Figures: TypeAlias = "tuple[int, int, int | None, tuple[int, ...] | None, int | None, int | None]"


def figures_of(reading: Reading | None) -> Figures | None:
    """Return the numbers of a reading."""
    if reading is None:
        return None
    thread, line, cpu, usage, waited, ready = reading
    counts = None
    if usage is not None:
        minor, major, read, written, *switches = _COUNTS(usage)
        counts = (minor, major, read * _BLOCK, written * _BLOCK, *switches)
    return thread, cpu, run_queue_delay(line), counts, waited, ready


def between(old: Figures | None, new: Figures | None) -> tuple[int | None, ...]:
    """Return :data:`COLUMNS` of a step from the figures at its start and at its end; None is unknown."""
    if old is None or new is None:
        return (None, None, *_UNKNOWN, None, None)
    waited = None if new[4] is None else new[4] - (old[4] or 0)
    if old[0] != new[0]:  # another thread than the one that ended the step before
        return (None, None, *_UNKNOWN, waited, new[5])
    delay = None if old[2] is None or new[2] is None else max(new[2] - old[2], 0)
    counts = _UNKNOWN if old[3] is None or new[3] is None else map(sub, new[3], old[3])
    return (new[1] - old[1], delay, *counts, waited, new[5])


def run_queue_delay(line: bytes) -> int | None:
    """Return how long a thread has waited for a core by its line of ``schedstat``, in ns; None if that is not kept.

    The line is CPU time, delay and number of time slices (Linux, ``Documentation/scheduler/sched-stats.rst``); all are
    0 in a kernel that does not count.
    """
    try:
        _, delay, slices = map(int, line.split())
    except ValueError:
        return None
    return delay if slices else None


class _SchedulerFile:
    """The file of the kernel in which a thread finds its run-queue delay; closed with the last reference.

    Attributes:
        number: Its descriptor; -1 if this kernel has none.
    """

    def __init__(self) -> None:
        try:
            path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._inode = os.fstat(self.number).st_ino
        except OSError:
            self.number, self._inode = -1, 0

    def __del__(self) -> None:
        try:
            # A program that closed all files may have another one under this number.
            if self.number >= 0 and os.fstat(self.number).st_ino == self._inode:
                os.close(self.number)
        except (OSError, AttributeError):
            return


class ThreadFigures(threading.local):
    """What is needed on each thread that steps."""

    def __init__(self) -> None:
        self.thread = threading.get_native_id()
        self.file = _SchedulerFile()


class ThreadWaits(threading.local):
    """Waits for batches by thread: one that reads ahead waits beside the steps, not in them.

    Attributes:
        ns: All of them together; None before the first.
        ready: How many batches stood ready at the latest wait since a step ended; None if unknown.
    """

    ns: int | None = None
    ready: int | None = None
