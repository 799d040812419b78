"""What keeps Paddle's recorder from crashing the program where more than one thread works.

Paddle keeps an event in a buffer of the thread that it happens on, and collects the buffers when a recording begins
and ends. Two things in it are unsafe, and each crashes programs that use ``paddle.profiler`` alone, too:

* It does not wait for threads that are just writing into their buffers: :func:`wait_until_past` does.
* A thread puts its buffer into one list of all when it records for the first time, without a lock. Where two do so at
  once, as the worker threads of a new executor do, the list moves to a larger place twice, and what is collected then
  is not a buffer. :class:`Buffers` gives the list a place so large that it never moves, and puts back what two threads
  have written over each other.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator

#: CPU time of a thread, in ns, after which it has surely ended what it was writing: that takes some µs, or, where it
#: needs a new buffer and the system clears large pages for it, 0.5 ms.
_ENOUGH = 2_000_000
_PAUSE = 0.0005
#: Linux' clock of the CPU time of a thread: ``CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED``.
_CPU_TIME = 6

#: Places for buffers that are free at least while Paddle records; 16 bytes of address space each, and memory if used.
_ROOM = 1 << 16
_SLOT = 16
#: A buffer lies so far behind the counter of those who hold it.
_BEHIND_OWNER = 16
#: Versions of Paddle whose lists lie as the following says; those of others are left as they are.
LAID_OUT = frozenset({"3.3.1"})
#: In the registry of threads, behind a lock: the first entry of its table, and their number.
_FIRST, _NUMBER = 0x48, 0x50
#: In an entry, whose first word is the next one: the thread's data; in these: its buffer and who owns it.
_DATA, _BUFFER = 0x10, 0x18


def wait_until_past(seconds: float) -> bool:
    """Wait until every other thread has left the place where it was; return whether all have.

    A thread has, if it ran on for 2 ms, or if it sleeps: Paddle sleeps nowhere while it writes, unless for a lock whose
    holder runs. So all must be seen asleep twice.
    """
    deadline = time.monotonic() + seconds
    began = {thread: _cpu_time(thread) for thread in _others()}
    asleep = 0
    while asleep < 2:
        began = {thread: start for thread, start in began.items() if 0 <= _cpu_time(thread) < start + _ENOUGH}
        asleep = asleep + 1 if all(map(_sleeps, began)) else 0
        if asleep == 0:
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE)
    return True


def _others() -> list[int]:
    own = threading.get_native_id()
    return [thread for thread in map(int, os.listdir("/proc/self/task")) if thread != own]  # noqa: PTH208 - names only


def _cpu_time(thread: int) -> int:
    """Return the CPU time of a thread, in ns; -1 where it has ended."""
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


class Buffers:
    """Paddle's list of the threads' buffers of one type of event.

    Args:
        library: The library that has it.
        event: The type of events, as C++ mangles it.

    Raises:
        ValueError: The library has no such list.
    """

    def __init__(self, library: ctypes.CDLL, event: str) -> None:
        recorder = f"N3phi17HostEventRecorderINS_{event}EE"
        registry = f"N3phi18ThreadDataRegistryISt10shared_ptrINS_19ThreadEventRecorderINS_{event}EEEEE"
        self._made = ctypes.c_uint8.in_dll(library, f"_ZGVZ{recorder}11GetInstanceEvE8instance")
        self._list = (ctypes.c_size_t * 3).in_dll(library, f"_ZZ{recorder}11GetInstanceEvE8instance")
        self._registry = ctypes.c_size_t.in_dll(library, f"_ZZ{registry}11GetInstanceEvE8instance")
        self._c = ctypes.PyDLL(None)
        self._c.calloc.restype, self._c.calloc.argtypes = ctypes.c_size_t, (ctypes.c_size_t, ctypes.c_size_t)

    @property
    def roomy(self) -> bool:
        """Whether there is so much room that the list will not move."""
        _, end, limit = self._list
        return limit - end >= _ROOM // 2 * _SLOT

    def mend(self) -> None:
        """Have every buffer in the list once, and room behind; only for when no thread is writing.

        Where two threads put theirs into the same place, one is written over; where one of them is late, the list ends
        too early. The place of before is not freed: it is small, and only the first one is left.
        """
        begin, end, limit = self._list
        ours = limit - begin >= _ROOM * _SLOT
        buffers = dict(_slots(begin, limit if ours else end)) | dict(self._of_threads())
        if limit - begin < (len(buffers) + _ROOM // 2) * _SLOT:
            begin = self._c.calloc(len(buffers) + _ROOM, _SLOT)
            if not begin:
                raise MemoryError
            limit = begin + (len(buffers) + _ROOM) * _SLOT
        for place, slot in enumerate(buffers.items()):
            _words(begin + place * _SLOT)[:] = list(slot)
        self._made.value = 1  # or Paddle would make an empty one when it looks at it first
        self._list[:] = [begin, begin + len(buffers) * _SLOT, limit]

    def _of_threads(self) -> list[tuple[int, int]]:
        """Return the buffers of threads that live; a forked child also has entries of threads that it has not."""
        registry = self._registry.value
        if _forked or not registry or self._c.pthread_rwlock_tryrdlock(ctypes.c_void_p(registry)):
            return []
        try:
            return list(_entries(registry))
        finally:
            self._c.pthread_rwlock_unlock(ctypes.c_void_p(registry))


def _slots(begin: int, limit: int) -> Iterator[tuple[int, int]]:
    """Yield what a list holds up to its first empty place: a buffer, and who owns it."""
    for place in range(begin, limit, _SLOT):
        buffer, owner = _words(place)
        if buffer == owner == 0:
            return
        if _is_buffer(buffer, owner):
            yield buffer, owner


def _entries(registry: int) -> Iterator[tuple[int, int]]:
    """Yield the same from the table of threads: one that has not recorded has none."""
    entry, number = _words(registry + _FIRST)
    for _ in range(number):
        data, _ = _words(entry + _DATA)
        buffer, owner = _words(data + _BUFFER)
        if _is_buffer(buffer, owner):
            yield buffer, owner
        entry, _ = _words(entry)


def _is_buffer(buffer: int, owner: int) -> bool:
    return owner != 0 and buffer == owner + _BEHIND_OWNER


_Words = ctypes.c_size_t * 2


def _words(address: int) -> ctypes.Array[ctypes.c_size_t]:
    return _Words.from_address(address)


_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
