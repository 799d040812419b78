"""The journal: the training process's own records, in one append-only file.

Recording appends to a queue without a lock (deque.append is atomic under the GIL), so it is safe in signal handlers and
in callbacks of the garbage collector, where the interrupted code may hold a lock. The journal's thread encodes the
queues as blocks twice a second and writes them with :mod:`stepscope.trace.blocks`.

A block is a JSON object in columns; every key may be missing::

    process, host   of the recording process
    anchors         [[perf_counter_ns, epoch ns, ± ns], …] before and after the block's records
    threads         [[native thread id, name], …] that are new or renamed
    names           texts; name, kind, source, lane and unit below are indices into it
    spans           thread, start, dur, name, kind; args: JSON text of an object, or null; calling_line, of a Python
                    call: the line that the call around it executes, 0 where it is unknown
    steps           number, start, dur, source
    counters        time, lane, name, value (number, or text for nan and ±inf), unit
    run_steps       number, gap (from the end of the row before to the start; number and gap as differences, the first
                    of a block from 0), dur, cpu, delay, minor, major, read, written, voluntary, involuntary, data,
                    ready; null is unknown
    compilations    name, start, dur, function, arguments, why; the last three are null if unknown
    batches         process, start, dur, samples, sample, sample_cpu, collate, collate_cpu, elements,
                    longest, collated, dataset; the three before the last are 0 if unknown
    events          name, start, dur
    metadata        [[key, JSON text], …]; the time at which a framework's recording ended early has the key
                    ENDED_EARLY, a new count of the steps (until, ends) the key STEPS_RECOUNT
    losses          {name: count}
    closed          true in the last block of a recording that was closed

Times are those of ``time.perf_counter_ns``.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from stepscope.collect.journal.values import finite, plain, text
from stepscope.collect.own_thread import OwnThread
from stepscope.trace.blocks import FrameWriter, pack, write_failure
from stepscope.trace.clock import Anchor, take_anchor
from stepscope.trace.losses import CATALOGUE, LossLedger
from stepscope.trace.schema import ENDED_EARLY

#: Seconds between blocks.
FLUSH_INTERVAL = 0.5
#: Seconds between checks of the length of the queues.
TICK = 0.1
#: Capacity of one queue in records (about 200 bytes each); more are dropped and counted as `journal_overflow`.
ROOM = 1 << 18
#: Length of a queue at which the writer writes early, and records in one block (about 1 ms of encoding).
_MANY = ROOM // 8
_BLOCK_ROWS = 2048

# Cached: json.dumps with these arguments would make an encoder for every call.
_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False)

_LOG = logging.getLogger("stepscope")

Span: TypeAlias = "tuple[int, int, int, str, str, Mapping[str, object] | None]"
Step: TypeAlias = tuple[int, int, int, str]
Counter: TypeAlias = tuple[int, str, str, float, str]


class Journal:
    """Records spans, steps, counters and facts into one file.

    The recording methods are thread-safe, never block and never raise because of their arguments. They are no-ops after
    :meth:`close`, after an error of the disk and in a forked child. :attr:`ledger` counts losses.

    Args:
        path: File to create.

    Raises:
        OSError: The file exists or cannot be written.
        RuntimeError: No thread can be started.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = LossLedger("journal")
        self._spans: deque[Span] = deque()
        self._steps: deque[Step] = deque()
        self._counters: deque[Counter] = deque()
        self._metadata: deque[tuple[str, str]] = deque()
        self._losses: deque[tuple[str, int]] = deque()
        self._queues: tuple[deque[Any], ...] = (self._spans, self._steps, self._counters, self._metadata, self._losses)
        self._room = ROOM
        self._overflow = itertools.count()
        self._overflow_seen = 0
        self._here = _NativeThread()
        self._named: dict[int, str] = {}
        self._lock = threading.RLock()
        self._writing = False
        self._failed = self._warned = False
        self._anchor = take_anchor()
        self._facts: dict[str, Any] = {"process": os.getpid(), "host": text(socket.gethostname())}
        self._frames = FrameWriter(path)
        self._flushed = time.monotonic()
        self._thread = OwnThread("stepscope-journal", self._flush_when_due)
        try:
            self._thread.start(TICK)
        except RuntimeError:
            self._frames.close()
            raise
        _OPEN.add(self)

    @property
    def recording(self) -> bool:
        """Whether records are kept; False after :meth:`close`, an error of the disk, or in a forked child."""
        return self._room > 0

    # Recording: called on the threads of the training. Not locked: if two threads both see the last free slot, the
    # queue exceeds its capacity by one record, which is harmless.

    def span(
        self,
        name: str,
        kind: str,
        start_ns: int,
        end_ns: int,
        args: Mapping[str, object] | None = None,
        thread: int = 0,
    ) -> None:
        """Record an interval.

        Args:
            name: What it is.
            kind: One of :data:`stepscope.trace.schema.KINDS`.
            start_ns: Start, of ``time.perf_counter_ns``.
            end_ns: End, of the same clock.
            args: Arguments, as :func:`stepscope.collect.journal.values.freeze` returns them.
            thread: Native id of its thread; 0 means the calling thread.
        """
        if len(self._spans) < self._room:
            self._spans.append((thread or self._here.thread, start_ns, end_ns, name, kind, args))
        else:
            next(self._overflow)

    def step(self, number: int, start_ns: int, end_ns: int, source: str) -> None:
        """Record a training step; ``source`` is one of :data:`stepscope.trace.schema.STEP_SOURCES`."""
        if len(self._steps) < self._room:
            self._steps.append((number, start_ns, end_ns, source))
        else:
            next(self._overflow)

    def counter(self, name: str, value: float, unit: str = "", lane: str = "counters", *, at_ns: int = 0) -> None:
        """Record a sample of a counter.

        Args:
            name: Name of the counter.
            value: Its value in ``unit``.
            unit: ``%``, ``bytes``, ``bytes/s``, …; empty for plain counts.
            lane: Counters that belong together share a lane.
            at_ns: Time of ``time.perf_counter_ns``; 0 means now.
        """
        if len(self._counters) < self._room:
            self._counters.append((at_ns or time.perf_counter_ns(), lane, name, value, unit))
        else:
            next(self._overflow)

    def metadata(self, key: str, json_text: str) -> None:
        """Record a fact about the run, as JSON text."""
        if len(self._metadata) < self._room:
            self._metadata.append((key, json_text))
        else:
            next(self._overflow)

    def loss(self, what: str, count: int = 1) -> None:
        """Count a loss of the catalogue in :mod:`stepscope.trace.losses`; ``KeyError`` for another name."""
        if what not in CATALOGUE:
            raise KeyError(what)
        if len(self._losses) < self._room:
            self._losses.append((what, count))

    def ended_early(self, why: str) -> str:
        """Record that the source of operators has ended before the window; return the reason with the time."""
        self.metadata(ENDED_EARLY, str(time.perf_counter_ns()))
        self.loss("recording_ended_early")
        return f"{why}, at {time.strftime('%Y-%m-%d %H:%M:%S')}"

    # Writing: on the journal's thread; flush() and close() also run on the caller's.

    def flush(self, timeout: float = 10.0) -> bool:
        """Write the queued records now.

        Args:
            timeout: Seconds to wait for another thread that is writing.

        Returns:
            Whether everything was written. False if another thread writes for longer than ``timeout``, or if a signal
            handler calls this while its own thread is writing.
        """
        return self._exclusively(self._write_queues, timeout)

    def close(self, timeout: float = 10.0) -> bool:
        """Write the queued records, mark the recording as complete and end the thread; idempotent.

        Args:
            timeout: Seconds to wait for a disk that hangs; the file then stays incomplete.

        Returns:
            Whether everything was written.
        """
        done = self._exclusively(self._finish, timeout)
        self._take_losses()  # of the last blocks, if it is these that could not be written
        self._room = 0
        self._thread.stop(timeout if done else 0, last=False)
        return done

    def _exclusively(self, work: Callable[[], None], timeout: float) -> bool:
        """Run ``work`` unless the journal is closed or this thread is writing; return whether everything is written."""
        if self not in _OPEN or not self._lock.acquire(timeout=timeout):
            return False
        try:
            if self._writing:
                return False
            self._writing = True
            try:
                work()
            except Exception as error:  # noqa: BLE001 - law 1: counted and logged; training goes on
                self._give_up(error)
            finally:
                self._writing = False
        finally:
            self._lock.release()
        return not self._failed

    def _flush_when_due(self, _last: bool) -> float:  # noqa: FBT001 - an OwnThread calls it
        due = time.monotonic() - self._flushed >= FLUSH_INTERVAL
        if due or any(len(queue) > _MANY for queue in self._queues):
            self.flush()
            self._flushed = time.monotonic()
        return TICK

    def _write_queues(self) -> None:
        if self._failed:
            return
        self._count_overflow()
        anchors = [self._anchor, take_anchor()]
        self._anchor = anchors[-1]
        # Bounded by the current length: otherwise a thread that records faster than this writes would never let it end.
        for _ in range(0, max(map(len, self._queues)), _BLOCK_ROWS):
            self._write(self._next_block(anchors))

    def _finish(self) -> None:
        try:
            self._write_queues()
            self._room = 0
            self._write({**self._next_block([self._anchor]), "closed": True})
        finally:
            _OPEN.discard(self)
            self._frames.close()

    def _count_overflow(self) -> None:
        seen = next(self._overflow)
        if seen > self._overflow_seen:
            self._losses.append(("journal_overflow", seen - self._overflow_seen))
        self._overflow_seen = seen + 1

    def _next_block(self, anchors: list[Anchor]) -> dict[str, Any]:
        names = _NameTable()
        spans = _take(self._spans)
        block: dict[str, Any] = {
            **self._facts,
            "anchors": [(anchor.monotonic, anchor.epoch, anchor.uncertainty) for anchor in anchors],
            "threads": self._new_threads({span[0] for span in spans}),
            "spans": _encode_spans(spans, names),
            "steps": _encode_steps(_take(self._steps), names),
            "counters": _encode_counters(_take(self._counters), names),
            "metadata": [(text(key), text(value)) for key, value in _take(self._metadata)],
            "losses": self._take_losses(),
        }
        return {**{key: value for key, value in block.items() if value}, "names": names.texts()}

    def _take_losses(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for what, count in _take(self._losses):
            if count > 0:
                self.ledger.add(what, count)
                counts[what] = counts.get(what, 0) + count
        return counts

    def _new_threads(self, seen: set[int]) -> list[tuple[int, str]]:
        new = []
        for thread in threading.enumerate():
            native, name = thread.native_id, thread.name
            if native in seen and self._named.get(native) != name:
                self._named[native] = name
                new.append((native, text(name)))
        return new

    def _write(self, block: dict[str, Any]) -> None:
        try:
            payload = pack(block)
        except ValueError:  # the block exceeds the format's size limit: it is dropped, the next one may fit
            rows = sum(len(table["start"]) for table in (block.get("spans"), block.get("steps")) if table)
            self._losses.append(("journal_overflow", max(rows, 1)))
            return
        self._frames.append(payload)

    def _give_up(self, error: Exception) -> None:
        """Stop recording, log the error once, and keep the loss for the last block and the manifest."""
        if self._failed:
            return
        self._failed = True
        self._room = 0
        for queue in self._queues:
            queue.clear()
        loss, reason = write_failure(error)
        self._losses.append((loss, 1))
        self.warn(self.path, reason)

    def warn(self, path: Path, reason: str) -> None:
        """Log that a file of this recording could not be written; only the first one."""
        if not self._warned:
            self._warned = True
            _LOG.warning("stepscope: cannot write %s (%s): recording stops here, training goes on.", path, reason)

    def _become_inert(self) -> None:
        """Drop everything in a forked child: the file and the thread belong to the parent."""
        self._room = 0
        for queue in self._queues:
            queue.clear()
        self._frames.close()


class _NativeThread(threading.local):
    """The calling thread's native id, cached (the system call takes 0.2 µs)."""

    def __init__(self) -> None:
        self.thread = threading.get_native_id()


#: Journals that are open in this process.
_OPEN: weakref.WeakSet[Journal] = weakref.WeakSet()


def _after_fork() -> None:
    for journal in list(_OPEN):
        journal._become_inert()
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _take(queue: deque[Any]) -> list[Any]:
    """Remove and return the records of one block; other threads may append meanwhile, as both ends are atomic."""
    return [queue.popleft() for _ in range(min(len(queue), _BLOCK_ROWS))]


class _NameTable:
    """Numbers texts in order of first occurrence."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def numbers(self, values: Iterable[object]) -> list[int]:
        index = self._index
        return [index.setdefault(value if type(value) is str else text(value), len(index)) for value in values]

    def texts(self) -> list[str]:
        return [text(value) for value in self._index]


def _encode_spans(rows: list[Span], names: _NameTable) -> dict[str, Any]:
    if not rows:
        return {}
    thread, start, end, name, kind, args = zip(*rows, strict=True)
    return {
        "thread": thread,
        "start": start,
        "dur": [last - first for first, last in zip(start, end, strict=True)],
        "name": names.numbers(name),
        "kind": names.numbers(kind),
        "args": [_encode_args(row) if row else None for row in args],
    }


def _encode_args(args: Mapping[str, object]) -> str:
    try:
        encoded = _ENCODER.encode(args)
        encoded.encode("utf-8")
    except (TypeError, ValueError):  # not JSON, nan or infinity, a circular reference, a lone surrogate
        return json.dumps({text(key): plain(value) for key, value in args.items()})
    return encoded


def _encode_steps(rows: list[Step], names: _NameTable) -> dict[str, Any]:
    if not rows:
        return {}
    number, start, end, source = zip(*rows, strict=True)
    # Clamped: two threads that step concurrently may read the clock in one order and append in the other.
    dur = [max(last - first, 0) for first, last in zip(start, end, strict=True)]
    return {"number": number, "start": start, "dur": dur, "source": names.numbers(source)}


def _encode_counters(rows: list[Counter], names: _NameTable) -> dict[str, Any]:
    if not rows:
        return {}
    at, lane, name, value, unit = zip(*rows, strict=True)
    return {
        "time": at,
        "lane": names.numbers(lane),
        "name": names.numbers(name),
        "value": [finite(number) for number in value],
        "unit": names.numbers(unit),
    }
