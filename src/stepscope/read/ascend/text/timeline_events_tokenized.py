"""The events of Ascend's timelines with the C tokenizer: the same columns as over msgspec, and many at once.

Arguments that are texts come as numbers of a pool of distinct ones, so each is decoded once; so are the arguments of
samples, of which few are distinct. msgspec reads the chunks that the tokenizer refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import numpy as np
import polars as pl

from stepscope.native.kineto import ArgumentKey, Column, Description, NotTokenized, Tokenizer
from stepscope.read.ascend.text import text_values
from stepscope.read.ascend.text.event_columns import (
    ARROWS,
    COUNTERS,
    INTEGERS,
    KNOWN_ARROWS,
    REALS,
    TEXTS,
    Sample,
    name_given,
    names_of,
    numbers,
    samples_of,
)
from stepscope.read.chrome_json.event_schema import ABSENT
from stepscope.read.common.plain_text import printable

#: A piece of a file: events, and whether it is the last.
Chunk = tuple[bytes, bool]

_NONE, _COMPLETE, _SAMPLES, _UNUSED = range(4)
#: Bytes of events that become columns at once; a column of the tokenizer takes memory even if it is empty.
BATCH_BYTES = 32 << 20
_UNREADABLE = (UnicodeDecodeError, msgspec.DecodeError, RecursionError)


@dataclass(frozen=True)
class TokenizedEvents:
    """Some events.

    Attributes:
        complete: Intervals; times that cannot be read are null.
        counters: Samples.
        arrows: Ends of arrows.
        names: Names of processes and threads, and labels: kind of event, process, thread, name.
        without_time: How many samples and ends of arrows have no time.
        unknown: How many events have another phase than those that are read.
    """

    complete: pl.DataFrame
    counters: pl.DataFrame
    arrows: pl.DataFrame
    names: list[tuple[str, int, int | None, str]]
    without_time: int
    unknown: int


@cache
def _description() -> Description:
    types = {"integer": INTEGERS, "real": REALS, "text": TEXTS}
    columns = {column: type_ for type_, fields in types.items() for column in fields}
    keys = [
        ArgumentKey(spelling, list(columns).index(column), type_, _COMPLETE)
        for type_, fields in types.items()
        for column, spellings in fields.items()
        for spelling in spellings
    ]
    return Description(
        categories={},
        keys={_COMPLETE: keys},
        columns={_COMPLETE: columns, _SAMPLES: {"arguments": "text"}},
        whole={_SAMPLES: 0},
        none=_NONE,
        memory=_NONE,
        other=_COMPLETE,
        optional=(_UNUSED, 0),
        samples=_SAMPLES,
    )


def batches(chunks: Iterable[Chunk]) -> Iterator[TokenizedEvents | Chunk]:
    """Yield the events of chunks, and the chunks that must be read another way."""
    waiting: list[Chunk] = []
    for chunk in chunks:
        waiting.append(chunk)
        if chunk[1] or sum(len(text) for text, _ in waiting) >= BATCH_BYTES:
            yield from _read(waiting)
            waiting = []


def _read(chunks: list[Chunk]) -> Iterator[TokenizedEvents | Chunk]:
    tokenizer = Tokenizer(_description())
    strange = [chunk for chunk in chunks if not _taken(tokenizer, *chunk)]
    try:
        batch = _TokenizedColumns(tokenizer).batch()
    except _UNREADABLE:
        strange = chunks
    else:
        yield batch
    yield from strange


def _taken(tokenizer: Tokenizer, text: bytes, last: bool) -> bool:  # noqa: FBT001 - the two parts of a chunk
    try:
        tokenizer.tokenize(text, last=last)
    except NotTokenized:
        return False
    return True


class _TokenizedColumns:
    """Makes frames of what a tokenizer read."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._base = tokenizer.base()
        self._classes = {number: tokenizer.columns(number) for number in (_COMPLETE, _SAMPLES)}
        self._pool = tokenizer.texts()
        self._without_time = 0

    def batch(self) -> TokenizedEvents:
        """Return the events.

        Raises:
            UnicodeDecodeError: A text is not UTF-8.
            msgspec.DecodeError: A text is not JSON.
        """
        phase = self._base["phase"]
        known = np.isin(phase, np.frombuffer(b"XCsfMt", np.uint8))
        counters, arrows = self._counters(), self._arrows(phase)
        unknown = int((~known).sum())
        return TokenizedEvents(self._complete(), counters, arrows, self._names(), self._without_time, unknown)

    def _timed(self, events: pl.DataFrame) -> pl.DataFrame:
        found = events.filter(pl.col("ts").is_not_null())
        self._without_time += events.height - found.height
        return found

    def _complete(self) -> pl.DataFrame:
        columns = self._classes[_COMPLETE]
        chosen = self._base["phase"][columns["event"]] == ord("X")
        if not chosen.all():
            columns = {name: column[chosen] for name, column in columns.items()}
        found = self._of_events(columns["event"], "ts", "dur", "process", "thread", "name", "category")
        for name, column in columns.items():
            if name in TEXTS and (column >= 0).any():
                found.append(self._made(column, _contents).alias(name))
            elif name in INTEGERS and (column != ABSENT).any():
                found.append(_integers(name, column))
            elif name in REALS and not np.isnan(column).all():
                found.append(pl.Series(name, column).fill_nan(None))
        return pl.DataFrame(found)

    def _of_events(self, rows: Column, *names: str) -> list[pl.Series]:
        """Return columns that every event has."""
        found = []
        for name in names:
            column = self._base[name][rows]
            if name in ("ts", "dur"):
                found.append(_integers(name, column))
            elif name in ("process", "thread"):
                found.append(self._made(column, lambda texts: numbers(_strings(texts))).alias(name))
            else:
                series = self._made(column, _contents)
                found.append((series.fill_null("") if name == "name" else series).alias(name))
        return found

    def _made(self, codes: Column, make: Callable[[list[bytes]], pl.Series]) -> pl.Series:
        """Return the values made of the texts of codes, each distinct text once; null for no text."""
        places, index = self._distinct(codes)
        made = make([self._pool[place] for place in places.tolist()])
        return made.extend_constant(None, 1).gather(pl.Series(index))

    def _distinct(self, codes: Column) -> tuple[Column, Column]:
        """Return the codes that occur, and the index of each given code among them; no text is after the last."""
        occurs = np.zeros(len(self._pool) + 1, bool)
        occurs[codes] = True  # −1, no text, indexes the last element
        places = np.flatnonzero(occurs[:-1])
        number = np.full(len(occurs), len(places), np.uint32)
        number[places] = np.arange(len(places), dtype=np.uint32)
        return places, number[codes]

    def _of_phase(self, phase: str) -> tuple[Column, Column]:
        """Return the events of a phase whose arguments are kept as one text, and the codes of these texts."""
        columns = self._classes[_SAMPLES]
        chosen = self._base["phase"][columns["event"]] == ord(phase)
        return columns["event"][chosen], columns["arguments"][chosen]

    def _counters(self) -> pl.DataFrame:
        rows, codes = self._of_phase("C")
        places, index = self._distinct(codes)
        samples: list[tuple[int, Sample]] = [
            (number, sample)
            for number, place in enumerate(places.tolist())
            for sample in samples_of(_members(self._pool[place]))
        ]
        known = pl.DataFrame(
            [(number, *sample) for number, sample in samples],
            schema={"place": pl.UInt32, "key": pl.String, "of": pl.String, "value": pl.Float64},
            orient="row",
        ).with_columns(pl.col("key").cast(pl.Categorical()))
        events = pl.DataFrame([*self._of_events(rows, "ts", "process", "name"), pl.Series("place", index)])
        found = self._timed(events).join(known, on="place", maintain_order="left")
        return names_of(found).select(list(COUNTERS))

    def _arrows(self, phase: Column) -> pl.DataFrame:
        rows = np.flatnonzero((phase == ord("s")) | (phase == ord("f")))
        identifier = np.where(self._base["id"][rows] == ABSENT, -1, self._base["id"][rows])
        names = ("ts", "process", "thread", "category")
        frame = pl.DataFrame(
            [
                *self._of_events(rows, *names),
                self._made(identifier, lambda texts: text_values.texts(_strings(texts))).alias("id"),
                pl.Series("start", phase[rows] == ord("s")),
            ]
        )
        drawn = ~pl.col("category").cast(pl.String).is_in(KNOWN_ARROWS).fill_null(value=False)
        return self._timed(frame.filter(drawn)).select(list(ARROWS))

    def _names(self) -> list[tuple[str, int, int | None, str]]:
        rows, codes = self._of_phase("M")
        events = pl.DataFrame(self._of_events(rows, "process", "thread", "name")).rows()
        said = [_members(self._pool[code]) if code >= 0 else {} for code in codes.tolist()]
        return [
            (sort, process, thread, printable(name))
            for (process, thread, sort), arguments in zip(events, said, strict=True)
            if process is not None and isinstance(name := name_given(sort, arguments), str)
        ]


def _integers(name: str, column: Column) -> pl.Series:
    series, absent = pl.Series(name, column), column == ABSENT
    return series.set(pl.Series(absent), None) if absent.any() else series


def _strings(sources: list[bytes]) -> pl.Series:
    return pl.Series([source.decode() for source in sources], dtype=pl.String)


def _contents(sources: list[bytes]) -> pl.Series:
    return pl.Series(list(map(_content, sources)), dtype=pl.Categorical)


def _content(source: bytes) -> str:
    """Return the content of a JSON text; other JSON unchanged."""
    if source[:1] != b'"':
        return source.decode()
    text = source[1:-1].decode() if b"\\" not in source else msgspec.json.decode(source, type=str)
    return printable(text)


def _members(source: bytes) -> dict[str, Any]:
    found = msgspec.json.decode(source)
    return found if isinstance(found, dict) else {}
