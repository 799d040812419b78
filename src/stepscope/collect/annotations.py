"""Ranges, marks and counters that the program sets itself: ``stepscope.span``, ``mark`` and ``counter``.

They cost next to nothing while no profile records, so they can stay in the program. They are recorded in the journal,
with arguments and thread, and only there: the framework's own capture does not repeat them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import wraps
from itertools import count
from numbers import Real
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from stepscope.collect.journal.values import freeze

if TYPE_CHECKING:
    from stepscope.collect.journal.journal import Journal

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: A C function that accepts any arguments and returns a false value. As `__enter__` and `__exit__` it costs half as
#: much as an empty Python function.
_NOTHING: Callable[..., Any] = "".format


class Span:
    """A named range with arguments: use it in ``with``, or as a decorator. See :func:`span`.

    It is re-entrant and thread-safe because it has no mutable state: each thread keeps its own start times.
    :func:`bind` and :func:`unbind` replace its two methods.
    """

    __slots__ = ("args", "name")

    name: str
    args: Mapping[str, object]

    if TYPE_CHECKING:

        def __enter__(self) -> None: ...
        def __exit__(self, *exception: object) -> None: ...

    else:
        __enter__ = __exit__ = _NOTHING

    def __call__(self, function: _Function) -> _Function:
        """Return ``function`` with this range around each of its calls."""

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of the function
            if _recorder is None:
                return function(*args, **kwargs)
            with self:
                return function(*args, **kwargs)

        return cast("_Function", timed)


#: Cache of spans without arguments made while nothing recorded: a look-up is faster than a new object.
_CACHED: dict[str, Span] = {}
#: Most spans in that cache.
CACHED_SPANS = 4096


def span(name: str, **args: object) -> Span:
    """Return a range to put around a part of the program.

    ::

        with stepscope.span("augment", images=32):
            batch = augment(batch)

        @stepscope.span("evaluate")
        def evaluate(model): ...

    Around a generator or coroutine function the decorator times its creation only; put the ``with`` inside.

    Args:
        name: Name in every table and timeline.
        args: Numbers, texts, and lists or mappings of these. Anything else is recorded as the name of its type: reading
            the value of a tensor could wait for the device.
    """
    if not args and _recorder is None:
        try:
            return _CACHED[name]
        except KeyError:
            return _remember(name)
    made = Span()
    made.name = name
    made.args = args
    return made


def _remember(name: str) -> Span:
    made = Span()
    made.name = name
    made.args = {}
    if len(_CACHED) < CACHED_SPANS:
        _CACHED[name] = made
    return made


def mark(name: str, **args: object) -> None:
    """Mark a moment: an annotation without duration. Arguments as for :func:`span`."""
    recorder = _recorder
    if recorder is not None:
        now = perf_counter_ns()
        recorder.journal.span(name, "annotation", now, now, freeze(args))


def counter(name: str, value: object, unit: str = "") -> None:
    """Record a sample of a counter, such as the loss.

    Args:
        name: Name of the counter.
        value: A number. Anything else, such as a tensor, is dropped and counted as `counter_not_a_number`: reading it
            could wait for the device. Pass ``loss.item()`` where that wait is acceptable.
        unit: Unit of the value; empty for plain numbers.
    """
    recorder = _recorder
    if recorder is None:
        return
    if type(value) is not float:
        try:
            value = float(value) if isinstance(value, Real) else None
        except OverflowError:
            value = None
        if value is None:
            recorder.journal.loss("counter_not_a_number")
            return
    recorder.journal.counter(name, value, unit)


def recording() -> bool:
    """Return whether a profile is recording."""
    return _recorder is not None


def open_range(name: str, args: Mapping[str, object]) -> int:
    """Begin a range that any thread may end, in any order; return its number, or 0 if nothing records."""
    recorder = _recorder
    if recorder is None:
        return 0
    number = next(_numbers)
    recorder.ranges[number] = _Range(name, freeze(args), threading.get_native_id(), perf_counter_ns())
    return number


def close_range(number: int) -> None:
    """End a range; a no-op for one that is not open or whose window has closed."""
    end_ns = perf_counter_ns()
    recorder = _recorder
    ended = recorder.ranges.pop(number, None) if recorder is not None else None
    if recorder is not None and ended is not None:
        recorder.journal.span(ended.name, "annotation", ended.start_ns, end_ns, ended.args, ended.native)


#: Numbers of ranges, across threads and windows. Not locked: next() of itertools.count is atomic under the GIL.
_numbers = count(1)


class _Range(NamedTuple):
    """An open range, and the thread that began it."""

    name: str
    args: Mapping[str, object]
    native: int
    start_ns: int


class _OpenSpans:
    """A thread's native id and its open spans, each with its start, outermost first."""

    __slots__ = ("native", "open")

    def __init__(self) -> None:
        self.native = threading.get_native_id()
        self.open: list[tuple[Span, int]] = []

    def take(self, closed: Span) -> int | None:
        """Remove the innermost entry of ``closed`` and return its start; None if it is not open on this thread."""
        for entry in reversed(self.open):
            if entry[0] is closed:
                try:
                    self.open.remove(entry)
                except ValueError:  # race: another thread has removed it
                    return None
                return entry[1]
        return None


class _CallingThread(threading.local):
    """The calling thread's open spans; each thread appends its own to ``threads`` on first use."""

    def __init__(self, threads: list[_OpenSpans]) -> None:
        self.thread = _OpenSpans()
        threads.append(self.thread)


class _AnnotationRecorder:
    """Records spans while a profile records."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.threads: list[_OpenSpans] = []
        self.ranges: dict[int, _Range] = {}
        self.here = _CallingThread(self.threads)

    def close_odd(self, closed: Span, end_ns: int) -> None:
        """Close a span that is not the innermost one of its thread."""
        here = self.here.thread
        start_ns = here.take(closed)
        if start_ns is not None:
            self._record(closed, here, start_ns, end_ns)
            self.journal.loss("span_wrong_order")
            return
        # A cached span may be open on any thread; one made during the recording identifies the thread that opened it.
        shared = _CACHED.get(closed.name) is closed
        for thread in () if shared else tuple(self.threads):
            start_ns = thread.take(closed)
            if start_ns is not None:
                self._record(closed, thread, start_ns, end_ns, closed_by_thread=here.native)
                self.journal.loss("span_other_thread")
                return
        self.journal.loss("span_opened_before")

    def close_all(self) -> None:
        """End every open span now, with the argument ``not_closed``."""
        end_ns = perf_counter_ns()
        for thread in tuple(self.threads):
            while thread.open:
                left, start_ns = thread.open.pop()
                self._record(left, thread, start_ns, end_ns, not_closed=True)
                self.journal.loss("span_not_closed")
        while self.ranges:
            _, ended = self.ranges.popitem()
            args = {**ended.args, "not_closed": True}
            self.journal.span(ended.name, "annotation", ended.start_ns, end_ns, args, ended.native)
            self.journal.loss("span_not_closed")

    def _record(self, closed: Span, thread: _OpenSpans, start_ns: int, end_ns: int, **flags: object) -> None:
        args = freeze({**closed.args, **flags})
        self.journal.span(closed.name, "annotation", start_ns, end_ns, args, thread.native)


_recorder: _AnnotationRecorder | None = None


def _enter(self: Span) -> None:
    recorder = _recorder
    if recorder is not None:
        recorder.here.thread.open.append((self, perf_counter_ns()))


def _exit(self: Span, _kind: object, _error: object, _trace: object) -> None:
    end_ns = perf_counter_ns()
    recorder = _recorder
    if recorder is None:
        return
    thread = recorder.here.thread
    try:
        entry = thread.open.pop()
    except IndexError:
        recorder.close_odd(self, end_ns)
        return
    if entry[0] is self:
        args = freeze(self.args) if self.args else None
        recorder.journal.span(self.name, "annotation", entry[1], end_ns, args, thread.native)
    else:
        thread.open.append(entry)
        recorder.close_odd(self, end_ns)


def _exchange(enter: Callable[..., Any], leave: Callable[..., Any]) -> None:
    # setattr, because type checkers reject assignments to methods.
    setattr(Span, "__enter__", enter)  # noqa: B010
    setattr(Span, "__exit__", leave)  # noqa: B010


def bind(journal: Journal) -> None:
    """Begin to record spans, marks and counters into ``journal``."""
    global _recorder
    unbind()
    _recorder = _AnnotationRecorder(journal)
    _exchange(_enter, _exit)


def unbind() -> None:
    """End the recording; open spans end now and are counted. A no-op if nothing records."""
    global _recorder
    recorder, _recorder = _recorder, None
    _exchange(_NOTHING, _NOTHING)
    if recorder is not None:
        recorder.close_all()


def _after_fork() -> None:
    """Stop recording in a forked child: the profile belongs to the parent."""
    global _recorder
    _recorder = None
    _exchange(_NOTHING, _NOTHING)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
