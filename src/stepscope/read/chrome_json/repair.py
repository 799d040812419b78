"""Events out of JSON that is damaged, cut, or not as Kineto writes it: slow and tolerant; every loss is counted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from stepscope.read.chrome_json.event_schema import Field
from stepscope.trace.losses import LossLedger

T = TypeVar("T")

# After so many unreadable events in a row the chunk is given up: it may hold nothing but braces.
_MOST_FAILURES = 1000
_INT64 = range(-(1 << 63), 1 << 63)
_UINT64_MAX = (1 << 64) - 1


@dataclass(frozen=True)
class _Number:
    """A number as written; the digits of a time must not pass through a float."""

    text: str


_DECODER = json.JSONDecoder(strict=False, parse_float=_Number, parse_int=_Number, parse_constant=lambda _: None)

_SEPARATORS = re.compile(r"[\s,]*")
_EVENT_START = re.compile(r'\{\s*"ph"')
# The value of a key is inside an event.
_OBJECT_START = re.compile(r'(?<!:)(?<!: )\{\s*"')
# Strings are matched first, so that their content stays; then what some writers write and JSON does not allow.
_REPAIRABLE = re.compile(r'"(?:[^"\\]|\\.)*"|\bN/A\b|,(?=\s*[}\]])', re.DOTALL)


def read_events(chunk: bytes, ledger: LossLedger, *, last: bool) -> tuple[list[dict[str, Any]], str | None]:
    """Read events one by one, skipping what cannot be read.

    Args:
        chunk: Objects separated by commas; perhaps the end of the list and what follows.
        ledger: Counts events that are damaged or not objects, and a list without end.
        last: Whether the file ends here.

    Returns:
        The events with numbers as text, and what follows the list; None if the list does not end in this chunk.
    """
    text = _repair(chunk.decode("utf-8", "surrogateescape"))
    events: list[dict[str, Any]] = []
    position = failures = 0
    while True:
        separators = _SEPARATORS.match(text, position)
        position = separators.end() if separators else position
        if position >= len(text):
            if last:
                ledger.add_cut()
            return events, None
        if text[position] == "]":
            ledger.add("text_after_end", int(not last))
            return events, text[position + 1 :]
        try:
            item, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            failures += 1
            following = _next_event(text, position) if failures < _MOST_FAILURES else None
            if following is not None:
                position = following
                continue
            if last:  # all that failed since the last event is the one that the file ends in
                ledger.add_cut()
            else:
                ledger.add("event_damaged", failures)
            return events, None
        ledger.add("event_damaged", failures)
        failures = 0
        if isinstance(item, dict):
            events.append(item)
        else:
            ledger.add("event_not_an_object")


def _next_event(text: str, position: int) -> int | None:
    pattern = _EVENT_START if _EVENT_START.match(text, position) else _OBJECT_START
    match = pattern.search(text, position + 1)
    return None if match is None else match.start()


def _repair(text: str) -> str:
    return _REPAIRABLE.sub(lambda match: match[0] if match[0][0] == '"' else "null" if match[0][0] == "N" else "", text)


def convert(item: dict[str, Any], record: Callable[..., T], ledger: LossLedger) -> T | None:
    """Make an event record of a loosely read event; None, and a loss, if that fails."""
    arguments = item.get("args")
    try:
        return record(
            ph=_text(item.get("ph")) or "",
            cat=_text(item.get("cat")),
            name=_text(item.get("name")),
            pid=_text(item.get("pid")),
            tid=_text(item.get("tid")),
            ts=msgspec.Raw(_source(item.get("ts"))),
            dur=msgspec.Raw(_source(item.get("dur"))),
            id=_text(item.get("id")),
            args=msgspec.Raw(_source(arguments) if isinstance(arguments, dict) else b""),
        )
    except RecursionError:
        ledger.add("event_damaged")
        return None


def _text(value: Any) -> str | None:  # noqa: ANN401 - any JSON value
    return value if value is None or isinstance(value, str) else _encode(value)


def _source(value: Any) -> bytes:  # noqa: ANN401 - any JSON value
    return b"" if value is None else _encode(value).encode("ascii", "replace")


def _encode(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return a loosely read value as JSON again, numbers as they were written."""
    if isinstance(value, _Number):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{_encode(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_encode, value)) + "]"
    return json.dumps(value)


def arguments(source: bytes, fields: tuple[Field, ...], ledger: LossLedger) -> bytes:
    """Return arguments as the decoder expects them: values of a wrong type are converted or left out, and counted."""
    if source in (b"", b"null"):
        return b"{}"
    try:
        found = msgspec.json.decode(source, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        ledger.add("value_unreadable")
        return b"{}"
    kept: dict[str, Any] = {}
    for item in fields:
        for spelling in item.spellings:
            if spelling in found:
                kept[spelling] = _fitting(bytes(found[spelling]), item, ledger)
    return msgspec.json.encode(kept)


def _fitting(source: bytes, item: Field, ledger: LossLedger) -> Any:  # noqa: ANN401 - whatever the field wants
    if item.type == "text":
        return msgspec.Raw(source)
    try:
        number = float(source.strip(b'" '))
        if item.type == "real":
            return number
        integer = int(source) if source.lstrip(b"-").isdigit() else int(number)
    except (ValueError, OverflowError):
        ledger.add("value_unreadable", int(source not in (b"null", b'""')))
        return None
    if integer in _INT64 or (item.type == "unsigned" and integer <= _UINT64_MAX):
        return integer
    ledger.add("integer_too_large")
    return None
