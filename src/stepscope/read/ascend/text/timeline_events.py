"""The events of ``trace_view.json`` and ``msprof_*.json``, chunk by chunk, as columns.

The file is a list of events, seldom an object with one. CANN writes the name of an event first, torch_npu its phase;
times are texts of µs with the nanoseconds after the point, or numbers. An argument has several spellings, and its
value may be a number or the text of one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from stepscope import native
from stepscope.read.ascend.text import text_values
from stepscope.read.ascend.text import timeline_events_tokenized as tokenized
from stepscope.read.ascend.text.event_columns import (
    ARROWS,
    BASE,
    COLUMN_OF,
    COMPLETE,
    COUNTERS,
    KNOWN_ARROWS,
    REALS,
    TEXTS,
    AscendEvents,
    name_given,
    names_of,
    numbers,
    samples_of,
)
from stepscope.read.ascend.text.text_values import json_object
from stepscope.read.chrome_json import repair
from stepscope.read.chrome_json.decoded_values import NOTHING, split
from stepscope.read.chrome_json.document import Document
from stepscope.read.common.plain_text import printable
from stepscope.read.common.source import Progress, read_blocks
from stepscope.trace.losses import LossLedger

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# Where one event ends and the next begins: no string can hold this, as its quotes would be escaped.
_SEAM = re.compile(rb'\}\s{0,8},\s{0,80}\{\s{0,80}"(?:ph|name|pid|tid|ts|dur|cat|id|args|bp)"\s{0,8}:')
_WINDOW = 64 << 10
_MOST_PENDING = 256 << 20


class _DecodedEvent(msgspec.Struct, gc=False):
    ph: str = ""
    name: str | int | float | None = None
    cat: str | None = None
    pid: msgspec.Raw = NOTHING
    tid: msgspec.Raw = NOTHING
    ts: msgspec.Raw = NOTHING
    dur: msgspec.Raw = NOTHING
    id: msgspec.Raw = NOTHING
    args: msgspec.Raw = NOTHING


_Value = str | int | float | bool | None
_Arguments = msgspec.defstruct(
    "_Arguments",
    [(f"_{place}", _Value, msgspec.field(default=None, name=spelling)) for place, spelling in enumerate(COLUMN_OF)],
    gc=False,
)
_PLACES = {spelling: f"_{place}" for place, spelling in enumerate(COLUMN_OF)}
_EVENTS = msgspec.json.Decoder(list[_DecodedEvent])
_MANY = msgspec.json.Decoder(list[_Arguments])  # type: ignore[valid-type]
_SAMPLES = msgspec.json.Decoder(list[dict[str, _Value]])
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read(path: Path, ledger: LossLedger, progress: Progress | None = None) -> AscendEvents:
    """Read the events of one file.

    Raises:
        InputError: It cannot be read, or is not a trace.
        DamagedTraceError: It ends before its first event.
    """
    document = Document(path, ledger)
    collected = _CollectedEvents(ledger)
    chunks = _chunks(document.after_head(read_blocks(path, ledger, progress)), ledger)
    for piece in tokenized.batches(chunks) if native.available() is None else chunks:
        if isinstance(piece, tokenized.TokenizedEvents):
            collected.take(piece)
        else:
            text, last = piece
            collected.add(_of_chunk(document, text, last=last))
    return collected.events()


def _of_chunk(document: Document, chunk: bytes, *, last: bool) -> list[_DecodedEvent]:
    try:
        if not last:
            return _EVENTS.decode(b"".join((b"[", chunk, b"]")))
        if document.is_object:
            return _EVENTS.decode(_MEMBERS.decode(b'{"":[' + chunk)[""])
        return _EVENTS.decode(b"[" + chunk)
    except _UNREADABLE:
        return _tolerantly(document, chunk, last=last)


def _tolerantly(document: Document, chunk: bytes, *, last: bool) -> list[_DecodedEvent]:
    objects, _ = repair.read_events(chunk, document.ledger, last=last)
    converted = (repair.convert(item, _loose, document.ledger) for item in objects)
    return [event for event in converted if event is not None]


def _loose(**members: Any) -> _DecodedEvent:  # noqa: ANN401 - as the file has them
    raw = {
        key: msgspec.Raw(b"" if members[key] is None else json.dumps(members[key]).encode())
        for key in ("pid", "tid", "id")
    }
    return _DecodedEvent(**{**members, **raw})


def _chunks(blocks: Iterable[bytes], ledger: LossLedger) -> Iterator[tuple[bytes, bool]]:
    """Cut blocks between two events and join the events that cross blocks; reading ends at an event without an end."""
    pending: list[bytes] = []
    for block in blocks:
        seam = _last_seam(block)
        pending.append(block if seam < 0 else block[:seam])
        if seam >= 0:
            yield b"".join(pending), False
            pending = [block[seam:].lstrip(b" \t\r\n,")]
        elif sum(map(len, pending)) > _MOST_PENDING:
            ledger.add("event_damaged")
            return
    yield b"".join(pending), True


def _last_seam(text: bytes) -> int:
    """Return the end of the last event that another event follows in the block; −1 if no such end is found."""
    end = len(text)
    while end > 0:
        begin = max(0, end - _WINDOW)
        found = -1
        for match in _SEAM.finditer(text, begin, min(len(text), end + 256)):
            found = match.start() + 1
        if found >= 0:
            return found
        end = begin
    return -1


class _CollectedEvents:
    """Puts the events of all chunks together."""

    def __init__(self, ledger: LossLedger) -> None:
        self._ledger = ledger
        self._complete: list[pl.DataFrame] = [pl.DataFrame(schema=BASE)]
        self._counters: list[pl.DataFrame] = [pl.DataFrame(schema=COUNTERS)]
        self._arrows: list[pl.DataFrame] = [pl.DataFrame(schema=ARROWS)]
        self._processes: dict[int, str] = {}
        self._threads: dict[tuple[int, int], str] = {}
        self._labels: dict[int, str] = {}

    def add(self, events: list[_DecodedEvent]) -> None:
        """Take the events of a chunk."""
        sorts: dict[str, list[_DecodedEvent]] = {}
        for event in events:
            sorts.setdefault(event.ph, []).append(event)
        for phase, chosen in sorts.items():
            if phase == "X":
                self._add_complete(chosen)
            elif phase == "C":
                self._add_counters(chosen)
            elif phase in ("s", "f"):
                self._add_arrows(chosen, start=phase == "s")
            elif phase == "M":
                self._add_names(chosen)
            elif phase != "t":
                self._ledger.add("event_unknown_kind", len(chosen))

    def _add_complete(self, events: list[_DecodedEvent]) -> None:
        base = self._base(events).with_columns(dur=text_values.ns(split([event.dur for event in events]), self._ledger))
        self._ledger.add("event_without_duration", base["dur"].null_count())
        self._keep_complete(base.with_columns(self._arguments(events)))

    def take(self, batch: tokenized.TokenizedEvents) -> None:
        """Take the events that the tokenizer read."""
        self._ledger.add("event_bad_time", batch.complete["ts"].null_count() + batch.without_time)
        self._ledger.add("event_without_duration", batch.complete["dur"].null_count())
        self._ledger.add("event_unknown_kind", batch.unknown)
        self._keep_complete(batch.complete)
        self._counters.append(batch.counters)
        self._arrows.append(batch.arrows)
        for sort, process, thread, name in batch.names:
            self._add_name(sort, process, thread, name)

    def _keep_complete(self, frame: pl.DataFrame) -> None:
        sound = frame.filter(pl.col("ts").is_not_null() & pl.col("dur").is_not_null())
        kept = sound.filter(pl.col("dur") >= 0)
        self._ledger.add("event_negative_duration", sound.height - kept.height)
        self._complete.append(kept)

    def _base(self, events: list[_DecodedEvent]) -> pl.DataFrame:
        ts = text_values.ns(split([event.ts for event in events]), self._ledger)
        self._ledger.add("event_bad_time", ts.null_count())
        names = [_printable(event.name) for event in events]
        return pl.DataFrame(
            [
                ts.alias("ts"),
                numbers(split([event.pid for event in events])).alias("process"),
                numbers(split([event.tid for event in events])).alias("thread"),
                pl.Series("name", names, dtype=pl.Categorical),
                pl.Series("category", [_printable(event.cat) or None for event in events], dtype=pl.Categorical),
            ]
        )

    def _arguments(self, events: list[_DecodedEvent]) -> list[pl.Series]:
        """Return the columns of arguments that occur; values of other types are left out."""
        records = _decoded(_MANY, events)
        if records is None:
            known = (_object(bytes(event.args), self._ledger).items() for event in events)
            plain = ([pair for pair in one if pair[0] in _PLACES and isinstance(pair[1], _Value)] for one in known)
            records = [_Arguments(**{_PLACES[key]: value for key, value in one}) for one in plain]
        found: dict[str, pl.Series] = {}
        for spelling, column in COLUMN_OF.items():
            given = list(map(attrgetter(_PLACES[spelling]), records))
            if given.count(None) == len(given):
                continue
            series = _column(column, given, self._ledger)
            found[column] = pl.select(pl.coalesce(found[column], series)).to_series() if column in found else series
        return [series.alias(column) for column, series in found.items()]

    def _add_counters(self, events: list[_DecodedEvent]) -> None:
        base = self._base(events).select("ts", "process", "name")
        samples = _samples(events, self._ledger)
        rows = [(place, *one) for place, sample in enumerate(samples) for one in samples_of(sample)]
        schema = {"place": pl.UInt32, "key": pl.String, "of": pl.String, "value": pl.Float64}
        frame = base.with_row_index("place").join(pl.DataFrame(rows, schema=schema, orient="row"), on="place")
        frame = names_of(frame).with_columns(pl.col("key").cast(pl.Categorical()))
        self._counters.append(frame.filter(pl.col("ts").is_not_null()).select(list(COUNTERS)))

    def _add_arrows(self, events: list[_DecodedEvent], *, start: bool) -> None:
        drawn = [event for event in events if event.cat not in KNOWN_ARROWS]
        if drawn:
            ids = text_values.texts(split([event.id for event in drawn]))
            base = self._base(drawn).select("ts", "process", "thread", "category")
            frame = base.with_columns(id=ids, start=pl.lit(start))
            self._arrows.append(frame.filter(pl.col("ts").is_not_null()))

    def _add_names(self, events: list[_DecodedEvent]) -> None:
        if not any(event.name in ("process_name", "thread_name", "process_labels") for event in events):
            return
        process, thread = (numbers(split([getattr(one, key) for one in events])) for key in ("pid", "tid"))
        samples = _samples(events, self._ledger)
        for event, pid, tid, sample in zip(events, process.to_list(), thread.to_list(), samples, strict=True):
            name = name_given(str(event.name), sample)
            if pid is not None and isinstance(name, str):
                self._add_name(str(event.name), pid, tid, printable(name))

    def _add_name(self, sort: str, process: int, thread: int | None, name: str) -> None:
        if sort == "process_name":
            self._processes.setdefault(process, name)
        elif sort == "process_labels":
            self._labels.setdefault(process, name)
        elif sort == "thread_name" and thread is not None:
            self._threads.setdefault((process, thread), name)

    def events(self) -> AscendEvents:
        """Return everything that was taken."""
        complete, counters, arrows = (
            pl.concat(parts, how="diagonal") for parts in (self._complete, self._counters, self._arrows)
        )
        occurring = [name for name in COMPLETE if name in complete.columns]
        of_names = (self._processes, self._threads, self._labels)
        return AscendEvents(complete.select(occurring), counters, arrows, *of_names)


def _printable(text: object) -> str:
    return printable(str(text)) if text is not None else ""


def _decoded(decoder: msgspec.json.Decoder[list[Any]], events: list[_DecodedEvent]) -> list[Any] | None:
    """Return the arguments of events, with one call of the decoder; None if it refuses them."""
    try:
        found = decoder.decode(b"[" + b",".join(bytes(event.args) or b"{}" for event in events) + b"]")
    except _UNREADABLE:
        return None
    return found if len(found) == len(events) else None


def _samples(events: list[_DecodedEvent], ledger: LossLedger) -> list[dict[str, Any]]:
    found = _decoded(_SAMPLES, events)
    return [_object(bytes(event.args), ledger) for event in events] if found is None else found


def _object(source: bytes, ledger: LossLedger) -> dict[str, Any]:
    if source in (b"", b"null"):
        return {}
    return json_object(source.decode("utf-8", "replace"), ledger, strict=False)


def _column(column: str, given: list[Any], ledger: LossLedger) -> pl.Series:
    if column in TEXTS:
        texts = [
            None if value is None else printable(value if isinstance(value, str) else json.dumps(value))
            for value in given
        ]
        return pl.Series(texts, dtype=pl.Categorical)
    if column in REALS and all(isinstance(value, int | float | None) for value in given):
        return pl.Series(given, dtype=pl.Float64, strict=False)
    whole = all(value is None or (type(value) is int and -(1 << 62) < value < 1 << 62) for value in given)
    if whole and column not in REALS:
        return pl.Series(given, dtype=pl.Int64)
    strings = pl.Series([None if value is None else str(value) for value in given], dtype=pl.String)
    return (text_values.reals if column in REALS else text_values.integers)(strings, ledger)
