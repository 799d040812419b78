"""Events from JSON text with the C tokenizer: one chunk per core at once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from queue import SimpleQueue

from stepscope import native
from stepscope.native.kineto import ArgumentKey, Description, NotTokenized, Tokenizer
from stepscope.read.chrome_json.columns import ChromeBatch, class_columns
from stepscope.read.chrome_json.event_schema import (
    CLASS_OF_CATEGORY,
    COLLECTIVE_IN,
    COLLECTIVE_MARK,
    FIELDS,
    WHOLE,
    Class,
)

#: More cores than this only wait for memory and for the file.
_MOST_CORES = 8


def available() -> bool:
    """Return whether the C tokenizer can be used."""
    return native.available() is None


def cores() -> int:
    """Return the number of cores this process may use for reading."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, _MOST_CORES)


@cache
def description() -> Description:
    """Return the description of Kineto's events as the tokenizer takes it."""
    columns: dict[int, dict[str, str]] = {
        kind: {item.column: item.type for item in fields} | ({"arguments": "text"} if kind in WHOLE else {})
        for kind, fields in {**dict.fromkeys(WHOLE, ()), **FIELDS}.items()
    }
    keys: dict[int, list[ArgumentKey]] = {}
    for kind in FIELDS:
        if kind is not Class.COLLECTIVE:
            keys[kind] = _keys(kind)
            keys[kind] += _keys(Class.COLLECTIVE) if kind in COLLECTIVE_IN else []
    mark = next(place for place, item in enumerate(FIELDS[Class.COLLECTIVE]) if item is COLLECTIVE_MARK)
    return Description(
        categories=CLASS_OF_CATEGORY,
        keys=keys,
        columns=columns,
        whole={kind: list(columns[kind]).index("arguments") for kind in WHOLE},
        none=Class.NONE,
        memory=Class.MEMORY,
        other=Class.OTHER,
        optional=(Class.COLLECTIVE, mark),
    )


def _keys(kind: Class) -> list[ArgumentKey]:
    return [
        ArgumentKey(spelling, place, item.type, kind)
        for place, item in enumerate(FIELDS[kind])
        for spelling in item.spellings
    ]


@dataclass(frozen=True)
class _Slice:
    """The rows that a chunk became in a tokenizer: first and end, of all events and of each class."""

    worker: int
    rows: tuple[int, int]
    classes: dict[Class, tuple[int, int]]


class Tokenizers:
    """Tokenizes the chunks of one file, as many at once as ``workers``; 1 does it in the calling thread."""

    def __init__(self, workers: int) -> None:
        self._tokenizers = [Tokenizer(description()) for _ in range(workers)]
        self._free: SimpleQueue[int] = SimpleQueue()
        for worker in range(workers):
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(workers, "stepscope-read") if workers > 1 else None

    def submit(self, chunk: bytes | memoryview) -> Future[_Slice]:
        """Queue a chunk; the result raises :class:`NotTokenized` if the chunk must be read another way."""
        if self._threads is not None:
            return self._threads.submit(self._tokenize, chunk)
        future: Future[_Slice] = Future()
        try:
            future.set_result(self._tokenize(chunk))
        except NotTokenized as reason:
            future.set_exception(reason)
        return future

    def _tokenize(self, chunk: bytes | memoryview) -> _Slice:
        worker = self._free.get()
        try:
            return self._slice(worker, chunk)[0]
        finally:
            self._free.put(worker)

    def tokenize_last(self, chunk: bytes | memoryview) -> tuple[_Slice, int]:
        """Tokenize the last chunk now; return its rows, and the offset at which the list of events ends."""
        worker = self._free.get()
        try:
            return self._slice(worker, chunk, last=True)
        finally:
            self._free.put(worker)

    def _slice(self, worker: int, chunk: bytes | memoryview, *, last: bool = False) -> tuple[_Slice, int]:
        tokenizer = self._tokenizers[worker]
        row, before = tokenizer.rows, {kind: tokenizer.class_rows(kind) for kind in Class}
        end = tokenizer.tokenize(chunk, last=last)
        classes = {kind: (before[kind], tokenizer.class_rows(kind)) for kind in Class}
        return _Slice(worker, (row, tokenizer.rows), classes), end

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def batches(self, parts: Iterable[_Slice | ChromeBatch], first_pool: int) -> list[ChromeBatch]:
        """Return the events of slices, and of batches that were read another way, as batches.

        Args:
            parts: In the file's order.
            first_pool: Number of the first tokenizer's pool.
        """
        base = [tokenizer.base() for tokenizer in self._tokenizers]
        columns = [
            {kind: tokenizer.columns(kind) for kind in description().columns if tokenizer.class_rows(kind)}
            for tokenizer in self._tokenizers
        ]
        result = []
        for part in _without_seams(parts):
            if isinstance(part, ChromeBatch):
                result.append(part)
                continue
            begin, end = part.rows
            classes = {}
            for kind, (first, behind) in part.classes.items():
                if behind > first:
                    classes[kind] = {
                        name: columns[part.worker][kind][name][first:behind] for name in class_columns(kind)
                    }
                    if begin:
                        classes[kind]["event"] = classes[kind]["event"] - begin
            whole = {name: column[begin:end] for name, column in base[part.worker].items()}
            result.append(ChromeBatch(whole, classes, first_pool + part.worker))
        return result

    def pools(self) -> list[list[bytes]]:
        """Return the pools of texts of all tokenizers."""
        return [tokenizer.texts() for tokenizer in self._tokenizers]


def _without_seams(parts: Iterable[_Slice | ChromeBatch]) -> list[_Slice | ChromeBatch]:
    """Join slices that follow each other in one tokenizer, so that their columns need no copy."""
    joined: list[_Slice | ChromeBatch] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, _Slice) and isinstance(last, _Slice) and last.worker == part.worker:
            if last.rows[1] != part.rows[0]:
                joined.append(part)
                continue
            classes = {kind: (last.classes[kind][0], part.classes[kind][1]) for kind in part.classes}
            joined[-1] = _Slice(part.worker, (last.rows[0], part.rows[1]), classes)
        else:
            joined.append(part)
    return joined
