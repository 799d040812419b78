"""Events from JSON text with msgspec: fast where the text is as Kineto writes it, tolerant where it is not.

A chunk of events is decoded into typed records at once. If anything in it is not as described in ``kineto_schema``, its
events are read one by one with the standard library, repaired where that is possible, counted where it is not, and
then take the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from functools import cache
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import polars as pl

from stepscope.read import kineto_repair
from stepscope.read.kineto_columns import Batch, Column, Columns, Integers, Interner
from stepscope.read.kineto_schema import (
    ABSENT,
    BAD,
    CLASS_OF_CATEGORY,
    COLLECTIVE_IN,
    COLLECTIVE_MARK,
    FIELDS,
    MEMORY_EVENT,
    WHOLE,
    Class,
    Field,
)
from stepscope.trace.losses import LossLedger

_NOTHING = msgspec.Raw()
_PHASES = {chr(code): code for code in range(33, 127)}
_COLLECTIVE_NAME = f'"{COLLECTIVE_MARK.spellings[0]}"'.encode()
_NO_TEXT = (b"", b"null")
_PLAIN_NUMBER = r"^-?\d{1,18}(\.\d{1,3})?$"


class Event(msgspec.Struct, gc=False):
    """One event as written; times and arguments stay text until they are read in bulk."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = _NOTHING
    dur: msgspec.Raw = _NOTHING
    id: int | str | None = None
    args: msgspec.Raw = _NOTHING


_EVENTS = msgspec.json.Decoder(list[Event])
_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Decoder:
    """Decodes chunks of one file into batches.

    Args:
        ledger: Counts what was repaired or left out.
    """

    def __init__(self, ledger: LossLedger) -> None:
        self.interner = Interner()
        self._ledger = ledger
        self._categories: dict[int, Class] = {}

    def decode(self, chunk: bytes) -> Batch:
        """Return the events of ``chunk``: JSON objects separated by commas, without the brackets around the list."""
        text = chunk.strip().strip(b",")
        try:
            return self._batch(_EVENTS.decode(b"[" + text + b"]"))
        except _UNREADABLE:
            return self._tolerantly(chunk, last=False)[0]

    def decode_last(self, chunk: bytes) -> tuple[Batch, bytes | str | None]:
        """Return the events of the file's last chunk, and the text after the list (None: the file was cut)."""
        try:
            return self._batch(_EVENTS.decode(b"[" + chunk)), b""
        except _UNREADABLE:
            pass
        try:
            parts = _PARTS.decode(b'{"":[' + chunk)
            batch = self._batch(_EVENTS.decode(parts.pop("")))
        except _UNREADABLE:
            return self._tolerantly(chunk, last=True)
        return batch, msgspec.json.encode(parts)[1:]

    def _tolerantly(self, chunk: bytes, *, last: bool) -> tuple[Batch, str | None]:
        objects, rest = kineto_repair.read_events(chunk, self._ledger, last=last)
        events = [event for item in objects if (event := _event(item, self._ledger)) is not None]
        return self._batch(events), rest

    def _batch(self, events: list[Event]) -> Batch:
        base = self._base(events)
        classes: dict[Class, Columns] = {}
        for kind in Class:
            rows = np.flatnonzero(base["class"] == kind)
            if kind is not Class.NONE and len(rows):
                sources = [_arguments_of(events[row]) for row in rows.tolist()]
                classes[kind] = {"event": rows, **self._arguments(kind, sources)}
                if kind in COLLECTIVE_IN:
                    self._add_collectives(classes, rows, sources)
        return Batch(base, classes)

    def _add_collectives(self, classes: dict[Class, Columns], rows: Integers, sources: list[bytes]) -> None:
        """Add to the class COLLECTIVE those events that name one."""
        named = [place for place, source in enumerate(sources) if _COLLECTIVE_NAME in source]
        if not named:
            return
        columns = self._arguments(Class.COLLECTIVE, [sources[place] for place in named])
        really = columns[COLLECTIVE_MARK.column] >= 0
        columns = {"event": rows[named][really], **{name: column[really] for name, column in columns.items()}}
        before = classes.get(Class.COLLECTIVE)
        if before is not None:
            columns = {name: np.concatenate([before[name], column]) for name, column in columns.items()}
        classes[Class.COLLECTIVE] = columns

    def _base(self, events: list[Event]) -> Columns:
        code = self.interner.__getitem__

        def texts(values: list[Any]) -> Column:
            return np.array([-1 if value is None else code(value) for value in values], np.int32)

        phase = np.array([_PHASES.get(event.ph, 0) for event in events], np.uint8)
        category = texts([event.cat for event in events])
        name = texts([event.name for event in events])
        return {
            "phase": phase,
            "class": self._classes(phase, category, name),
            "category": category,
            "name": name,
            "process": texts([event.pid for event in events]),
            "thread": texts([event.tid for event in events]),
            "id": np.array([_identifier(event.id, code) for event in events], np.int64),
            "ts": _times([bytes(event.ts) for event in events]),
            "dur": _times([bytes(event.dur) for event in events]),
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

    def _arguments(self, kind: Class, sources: list[bytes]) -> Columns:
        columns: Columns = {}
        if kind in FIELDS:
            try:
                records = _arguments_decoder(kind).decode(b"[" + b",".join(sources) + b"]")
            except _UNREADABLE:
                repaired = [kineto_repair.arguments(source, FIELDS[kind], self._ledger) for source in sources]
                records = _arguments_decoder(kind).decode(b"[" + b",".join(repaired) + b"]")
            columns = {item.column: self._column(item, records) for item in FIELDS[kind]}
        if kind in WHOLE:
            columns["arguments"] = np.array(list(map(self.interner.__getitem__, sources)), np.int32)
        return columns

    def _column(self, item: Field, records: list[Any]) -> Column:
        values = _values(item, records)
        if item.type == "text":
            code = self.interner.__getitem__
            return np.array(
                [code(text) if (text := bytes(value)) not in _NO_TEXT else -1 for value in values], np.int32
            )
        if item.type == "real":
            return np.array([np.nan if value is None else value for value in values], np.float64)
        integers = [ABSENT if value is None else value for value in values]
        if item.type == "unsigned":
            return np.array(
                [value & 0xFFFF_FFFF_FFFF_FFFF if value != ABSENT else 1 << 63 for value in integers], np.uint64
            ).view(np.int64)
        return np.array(integers, np.int64)


def _arguments_of(event: Event) -> bytes:
    source = bytes(event.args)
    return b"{}" if source in _NO_TEXT else source


def _values(item: Field, records: list[Any]) -> list[Any]:
    """Return the argument of every record, under whichever spelling it came."""
    first = list(map(attrgetter(_attribute(item, 0)), records))
    if len(item.spellings) == 1:
        return first
    missing: Callable[[Any], bool] = (
        (lambda value: not bytes(value)) if item.type == "text" else (lambda value: value is None)
    )
    for number in range(1, len(item.spellings)):
        other = list(map(attrgetter(_attribute(item, number)), records))
        first = [b if missing(a) else a for a, b in zip(first, other, strict=True)]
    return first


def _attribute(item: Field, spelling: int) -> str:
    return item.column if spelling == 0 else f"{item.column}_{spelling}"


@cache
def _arguments_decoder(kind: Class) -> msgspec.json.Decoder[list[Any]]:
    """Return the decoder of a list of arguments of one class, each a record with an attribute per spelling."""
    types: dict[str, tuple[Any, Any]] = {
        "integer": (int | None, None),
        "unsigned": (int | None, None),
        "real": (float | None, None),
        "text": (msgspec.Raw, _NOTHING),
    }
    attributes, names = [], {}
    for item in FIELDS[kind]:
        for number, spelling in enumerate(item.spellings):
            attributes.append((_attribute(item, number), *types[item.type]))
            names[_attribute(item, number)] = spelling
    record = msgspec.defstruct(f"Arguments{kind.name.title()}", attributes, rename=names, gc=False)
    return msgspec.json.Decoder(list[record])  # type: ignore[valid-type]


def _identifier(value: int | str | None, code: Callable[[Any], int]) -> int:
    """Return a flow's identifier as a number: texts like ``0x1f`` by their value, others by their place in the pool."""
    if value is None:
        return ABSENT
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return (1 << 62) + code(value)
    return value if ABSENT < value < -ABSENT else ABSENT


def _times(sources: list[bytes]) -> Integers:
    """Return times written in µs as ns, exactly; digits beyond the nanosecond are rounded half up.

    A time that is not there is :data:`ABSENT`; one that is no number, or lies outside 64 bits of ns, is :data:`BAD`.
    """
    texts = pl.Series(sources, dtype=pl.Binary).cast(pl.String)
    plain = texts.str.contains(_PLAIN_NUMBER).to_numpy()
    exact = texts.cast(pl.Decimal(38, 3), strict=False).to_physical().cast(pl.Int64, strict=False)
    result = exact.fill_null(BAD).to_numpy().copy()
    for row in np.flatnonzero(~plain).tolist():
        result[row] = _unusual_time(sources[row])
    return result


def _unusual_time(source: bytes) -> int:
    if source in (b"", b"null"):
        return ABSENT
    try:
        with localcontext(prec=60):
            value = int((Decimal(source.strip(b'"').decode()) * 1000).quantize(Decimal(1), ROUND_HALF_UP))
    except (InvalidOperation, ValueError, OverflowError):
        return BAD
    return value if BAD < value < -ABSENT else BAD


def _event(item: dict[str, Any], ledger: LossLedger) -> Event | None:
    """Make a record of an event that was read loosely."""
    return kineto_repair.convert(item, Event, ledger)
