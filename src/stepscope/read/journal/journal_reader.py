"""The journal of a recording → tables.

What a block holds is described in ``collect/journal/journal.py``. Nothing of it is trusted: a block with a right
checksum and a wrong content costs that block, and is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import polars as pl

from stepscope.read.common.source import Progress, tell_all
from stepscope.trace.blocks import read_frames, unpack
from stepscope.trace.clock import Anchor, Clock
from stepscope.trace.losses import CATALOGUE, LossLedger
from stepscope.trace.schema import KINDS, STEP_SOURCES
from stepscope.trace.tables import Frames, complete, empty

# Times and offsets of this size can be added within 64 bits.
_MOST = 1 << 61
_Time = Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)]
_Int = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Index = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]


class _Spans(msgspec.Struct):
    thread: list[_Int] = []
    start: list[_Time] = []
    dur: list[_Time] = []
    name: list[_Index] = []
    kind: list[_Index] = []
    args: list[str | None] = []


class _Steps(msgspec.Struct):
    number: list[_Index] = []
    start: list[_Time] = []
    dur: list[_Time] = []
    source: list[_Index] = []


class _Counters(msgspec.Struct):
    time: list[_Time] = []
    lane: list[_Index] = []
    name: list[_Index] = []
    value: list[float | str] = []
    unit: list[_Index] = []


class _Block(msgspec.Struct):
    process: _Int | None = None
    host: str = ""
    anchors: list[tuple[_Time, _Time, _Count]] = []
    threads: list[tuple[_Int, str]] = []
    names: list[str] = []
    spans: _Spans = msgspec.field(default_factory=_Spans)
    steps: _Steps = msgspec.field(default_factory=_Steps)
    counters: _Counters = msgspec.field(default_factory=_Counters)
    metadata: list[tuple[str, str]] = []
    losses: dict[str, _Count] = {}
    closed: bool = False


#: Rows that are kept as Python objects before they become a frame; 50 bytes a value.
_CHUNK = 1 << 16


class _Rows:
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
class _Content:
    """What the blocks of a file hold together."""

    process: int | None = None
    host: str = ""
    anchors: list[Anchor] = field(default_factory=list)
    threads: dict[int, str] = field(default_factory=dict)
    spans: _Rows = field(
        default_factory=lambda: _Rows(
            ts=pl.Int64, dur=pl.Int64, thread=pl.Int64, name=pl.String, kind=pl.String, args=pl.String
        )
    )
    steps: _Rows = field(default_factory=lambda: _Rows(ts=pl.Int64, dur=pl.Int64, number=pl.Int64, source=pl.String))
    counters: _Rows = field(
        default_factory=lambda: _Rows(ts=pl.Int64, lane=pl.String, name=pl.String, value=pl.Float64, unit=pl.String)
    )
    metadata: dict[str, str] = field(default_factory=dict)
    losses: dict[str, int] = field(default_factory=dict)
    closed: bool = False


def read(path: Path, ledger: LossLedger, progress: Progress | None = None) -> Frames:
    """Read a journal into tables of its own: spans without parent, depth and step; rank 0.

    What the recording itself counted is in the table ``losses``; what is lost while reading is in the ledger.

    Args:
        path: File that :class:`stepscope.collect.journal.journal.Journal` wrote; it may still be written to.
        ledger: Where losses are counted.
        progress: Called once, at the end.

    Raises:
        InputError: The file cannot be read, is no journal, or a newer stepscope wrote it.
    """
    content = _Content()
    decoder = msgspec.json.Decoder(_Block)
    for payload in read_frames(path, ledger):
        if not _add(payload, decoder, content):
            ledger.add("journal_unreadable")
    tell_all(path, progress)
    if not content.closed:
        ledger.add("ended_abruptly")
    if not content.anchors:  # without one, no time can be told
        ledger.add("journal_unreadable", sum(map(len, (content.spans, content.steps, content.counters))))
        return complete({"metadata": _metadata(content), "losses": _losses(content)})
    clock = Clock(content.anchors)
    ledger.add("clock_set", clock.jumps)
    return complete(_tables(content, clock, ledger))


def _add(payload: bytes, decoder: msgspec.json.Decoder[_Block], content: _Content) -> bool:
    """Add what a block holds; return False, and add nothing, where it is not what the journal writes."""
    try:
        block = decoder.decode(unpack(payload))
        name = _Names(block.names)
        columns = _spans(block.spans, name), _steps(block.steps, name), _counters(block.counters, name)
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


def _spans(spans: _Spans, name: _Names) -> list[list[object]]:
    return _even(spans.start, spans.dur, spans.thread, name.all(spans.name), name.all(spans.kind), spans.args)


def _steps(steps: _Steps, name: _Names) -> list[list[object]]:
    return _even(steps.start, steps.dur, steps.number, name.all(steps.source))


def _counters(counters: _Counters, name: _Names) -> list[list[object]]:
    values = [float(value) for value in counters.value]
    return _even(counters.time, name.all(counters.lane), name.all(counters.name), values, name.all(counters.unit))


def _even(*columns: list[Any]) -> list[list[object]]:
    """Return the columns; ValueError where one is longer than another."""
    if len({len(column) for column in columns}) > 1:
        message = "Columns of unequal length."
        raise ValueError(message)
    return list(columns)


class _Names:
    """The texts of one block, by number."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def all(self, numbers: Sequence[int]) -> list[str]:
        """Return the texts of all numbers; ValueError where one has none."""
        try:
            return [self._texts[number] for number in numbers]
        except IndexError:
            message = "A number has no name."
            raise ValueError(message) from None


def _tables(content: _Content, clock: Clock, ledger: LossLedger) -> Frames:
    spans = _keep(content.spans.frame(clock), "kind", tuple(KINDS), ledger)
    steps = _keep(content.steps.frame(clock), "source", STEP_SOURCES, ledger)
    counters = content.counters.frame(clock)
    threads = spans["thread"].unique(maintain_order=True).to_list()
    lanes = counters["lane"].unique(maintain_order=True).to_list() if counters.height else []
    lane_ids = {lane: len(threads) + index for index, lane in enumerate(lanes)}
    thread_ids = {thread: index for index, thread in enumerate(threads)}
    spans = spans.with_row_index("id")
    return {
        "spans": spans.select(
            "id", _numbered("thread", thread_ids).alias("track"), "ts", "dur", "name", "kind", depth=pl.lit(0)
        ),
        "tracks": _tracks(content, threads, lanes),
        "counters": counters.select("ts", _numbered("lane", lane_ids).alias("track"), "name", "value", "unit")
        if counters.height
        else empty("counters"),
        "steps": steps,
        "arguments": _arguments(spans, ledger),
        "metadata": _metadata(content),
        "losses": _losses(content),
    }


def _keep(frame: pl.DataFrame, column: str, known: tuple[str, ...], ledger: LossLedger) -> pl.DataFrame:
    """Leave out rows with a negative duration, or with a value that the schema does not know."""
    if not frame.height:
        return frame
    forward, sound = frame["dur"] >= 0, frame[column].is_in(known)
    ledger.add("event_negative_duration", int((~forward).sum()))
    ledger.add("journal_unreadable", int((forward & ~sound).sum()))
    return frame if forward.all() and sound.all() else frame.filter(forward & sound)


def _numbered(column: str, numbers: dict[object, int]) -> pl.Expr:
    return pl.col(column).replace_strict(list(numbers), list(numbers.values()), return_dtype=pl.Int32)


def _tracks(content: _Content, threads: list[int], lanes: list[str]) -> pl.DataFrame:
    names = [content.threads.get(thread, f"thread {thread}") for thread in threads] + lanes
    count = len(names)
    return pl.DataFrame(
        {
            "id": range(count),
            "kind": ["thread"] * len(threads) + ["counter"] * len(lanes),
            "rank": [0] * count,
            "host": [content.host] * count,
            "device": ["cpu"] * count,
            "process": pl.Series([content.process] * count, dtype=pl.Int64),
            "thread": pl.Series([*threads, *([None] * len(lanes))], dtype=pl.Int64),
            "name": pl.Series(names, dtype=pl.String),
            "order": range(count),
        }
    )


def _arguments(spans: pl.DataFrame, ledger: LossLedger) -> pl.DataFrame:
    if spans["args"].null_count() == spans.height:
        return empty("arguments")
    given = spans.filter(spans["args"].is_not_null())
    decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
    rows: list[tuple[int, str, str]] = []
    for span, text in zip(given["id"].to_list(), given["args"].to_list(), strict=True):
        values = _values(decoder, text)
        rows += [(span, key, value) for key, value in values.items()]
        ledger.add("value_unreadable", int(not values))
    return pl.DataFrame(rows, schema={"span": pl.Int64, "key": pl.String, "value": pl.String}, orient="row")


def _values(decoder: msgspec.json.Decoder[dict[str, msgspec.Raw]], text: str) -> dict[str, str]:
    """Return each argument's value as JSON; nothing where the text is no JSON object."""
    try:
        return {key: bytes(value).decode() for key, value in decoder.decode(text).items()}
    except (ValueError, RecursionError):
        return {}


def _metadata(content: _Content) -> pl.DataFrame:
    values = [_json(value) for value in content.metadata.values()]
    return pl.DataFrame({"key": list(content.metadata), "value": values}, schema={"key": pl.String, "value": pl.String})


def _json(value: str) -> str:
    """Return ``value``, which should be JSON; as a JSON text where it is none."""
    try:
        msgspec.json.decode(value)
    except (ValueError, RecursionError):
        return msgspec.json.encode(value).decode()
    return value


def _losses(content: _Content) -> pl.DataFrame:
    rows = [
        (what, count, *CATALOGUE.get(what, ("info", "")), "journal") for what, count in content.losses.items() if count
    ]
    schema = ["what", "count", "severity", "advice", "source"]
    return pl.DataFrame(rows, schema=schema, orient="row") if rows else empty("losses")
