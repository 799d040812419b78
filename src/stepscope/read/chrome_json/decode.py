"""Events from JSON text with msgspec: fast for text as Kineto writes it, tolerant of other text.

A chunk of events is decoded into typed records at once. If anything in it is not as ``event_schema`` describes it, its
events are read one by one with the standard library, repaired where that is possible, counted where it is not, and
then take the same way.
"""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from stepscope.read.chrome_json import repair
from stepscope.read.chrome_json.columns import ChromeBatch, Column, Columns, Interner
from stepscope.read.chrome_json.decoded_values import NOTHING, codes, identifiers, integers, json_codes, reals, times
from stepscope.read.chrome_json.event_schema import (
    ABSENT,
    CLASS_OF_CATEGORY,
    COLLECTIVE_IN,
    COLLECTIVE_MARK,
    FIELDS,
    MEMORY_EVENT,
    WHOLE,
    Class,
    Field,
)
from stepscope.read.common.nesting import Integers
from stepscope.trace.losses import LossLedger

_PHASES = {chr(code): code for code in range(33, 127)}
_COLLECTIVE_NAME = f'"{COLLECTIVE_MARK.spellings[0]}"'.encode()
_NO_ARGUMENTS = (b"", b"null")
_SEPARATORS = b" \t\r\n,"


class ChromeEvent(msgspec.Struct, gc=False):
    """One event as written; times and arguments stay text until they are read in bulk."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = NOTHING
    dur: msgspec.Raw = NOTHING
    id: int | str | None = None
    args: msgspec.Raw = NOTHING


_EVENTS = msgspec.json.Decoder(list[ChromeEvent])
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class ChromeDecoder:
    """Decodes chunks of one file into batches."""

    def __init__(self, ledger: LossLedger) -> None:
        self.interner = Interner()
        self._ledger = ledger

    def decode(self, chunk: bytes | memoryview) -> ChromeBatch:
        """Return the events of ``chunk``: JSON objects separated by commas, without the brackets around the list."""
        view = memoryview(chunk)
        behind = bytes(view[-256:])
        end = len(view) - len(behind) + len(behind.rstrip(_SEPARATORS))
        try:
            return self._batch(_EVENTS.decode(b"".join((b"[", view[:end], b"]"))))
        except _UNREADABLE:
            return self._tolerantly(bytes(chunk), last=False)[0]

    def decode_last(self, chunk: bytes | memoryview, *, in_object: bool) -> tuple[ChromeBatch, bytes | str | None]:
        """Return the events of the file's last chunk, and the text after the list.

        Args:
            chunk: Events, the end of their list, and what follows.
            in_object: Whether the list is a member of an object, or the whole document.

        Returns:
            The events, and what follows their list; None where it has no end, because the file was cut.
        """
        try:
            if not in_object:
                return self._batch(_EVENTS.decode(b"".join((b"[", chunk)))), b""
            members = _MEMBERS.decode(b"".join((b'{"":[', chunk)))
            return self._batch(_EVENTS.decode(members.pop(""))), msgspec.json.encode(members)[1:]
        except _UNREADABLE:
            return self._tolerantly(bytes(chunk), last=True)

    def _tolerantly(self, chunk: bytes, *, last: bool) -> tuple[ChromeBatch, str | None]:
        objects, rest = repair.read_events(chunk, self._ledger, last=last)
        loose = [repair.convert(item, ChromeEvent, self._ledger) for item in objects]
        return self._batch([event for event in loose if event is not None]), rest

    def _batch(self, events: list[ChromeEvent]) -> ChromeBatch:
        base = self._base(events)
        classes: dict[Class, Columns] = {}
        for kind in Class:
            rows = np.flatnonzero(base["class"] == kind)
            if kind is not Class.NONE and len(rows):
                sources = [events[row].args for row in rows.tolist()]
                classes[kind] = {"event": rows, **self._arguments(kind, sources)}
                if kind in COLLECTIVE_IN:
                    self._add_collectives(classes, rows, sources)
        return ChromeBatch(base, classes)

    def _add_collectives(self, classes: dict[Class, Columns], rows: Integers, sources: list[msgspec.Raw]) -> None:
        """Add to the class COLLECTIVE those events that name one."""
        if _COLLECTIVE_NAME not in b"".join(sources):
            return
        named = [place for place, source in enumerate(sources) if _COLLECTIVE_NAME in bytes(source)]
        columns = self._arguments(Class.COLLECTIVE, [sources[place] for place in named])
        really = columns[COLLECTIVE_MARK.column] >= 0
        columns = {"event": rows[named][really], **{name: column[really] for name, column in columns.items()}}
        before = classes.get(Class.COLLECTIVE)
        if before is not None:
            columns = {name: np.concatenate([before[name], column]) for name, column in columns.items()}
        classes[Class.COLLECTIVE] = columns

    def _base(self, events: list[ChromeEvent]) -> Columns:
        code = self.interner.__getitem__
        phase = _phases([event.ph for event in events])
        category = codes([event.cat for event in events], code)
        name = codes([event.name for event in events], code)
        return {
            "phase": phase,
            "class": self._classes(phase, category, name),
            "category": category,
            "name": name,
            "process": codes([event.pid for event in events], code),
            "thread": codes([event.tid for event in events], code),
            "id": identifiers([event.id for event in events], code),
            "ts": times([event.ts for event in events]),
            "dur": times([event.dur for event in events]),
        }

    def _classes(self, phase: Column, category: Column, name: Column) -> Column:
        by_category = np.full(len(self.interner) + 1, Class.OTHER, np.uint8)
        for text, kind in CLASS_OF_CATEGORY.items():
            if text in self.interner:
                by_category[self.interner[text]] = kind
        result = np.zeros(len(phase), np.uint8)
        complete = (phase == ord("X")) | (phase == ord("B"))
        result[complete] = by_category[category[complete]]
        result[(phase == ord("C")) | (phase == ord("M"))] = Class.OTHER
        result[(phase == ord("i")) & (name == self.interner[MEMORY_EVENT])] = Class.MEMORY
        return result

    def _arguments(self, kind: Class, sources: list[msgspec.Raw]) -> Columns:
        columns: Columns = {}
        if kind in FIELDS:
            records = self._records(kind, sources)
            columns = {item.column: self._column(item, records) for item in FIELDS[kind]}
        if kind in WHOLE:
            texts = [b"{}" if source in _NO_ARGUMENTS else source for source in map(bytes, sources)]
            columns["arguments"] = codes(texts, self.interner.__getitem__)
        return columns

    def _records(self, kind: Class, sources: list[msgspec.Raw]) -> list[Any]:
        """Return the arguments of one class; arguments of another type, or without any, are repaired first."""
        decoder = _arguments_decoder(kind)
        try:
            records = decoder.decode(b"[" + b",".join(sources) + b"]")
        except _UNREADABLE:
            records = []
        if len(records) == len(sources):
            return records
        repaired = [repair.arguments(bytes(source), FIELDS[kind], self._ledger) for source in sources]
        return decoder.decode(b"[" + b",".join(repaired) + b"]")

    def _column(self, item: Field, records: list[Any]) -> Column:
        values = _values(item, records)
        if item.type == "text":
            return json_codes(values, self.interner.__getitem__)
        if item.type == "real":
            return reals(values)
        column, too_large = integers(values, unsigned=item.type == "unsigned")
        self._ledger.add("integer_too_large", too_large)
        return column


def _phases(values: list[str]) -> Column:
    """Return the phase of each event as a character code; 0 for anything but one visible character."""
    joined = "".join(values)
    if len(joined) == len(values) and joined.isascii() and "" not in values:
        return np.frombuffer(joined.encode(), np.uint8)
    return np.array([_PHASES.get(value, 0) for value in values], np.uint8)


#: Type and value when absent of an argument's attribute.
_ATTRIBUTES: dict[str, tuple[Any, Any]] = {
    "integer": (int | None, ABSENT),
    "unsigned": (int | None, ABSENT),
    "real": (float | None, None),
    "text": (msgspec.Raw, NOTHING),
}


def _values(item: Field, records: list[Any]) -> list[Any]:
    """Return the argument of every record, under whichever spelling it came."""
    absent = _ATTRIBUTES[item.type][1]
    values = list(map(attrgetter(_attribute(item, 0)), records))
    for number in range(1, len(item.spellings)):
        other = list(map(attrgetter(_attribute(item, number)), records))
        if other.count(absent) != len(other):
            values = [b if a is absent else a for a, b in zip(values, other, strict=True)]
    return values


def _attribute(item: Field, spelling: int) -> str:
    return item.column if spelling == 0 else f"{item.column}_{spelling}"


@cache
def _arguments_decoder(kind: Class) -> msgspec.json.Decoder[list[Any]]:
    """Return the decoder of a list of arguments of one class, each a record with an attribute per spelling."""
    attributes, names = [], {}
    for item in FIELDS[kind]:
        for number, spelling in enumerate(item.spellings):
            attributes.append((_attribute(item, number), *_ATTRIBUTES[item.type]))
            names[_attribute(item, number)] = spelling
    record = msgspec.defstruct(f"Arguments{kind.name.title()}", attributes, rename=names, gc=False)
    return msgspec.json.Decoder(list[record])  # type: ignore[valid-type]
