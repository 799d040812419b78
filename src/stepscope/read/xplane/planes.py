"""A plane of an XPlane file: its lines, and the names of its events and stats."""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import polars as pl

from stepscope.read.common.dense import first_places
from stepscope.read.common.nesting import Integers
from stepscope.read.common.plain_text import printable
from stepscope.read.common.protobuf import Fields, Messages
from stepscope.read.xplane import xplane_events
from stepscope.read.xplane.xplane_events import Line, XplaneStats
from stepscope.read.xplane.xplane_files import XSpaceField
from stepscope.trace.losses import LossLedger

#: Value of a stat.
Value: TypeAlias = int | float | str | bytes | None

# Fields of XPlane, of the entries of its maps, of XEventMetadata and XStatMetadata.
_NAME, _LINES, _EVENT_METADATA, _STAT_METADATA, _STATS = 2, 3, 4, 5, 6
_KEY, _ENTRY = 1, 2
_METADATA_NAME, _METADATA_STATS = 2, 5
#: A compressed text longer than this is damage.
_LONGEST_TEXT = 16 << 20


@dataclass(frozen=True, eq=False)
class Plane:
    """One plane: its bytes, with padding behind, its fields, and where its losses are counted."""

    content: bytearray
    fields: Fields
    ledger: LossLedger

    @staticmethod
    def of(part: XSpaceField, ledger: LossLedger) -> Plane:
        """Return the plane that a field of the file is."""
        whole = Messages(part.content, np.zeros(1, np.int64), np.full(1, part.length, np.int64))
        return Plane(part.content, whole.fields(), ledger)

    @cached_property
    def name(self) -> str:
        """Name: ``/host:CPU``, ``/device:GPU:0``."""
        return self.fields.texts(_NAME, self.ledger)[0] or ""

    @cached_property
    def lines(self) -> list[Line]:
        """Its lines; a line that the end of the file cuts is kept up to there."""
        _, lines = self.fields.within(_LINES, cut=True)
        places = zip(lines.start.tolist(), lines.end.tolist(), strict=True)
        found = [xplane_events.line(self.content, start, end) for start, end in places]
        self.ledger.add("event_damaged", sum(line.broken for line in found))
        return found

    @cached_property
    def _events(self) -> tuple[Integers, Fields]:
        return self._map(_EVENT_METADATA)

    @cached_property
    def _stats(self) -> tuple[Integers, Fields]:
        return self._map(_STAT_METADATA)

    def _map(self, number: int) -> tuple[Integers, Fields]:
        """Return keys and values of a map."""
        entries = self.fields.within(number)[1].fields()
        owner, values = entries.within(_ENTRY)
        keys = entries.integers(_KEY).fill_null(0).to_numpy()
        return keys[owner], values.fields()

    @cached_property
    def event_names(self) -> pl.Series:
        """Names of events, by position of their metadata."""
        return self._events[1].texts(_METADATA_NAME, self.ledger).fill_null("")

    @cached_property
    def span_names(self) -> pl.Series:
        """Names of events as spans have them: of an instruction its name, without the text behind it."""
        return self.event_names.str.replace(r"(?s)^%([\w.-]+) = .*$", "${1}")

    @cached_property
    def stat_names(self) -> list[str]:
        """Names of stats, by position of their metadata; stats also refer to them as texts."""
        return self._stats[1].texts(_METADATA_NAME, self.ledger).fill_null("").to_list()

    @cached_property
    def stat_place_of(self) -> dict[str, int]:
        """Name of a stat → position of its metadata."""
        return {name: place for place, name in reversed(list(enumerate(self.stat_names)))}

    def event_places(self, metadata: Integers) -> Integers:
        """Return the positions of metadata by their numbers; −1 for unknown ones."""
        return first_places(self._events[0], metadata)

    def stat_places(self, metadata: Integers) -> Integers:
        """Return the positions of metadata of stats by their numbers; −1 for unknown ones."""
        return first_places(self._stats[0], metadata)

    @cached_property
    def stats(self) -> dict[str, Value]:
        """What the plane says of itself."""
        return dict(self._own(self.fields, _STATS, 1)[0])

    @cached_property
    def event_stats(self) -> list[dict[str, Value]]:
        """What the metadata of events say, by position."""
        return [dict(pairs) for pairs in self._own(self._events[1], _METADATA_STATS, len(self.event_names))]

    def _own(self, fields: Fields, number: int, count: int) -> list[list[tuple[str, Value]]]:
        owner, messages = fields.within(number)
        stats = xplane_events.stats_of(messages)
        pairs: list[list[tuple[str, Value]]] = [[] for _ in range(count)]
        names = self.names_of(stats.key)
        for place, name, value in zip(owner.tolist(), names, self.values(stats), strict=True):
            pairs[place].append((name, value))
        return pairs

    def names_of(self, keys: Integers) -> list[str]:
        """Return the names of stats by the numbers of their metadata; empty for unknown ones."""
        return ["" if place < 0 else self.stat_names[place] for place in self.stat_places(keys).tolist()]

    def values(self, stats: XplaneStats) -> list[Value]:
        """Return the values of a few stats."""
        places = self.stat_places(stats.value).tolist()
        rows = zip(stats.field.tolist(), stats.value.tolist(), stats.end.tolist(), places, strict=True)
        return [self._value(*row) for row in rows]

    def _value(self, number: int, value: int, end: int, place: int) -> Value:
        if number == xplane_events.DOUBLE:
            return float(struct.unpack("<d", struct.pack("<q", value))[0])
        if number == xplane_events.UNSIGNED:
            return value % (1 << 64)
        if number == xplane_events.SIGNED:
            return value
        if number == xplane_events.REFERENCE:
            return self.stat_names[place] if place >= 0 else None
        if number == xplane_events.BYTES:
            return bytes(self.content[value:end])
        return self._text(value, end, compressed=number == xplane_events.COMPRESSED) if number else None

    def _text(self, start: int, end: int, *, compressed: bool) -> str | None:
        source = bytes(self.content[start:end])
        if compressed:
            inflater = zlib.decompressobj(wbits=47)
            with suppress(zlib.error):
                source = inflater.decompress(source, _LONGEST_TEXT)
            if not inflater.eof:
                self.ledger.add("value_unreadable")
                return None
        return printable(source.decode("utf-8", "surrogateescape"))
