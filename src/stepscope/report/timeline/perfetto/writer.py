"""The timeline in Perfetto's own format, ``trace.pftrace``, for ui.perfetto.dev and its trace processor.

A fraction of the size of the JSON, and with tracks that are what they are instead of made-up process and thread
numbers. The encoder is ours and builds messages by column (:mod:`stepscope.report.timeline.perfetto.protobuf`), so
nothing has to be installed and writing keeps up with reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.report.protocol import Source
from stepscope.report.timeline.perfetto.head import NEEDS_TEXTS, TRACE_PACKET, Head, Packet
from stepscope.report.timeline.perfetto.protobuf import (
    Matrix,
    beside,
    blocks,
    doubles,
    fixed64,
    integer,
    integers,
    interleave,
)
from stepscope.report.timeline.slice_arguments import OWN, Argument
from stepscope.report.timeline.slices import Counter, Timeline, build
from stepscope.report.whole_files import replacing

Rows: TypeAlias = npt.NDArray[np.int64]
#: An argument and its values.
_Column: TypeAlias = tuple[Argument, pl.Series]

#: Begins and ends of slices whose bytes are in memory at one time.
_CHUNK = 200_000


class Event(IntEnum):
    """Fields of ``TrackEvent``."""

    CATEGORY = 3
    ARGUMENT = 4
    TYPE = 9
    NAME = 10
    TRACK = 11
    VALUE = 44
    FLOW = 47
    LAST_FLOW = 48


class Value(IntEnum):
    """Fields of ``DebugAnnotation``."""

    NAME = 1
    INTEGER = 4
    FLOAT = 5
    TEXT = 17


_BEGIN, _END, _SAMPLE = 1, 2, 4  # TrackEvent.Type


@dataclass(frozen=True)
class Pftrace:
    """``trace.pftrace``.

    It holds one slice for every row of ``spans``, and one for every row of ``steps`` on a track of their own.
    Files of several ranks whose process ids differ can be concatenated into one picture.
    """

    name: str = "pftrace"

    def write(self, source: Source, directory: Path) -> list[Path]:
        """Write the file; see :class:`stepscope.report.protocol.Format`."""
        return self.write_ranks([source], directory)

    def write_ranks(self, sources: Iterable[Source], directory: Path) -> list[Path]:
        """Write one file of several ranks; see :class:`stepscope.report.protocol.TimelineFormat`."""
        path = directory / "trace.pftrace"
        with replacing(path) as temporary, temporary.open("wb") as file:
            for place, source in enumerate(sources):
                timeline = build(source, step_name="step ", marked_steps=True)
                head = Head(timeline)
                for packet in head.packets(first=place == 0):
                    file.write(packet)
                for packets in _Slices(timeline, head).packets():
                    file.write(packets)
                for counter, uuid in zip(timeline.counters, head.counter_uuid, strict=True):
                    file.write(_samples(counter, uuid, head))
        return [path]


class _Slices:
    """The slices of a timeline as packets: a begin and an end each."""

    def __init__(self, timeline: Timeline, head: Head) -> None:
        self.timeline = timeline
        self.head = head
        self.lane = timeline.slices["lane"].to_numpy()
        self.ts = timeline.slices["ts"].to_numpy()
        self.end = self.ts + timeline.slices["dur"].to_numpy()
        numbers = np.arange(1, len(timeline.arrows) + 1) + (timeline.rank % (1 << 31) << 32)
        self.leaving = _Arrows(timeline.arrows["origin"].to_numpy(), numbers, len(self.ts))
        self.arriving = _Arrows(timeline.arrows["target"].to_numpy(), numbers, len(self.ts))

    def packets(self) -> Iterator[bytes]:
        """Yield the packets in order of time, some at a time."""
        order = _order(self.ts, self.end)
        for start in range(0, len(order), _CHUNK):
            yield self._some(order[start : start + _CHUNK])

    def _some(self, order: Rows) -> bytes:
        is_begin = order < len(self.ts)
        begins, ends = np.flatnonzero(is_begin), np.flatnonzero(~is_begin)
        groups = [(ends, self._ends(order[ends] - len(self.ts)))]
        rows = order[begins]
        ids = self.timeline.slices["id"].gather(rows)
        columns = [(argument, self.timeline.slices[argument.column].gather(rows)) for argument in OWN]
        columns = [column for column in columns + self.timeline.details.of(ids) if column[1].null_count() < len(rows)]
        groups += (
            (begins[members], self._begins(rows[members], _present(columns, members)))
            for members in self._shapes(rows, columns)
        )
        return interleave(len(order), groups)

    def _shapes(self, rows: Rows, columns: list[_Column]) -> list[Rows]:
        """Group slices that have the same arguments and the same number of arrows: their messages have one shape."""
        present = np.zeros(len(rows), np.int64)
        for index, (_, values) in enumerate(columns):
            present |= values.is_not_null().to_numpy().astype(np.int64) << index
        shape = np.unique(present, return_inverse=True)[1]
        for arrows in (self.leaving, self.arriving):
            count = arrows.count[rows]
            shape = np.unique(shape * (int(count.max(initial=0)) + 1) + count, return_inverse=True)[1]
        by_shape = np.argsort(shape, kind="stable")
        return np.split(by_shape, np.flatnonzero(np.diff(shape[by_shape])) + 1) if len(rows) else []

    def _begins(self, rows: Rows, columns: list[_Column]) -> Matrix:
        kind = self.timeline.slices["kind"].gather(rows)
        name = self.timeline.slices["name"].gather(rows).to_numpy().astype(np.int64)
        content: list[bytes | Matrix] = [
            integer(Event.TYPE, _BEGIN),
            integers(Event.TRACK, self.head.lane_uuid[self.lane[rows]]),
            integers(Event.CATEGORY, kind.replace_strict(self.head.category_number).to_numpy()),
            integers(Event.NAME, name + 1),
            *(blocks(Event.ARGUMENT, self._argument(*column)) for column in columns),
            *(fixed64(Event.FLOW, flow) for flow in self.leaving.of(rows).T),
            *(fixed64(Event.LAST_FLOW, flow) for flow in self.arriving.of(rows).T),
        ]
        return _packets(self.ts[rows], beside(len(rows), *content), self.head.sequence + NEEDS_TEXTS)

    def _argument(self, argument: Argument, values: pl.Series) -> Matrix:
        name = integer(Value.NAME, self.head.argument_number[argument.name])
        if argument.form == "float":
            value = doubles(Value.FLOAT, values.to_numpy())
        elif argument.form == "text":
            value = integers(Value.TEXT, values.to_numpy().astype(np.int64) + 1)
        else:
            value = integers(Value.INTEGER, values.to_numpy().astype(np.int64))
        return beside(len(values), name, value)

    def _ends(self, rows: Rows) -> Matrix:
        track = integers(Event.TRACK, self.head.lane_uuid[self.lane[rows]])
        return _packets(self.end[rows], beside(len(rows), integer(Event.TYPE, _END), track), self.head.sequence)


class _Arrows:
    """The arrows at one of their ends, by slice.

    Args:
        slices: Slice at this end of each arrow.
        numbers: Number of each arrow.
        count: Number of slices.
    """

    def __init__(self, slices: Rows, numbers: Rows, count: int) -> None:
        self.count = np.bincount(slices, minlength=count)
        self._first = np.cumsum(self.count) - self.count
        self._numbers = numbers[np.argsort(slices, kind="stable")]

    def of(self, rows: Rows) -> Rows:
        """Return the arrows of slices that have equally many: one row per slice."""
        each = int(self.count[rows[0]]) if len(rows) else 0
        found: Rows = self._numbers[self._first[rows][:, None] + np.arange(each)]
        return found


def _order(ts: Rows, end: Rows) -> Rows:
    """Return begins (numbers below the count of slices) and ends (count + number) in the order a stack needs.

    At one time, first the ends of what began earlier, innermost first, then the begins, longest first, with the end of
    a slice without duration right after its begin. The slices are ordered by start, longest first, on each lane.
    """
    index = np.arange(len(ts))
    tie_of_end = np.where(end > ts, -1 - index, 2 * index + 1)
    return np.lexsort((np.concatenate((2 * index, tie_of_end)), np.concatenate((ts, end))))


def _present(columns: list[_Column], members: Rows) -> list[_Column]:
    """Return the arguments that the members have, which all have the same ones."""
    return [(argument, values.gather(members)) for argument, values in columns if values[int(members[0])] is not None]


def _packets(ts: Rows, event: Matrix, constant: bytes) -> Matrix:
    content = beside(len(ts), integers(Packet.TIMESTAMP, ts), blocks(Packet.TRACK_EVENT, event), constant)
    return blocks(TRACE_PACKET, content)


def _samples(counter: Counter, uuid: int, head: Head) -> bytes:
    value = doubles(Event.VALUE, counter.samples["value"].to_numpy())
    event = beside(len(value), integer(Event.TYPE, _SAMPLE), integer(Event.TRACK, uuid), value)
    return _packets(counter.samples["ts"].to_numpy(), event, head.sequence).tobytes()
