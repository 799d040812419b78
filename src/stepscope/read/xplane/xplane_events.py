"""Events of a line → columns, some ten thousand at a time: in C if it is built, else the same in numpy.

The format is ``xplane.proto`` of XLA (``third_party/tsl/tsl/profiler/protobuf``). An event is the number of its
metadata, which has the name, a time and stats; a stat is the number of its metadata, and a value in one of several
fields. Protocol buffers leave out what is 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.native import xplane as native
from stepscope.read.common.nesting import Integers
from stepscope.read.common.protobuf import BLOCK, CUT_BLOCK, DAMAGED, FIXED64, VARINT, Fields, Messages, fields_of

# Fields of XLine, XEvent and XStat.
_ID, _NAME, _TIMESTAMP, _EVENTS, _DISPLAY_NAME = 1, 2, 3, 4, 11
_METADATA, _OFFSET, _DURATION, _STATS, _OCCURRENCES = 1, 2, 3, 4, 5
#: Fields of the values of stats, and how they are written.
DOUBLE, UNSIGNED, SIGNED, TEXT, BYTES, REFERENCE, COMPRESSED = 2, 3, 4, 5, 6, 7, 8
_WIRE = {
    DOUBLE: FIXED64,
    UNSIGNED: VARINT,
    SIGNED: VARINT,
    TEXT: BLOCK,
    BYTES: BLOCK,
    REFERENCE: VARINT,
    COMPRESSED: BLOCK,
}
_IS_DAMAGED, _IS_AGGREGATE = 1, 2

#: XplaneEvents decoded at once: so few that their columns stay small beside the file.
BATCH = 1 << 16
#: In numpy every field of theirs is a row of a table.
_SMALL_BATCH = 1 << 13


@dataclass(frozen=True)
class Line:
    """A line of a plane: a thread, a stream, or a lane of a device.

    Attributes:
        id: Its number; of a thread, what the recorder knows it by.
        name: Its name, as bytes.
        timestamp: The time that its events count from, ns.
        start: First place of its fields in the plane.
        end: First place behind them.
        broken: Whether it holds bytes that are not a field, or ends inside one.
    """

    id: int
    name: bytes
    timestamp: int
    start: int
    end: int
    broken: bool


@dataclass(frozen=True, eq=False)
class XplaneStats:
    """Stats of events, in order of event.

    Attributes:
        owner: Number of the event.
        key: Number of the stat's metadata.
        field: Number of the field that holds the value, 0: none.
        value: Integer; 64 bits of a double; or first place of a text.
        end: First place behind a text.
    """

    owner: Integers
    key: Integers
    field: npt.NDArray[np.uint8]
    value: Integers
    end: Integers

    def where(self, chosen: npt.NDArray[np.bool_]) -> XplaneStats:
        """Return some of them."""
        rows = np.flatnonzero(chosen)
        owner, key, value, end = (column[rows] for column in (self.owner, self.key, self.value, self.end))
        return XplaneStats(owner, key, self.field[rows], value, end)


@dataclass(frozen=True, eq=False)
class XplaneEvents:
    """Events of one line.

    Attributes:
        metadata: Number of each event's metadata.
        offset: Start behind the line's time, ps.
        duration: ps.
        damaged: Which cannot be read to their end.
        aggregate: Which are sums over many, without a time.
        stats: Their stats.
    """

    metadata: Integers
    offset: Integers
    duration: Integers
    damaged: npt.NDArray[np.bool_]
    aggregate: npt.NDArray[np.bool_]
    stats: XplaneStats


def line(content: bytearray, start: int, end: int) -> Line:
    """Return what the line between two places of a plane says of itself."""
    walked = native.walk(np.frombuffer(content, np.uint8), start, end)
    if walked is None:
        return _line_in_python(content, start, end)
    head = walked.head
    name = (head.display, head.display_end) if head.display_end > head.display else (head.name, head.name_end)
    return Line(head.id, bytes(content[slice(*name)]), head.timestamp, start, end, bool(head.broken))


def batches(content: bytearray, line: Line) -> Iterator[XplaneEvents]:
    """Yield the events of a line, at most :data:`BATCH` at once; one that the line ends in is left out."""
    buffer = np.frombuffer(content, np.uint8)
    at = line.start
    while at < line.end:
        walked = native.walk(buffer, at, line.end, BATCH)
        if walked is None:
            yield from _batches_in_python(content, line)
            return
        if walked.head.events:
            yield _events(native.events(buffer, at, walked.place, walked.head))
        at = walked.place


def _events(columns: dict[str, Any]) -> XplaneEvents:
    state = columns["state"]
    stats = XplaneStats(*(columns[name] for name in ("owner", "key", "field", "value", "end")))
    return XplaneEvents(
        columns["metadata"],
        columns["offset"],
        columns["duration"],
        (state & _IS_DAMAGED).astype(np.bool_),
        (state & _IS_AGGREGATE).astype(np.bool_),
        stats,
    )


def _line_in_python(content: bytearray, start: int, end: int) -> Line:
    integers, texts = {_ID: 0, _TIMESTAMP: 0}, {_NAME: b"", _DISPLAY_NAME: b""}
    broken = False
    for number, wire, value, first, behind in fields_of(content, start, end):
        broken |= wire in (CUT_BLOCK, DAMAGED)
        if wire == VARINT and number in integers:
            integers[number] = value
        elif wire == BLOCK and number in texts:
            texts[number] = bytes(content[first:behind])
    return Line(integers[_ID], texts[_DISPLAY_NAME] or texts[_NAME], integers[_TIMESTAMP], start, end, broken)


def _batches_in_python(content: bytearray, line: Line) -> Iterator[XplaneEvents]:
    fields = fields_of(content, line.start, line.end)
    places = ((first, behind) for number, wire, _, first, behind in fields if (number, wire) == (_EVENTS, BLOCK))
    while batch := list(islice(places, _SMALL_BATCH)):
        start, end = np.array(batch, np.int64).T
        yield _events_in_python(Messages(content, start, end))


def _events_in_python(events: Messages) -> XplaneEvents:
    fields = events.fields()
    owner, messages = fields.within(_STATS)
    stats = messages.fields()
    damaged = fields.broken.copy()
    damaged[owner[stats.broken]] = True
    metadata, offset, duration = (_integers(fields, place) for place in (_METADATA, _OFFSET, _DURATION))
    return XplaneEvents(metadata, offset, duration, damaged, _is_aggregate(fields), _stats(stats, owner))


def stats_of(messages: Messages) -> XplaneStats:
    """Return stats that belong to something else than an event; each belongs to itself."""
    return _stats(messages.fields(), np.arange(len(messages)))


def _stats(fields: Fields, owner: Integers) -> XplaneStats:
    key = np.where(fields.broken, 0, _integers(fields, _METADATA))
    return XplaneStats(owner, key, *_values(fields))


def _integers(fields: Fields, number: int) -> Integers:
    return fields.integers(number).fill_null(0).to_numpy()


def _values(stats: Fields) -> tuple[npt.NDArray[np.uint8], Integers, Integers]:
    """Return the number of the field that holds each stat's value, the value, and the end of a text; 0 of damaged."""
    count = len(stats.messages)
    number, value, end = np.zeros(count, np.uint8), np.zeros(count, np.int64), np.zeros(count, np.int64)
    wire = np.full(COMPRESSED + 1, -1)
    wire[list(_WIRE)] = list(_WIRE.values())
    table = stats.table[(stats.table[:, 1] >= DOUBLE) & (stats.table[:, 1] <= COMPRESSED)]
    table = table[(table[:, 2] == wire[table[:, 1]]) & ~stats.broken[table[:, 0]]]
    is_text = table[:, 2] == BLOCK
    owner = table[:, 0]
    number[owner] = table[:, 1]
    value[owner] = np.where(is_text, table[:, 4], table[:, 3])
    end[owner] = np.where(is_text, table[:, 5], 0)
    return number, value, end


def _is_aggregate(events: Fields) -> npt.NDArray[np.bool_]:
    """Return which events say last how often something occurred, not when."""
    aggregate = np.zeros(len(events.messages), np.bool_)
    timed = (events.table[:, 2] == VARINT) & np.isin(events.table[:, 1], (_OFFSET, _OCCURRENCES))
    rows = events.table[timed]
    aggregate[rows[:, 0]] = rows[:, 1] == _OCCURRENCES
    return aggregate
