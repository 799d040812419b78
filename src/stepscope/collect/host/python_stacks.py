"""Python function calls as nested spans, for frameworks that record no Python stacks themselves.

A profile function (``sys.setprofile``) of the starting thread, and of threads that begin later, notes start, duration
and code of every call; no text is made there. A thread of its own writes them to ``capture/python_stacks.ssj``: blocks
of the journal's form, whose spans of kind ``python`` are named ``file(line): function`` as PyTorch names them.

A Python call takes 0.4 µs longer, a call of a C function 0.16 µs (least of 30 measurements on a busy machine).
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import weakref
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from stepscope.collect.journal.block_file import BlockFile
from stepscope.collect.journal.values import text

if TYPE_CHECKING:
    from stepscope.collect.journal.journal import Journal
    from stepscope.collect.protocol import Context

#: Calls shorter than this (ns) are counted and left out: reading the clock twice takes a tenth of it.
SHORTEST = 2_000
#: Calls of one thread that wait at most to be written, 24 bytes each; the rest is counted.
ROOM = 1 << 20
#: Calls in one block: about 2 ms of encoding.
_BLOCK_ROWS = 4096

_HERE = Path(__file__).parents[2]
_OURS = f"{_HERE}{os.sep}"
#: What these call is not the training's, even where it is a function of the framework.
_ENGINE = tuple(str(_HERE / "collect" / "session" / name) for name in ("session.py", "window.py"))

_Hook = Callable[[FrameType, str, Any], None]


class PythonStacksCollector:
    """Notes Python calls; leaves them to torch and to JAX where these are."""

    name = "python_stacks"

    def __init__(self) -> None:
        self._path = Path()
        self._journal: Journal | None = None
        self._file: BlockFile | None = None
        self._closed: list[bool] = []
        self._codes: dict[int, CodeType] = {}
        self._threads: list[_SampledThread] = []
        self._hook: _Hook | None = None
        self._names = _FrameNames(self._codes)
        self._note = ""
        self._calls = 0

    def available(self) -> str | None:
        """Return why Python calls are not seen here, or None."""
        if getattr(sys.getprofile(), "__module__", None) != __name__ and sys.getprofile() is not None:
            return "the program has a profile function of its own (sys.setprofile)"
        torch = sys.modules.get("torch")
        if torch is not None and getattr(torch, "autograd", None) and torch.autograd.kineto_available():
            return "torch records its Python stacks itself"
        if "jax" in sys.modules:
            return "JAX records Python calls itself"
        return None

    def prepare(self, context: Context) -> None:
        """Remember where calls go."""
        self._journal = context.journal
        self._path = context.capture / "python_stacks.ssj"

    def start(self) -> None:
        """Set the profile function; calls that are going on begin now."""
        if self._journal is None:
            return
        if sys.getprofile() is not None:
            self._note = "The program set a profile function of its own before the window opened: no Python calls."
            return
        self._file = BlockFile(self._path, self._next_block, self._journal)
        thread = _SampledThread(self._codes)
        now = perf_counter_ns()
        thread.starts.extend(now for _ in _frames(sys._getframe()))
        self._threads.append(thread)
        self._hook = _hook(thread, self._closed)
        _OPEN.add(self)
        if threading.getprofile() is None:
            threading.setprofile(self._begin_thread)
        sys.setprofile(self._hook)

    def stop(self) -> list[Path]:
        """Take the profile function down, end the calls that are going on, and close the file."""
        now = perf_counter_ns()
        if self._hook is not None:
            self._take_down()
        self._closed.append(True)
        if self._hook is not None:
            frames = sys._current_frames()
            for thread in tuple(self._threads):
                thread.close(now, frames.get(thread.ident))
        file, self._file = self._file, None
        if file is None:
            return []
        file.close()
        self._count_losses()
        return [self._path]

    def _take_down(self) -> None:
        _OPEN.discard(self)
        if threading.getprofile() == self._begin_thread:
            threading.setprofile(None)
        if sys.getprofile() is self._hook:
            sys.setprofile(None)
        elif threading.get_ident() == self._threads[0].ident:
            self._note = "The program set a profile function of its own during the window: Python calls end there."

    def describe(self) -> dict[str, object]:
        """Return how many calls were written and left out, and why some are missing."""
        short = sum(thread.short for thread in self._threads)
        described: dict[str, object] = {"calls": self._calls, "shorter": short, "shortest_ns": SHORTEST}
        described["threads"] = len(self._threads)
        return {**described, "note": self._note} if self._note else described

    def _begin_thread(self, frame: FrameType, event: str, argument: object) -> None:
        """Become the profile function of a thread that has just begun."""
        if self._closed or threading.current_thread().name.startswith("stepscope-"):
            sys.setprofile(None)
            return
        thread = _SampledThread(self._codes, below=sum(1 for _ in _frames(frame)) - 1)
        self._threads.append(thread)
        hook = _hook(thread, self._closed)
        sys.setprofile(hook)
        hook(frame, event, argument)

    def _count_losses(self) -> None:
        if self._journal is not None:
            self._journal.loss("python_calls_short", sum(thread.short for thread in self._threads))
            self._journal.loss("python_calls_overflow", sum(thread.overflow for thread in self._threads))

    def _next_block(self) -> dict[str, Any] | None:
        """Return the next calls of one thread as a block of the journal's form; runs in the file's own thread."""
        for thread in tuple(self._threads):
            rows = thread.take()
            if rows:
                block = self._names.block(thread, rows)
                self._calls += len(block["spans"]["start"])
                return block
        return None

    def _become_inert(self) -> None:
        self._closed.append(True)
        if sys.getprofile() is self._hook:
            sys.setprofile(None)


class _SampledThread:
    """The calls of one thread.

    Attributes:
        starts: Starts of the calls that are going on, outermost first.
        rows: Calls that have ended: start, duration, identity of the code, one behind the other.
        below: Frames of the thread that were never seen to begin.
        short: Calls left out because they are short.
        overflow: Calls left out because too many waited.
    """

    def __init__(self, codes: dict[int, CodeType], below: int = 0) -> None:
        self.ident, self.native = threading.get_ident(), threading.get_native_id()
        self.name = threading.current_thread().name
        self.codes = codes
        self.starts: list[int] = []
        self.rows = array("q")
        self.below = below
        self.short = self.overflow = 0

    def take(self) -> array[int]:
        """Remove and return calls that wait; the thread may add more at the same time."""
        rows = self.rows[: min(len(self.rows) // 3, _BLOCK_ROWS) * 3]
        del self.rows[: len(rows)]
        return rows

    def close(self, end: int, innermost: FrameType | None) -> None:
        """End the calls that are going on, unless their frames are ours.

        Outermost first: of spans with the same start and end the reader takes the first for the outer one.
        """
        frames = list(_frames(innermost))[::-1][self.below :]
        for start, frame in zip(self.starts, frames, strict=False):
            if not frame.f_code.co_filename.startswith(_OURS):
                self.codes[id(frame.f_code)] = frame.f_code
                self.rows.extend((start, max(end - start, 0), id(frame.f_code)))


def _frames(innermost: FrameType | None) -> Iterator[FrameType]:
    while innermost is not None:
        yield innermost
        innermost = innermost.f_back


def _hook(thread: _SampledThread, closed: list[bool]) -> _Hook:
    """Return the profile function of a thread. Everything it needs is a local name: it runs at every call."""
    now, codes, rows = perf_counter_ns, thread.codes, thread.rows
    push, pop, append = thread.starts.append, thread.starts.pop, thread.rows.append
    full = 3 * ROOM

    def hook(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            push(now())
        elif event == "return":
            end = now()
            if closed:
                sys.setprofile(None)
                return
            try:
                start = pop()
            except IndexError:  # a frame that was never seen to begin
                return
            if end - start < SHORTEST:
                thread.short += 1
            elif len(rows) >= full:
                thread.overflow += 1
            else:
                code = frame.f_code
                key = id(code)
                if key not in codes:
                    codes[key] = code  # kept, so that nothing else gets its identity
                append(start)
                append(end - start)
                append(key)

    return hook


class _FrameNames:
    """Makes blocks of calls, and leaves out those of our own functions."""

    def __init__(self, codes: dict[int, CodeType]) -> None:
        self._codes = codes
        self._texts: dict[int, str] = {}
        # As PyTorch writes names of files: relative to the directory of the import.
        roots = {os.path.abspath(entry or ".") for entry in sys.path} | set(sysconfig.get_paths().values())  # noqa: PTH100
        whole = [root + os.sep for root in roots if not Path(root, "__init__.py").exists()]
        self._roots = sorted(whole, key=len, reverse=True)

    def block(self, thread: _SampledThread, rows: array[int]) -> dict[str, Any]:
        kept = self._kept(rows)
        used = list(dict.fromkeys(key for _, _, key in kept))
        number = {key: place for place, key in enumerate(used, start=1)}
        spans = {
            "thread": [thread.native] * len(kept),
            "start": [start for start, _, _ in kept],
            "dur": [dur for _, dur, _ in kept],
            "name": [number[key] for _, _, key in kept],
            "kind": [0] * len(kept),
            "args": [None] * len(kept),
        }
        names = ["python", *(self._text(key) for key in used)]
        return {"threads": [(thread.native, text(thread.name))], "names": names, "spans": spans}

    def _kept(self, rows: array[int]) -> list[tuple[int, int, int]]:
        """Return the calls that are not ours; callees stand before their callers."""
        kept: list[tuple[int, int, int]] = []
        for start, dur, key in zip(rows[0::3], rows[1::3], rows[2::3], strict=True):
            file = self._codes[key].co_filename
            if file.startswith(_ENGINE):
                while kept and kept[-1][0] >= start:
                    kept.pop()
            elif not file.startswith(_OURS):
                kept.append((start, dur, key))
        return kept

    def _text(self, key: int) -> str:
        if key not in self._texts:
            code = self._codes[key]
            file = code.co_filename
            root = next((root for root in self._roots if file.startswith(root)), "")
            function = getattr(code, "co_qualname", code.co_name)
            self._texts[key] = text(f"{file.removeprefix(root)}({code.co_firstlineno}): {function}")
        return self._texts[key]


#: Collectors whose profile function is set in this process.
_OPEN: weakref.WeakSet[PythonStacksCollector] = weakref.WeakSet()


def _after_fork() -> None:
    for collector in list(_OPEN):
        collector._become_inert()
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
