"""The head of a Perfetto trace: the clock, the texts that slices name by number, and the tracks.

Field numbers are those of Perfetto's public ``.proto`` files, which never change.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import numpy as np

from stepscope.report.timeline.perfetto.protobuf import block, integer, text
from stepscope.report.timeline.places import Lane
from stepscope.report.timeline.slice_arguments import OWN
from stepscope.report.timeline.slices import Timeline
from stepscope.trace.schema import KINDS

#: ``Trace.packet``
TRACE_PACKET = 1


class Packet(IntEnum):
    """Fields of ``TracePacket``."""

    CLOCK_SNAPSHOT = 6
    TIMESTAMP = 8
    SEQUENCE = 10
    TRACK_EVENT = 11
    INTERNED_DATA = 12
    SEQUENCE_FLAGS = 13
    TRACK_DESCRIPTOR = 60


class Interned(IntEnum):
    """Fields of ``InternedData``."""

    CATEGORY = 1
    NAME = 2
    ARGUMENT_NAME = 3
    TEXT = 29


class Track(IntEnum):
    """Fields of ``TrackDescriptor``."""

    UUID = 1
    NAME = 2
    PROCESS = 3
    THREAD = 4
    PARENT = 5
    COUNTER = 8
    CHILD_ORDERING = 11
    ORDER = 12
    SIBLING_MERGE = 15


#: Values of ``TracePacket.sequence_flags``: the texts begin here; texts that came before are meant.
_CLEARED = integer(Packet.SEQUENCE_FLAGS, 1)
NEEDS_TEXTS = integer(Packet.SEQUENCE_FLAGS, 2)
_EXPLICIT = 3  # TrackDescriptor.ChildTracksOrdering
_NEVER = 2  # TrackDescriptor.SiblingMergeBehavior
_BYTES = 3  # CounterDescriptor.Unit
_REALTIME, _BOOTTIME = 1, 6  # BuiltinClock; the latter is that of packets that name none
#: Bytes of interned text in one packet.
_LARGEST_PACKET = 1 << 20
_RANKS = 1 << 31


class Head:
    """The numbers that slices use for tracks and texts, and the packets that say what they mean.

    Args:
        timeline: What is drawn.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        rank = timeline.rank % _RANKS
        #: One sequence of packets a rank, and a range of track numbers: files of several ranks can be concatenated.
        self.sequence = integer(Packet.SEQUENCE, rank + 1)
        first = (rank << 24) + 1
        self.process_uuid = {process: first + number for number, process in enumerate(timeline.processes)}
        first += len(timeline.processes)
        self.lane_uuid = np.arange(first, first + len(timeline.lanes))
        first += len(timeline.lanes)
        self.counter_uuid = range(first, first + len(timeline.counters))
        found = (argument for each in timeline.details.arguments.values() for argument in each)
        names = dict.fromkeys(argument.name for argument in (*OWN, *found))
        self.argument_number = {name: number for number, name in enumerate(names, 1)}
        self.category_number = {kind: number for number, kind in enumerate(KINDS, 1)}

    def packets(self, *, first: bool = True) -> Iterator[bytes]:
        """Yield the head, a packet at a time; the ``first`` of several ranks says of the clocks what holds for all."""
        yield self._clocks() if first else self._packet(_CLEARED)
        yield from self._texts()
        yield from self._tracks()

    def _clocks(self) -> bytes:
        """Times count from the Unix epoch: saying so lets the viewer show the time of day."""
        start = max(self.timeline.start, 0)
        clocks = b"".join(block(1, integer(1, clock) + integer(2, start)) for clock in (_REALTIME, _BOOTTIME))
        snapshot = block(Packet.CLOCK_SNAPSHOT, clocks + integer(2, _BOOTTIME))
        return self._packet(snapshot + integer(Packet.TIMESTAMP, start) + _CLEARED)

    def _texts(self) -> Iterator[bytes]:
        vocabularies = (
            (Interned.CATEGORY, list(self.category_number)),
            (Interned.ARGUMENT_NAME, list(self.argument_number)),
            (Interned.NAME, self.timeline.names.texts),
            (Interned.TEXT, self.timeline.details.texts.texts),
        )
        pending = bytearray()
        for field, words in vocabularies:
            for number, word in enumerate(words, 1):
                pending += block(field, integer(1, number) + text(2, word))
                if len(pending) > _LARGEST_PACKET:
                    yield self._interned(pending)
                    pending = bytearray()
        yield self._interned(pending)

    def _interned(self, content: bytearray) -> bytes:
        return self._packet(block(Packet.INTERNED_DATA, bytes(content)) + NEEDS_TEXTS)

    def _tracks(self) -> Iterator[bytes]:
        for process, uuid in self.process_uuid.items():
            described = integer(1, process.pid) + integer(3, process.order) + text(6, process.name)
            described += text(8, self.timeline.label) if self.timeline.label and not process.order else b""
            yield self._track(uuid, block(Track.PROCESS, described) + integer(Track.CHILD_ORDERING, _EXPLICIT))
        for lane, uuid in zip(self.timeline.lanes, self.lane_uuid.tolist(), strict=True):
            yield self._track(uuid, self._lane(lane) + integer(Track.ORDER, lane.order))
        for counter, uuid in zip(self.timeline.counters, self.counter_uuid, strict=True):
            unit = integer(3, _BYTES) if counter.unit == "bytes" else text(6, counter.unit)
            parent = integer(Track.PARENT, self.process_uuid[counter.process])
            yield self._track(uuid, parent + text(Track.NAME, counter.name) + block(Track.COUNTER, unit))

    def _lane(self, lane: Lane) -> bytes:
        """Describe a thread as a thread, anything else as a track of its own that looks like no thread."""
        if lane.is_thread:
            return block(Track.THREAD, integer(1, lane.process.pid) + integer(2, lane.tid) + text(5, lane.name))
        parent = integer(Track.PARENT, self.process_uuid[lane.process])
        # Perfetto would draw siblings of one name as one track, and drop what overlaps there.
        return parent + text(Track.NAME, lane.name) + integer(Track.SIBLING_MERGE, _NEVER)

    def _track(self, uuid: int, content: bytes) -> bytes:
        return self._packet(block(Packet.TRACK_DESCRIPTOR, integer(Track.UUID, uuid) + content))

    def _packet(self, content: bytes) -> bytes:
        return block(TRACE_PACKET, content + self.sequence)
