"""The journal of a recording → tables.

``collect/journal/journal.py`` describes the blocks. None is trusted: a block whose checksum is right and whose content
is wrong is left out and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import polars as pl

from stepscope.read.common.part_builder import PartBuilder, TrackRow, sound
from stepscope.read.common.source import Progress, tell_all
from stepscope.trace.blocks import read_frames, unpack
from stepscope.trace.clock import Anchor, Clock
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import KINDS, STEP_SOURCES
from stepscope.trace.tables import Frames, complete

# Times and offsets of this size can be added within 64 bits.
_MOST = 1 << 61
_Time = Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)]
_Int = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Index = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]


class _JournalSpans(msgspec.Struct):
    thread: list[_Int] = []
    start: list[_Time] = []
    dur: list[_Time] = []
    name: list[_Index] = []
    kind: list[_Index] = []
    args: list[str | None] = []


class _JournalSteps(msgspec.Struct):
    number: list[_Index] = []
    start: list[_Time] = []
    dur: list[_Time] = []
    source: list[_Index] = []


class _JournalCounters(msgspec.Struct):
    time: list[_Time] = []
    lane: list[_Index] = []
    name: list[_Index] = []
    value: list[float | str] = []
    unit: list[_Index] = []


class _JournalBlock(msgspec.Struct):
    process: _Int | None = None
    host: str = ""
    anchors: list[tuple[_Time, _Time, _Count]] = []
    threads: list[tuple[_Int, str]] = []
    names: list[str] = []
    spans: _JournalSpans = msgspec.field(default_factory=_JournalSpans)
    steps: _JournalSteps = msgspec.field(default_factory=_JournalSteps)
    counters: _JournalCounters = msgspec.field(default_factory=_JournalCounters)
    metadata: list[tuple[str, str]] = []
    losses: dict[str, _Count] = {}
    closed: bool = False


#: Rows kept as Python objects, 50 bytes a value, before they become a frame.
_CHUNK = 1 << 16


class _TimedRows:
    """Rows of one table from many blocks; their times are still monotonic."""

    def __init__(self, **schema: type[pl.DataType]) -> None:
        self._schema = schema
        self._columns: list[list[object]] = [[] for _ in schema]
        self._chunks: list[pl.DataFrame] = []

    def __len__(self) -> int:
        return sum(map(len, self._chunks)) + len(self._columns[0])

    def add(self, columns: list[list[object]]) -> None:
        """Append the columns of a block."""
        for column, values in zip(self._columns, columns, strict=True):
            column += values
        if len(self._columns[0]) >= _CHUNK:
            self._pack()

    def frame(self, clock: Clock) -> pl.DataFrame:
        """Return all rows in order of time, since the epoch."""
        if not len(self):
            return pl.DataFrame(schema=self._schema)
        self._pack()
        absolute = [
            chunk.with_columns(pl.Series("ts", clock.epochs(chunk["ts"].to_list()), dtype=pl.Int64))
            for chunk in self._chunks
        ]
        return pl.concat(absolute).sort("ts", maintain_order=True)

    def _pack(self) -> None:
        columns = dict(zip(self._schema, self._columns, strict=True))
        self._chunks.append(pl.DataFrame(columns, schema=self._schema))
        self._columns = [[] for _ in self._schema]


@dataclass
class _JournalContent:
    """What the blocks of a file hold together."""

    process: int | None = None
    host: str = ""
    anchors: list[Anchor] = field(default_factory=list)
    threads: dict[int, str] = field(default_factory=dict)
    spans: _TimedRows = field(
        default_factory=lambda: _TimedRows(
            ts=pl.Int64, dur=pl.Int64, thread=pl.Int64, name=pl.String, kind=pl.String, args=pl.String
        )
    )
    steps: _TimedRows = field(
        default_factory=lambda: _TimedRows(ts=pl.Int64, dur=pl.Int64, number=pl.Int64, source=pl.String)
    )
    counters: _TimedRows = field(
        default_factory=lambda: _TimedRows(
            ts=pl.Int64, lane=pl.String, name=pl.String, value=pl.Float64, unit=pl.String
        )
    )
    metadata: dict[str, str] = field(default_factory=dict)
    losses: dict[str, int] = field(default_factory=dict)
    closed: bool = False


def read(path: Path, ledger: LossLedger, progress: Progress | None = None) -> Frames:
    """Read a journal, which may still be written to, into tables: spans without parent, depth and step; rank 0.

    What the recording itself counted is in the table ``losses``; what is lost while reading is in the ledger.

    Raises:
        InputError: The file cannot be read, is not a journal, or a newer stepscope wrote it.
    """
    content = _JournalContent()
    decoder = msgspec.json.Decoder(_JournalBlock)
    for payload in read_frames(path, ledger):
        if not _add(payload, decoder, content):
            ledger.add("journal_unreadable")
    tell_all(path, progress)
    if not content.closed:
        ledger.add("ended_abruptly")
    part = PartBuilder(host=content.host)
    if content.anchors:
        clock = Clock(content.anchors)
        ledger.add("clock_set", clock.jumps)
        _add_tables(part, content, clock, ledger)
    else:  # without an anchor no time is known
        ledger.add("journal_unreadable", sum(map(len, (content.spans, content.steps, content.counters))))
    part.add_facts({key: _json(value) for key, value in content.metadata.items()})
    part.add_losses(content.losses, "journal")
    # Without arrows, by which the assembly knows the steps of the journal from those of a trace.
    return complete(part.tables())


def _add(payload: bytes, decoder: msgspec.json.Decoder[_JournalBlock], content: _JournalContent) -> bool:
    """Add what a block holds; return False, and add nothing, if the journal does not write such blocks."""
    try:
        block = decoder.decode(unpack(payload))
        columns = _spans(block), _steps(block), _counters(block)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return False
    for rows, added in zip((content.spans, content.steps, content.counters), columns, strict=True):
        rows.add(added)
    content.anchors += [Anchor(*anchor) for anchor in block.anchors]
    content.process = content.process if content.process is not None else block.process
    content.host = content.host or block.host
    content.threads.update(block.threads)
    content.metadata.update(block.metadata)
    content.closed = content.closed or block.closed
    for what, count in block.losses.items():
        content.losses[what] = min(content.losses.get(what, 0) + count, _MOST)
    return True


def _spans(block: _JournalBlock) -> list[list[object]]:
    spans, names, kinds = block.spans, _texts(block.names, block.spans.name), _texts(block.names, block.spans.kind)
    return _even(spans.start, spans.dur, spans.thread, names, kinds, spans.args)


def _steps(block: _JournalBlock) -> list[list[object]]:
    steps = block.steps
    return _even(steps.start, steps.dur, steps.number, _texts(block.names, steps.source))


def _counters(block: _JournalBlock) -> list[list[object]]:
    counters = block.counters
    lanes, names, units = (_texts(block.names, one) for one in (counters.lane, counters.name, counters.unit))
    return _even(counters.time, lanes, names, [float(value) for value in counters.value], units)


def _even(*columns: list[Any]) -> list[list[object]]:
    """Return the columns; ValueError unless all have one length."""
    if len({len(column) for column in columns}) > 1:
        message = "Columns of unequal length."
        raise ValueError(message)
    return list(columns)


def _texts(texts: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """Return the texts of numbers; ValueError for a number without a text."""
    try:
        return [texts[number] for number in numbers]
    except IndexError:
        message = "A number has no name."
        raise ValueError(message) from None


def _add_tables(part: PartBuilder, content: _JournalContent, clock: Clock, ledger: LossLedger) -> None:
    spans = _sound(content.spans.frame(clock), "kind", tuple(KINDS), ledger)
    counters = content.counters.frame(clock)
    process, names = content.process, content.threads

    def thread(number: int) -> TrackRow:
        return TrackRow("thread", "cpu", names.get(number, f"thread {number}"), process, number)

    def lane(name: str) -> TrackRow:
        return TrackRow("counter", "cpu", name, process)

    track = part.tracks.numbered(thread, spans["thread"])
    numbered = spans.with_row_index("id").with_columns(track, depth=pl.lit(0))
    part.add_spans(numbered.drop("thread", "args"))
    track = part.tracks.numbered(lane, counters["lane"].cast(pl.Categorical()))
    part.add("counters", counters.drop("lane").hstack([track]))
    part.add("steps", _sound(content.steps.frame(clock), "source", STEP_SOURCES, ledger))
    part.add_rows("arguments", _arguments(spans["args"], ledger), "span", "key", "value")


def _sound(frame: pl.DataFrame, column: str, known: tuple[str, ...], ledger: LossLedger) -> pl.DataFrame:
    """Leave out rows with a negative duration, or with a value that the schema does not know."""
    kept = sound(ledger, event_negative_duration=frame["dur"] >= 0, journal_unreadable=frame[column].is_in(known))
    return frame if kept.all() else frame.filter(pl.Series(kept))


def _arguments(texts: pl.Series, ledger: LossLedger) -> list[tuple[int, str, str]]:
    """Return span, key and value of all arguments, from the JSON text of each span."""
    decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
    rows: list[tuple[int, str, str]] = []
    given = texts.is_not_null().arg_true()
    for span, text in zip(given.to_list(), texts.gather(given).to_list(), strict=True):
        values = _values(decoder, text)
        rows += [(span, key, value) for key, value in values.items()]
        ledger.add("value_unreadable", int(not values))
    return rows


def _values(decoder: msgspec.json.Decoder[dict[str, msgspec.Raw]], text: str) -> dict[str, str]:
    """Return each argument's value as JSON; nothing if the text is not a JSON object."""
    try:
        return {key: bytes(value).decode() for key, value in decoder.decode(text).items()}
    except (ValueError, RecursionError):
        return {}


def _json(value: str) -> str:
    """Return ``value`` if it is JSON, else ``value`` as a JSON text."""
    try:
        msgspec.json.decode(value)
    except (ValueError, RecursionError):
        return msgspec.json.encode(value).decode()
    return value
