"""Words of the recorder → one row per operator, and where memory was reported.

What words mean is explained in :mod:`stepscope.collect.torch.native_collector`. The walk over them is the C library's;
:func:`walk_in_python` does the same without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.native import recorder_words as native
from stepscope.native.recorder_words import Walk
from stepscope.read.common.nesting import Integers
from stepscope.read.recorder.recorder_blocks import RecorderContent, WordBlock, Words
from stepscope.trace.losses import LossLedger
from stepscope.trace.recorder_layout import Definition, Tag

#: Open operators of one thread that are followed; the recorder follows 512.
_ROOM = 1 << 16
_VALUE_BITS = (1 << 60) - 1
_NAME_BITS, _NAME_SHIFT, _SCOPE_SHIFT = (1 << 20) - 1, 36, 56
_SEQUENCE_BITS = (1 << _NAME_SHIFT) - 1
_BYTES_IN_RAW = 7
_VALUES_OF_MEMORY = 5
#: Words that may follow a NAME, in this order, by the column of their value.
_OPTIONAL = {"inputs": Tag.INPUTS, "forward": Tag.FORWARD, "identity": Tag.IDENTITY, "line": Tag.LINE,
             "launch": Tag.LAUNCH}  # fmt: skip
#: Words whose value is a time.
_TIMED = np.array([Tag.BEGIN, Tag.END, Tag.END_OF, Tag.MEMORY], np.uint64)


class State(IntEnum):
    """What became of an operator, as the C library numbers it."""

    OPEN = 0
    ENDED = 1
    LOST = 2


@dataclass
class Operators:
    """One entry per operator that began, thread after thread in order of time.

    Attributes:
        thread: Number of the thread in the file.
        begin: Ticks.
        end: Ticks; 0 where no end is known.
        state: A :class:`State`.
        scope: ``at::RecordScope``, or that of Python functions.
        name: Index in ``names``.
        sequence: Autograd's sequence number; -1 where it has none.
        forward: Torch's number of the thread of the forward operator; 0 where it has none.
        inputs: Index in ``input_texts``; 0 if they were not recorded.
        line: Line that the Python call around it executed; 0 where it is unknown.
        launch: Value of its LAUNCH word; 0 where it has none.
        names: Texts of names; the first stands for a name that is lost.
        input_texts: Definitions of inputs; the first stands for none.
        gaps: From when to when, in ticks, operators are missing: of a damaged block, or dropped by a thread.
    """

    thread: npt.NDArray[np.int32]
    begin: Words
    end: Words
    state: npt.NDArray[np.uint8]
    scope: npt.NDArray[np.uint8]
    name: npt.NDArray[np.int32]
    sequence: Integers
    forward: Integers
    inputs: npt.NDArray[np.int32]
    line: npt.NDArray[np.int32]
    launch: Words
    names: list[bytes]
    input_texts: list[bytes]
    gaps: list[tuple[int, int]]


@dataclass
class MemoryReports:
    """One entry per report of memory: thread, ticks, address, bytes, allocated, reserved, and device as recorded."""

    thread: npt.NDArray[np.int32]
    ticks: Words
    values: Integers


@dataclass
class _Found:
    """What the walk over all blocks finds besides the columns."""

    thread_rows: list[tuple[int, int]] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)
    memory: list[tuple[int, Words]] = field(default_factory=list)
    unmatched: int = 0
    damaged: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    dropped: list[tuple[int, int]] = field(default_factory=list)


def decode(content: RecorderContent, ledger: LossLedger) -> tuple[Operators, MemoryReports]:
    """Return the operators and reports of memory of a file."""
    reader = _WordReader(content)
    reader.read()
    ledger.add("event_unmatched_end", reader.found.unmatched)
    ledger.add("event_damaged", reader.found.damaged)
    return reader.operators(ledger), reader.memory()


class _ContentPool:
    """Distinct contents of definitions; the first stands for numbers whose definition is missing."""

    def __init__(self) -> None:
        self.contents: list[bytes] = [b""]
        self._places: dict[bytes, int] = {}

    def place(self, content: bytes) -> int:
        """Return the index of a content; the first call with it appends it."""
        place = self._places.setdefault(content, len(self.contents))
        if place == len(self.contents):
            self.contents.append(content)
        return place


class _ChunkDefinitions:
    """The definitions of one sort in one chunk."""

    def __init__(self, pool: _ContentPool) -> None:
        self._pool = pool
        self._places: dict[int, int] = {}

    def add(self, number: int, content: bytes) -> None:
        """Take one definition."""
        self._places[number] = self._pool.place(content)

    def places(self, numbers: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Return the index in the pool of each number, 0 for undefined ones.

        The table has an entry per number up to the largest; its untouched pages take no memory.
        """
        if not self._places:
            return np.zeros(len(numbers), np.int32)
        table = np.zeros(max(self._places) + 2, np.int32)
        table[list(self._places)] = list(self._places.values())
        table[0] = 0
        return np.take(table, numbers.view(np.int64) if numbers.itemsize == 8 else numbers, mode="clip")


class _WordReader:
    """Walks over the blocks of a file, thread after thread."""

    def __init__(self, content: RecorderContent) -> None:
        self._content = content
        words = sum(len(block.words) for block in content.blocks)
        most = max((len(block.words) for block in content.blocks), default=0)
        # An operator takes two words at least, as does an end by identity. What is not used is never touched.
        self._columns: dict[str, Any] = {
            name: np.empty(words // 2 + 1, dtype) for name, dtype in native.OPERATOR_COLUMNS.items()
        }
        self._columns |= {name: np.empty(most, dtype) for name, dtype in native.PLACE_COLUMNS.items()}
        self._columns |= {name: np.empty(words // 2 + 1, dtype) for name, dtype in native.ENDING_COLUMNS.items()}
        self._stack = np.empty(_ROOM, np.int64)
        self._walk = Walk()
        self._names, self._inputs = _ContentPool(), _ContentPool()
        self._name = np.zeros(words // 2 + 1, np.int32)
        self.found = _Found()

    def read(self) -> None:
        for thread, blocks in groupby(self._content.blocks, key=lambda block: block.thread):
            first, first_end = self._walk.rows, self._walk.endings
            self._read_thread(thread, list(blocks))
            self.found.thread_rows.append((thread, self._walk.rows - first))
            self.found.ends.append((thread, self._walk.endings - first_end))
        self.found.unmatched, self.found.damaged = self._walk.unmatched, self._walk.damaged

    def _read_thread(self, thread: int, blocks: list[WordBlock]) -> None:
        self._walk.depth = 0
        self._walk.unknown = -1
        for before, block in pairwise(blocks):
            if not block.follows:
                gap = _bounds(before.words)[1], _bounds(block.words)[0]
                self.found.gaps.append(gap)
                if block.dropped and not block.place:
                    self.found.dropped.append(gap)
        for _, in_chunk in groupby(blocks, key=lambda block: block.chunk):
            self._read_chunk(thread, in_chunk)
        if thread not in self._content.whole:
            self._lose_open()

    def _read_chunk(self, thread: int, blocks: Iterable[WordBlock]) -> None:
        """Walk over the blocks of one chunk, whose definitions they share."""
        names, inputs = _ChunkDefinitions(self._names), _ChunkDefinitions(self._inputs)
        begin = self._walk.rows
        for block in blocks:
            if not block.follows:
                self._lose_open()
                self._walk.unknown = -1
            self._walk.memories = self._walk.definitions = 0
            if not native.words(block.words, self._walk, self._stack, self._columns):
                walk_in_python(block.words, self._walk, self._stack, self._columns)
            self._define(block.words, names, inputs)
            at = self._columns["memory"][: self._walk.memories]
            if len(at):
                places = at[:, None] + np.arange(_VALUES_OF_MEMORY + 1)
                self.found.memory.append((thread, block.words[places] & np.uint64(_VALUE_BITS)))
        rows = slice(begin, self._walk.rows)
        numbers = self._columns["name"][rows] >> np.uint64(_NAME_SHIFT)
        self._name[rows] = names.places(numbers & np.uint64(_NAME_BITS))
        self._columns["inputs"][rows] = inputs.places(self._columns["inputs"][rows])

    def _lose_open(self) -> None:
        """Mark the open operators as lost: words are missing, so their ends are unknown."""
        self._columns["state"][self._stack[: self._walk.depth]] = State.LOST
        self._walk.depth = 0

    def _define(self, words: Words, names: _ChunkDefinitions, inputs: _ChunkDefinitions) -> None:
        """Take the definitions of a block."""
        at = self._columns["definition"][: self._walk.definitions]
        heads = words[at]
        raw = words.view(np.uint8).reshape(-1, 8)
        for place, head in zip(at.tolist(), heads.tolist(), strict=True):
            length = head & 0xFFFFFFFF
            sort, number = head >> 56 & 15, head >> 32 & 0xFFFFFF
            content = raw[place + 1 : place + 1 + -(-length // _BYTES_IN_RAW), :_BYTES_IN_RAW].tobytes()[:length]
            if sort == Definition.NAME:
                names.add(number, content)
            elif sort == Definition.INPUTS:
                inputs.add(number, content)

    def memory(self) -> MemoryReports:
        parts = self.found.memory
        rows = np.concatenate([part for _, part in parts] or [np.zeros((0, _VALUES_OF_MEMORY + 1), np.uint64)])
        thread = np.repeat([thread for thread, _ in parts], [len(part) for _, part in parts]).astype(np.int32)
        # Signed numbers of 60 bits.
        values = (rows[:, 1:] << np.uint64(4)).view(np.int64) >> 4
        return MemoryReports(thread, np.ascontiguousarray(rows[:, 0]), values)

    def operators(self, ledger: LossLedger) -> Operators:
        count, columns = self._walk.rows, self._columns
        word = columns["name"][:count]
        scope = (word >> np.uint64(_SCOPE_SHIFT)).astype(np.uint8)
        sequence = (word & np.uint64(_SEQUENCE_BITS)).view(np.int64) - 1
        found = Operators(
            thread=_repeated(self.found.thread_rows),
            begin=columns["begin"][:count],
            end=columns["end"][:count],
            state=columns["state"][:count],
            scope=scope,
            name=self._name[:count],
            sequence=sequence,
            forward=columns["forward"][:count].view(np.int64),
            inputs=columns["inputs"][:count].view(np.int32),
            line=columns["line"][:count].view(np.int32),
            launch=columns["launch"][:count],
            names=self._names.contents,
            input_texts=self._inputs.contents,
            gaps=[*self._content.missing, *self.found.dropped],
        )
        self._end_by_identity(found, ledger)
        return found

    def _end_by_identity(self, found: Operators, ledger: LossLedger) -> None:
        """Give operators that are on no stack their ends, where no other end can be theirs."""
        identity = self._columns["identity"][: self._walk.rows]
        rows = np.flatnonzero(identity)
        if not len(rows) and not self._walk.endings:
            return
        ended = self._columns["ended"][: self._walk.endings]
        behind = self._columns["ended_row"][: len(ended)]
        begun, ends, last = _pairs(
            _Marks(identity[rows], found.begin[rows], 2 * rows + 1),
            _Marks(self._columns["ended_identity"][: len(ended)], ended, 2 * behind),
        )
        gaps = _Gaps([*self._content.missing, *self.found.gaps])
        sure = ~gaps.between(found.begin[rows[begun]], ended[ends])
        found.state[rows] = State.LOST
        found.end[rows[begun[sure]]], found.state[rows[begun[sure]]] = ended[ends[sure]], State.ENDED
        open_rows = rows[last]
        open_rows = open_rows[~gaps.between(found.begin[open_rows], np.full(len(open_rows), _VALUE_BITS, np.uint64))]
        found.state[open_rows] = State.OPEN
        before = np.delete(ended, ends)
        lost = gaps.between(np.zeros(len(before), np.uint64), before)
        ledger.add("span_opened_before", int((~lost).sum()))
        ledger.add("event_unmatched_end", int(lost.sum()) + int((~sure).sum()))
        threads = _repeated(self.found.ends)[ends[sure]]
        ledger.add("span_other_thread", int((threads != found.thread[rows[begun[sure]]]).sum()))


class _Gaps:
    """Times, in ticks, between which words are missing."""

    def __init__(self, bounds: list[tuple[int, int]]) -> None:
        ordered = sorted(bounds)
        self._begin = np.array([begin for begin, _ in ordered], np.uint64)
        # The latest end of all that begin no later; before the first, nothing is missing.
        self._end = np.maximum.accumulate(np.array([0, *(end for _, end in ordered)], np.uint64))

    def between(self, begin: Words, end: Words) -> npt.NDArray[np.bool_]:
        """Return between which pairs of times something is missing."""
        missing: npt.NDArray[np.bool_] = self._end[np.searchsorted(self._begin, end)] > begin
        return missing


def _repeated(counts: list[tuple[int, int]]) -> npt.NDArray[np.int32]:
    """Return each number as often as it says."""
    return np.repeat([number for number, _ in counts], [count for _, count in counts]).astype(np.int32)


class _Marks(NamedTuple):
    """Beginnings or ends by identity: which, when, and in which order where times are equal."""

    identity: Words
    ticks: Words
    order: Integers


def _pairs(begun: _Marks, ended: _Marks) -> tuple[Integers, Integers, Integers]:
    """Match each end with the latest beginning of the same identity before it.

    Returns:
        Places of beginnings and of ends, in pairs; and those of beginnings behind which the identity is not seen again.
    """
    identity, ticks, order_ = (np.concatenate(columns) for columns in zip(begun, ended, strict=True))
    is_end = np.arange(len(identity)) >= len(begun.identity)
    order = np.lexsort((order_, ticks, identity))
    before, after = order[:-1], order[1:]
    same = identity[before] == identity[after]
    paired = same & ~is_end[before] & is_end[after]
    last = order[np.append(~same, True)]
    return before[paired], after[paired] - len(begun.identity), last[~is_end[last]]


def _bounds(words: Words) -> tuple[int, int]:
    """Return the first and the last time that words say; all times where they say none."""
    timed = words[np.isin(words >> np.uint64(60), _TIMED)] & np.uint64(_VALUE_BITS)
    return (int(timed[0]), int(timed[-1])) if len(timed) else (0, _VALUE_BITS)


def walk_in_python(words: Words, walk: Walk, stack: Integers, columns: dict[str, Any]) -> None:
    """Do what the C library does."""
    _Walker(words, walk, stack, columns).run()


class _Walker:
    """Walks over the words of one block, see ``native/recorder_words.c``."""

    def __init__(self, words: Words, walk: Walk, stack: Integers, columns: dict[str, Any]) -> None:
        self._tags: list[int] = (words >> np.uint64(60)).tolist()
        self._values: list[int] = (words & np.uint64(_VALUE_BITS)).tolist()
        self._walk, self._stack, self._columns = walk, stack, columns

    def run(self) -> None:
        steps: dict[int, Callable[[int], int]] = {
            Tag.BEGIN: self._begin,
            Tag.END: lambda at: self._end(at, 0),
            Tag.LEVEL: self._level,
            Tag.END_OF: self._end_of,
            Tag.DEPTH: self._depth,
            Tag.MEMORY: self._memory,
            Tag.DEFINE: self._define,
        }
        at = 0
        while at < len(self._tags):
            at = steps.get(self._tags[at], self._damaged)(at)

    def _tag(self, at: int) -> int:
        return self._tags[at] if at < len(self._tags) else 0

    def _run(self, at: int, tag: Tag, most: int) -> int:
        count = 0
        while count < most and self._tag(at + count) == tag:
            count += 1
        return count

    def _damaged(self, at: int) -> int:
        self._walk.damaged += 1
        return at + 1

    def _begin(self, at: int) -> int:
        if self._tag(at + 1) != Tag.NAME:
            return self._damaged(at)
        walk, columns = self._walk, self._columns
        row = walk.rows
        walk.rows += 1
        columns["begin"][row], columns["name"][row] = self._values[at], self._values[at + 1]
        at += 2
        for column, tag in _OPTIONAL.items():
            there = self._tag(at) == tag
            most = np.iinfo(columns[column].dtype).max
            columns[column][row] = self._values[at] & int(most) if there else 0
            at += there
        columns["end"][row], columns["state"][row] = 0, State.OPEN
        if columns["identity"][row]:
            return at
        if walk.depth < len(self._stack):
            self._stack[walk.depth] = row
            walk.depth += 1
        else:
            columns["state"][row] = State.LOST
        return at

    def _end(self, at: int, level: int) -> int:
        walk = self._walk
        if level >= walk.depth:
            walk.unmatched += 1
            walk.unknown -= walk.unknown > 0
            return at + 1
        place = walk.depth - 1 - level
        row = self._stack[place]
        self._columns["end"][row], self._columns["state"][row] = self._values[at], State.ENDED
        self._stack[place : walk.depth - 1] = self._stack[place + 1 : walk.depth].copy()
        walk.depth -= 1
        return at + 1

    def _level(self, at: int) -> int:
        if self._tag(at + 1) != Tag.END:
            return self._damaged(at)
        return self._end(at + 1, self._values[at])

    def _end_of(self, at: int) -> int:
        if self._tag(at + 1) != Tag.IDENTITY:
            return self._damaged(at)
        place = self._walk.endings
        self._columns["ended"][place], self._columns["ended_identity"][place] = self._values[at : at + 2]
        self._columns["ended_row"][place] = self._walk.rows
        self._walk.endings += 1
        return at + 2

    def _depth(self, at: int) -> int:
        walk, depth = self._walk, self._values[at]
        if walk.unknown < 0 or depth != walk.depth + walk.unknown:
            self._columns["state"][self._stack[: walk.depth]] = State.LOST
            walk.depth, walk.unknown = 0, depth
        return at + 1

    def _memory(self, at: int) -> int:
        if self._run(at + 1, Tag.VALUE, _VALUES_OF_MEMORY) != _VALUES_OF_MEMORY:
            return self._damaged(at)
        self._columns["memory"][self._walk.memories] = at
        self._walk.memories += 1
        return at + 1 + _VALUES_OF_MEMORY

    def _define(self, at: int) -> int:
        raw = -(-(self._values[at] & 0xFFFFFFFF) // _BYTES_IN_RAW)
        there = self._run(at + 1, Tag.RAW, raw)
        if there == raw:
            self._columns["definition"][self._walk.definitions] = at
            self._walk.definitions += 1
        else:
            self._walk.damaged += 1
        return at + 1 + there
