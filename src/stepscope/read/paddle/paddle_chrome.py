"""The JSON files of Paddle's profiler (``export_chrome_tracing``, ``….paddle_trace.json``) → tables.

They are Chrome traces of Paddle's own making: the duration is written into the name (``conv2d[9.093 ms]``), a thread is
``19536(Python)`` and ``19536(C++)``, times are whole µs. The nanoseconds are in the arguments, counted from the first
event; all events together say to the nanosecond when that was.
"""

from __future__ import annotations

import json
import re
from itertools import compress
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
import numpy as np
import polars as pl

from stepscope.read.chrome_json import repair
from stepscope.read.chrome_json.columns import parse_arguments
from stepscope.read.chrome_json.decode import ChromeEvent
from stepscope.read.chrome_json.decoded_values import times
from stepscope.read.chrome_json.document import Document
from stepscope.read.chrome_json.event_schema import MEMORY_EVENT
from stepscope.read.common.nesting import Integers, Nesting, nest
from stepscope.read.common.part_builder import LARGEST_TIME
from stepscope.read.common.plain_text import printable
from stepscope.read.common.source import Progress, read_blocks
from stepscope.read.paddle.paddle_tables import DEVICE, DEVICE_TYPES, HOST, MEMORY, TYPES, PaddleRecording, tables
from stepscope.trace.losses import LossLedger

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_EVENTS = msgspec.json.Decoder(list[ChromeEvent])
_DURATION_IN_NAME = re.compile(r"\[\d+\.\d{3} [mun]?s\]$")
_THREAD = re.compile(r"(\d{1,18})(?:\(|$)")
#: Names of threads, which ``ExtraInfo`` holds too, and arrows, which follow from the correlation numbers.
_OTHER_PHASES = frozenset({"M", "s", "f"})
_US = 1000


def read(path: Path, ledger: LossLedger, progress: Progress | None = None) -> dict[str, pl.DataFrame]:
    """Read one file; see :func:`stepscope.read.paddle.paddle_tables.tables`.

    Raises:
        InputError: It cannot be read, or is not a trace.
        DamagedTraceError: It ends before its first event.
    """
    document = Document(path, ledger)
    events = _events(document, progress)
    complete = [event for event in events if event.ph == "X"]
    memory = [event for event in events if event.ph == "i" and event.name == MEMORY_EVENT]
    others = sum(event.ph not in _OTHER_PHASES and (event.ph != "" or bool(event.name)) for event in events)
    ledger.add("event_unknown_kind", others - len(complete) - len(memory))
    arguments = _arguments(complete, _Arguments, ledger)
    start, duration = _intervals(complete, arguments)
    rows = list(zip(complete, arguments, start.to_list(), duration.to_list(), strict=True))
    on_device = [row[0].cat in DEVICE_TYPES or (row[0].cat not in TYPES and row[1].stream is not None) for row in rows]
    device = list(compress(rows, on_device))
    host = [row for row, chosen in zip(rows, on_device, strict=True) if not chosen]
    said = parse_arguments(document.metadata.get("ExtraInfo", "{}"))
    extra = {key: printable(str(value)) for key, value in said.items()}
    metadata = {key: value for key, value in document.metadata.items() if key != "ExtraInfo"}
    recorded = PaddleRecording(_host(host), _device(device), _memory(memory, ledger), extra, metadata)
    return tables(recorded, ledger)


def _events(document: Document, progress: Progress | None) -> list[ChromeEvent]:
    """Return the events of a document, whose metadata is complete afterwards; one by one where it is damaged."""
    blocks = read_blocks(document.path, document.ledger, progress)
    text = b"".join(bytes(chunk) for chunk, _ in document.chunks(blocks))
    try:
        members = _MEMBERS.decode(b'{"":[' + text)
        events = _EVENTS.decode(members.pop(""))
    except _UNREADABLE:
        objects, rest = repair.read_events(text, document.ledger, last=True)
        converted = [repair.convert(item, ChromeEvent, document.ledger) for item in objects]
        document.read_tail(rest)
        return [event for event in converted if event is not None]
    document.read_tail(msgspec.json.encode(members)[1:])
    return events


#: Integers that fit the tables with room to spare.
_Int = Annotated[int, msgspec.Meta(ge=-LARGEST_TIME, le=LARGEST_TIME)]


class _Arguments(msgspec.Struct, gc=False):
    """Arguments of a complete event."""

    start_time: str | None = None
    end_time: str | None = None
    correlation: _Int | None = msgspec.field(default=None, name="correlation id")
    device: _Int | None = None
    context: _Int | None = None
    stream: _Int | None = None
    registers: _Int | None = msgspec.field(default=None, name="registers per thread")
    shared_memory: _Int | None = msgspec.field(default=None, name="shared memory")
    blocks_per_sm: float | None = msgspec.field(default=None, name="blocks per SM")
    warps_per_sm: float | None = msgspec.field(default=None, name="warps per SM")
    grid: list[_Int] | None = None
    block: list[_Int] | None = None
    occupancy: float | None = msgspec.field(default=None, name="theoretical achieved occupancy %")
    bytes: _Int | None = None
    bandwidth: float | None = msgspec.field(default=None, name="memory bandwidth (GB/s)")
    input_shapes: dict[str, list[Any]] | None = None
    input_dtypes: dict[str, list[Any]] | None = None
    callstack: str | None = None


class _MemoryArguments(msgspec.Struct, gc=False):
    """Arguments of a memory event; the address is an unsigned number, written as text."""

    place: str | None = None
    addr: str | int | None = None
    increase_bytes: _Int | None = None
    current_allocated: _Int | None = None
    current_reserved: _Int | None = None


_Decoded = TypeVar("_Decoded", _Arguments, _MemoryArguments)
#: A complete event, its arguments, its start and its duration, ns.
_Row: TypeAlias = tuple[ChromeEvent, _Arguments, int | None, int | None]


def _arguments(events: list[ChromeEvent], kind: type[_Decoded], ledger: LossLedger) -> list[_Decoded]:
    """Return the arguments of events; those that are not as Paddle writes them are left out, and counted."""
    decoder = msgspec.json.Decoder(kind)
    found = []
    for event in events:
        try:
            found.append(decoder.decode(event.args) if event.args else kind())
        except _UNREADABLE:  # a broken one must not take the others with it
            ledger.add("value_unreadable")
            found.append(kind())
    return found


def _intervals(events: list[ChromeEvent], arguments: list[_Arguments]) -> tuple[pl.Series, pl.Series]:
    """Return start and duration in ns; null for times that are damaged.

    The event's own time is the whole µs that it began in; its arguments are start and end since the first event, but
    through a number of 24 bits, which beyond 17 ms is not exact to the ns and beyond 17 s not to the µs. So the
    arguments decide how events nest (rounding keeps the order), and at which ns of its µs each began.
    """
    whole, duration = times([event.ts for event in events]), times([event.dur for event in events])
    since, until = (
        times([_microseconds(getattr(one, name)) for one in arguments]) for name in ("start_time", "end_time")
    )
    exact = (np.abs(whole) < LARGEST_TIME) & (since >= 0) & (until >= since) & (until < LARGEST_TIME) & (duration >= 0)
    start = whole.copy()
    start[exact] = _within_microseconds(whole[exact], since[exact])
    rows = np.flatnonzero(exact)
    threads = pl.Series([f"{event.pid} {_number(event.tid)}" for event in events], dtype=pl.Categorical)
    nesting = nest(threads.to_physical().to_numpy()[rows], since[rows], (until - since)[rows])
    _move_into_parents(start, duration, rows[nesting.order], nesting)
    return _times(start), _times(duration)


def _within_microseconds(whole: Integers, since: Integers) -> Integers:
    """Return the ns at which events began that began in these µs, and so long after the first one.

    Every event says between which two times the first one began; all together say it to a few ns. Where they do not
    agree, the whole µs have to do.
    """
    error = (np.spacing((since / _US).astype(np.float32)) * (_US / 2)).astype(np.int64) + 1
    earliest, latest = (
        (whole - since - error).max(initial=-LARGEST_TIME),
        (whole + _US - 1 - since + error).min(initial=LARGEST_TIME),
    )
    if earliest > latest:
        return whole
    placed: Integers = np.clip(since + (earliest + latest) // 2, whole, whole + _US - 1)
    return placed


def _move_into_parents(start: Integers, duration: Integers, rows: Integers, nesting: Nesting) -> None:
    """Move what begins before its parent, or ends behind it, by the ns that are missing."""
    for depth in range(1, int(nesting.depth.max(initial=0)) + 1):
        places = np.flatnonzero(nesting.depth == depth)
        inner, outer = rows[places], rows[nesting.parent[places]]
        latest = np.maximum(start[outer] + duration[outer] - duration[inner], start[outer])
        start[inner] = np.clip(start[inner], start[outer], latest)


def _microseconds(text: str | None) -> msgspec.Raw:
    return msgspec.Raw((text or "").removesuffix(" us").encode("ascii", "replace"))


def _times(values: Integers) -> pl.Series:
    return pl.Series(values).set(pl.Series(np.abs(values) >= LARGEST_TIME), None)


def _host(rows: list[_Row]) -> pl.DataFrame:
    columns = {
        "name": [_name(event) for event, *_ in rows],
        "type": [_text(event.cat) for event, *_ in rows],
        "ts": [start for *_, start, _ in rows],
        "dur": [duration for *_, duration in rows],
        "process": [_number(event.pid) for event, *_ in rows],
        "thread": [_number(event.tid) for event, *_ in rows],
        "correlation": [given.correlation for _, given, *_ in rows],
        "shapes": [_flat(given.input_shapes) for _, given, *_ in rows],
        "dtypes": [_flat(given.input_dtypes) for _, given, *_ in rows],
        "stack": [_text(given.callstack or None) for _, given, *_ in rows],
    }
    return pl.DataFrame(columns, schema=HOST)


def _device(rows: list[_Row]) -> pl.DataFrame:
    others = ("context", "correlation", "bytes", "bandwidth")
    sizes = ("grid", "block", "registers", "shared_memory", "blocks_per_sm", "warps_per_sm", "occupancy")
    columns: dict[str, list[Any]] = {
        "name": [_name(event) for event, *_ in rows],
        "type": [_text(event.cat) for event, *_ in rows],
        "ts": [start for *_, start, _ in rows],
        "dur": [duration for *_, duration in rows],
        # Copies do not name their device; it is the process that they are drawn in.
        "device": [_number(event.pid) if given.device is None else given.device for event, given, *_ in rows],
        "stream": [_number(event.tid) if given.stream is None else given.stream for event, given, *_ in rows],
        **{name: [getattr(given, name) for _, given, *_ in rows] for name in (*sizes, *others)},
    }
    return pl.DataFrame(columns, schema=DEVICE)


def _memory(events: list[ChromeEvent], ledger: LossLedger) -> pl.DataFrame:
    arguments = _arguments(events, _MemoryArguments, ledger)
    columns: dict[str, Any] = {
        "ts": _times(times([event.ts for event in events])),
        "process": [_number(event.pid) for event in events],
        "thread": [_number(event.tid) for event in events],
        "type": [_text(event.cat) for event in events],
        "address": [_address(given.addr) for given in arguments],
        "bytes": [given.increase_bytes for given in arguments],
        "place": [_text(given.place) for given in arguments],
        "allocated": [given.current_allocated for given in arguments],
        "reserved": [given.current_reserved for given in arguments],
    }
    return pl.DataFrame(columns, schema=MEMORY)


def _name(event: ChromeEvent) -> str | None:
    return None if event.name is None else _text(_DURATION_IN_NAME.sub("", event.name))


def _text(value: str | None) -> str | None:
    return None if value is None else printable(value)


def _number(value: int | str | None) -> int | None:
    """Return the number of a process or thread: ``19536(C++)`` is thread 19536."""
    match = _THREAD.match(str(value))
    return int(match[1]) if match else None


def _address(value: int | str | None) -> int | None:
    """Return the bits of an unsigned address as those of a signed number."""
    text = str(value)
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 21 else 0
    return None if not 0 < number < 1 << 64 else number - (1 << 64 if number >> 63 else 0)


def _flat(values: dict[str, list[Any]] | None) -> str | None:
    """Return the lists of all inputs, by name, as one JSON list; null for none."""
    flat = [item for items in (values or {}).values() for item in items]
    return json.dumps(flat) if flat else None
