"""The format of XPlane files as XLA defines it (``xplane.proto``), for Google's library: an independent reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.paddle_schemas import messages

#: As in ``paddle_schemas``; maps are lists of entries, as they are on the wire.
XSPACE = """
message XStat: optional int64 metadata_id = 1, optional double double_value = 2, optional uint64 uint64_value = 3,
    optional int64 int64_value = 4, optional string str_value = 5, optional bytes bytes_value = 6,
    optional uint64 ref_value = 7, optional bytes compressed_str_value = 8
message XEvent: optional int64 metadata_id = 1, optional int64 offset_ps = 2, optional int64 duration_ps = 3,
    repeated XStat stats = 4, optional int64 num_occurrences = 5
message XLine: optional int64 id = 1, optional string name = 2, optional int64 timestamp_ns = 3,
    repeated XEvent events = 4, optional int64 duration_ps = 9, optional int64 display_id = 10,
    optional string display_name = 11
message XEventMetadata: optional int64 id = 1, optional string name = 2, optional bytes metadata = 3,
    optional string display_name = 4, repeated XStat stats = 5, repeated int64 child_id = 6
message XStatMetadata: optional int64 id = 1, optional string name = 2, optional string description = 3
message EventEntry: optional int64 key = 1, optional XEventMetadata value = 2
message StatEntry: optional int64 key = 1, optional XStatMetadata value = 2
message XPlane: optional int64 id = 1, optional string name = 2, repeated XLine lines = 3,
    repeated EventEntry event_metadata = 4, repeated StatEntry stat_metadata = 5, repeated XStat stats = 6
message XSpace: repeated XPlane planes = 1, repeated string errors = 2, repeated string warnings = 3,
    repeated string hostnames = 4
"""


def xspace() -> Any:
    """Return the class of ``tensorflow.profiler.XSpace``."""
    return messages("tensorflow.profiler", XSPACE)("XSpace")


class Event(NamedTuple):
    """An event as it stands in a file; times in ps, relative to the line's."""

    plane: str
    line: str
    timestamp_ns: int
    offset_ps: int
    duration_ps: int
    name: str
    stats: dict[str, Any]


def events(path: Path) -> Iterator[Event]:
    """Yield every event of a file, read by Google's library."""
    for plane in xspace().FromString(path.read_bytes()).planes:
        names = {entry.key: entry.value.name for entry in plane.event_metadata}
        for line in plane.lines:
            for event in line.events:
                times = (line.timestamp_ns, event.offset_ps, event.duration_ps)
                yield Event(plane.name, line.name, *times, names[event.metadata_id], stats(plane, event.stats))


def stats(plane: Any, given: Any) -> dict[str, Any]:
    """Return stats by name."""
    names = {entry.key: entry.value.name for entry in plane.stat_metadata}
    values = {}
    for stat in given:
        for kind in ("double_value", "uint64_value", "int64_value", "str_value", "bytes_value"):
            if stat.HasField(kind):
                values[names[stat.metadata_id]] = getattr(stat, kind)
        if stat.HasField("ref_value"):
            values[names[stat.metadata_id]] = names[stat.ref_value]
    return values


class PlaneBuilder:
    """Writes a plane by names: numbers of metadata are given as they come.

    Args:
        space: The file.
        name: Name of the plane.
        own: What the plane says of itself.
    """

    def __init__(self, space: Any, name: str, **own: Any) -> None:
        self.plane = space.planes.add(name=name)
        self._events: dict[str, int] = {}
        self._stats: dict[str, int] = {}
        for key, value in own.items():
            self.stat(self.plane.stats, key, value)

    def line(self, name: str, number: int = 1, timestamp_ns: int = 0) -> Any:
        """Return a new line."""
        return self.plane.lines.add(id=number, name=name, timestamp_ns=timestamp_ns)

    def event(self, line: Any, name: str, start_ns: float, dur_ns: float, **given: Any) -> Any:
        """Add an event to a line."""
        times = {"offset_ps": round(start_ns * 1000), "duration_ps": round(dur_ns * 1000)}
        event = line.events.add(metadata_id=self.event_metadata(name), **times)
        for key, value in given.items():
            self.stat(event.stats, key, value)
        return event

    def event_metadata(self, name: str, **given: Any) -> int:
        """Return the number of the metadata of a name."""
        if name not in self._events:
            number = self._events[name] = len(self._events) + 1
            entry = self.plane.event_metadata.add(key=number)
            entry.value.id, entry.value.name = number, name
            for key, value in given.items():
                self.stat(entry.value.stats, key, value)
        return self._events[name]

    def stat(self, stats: Any, key: str, value: Any) -> None:
        """Add a stat: integers signed, texts by reference, others as they are."""
        stat = stats.add(metadata_id=self.stat_metadata(key))
        if isinstance(value, str):
            stat.ref_value = self.stat_metadata(value)
        elif isinstance(value, bytes):
            stat.bytes_value = value
        elif isinstance(value, float):
            stat.double_value = value
        else:
            stat.int64_value = value

    def stat_metadata(self, name: str) -> int:
        """Return the number of the metadata of a stat, or of a text."""
        if name not in self._stats:
            number = self._stats[name] = len(self._stats) + 1
            entry = self.plane.stat_metadata.add(key=number)
            entry.value.id, entry.value.name = number, name
        return self._stats[name]
