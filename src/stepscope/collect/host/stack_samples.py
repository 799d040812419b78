"""Samples of the Python stacks of all threads, over all steps of the run, by a thread that never takes the GIL.

``native/sampler.c`` looks at the threads ``Options.stacks_hz`` times a second, and at the main threads of processes
that ``multiprocessing`` started (workers of data loaders) :data:`WORKERS_HZ` times. It keeps rows and tables of its
own; :class:`StackSampler` turns what is new in them into a part of the next block of ``steps.ssj``, as bytes: no
sample becomes a Python object here.

What cannot be sampled without the GIL is not sampled: a thread that takes the GIL to look finds Python code only where
that gives it up, so it would blame lines that wait for lines that compute.
"""

from __future__ import annotations

import base64
import ctypes
import errno
import logging
import os
import site
import sys
import sysconfig
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from stepscope import native
from stepscope.collect.frameworks import FRAMEWORKS
from stepscope.collect.journal.values import text
from stepscope.collect.surgery import python_layout

if TYPE_CHECKING:
    from stepscope.collect.protocol import Context

_LOG = logging.getLogger("stepscope")

#: Samples of a worker a second, at most: its reads go through the files of the kernel.
WORKERS_HZ = 12.5
#: Of a core, the most that sampling takes: beyond, it samples less often.
SHARE = 0.005
#: The words of ``ss_figures`` in ``native/sampler.h``.
FIGURES = (
    "ticks", "covered", "late", "samples", "walks", "torn", "moved", "lost", "cut", "cpu", "refused", "stopped",
    "waiting",
)  # fmt: skip
#: Bytes that are taken at once.
_ROOM = 1 << 18
#: Threads whose names are asked for.
_MOST_THREADS = 64

#: The sampler that runs in this process.
_running: StackSampler | None = None


class StackSampler:
    """Samples this process from :meth:`start` to :meth:`close`; one at a time in a process.

    Attributes:
        reason: Why it does not sample; empty if it does or can.
        hz: Samples a second.
    """

    def __init__(self) -> None:
        self.hz = 0.0
        self._every = 1
        self._started = False
        self._threads: set[int] = set()
        self._workers: dict[int, tuple[int, str]] = {}
        self._follows = True
        self._libraries: list[str] = []
        self._taken = {"names": 0, "stacks": 0}
        self.reason = self._prepare() or ""

    def _prepare(self) -> str | None:
        """Do what is slow: load, map, and compare a stack that is read with what Python says. Return what failed."""
        self._library = native.loaded()
        if self._library is None:
            return f"stepscope's native library is {native.available()}"
        if why := python_layout.refusal():
            return why
        offsets = python_layout.offsets() or {}
        values = (ctypes.c_int64 * len(python_layout.NAMES))(*offsets.values())
        refused = self._library.ss_sampler_open(values, python_layout.runtime(), 0)
        if refused == errno.EBUSY:
            return "another recording of this process samples them"
        if refused:
            return f"this process may not read its own memory ({os.strerror(refused)})"
        self._buffer = ctypes.create_string_buffer(_ROOM)
        library_roots()
        found, expected = self._tried()
        self._taken = {"names": 0, "stacks": 0}  # the test took some, which later stacks rest upon
        if found != expected:
            self._library.ss_sampler_close()
            return "a stack that was read as a test is not the one that Python says: this build of CPython is not known"
        return None

    def start(self, hz: float, share: float = SHARE) -> None:
        """Begin to sample, so many times a second, with at most this share of a core; 0 samples nothing."""
        global _running
        if self.reason or self._library is None or self._started or not hz:
            return
        self.hz, self._every = hz, max(round(hz / WORKERS_HZ), 1)
        failed = self._library.ss_sampler_start(hz, self._every, share)
        if failed:
            self.reason = f"no thread could be started ({os.strerror(failed)})"
            self._library.ss_sampler_close()
            return
        self._started = True
        _running = self

    def stop(self) -> None:
        """End the sampling; what was sampled can still be taken."""
        if self._started and self._library is not None:
            self._library.ss_sampler_stop()

    def close(self) -> None:
        """End the sampling and give up everything; idempotent."""
        global _running
        if not self.reason and self._library is not None:
            self._library.ss_sampler_close()
            self.reason = "it has ended"
            del self._buffer  # the session may live until the next collection of garbage
        self._started = False
        if _running is self:
            _running = None

    def become_inert(self) -> None:
        """Forget, in a forked child: the sampler is the parent's, and C has given it up."""
        global _running
        self._started, self.reason = False, "it belongs to the parent of this process"
        _running = None

    @property
    def waiting(self) -> int:
        """How many rows wait to be taken."""
        return self.figures["waiting"] if self._started else 0

    @property
    def figures(self) -> dict[str, int]:
        """What was sampled so far, and what it cost, by the names of :data:`FIGURES`."""
        words = (ctypes.c_uint64 * len(FIGURES))()
        if not self.reason and self._library is not None:
            self._library.ss_sampler_figures(words)
        return dict(zip(FIGURES, words, strict=True))

    def follow_workers(self) -> None:
        """Sample the processes that ``multiprocessing`` has started since, and no longer those that it has ended."""
        if not self._started or self._library is None or not self._follows:
            return
        module = sys.modules.get("multiprocessing.process")
        try:
            children = [child for child in tuple(getattr(module, "_children", ())) if child._popen is not None]
            self._follow({child._popen.pid: child for child in children})
        except Exception as error:  # noqa: BLE001 - law 1: a program's own kind of process; its lines stay unknown
            self._follows = False
            _LOG.debug("stepscope: the stacks of workers are not sampled: %s", error)

    def _follow(self, alive: Mapping[int, Any]) -> None:
        library: Any = self._library
        for pid in self._workers.keys() - alive.keys():
            library.ss_sampler_leave(self._workers.pop(pid)[0])
        for pid in alive.keys() - self._workers.keys():
            forked = getattr(alive[pid]._popen, "method", "") == "fork"
            at = python_layout.runtime() if forked else python_layout.runtime_of(pid)
            serial = library.ss_sampler_follow(pid, at) if at is not None else 0
            if serial:
                self._workers[pid] = serial, text(alive[pid].name)

    def take(self) -> dict[str, Any] | None:
        """Return what was sampled since the last call, for a block; None without a sample. Described by the reader."""
        library = self._library
        if not self._started or library is None:
            return None
        rows = self._bytes(library.ss_sampler_take(self._buffer, _ROOM))
        if not rows:
            return None
        taken: dict[str, Any] = {"rows": packed(rows), "figures": self.figures, "hz": self.hz, "every": self._every}
        first, content = self._new("stacks")
        taken["stacks"] = [first, packed(content)]
        first, content = self._new("names")
        texts = content.decode("utf-8", "replace").split("\0")
        taken["names"] = [first, texts[:-1]]
        taken["threads"] = list(self._names_of_new_threads())
        taken["processes"] = [[serial, pid, name] for pid, (serial, name) in self._workers.items()]
        libraries = library_roots()
        if libraries != self._libraries:
            self._libraries = taken["libraries"] = libraries
        return taken

    def _new(self, table: str) -> tuple[int, bytes]:
        """Return the number of the first row of a table that was not taken yet, and the rows from there on."""
        first = self._taken[table]
        parts: list[bytes] = []
        take = getattr(self._library, f"ss_sampler_{table}")
        while True:
            count = ctypes.c_uint32()
            part = self._bytes(take(self._buffer, _ROOM, self._taken[table], ctypes.byref(count)))
            if not count.value:
                return first, b"".join(parts)
            self._taken[table] += count.value
            parts.append(part)

    def _bytes(self, length: int) -> bytes:
        return ctypes.string_at(self._buffer, length)

    def _names_of_new_threads(self) -> Iterator[tuple[int, str]]:
        ids = (ctypes.c_uint32 * _MOST_THREADS)()
        count = self._library.ss_sampler_threads(ids, _MOST_THREADS) if self._library is not None else 0
        new = set(ids[:count]) - self._threads
        if not new:
            return
        named = {thread.native_id: thread.name for thread in threading.enumerate()}
        named[os.getpid()] = threading.main_thread().name  # after a fork, Python has the native id of before
        self._threads |= new
        for thread in sorted(new):
            name = named.get(thread, "")
            if not name or name.startswith("Dummy"):  # C began it, and named it, if anybody did
                name = f"thread {thread}"
                with suppress(OSError):
                    name = Path(f"/proc/self/task/{thread}/comm").read_text(encoding="utf-8", errors="replace").strip()
            yield thread, text(name)

    def _tried(self) -> tuple[list[tuple[str, str, int]], list[tuple[str, str, int]]]:
        """Return the stack of this thread as it is read, and as Python says it, innermost first.

        It goes through a generator, whose frames lie elsewhere. What is called keeps the GIL.
        """
        library: Any = self._library
        look = _holding_the_gil(library._name).ss_sampler_try

        def inner() -> list[tuple[str, str, int]]:
            _, frame, line = look(), sys._getframe(), sys._getframe().f_lineno
            said: list[tuple[str, str, int]] = []
            outer: FrameType | None = frame
            while outer is not None and len(said) < _COMPARED:
                code = outer.f_code
                said.append((code.co_filename[:1000], code.co_qualname[:1000], (outer.f_lineno or 0) if said else line))
                outer = outer.f_back
            return said

        expected = next(inner() for _ in (0,))
        self._taken = {"names": 0, "stacks": 0}
        rows = varints(self._bytes(library.ss_sampler_take(self._buffer, _ROOM)))
        nodes = varints(self._new("stacks")[1])
        texts = self._new("names")[1].decode("utf-8", "replace").split("\0")
        found: list[tuple[str, str, int]] = []
        number = rows[5] if len(rows) > 5 else 0
        while 0 < number <= len(nodes) // 3 and len(found) < _COMPARED:
            number, name, line = nodes[3 * number - 3 : 3 * number]
            found.append((texts[2 * name - 2], texts[2 * name - 1], line))
        return found, expected


@cache
def _holding_the_gil(path: str) -> ctypes.PyDLL:
    """Return a library whose functions are called with the GIL held."""
    return ctypes.PyDLL(path)


#: Frames that the test compares, from the innermost outwards.
_COMPARED = 300


def packed(content: bytes) -> str:
    """Return bytes as text that JSON can hold, compressed."""
    return base64.b64encode(zlib.compress(content, 1)).decode("ascii")


def varints(content: bytes) -> list[int]:
    """Return the numbers of which bytes hold seven bits each, the lowest first, the last byte below 128."""
    found, value, shift = [], 0, 0
    for byte in content:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            found.append(value)
            value, shift = 0, 0
    return found


def library_roots() -> list[str]:
    """Return the directories whose code is not the program's own: Python's, its packages, frameworks, stepscope's."""
    found = {path for framework in FRAMEWORKS for path in getattr(sys.modules.get(framework), "__path__", ())}
    return sorted(text(path) for path in found | _installed())


@cache
def _installed() -> set[str]:
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    with suppress(AttributeError):  # `site` of some virtual environments lacks them
        found.update((*site.getsitepackages(), site.getusersitepackages()))
    return found | {str(Path(__file__).parents[2])}


class StackSamplesCollector:
    """Says for each window whether Python stacks are sampled, how, and what it costs.

    The samples of a run are one for all its windows: the session begins and ends them, and they lie in ``steps.ssj``.
    """

    name = "stack_samples"

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._after: dict[str, int] = {}
        self._sampler: StackSampler | None = None

    def available(self) -> str | None:
        """Return why stacks are not sampled, and what is not known without them; None if they are or can be."""
        reason = _running.reason if _running is not None else unavailable()
        if not reason:
            return None
        return (
            f"{reason}; without samples, the lines of Python code, of locks and of workers that take time are unknown"
        )

    def prepare(self, context: Context) -> None:
        """Do nothing: the session samples."""

    def start(self) -> None:
        """Note what was sampled before the window."""
        self._sampler = _running
        self._before = self._figures()

    def stop(self) -> list[Path]:
        """Note what was sampled up to its end; the file is the session's."""
        self._after = self._figures()
        return []

    def describe(self) -> dict[str, object]:
        """Return the samples in the window, the rate, and of the whole run the CPU time and what went wrong."""
        after = self._after or self._before
        if self._sampler is None or not after:
            return {"samples": 0}
        ticks, used = after["ticks"], after["cpu"]
        described: dict[str, object] = {"samples": after["samples"] - self._before["samples"], "hz": self._sampler.hz}
        described["look_cost_ns"] = used // ticks if ticks else 0
        described |= {name: after[name] for name in ("late", "torn", "lost") if after[name]}
        if after["stopped"]:
            described["note"] = "Sampling stopped itself: more than 5 % of the stacks changed too much to be read."
        elif after["refused"]:
            described["note"] = "The system does not let this process read its workers (kernel.yama.ptrace_scope)."
        return described

    def _figures(self) -> dict[str, int]:
        return self._sampler.figures if self._sampler is not None and not self._sampler.reason else {}


def unavailable() -> str | None:
    """Return why Python stacks cannot be sampled in this process, without trying it; None if nothing speaks against."""
    reason = native.available()
    return f"stepscope's native library is {reason}" if reason else python_layout.refusal()
