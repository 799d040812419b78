"""Python function calls as nested spans, for frameworks that record no Python stacks themselves.

A profile function (``sys.setprofile``) on the starting thread, and on threads that begin later, records start, duration
and code of every call, and the instruction that calls it, but makes no text. A separate thread writes them to
``capture/python_stacks.ssj``: blocks of the journal's form, whose spans of kind ``python`` are named
``file(line): function`` as PyTorch names them.

It adds 0.4 µs to a Python call and 0.16 µs to a call of a C function (least of 30 measurements on a busy machine).
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
from typing import TYPE_CHECKING, Any, TypeAlias

from stepscope.collect.host.thread_use import frames_of_threads
from stepscope.collect.journal.block_file import BlockFile
from stepscope.collect.journal.values import text

if TYPE_CHECKING:
    from stepscope.collect.journal.journal import Journal
    from stepscope.collect.protocol import Context

#: Calls shorter than this (ns) are only counted: two readings of the clock take a tenth of it.
SHORTEST = 2_000
#: Maximum number of calls of one thread that wait to be written, 32 bytes each; further calls are only counted.
ROOM = 1 << 20
#: Numbers that describe one call that waits.
_NUMBERS = 4
#: Calls in one block: about 2 ms of encoding.
_BLOCK_ROWS = 4096

_HERE = Path(__file__).parents[2]
_OURS = f"{_HERE}{os.sep}"
#: Calls made by these files are not recorded, also if the callee is a function of the framework.
_ENGINE = tuple(str(_HERE / "collect" / "session" / name) for name in ("session.py", "window.py"))

#: Code and offset of instructions, by their place: ``id`` of the code + offset. A code object holds its instructions,
#: and is referenced here, so a place belongs to one code.
_Places: TypeAlias = "dict[int, tuple[CodeType, int]]"

_Hook = Callable[[FrameType, str, Any], None]


class PythonStacksCollector:
    """Records Python calls, unless torch or JAX does."""

    name = "python_stacks"

    def __init__(self) -> None:
        self._path = Path()
        self._journal: Journal | None = None
        self._file: BlockFile | None = None
        self._closed: list[bool] = []
        self._codes: dict[int, CodeType] = {}
        self._threads: list[_SampledThread] = []
        self._hook: _Hook | None = None
        self._places: _Places = {}
        self._names = _FrameNames(self._codes, self._places)
        self._note = ""
        self._calls = 0

    def available(self) -> str | None:
        """Return why Python calls are not recorded here, or None."""
        if getattr(sys.getprofile(), "__module__", None) != __name__ and sys.getprofile() is not None:
            return "the program uses its own profile function (sys.setprofile)"
        torch = sys.modules.get("torch")
        if torch is not None and getattr(torch, "autograd", None) and torch.autograd.kineto_available():
            return "torch records its Python stacks itself"
        if "jax" in sys.modules:
            return "JAX records Python calls itself"
        return None

    def prepare(self, context: Context) -> None:
        """Keep the journal and the path of the file."""
        self._journal = context.journal
        self._path = context.capture / "python_stacks.ssj"

    def start(self) -> None:
        """Set the profile function; calls in progress count as begun now."""
        if self._journal is None:
            return
        if sys.getprofile() is not None:
            self._note = "The program set its own profile function before the window: no Python calls are recorded."
            return
        self._file = BlockFile(self._path, self._next_block, self._journal)
        thread = _SampledThread(self._codes, self._places)
        now = perf_counter_ns()
        thread.starts.extend(now for _ in _frames(sys._getframe()))
        self._threads.append(thread)
        self._hook = _hook(thread, self._closed)
        _OPEN.add(self)
        if threading.getprofile() is None:
            threading.setprofile(self._begin_thread)
        sys.setprofile(self._hook)

    def stop(self) -> list[Path]:
        """Remove the profile function, end the calls in progress, and close the file."""
        now = perf_counter_ns()
        if self._hook is not None:
            self._take_down()
        self._closed.append(True)
        if self._hook is not None:
            frames = frames_of_threads()
            for thread in tuple(self._threads):
                thread.close(now, frames.get(thread.ident))
        file, self._file = self._file, None
        if file is None:
            return []
        try:
            file.close()
        finally:  # a disk that hangs costs no count
            if self._journal is not None:
                self._journal.loss("python_calls_short", sum(thread.short for thread in self._threads))
                self._journal.loss("python_calls_overflow", sum(thread.overflow for thread in self._threads))
        return [self._path]

    def _take_down(self) -> None:
        _OPEN.discard(self)
        if threading.getprofile() == self._begin_thread:
            threading.setprofile(None)
        if sys.getprofile() is self._hook:
            sys.setprofile(None)
        elif threading.get_ident() == self._threads[0].ident:
            self._note = (
                "The program set its own profile function during the window: Python calls are recorded up to it."
            )

    def describe(self) -> dict[str, object]:
        """Return the numbers of calls written and left out, and why some are missing."""
        short = sum(thread.short for thread in self._threads)
        described: dict[str, object] = {"calls": self._calls, "shorter": short, "shortest_ns": SHORTEST}
        described["threads"] = len(self._threads)
        return {**described, "note": self._note} if self._note else described

    def _begin_thread(self, frame: FrameType, event: str, argument: object) -> None:
        """Install the profile function on a thread that has just begun."""
        if self._closed or threading.current_thread().name.startswith("stepscope-"):
            sys.setprofile(None)
            return
        thread = _SampledThread(self._codes, self._places, below=sum(1 for _ in _frames(frame)) - 1)
        self._threads.append(thread)
        hook = _hook(thread, self._closed)
        sys.setprofile(hook)
        hook(frame, event, argument)

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
        starts: Starts of the calls in progress, outermost first.
        rows: Calls that have ended, four numbers each: start, duration, ``id`` of the code, and place of the calling
            instruction, 0 without a caller.
        below: Number of outermost frames whose beginning was not seen.
        short: Calls left out because they are short.
        overflow: Calls left out because too many waited.
    """

    def __init__(self, codes: dict[int, CodeType], places: _Places, below: int = 0) -> None:
        self.ident, self.native = threading.get_ident(), threading.get_native_id()
        self.name = threading.current_thread().name
        self.codes, self.places = codes, places
        self.starts: list[int] = []
        self.rows = array("q")
        self.below = below
        self.short = self.overflow = 0

    def take(self) -> array[int]:
        """Remove and return waiting calls; the thread may append more at the same time."""
        rows = self.rows[: min(len(self.rows) // _NUMBERS, _BLOCK_ROWS) * _NUMBERS]
        del self.rows[: len(rows)]
        return rows

    def close(self, end: int, innermost: FrameType | None) -> None:
        """End the calls in progress, unless their frames are ours.

        Outermost first: of spans with the same start and end, the reader takes the first as the outer one.
        """
        frames = list(_frames(innermost))[::-1][self.below :]
        for start, frame in zip(self.starts, frames, strict=False):
            if not frame.f_code.co_filename.startswith(_OURS):
                self.codes[id(frame.f_code)] = frame.f_code
                place, back = 0, frame.f_back
                if back is not None:
                    place = id(back.f_code) + back.f_lasti
                    self.places[place] = back.f_code, back.f_lasti
                self.rows.extend((start, max(end - start, 0), id(frame.f_code), place))


def _frames(innermost: FrameType | None) -> Iterator[FrameType]:
    while innermost is not None:
        yield innermost
        innermost = innermost.f_back


def _hook(thread: _SampledThread, closed: list[bool]) -> _Hook:
    """Return the profile function of a thread. It runs at every call, so it uses local names only, which are fast."""
    now, codes, places, rows = perf_counter_ns, thread.codes, thread.places, thread.rows
    push, pop, append = thread.starts.append, thread.starts.pop, thread.rows.append
    full = _NUMBERS * ROOM

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
            except IndexError:  # a frame whose beginning was not seen
                return
            if end - start < SHORTEST:
                thread.short += 1
            elif len(rows) >= full:
                thread.overflow += 1
            else:
                code = frame.f_code
                key = id(code)
                if key not in codes:
                    codes[key] = code  # a reference, because the id of a freed object could be reused
                back = frame.f_back
                place = 0
                if back is not None:
                    code, at = back.f_code, back.f_lasti
                    place = id(code) + at
                    if place not in places:
                        places[place] = code, at
                append(start)
                append(end - start)
                append(key)
                append(place)

    return hook


class _FrameNames:
    """Encodes calls as blocks, without those of our own functions."""

    def __init__(self, codes: dict[int, CodeType], places: _Places) -> None:
        self._codes, self._places = codes, places
        self._texts: dict[int, str] = {}
        self._lines: dict[int, int] = {0: 0}
        # File names relative to their import directory, as in PyTorch.
        roots = {os.path.abspath(entry or ".") for entry in sys.path} | set(sysconfig.get_paths().values())  # noqa: PTH100
        whole = [root + os.sep for root in roots if not Path(root, "__init__.py").exists()]
        self._roots = sorted(whole, key=len, reverse=True)

    def block(self, thread: _SampledThread, rows: array[int]) -> dict[str, Any]:
        kept = self._kept(rows)
        used = list(dict.fromkeys(key for _, _, key, _ in kept))
        number = {key: index for index, key in enumerate(used, start=1)}
        spans = {
            "thread": [thread.native] * len(kept),
            "start": [start for start, *_ in kept],
            "dur": [dur for _, dur, *_ in kept],
            "name": [number[key] for _, _, key, _ in kept],
            "kind": [0] * len(kept),
            "args": [None] * len(kept),
            "calling_line": [line for *_, line in kept],
        }
        names = ["python", *(self._text(key) for key in used)]
        return {"threads": [(thread.native, text(thread.name))], "names": names, "spans": spans}

    def _kept(self, rows: array[int]) -> list[tuple[int, int, int, int]]:
        """Return start, duration, code and calling line of calls that are not ours; callees before their callers."""
        kept: list[tuple[int, int, int, int]] = []
        columns = (rows[column::_NUMBERS] for column in range(_NUMBERS))
        for start, dur, key, place in zip(*columns, strict=True):
            file = self._codes[key].co_filename
            if file.startswith(_ENGINE):
                while kept and kept[-1][0] >= start:
                    kept.pop()
            elif not file.startswith(_OURS):
                kept.append((start, dur, key, self._line(place)))
        return kept

    def _line(self, place: int) -> int:
        """Return the line of an instruction; 0 where it is unknown, or in our own code, whose calls are left out."""
        if place not in self._lines:
            code, at = self._places[place]
            lines = code.co_lines() if not code.co_filename.startswith(_OURS) else ()
            self._lines[place] = next((line or 0 for begin, end, line in lines if begin <= at < end), 0)
        return self._lines[place]

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
