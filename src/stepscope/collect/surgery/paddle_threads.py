"""What keeps Paddle's recorder from crashing a program with several threads.

Paddle writes an event into a buffer of the thread that runs it, and collects all buffers when a recording begins and
when it ends. Two races in it crash programs, also under ``paddle.profiler`` alone:

* Paddle collects the buffers while other threads write into them. :func:`wait_until_past` waits for those threads.
* A thread that records for the first time appends its buffer to one shared ``std::vector`` without a lock. When two
  threads do so at once, as the workers of a new executor do, both reallocate the vector, and Paddle then collects freed
  memory. :class:`ThreadBuffers` reserves so much memory for the vector that it is never reallocated, and repairs
  entries that two threads wrote to the same index.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator

#: CPU time of a thread, in ns, in which it finishes the event that it is writing. That takes some µs, or 0.5 ms if the
#: thread needs a new buffer and the system clears large pages for it.
ENOUGH_NS = 2_000_000
_PAUSE = 0.0005
#: Linux' clock of the CPU time of a thread: ``CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED``.
_CPU_TIME = 6

#: Entries that the vector can take before it is reallocated, and bytes of an entry (a ``std::shared_ptr``: address of
#: the buffer, address of its control block). Unused entries cost address space only.
_ROOM = 1 << 16
SLOT = 16
#: Bytes from the control block of a buffer to the buffer: ``std::make_shared`` allocates both at once.
_BEHIND_OWNER = 16
#: Bytes from the start of ``ThreadDataRegistry``, which begins with its ``pthread_rwlock_t``, to the first node and to
#: the number of nodes of its ``std::unordered_map``.
_FIRST, _NUMBER = 0x48, 0x50
#: Bytes from the start of a node, whose first word is the next node, to the thread's data; and from these to the entry.
_DATA, _BUFFER = 0x10, 0x18


def wait_until_past(seconds: float) -> bool:
    """Wait until every other thread has left the code that it is running; return whether all have.

    Call it while recording is off, so that no thread begins to write another event. A thread has left Paddle's code if
    it has run for 2 ms since, or if it sleeps: while Paddle writes an event, it sleeps only for a lock whose holder is
    running. So every thread must be asleep in two looks.

    Args:
        seconds: When to give up.
    """
    deadline = time.monotonic() + seconds
    tasks = map(int, os.listdir("/proc/self/task"))  # noqa: PTH208 - names only
    began = {thread: _cpu_time(thread) for thread in tasks if thread != threading.get_native_id()}
    asleep = 0
    while asleep < 2:
        began = {thread: start for thread, start in began.items() if 0 <= _cpu_time(thread) < start + ENOUGH_NS}
        asleep = asleep + 1 if all(map(_sleeps, began)) else 0
        if asleep == 0:
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE)
    return True


def _cpu_time(thread: int) -> int:
    """Return the CPU time of a thread, in ns; -1 if it has ended."""
    try:
        return time.clock_gettime_ns(~thread << 3 | _CPU_TIME)
    except OSError:
        return -1


def _sleeps(thread: int) -> bool:
    try:
        with open(f"/proc/self/task/{thread}/stat", "rb") as file:  # noqa: PTH123 - read often
            return file.read().rpartition(b")")[2].split(None, 1)[0] in b"SZX"
    except OSError:
        return True  # it has ended


class ThreadBuffers:
    """Paddle's vector of the threads' buffers for one type of event.

    Args:
        library: ``libphi_core.so``, of a verified build: the layouts below hold for these only.
        event: The type of events, as C++ mangles it.

    Attributes:
        vector: Addresses of the vector's first entry, of the end of its entries, and of the end of its memory.

    Raises:
        ValueError: The library does not export the vector.
    """

    def __init__(self, library: ctypes.CDLL, event: str) -> None:
        recorder = f"N3phi17HostEventRecorderINS_{event}EE"
        registry = f"N3phi18ThreadDataRegistryISt10shared_ptrINS_19ThreadEventRecorderINS_{event}EEEEE"
        self._constructed = ctypes.c_uint8.in_dll(library, f"_ZGVZ{recorder}11GetInstanceEvE8instance")
        self.vector = (ctypes.c_size_t * 3).in_dll(library, f"_ZZ{recorder}11GetInstanceEvE8instance")
        self._registry = ctypes.c_size_t.in_dll(library, f"_ZZ{registry}11GetInstanceEvE8instance")
        self._c = ctypes.PyDLL(None)
        self._c.calloc.restype, self._c.calloc.argtypes = ctypes.c_size_t, (ctypes.c_size_t, ctypes.c_size_t)

    @property
    def roomy(self) -> bool:
        """Whether the vector has so much unused memory that it will not be reallocated."""
        _, end, limit = self.vector
        return limit - end >= _ROOM // 2 * SLOT

    def mend(self) -> None:
        """Put every buffer into the vector once, and reserve memory behind them.

        Call it only while no thread writes. When two threads appended at once, one entry has overwritten the other, or
        the vector ends too early; the registry of threads still has both. The vector's old memory is not freed: it is
        small, and only the first one, of Paddle's allocator, is lost.
        """
        begin, end, limit = self.vector
        ours = limit - begin >= _ROOM * SLOT  # allocated here and zeroed, so entries behind a wrong end can be found
        buffers = dict(_slots(begin, limit if ours else end)) | dict(self._of_threads())
        if limit - begin < (len(buffers) + _ROOM // 2) * SLOT:
            begin = self._c.calloc(len(buffers) + _ROOM, SLOT)
            if not begin:
                raise MemoryError
            limit = begin + (len(buffers) + _ROOM) * SLOT
        for index, entry in enumerate(buffers.items()):
            words(begin + index * SLOT)[:] = list(entry)
        self._constructed.value = (
            1  # C++'s guard of the static variable: at 0, Paddle's first use would clear the vector
        )
        self.vector[:] = [begin, begin + len(buffers) * SLOT, limit]

    def _of_threads(self) -> list[tuple[int, int]]:
        """Return the buffers of living threads; none in a forked child, whose registry holds threads of the parent."""
        registry = self._registry.value
        if _forked or not registry or self._c.pthread_rwlock_tryrdlock(ctypes.c_void_p(registry)):
            return []
        try:
            return list(_entries(registry))
        finally:
            self._c.pthread_rwlock_unlock(ctypes.c_void_p(registry))


def _slots(begin: int, limit: int) -> Iterator[tuple[int, int]]:
    """Yield the addresses of buffers and of their control blocks in a vector, up to the first empty entry."""
    for address in range(begin, limit, SLOT):
        buffer, owner = words(address)
        if buffer == owner == 0:
            return
        if _is_buffer(buffer, owner):
            yield buffer, owner


def _entries(registry: int) -> Iterator[tuple[int, int]]:
    """Yield the same addresses from the registry of threads; a thread that has not recorded has no buffer."""
    entry, number = words(registry + _FIRST)
    for _ in range(number):
        data, _ = words(entry + _DATA)
        buffer, owner = words(data + _BUFFER)
        if _is_buffer(buffer, owner):
            yield buffer, owner
        entry, _ = words(entry)


def _is_buffer(buffer: int, owner: int) -> bool:
    return owner != 0 and buffer == owner + _BEHIND_OWNER


_Words = ctypes.c_size_t * 2


def words(address: int) -> ctypes.Array[ctypes.c_size_t]:
    """Return the two words of memory at an address; they can be written."""
    return _Words.from_address(address)


_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
