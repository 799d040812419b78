"""Spans and tracks of a Kineto trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.chrome_json.columns import Codes, Columns, Events, Integers
from stepscope.read.chrome_json.event_schema import ABSENT, BAD, Class
from stepscope.read.common import torch_events as kineto_kinds
from stepscope.read.common.part_builder import KIND_CODE
from stepscope.read.kineto.kineto_facts import Facts
from stepscope.read.kineto.kineto_tracks import Tracks
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import KINDS
from stepscope.trace.tables import dtype

_LIMIT = 1 << 62
_OWN_MARKS = ("Iteration Start", "Record Window End")


@dataclass
class Spans:
    """The spans of a file: which event each is, and where and when it lies.

    Attributes:
        events: The events they are made of.
        rows: Row of each span's event in ``events.base``.
        ts: Start, ns since the Unix epoch.
        dur: Duration, ns.
        kind: Number of the kind, see :data:`KIND_CODE`.
        track: Track of each span.
        tracks: The tracks.
    """

    events: Events
    rows: Integers
    ts: Integers
    dur: Integers
    kind: npt.NDArray[np.uint8]
    track: Codes
    tracks: Tracks
    pool: pl.Series = field(init=False)

    def __post_init__(self) -> None:
        # The last entry is what −1 gives.
        self.pool = pl.Series([*self.events.texts, None], dtype=pl.String).cast(pl.Categorical())

    def texts(self, codes: Codes) -> pl.Series:
        """Return the texts of codes as categorical series; null where the code is −1."""
        places = np.where(codes < 0, np.int32(len(self.pool) - 1), codes)
        return self.pool[pl.Series(places.astype(np.uint32))]

    @cached_property
    def of_event(self) -> Integers:
        """Span of each event; −1 where it is none."""
        result = np.full(len(self.events), -1, np.int64)
        result[self.rows] = np.arange(len(self.rows))
        return result

    def named(self, column: str, *texts: str) -> npt.NDArray[np.bool_]:
        """Return which spans have one of the texts as category or name."""
        return one_of(self.events, self.events.base[column], texts)[self.rows]

    def frame(self) -> pl.DataFrame:
        """Return the table ``spans``, without parents, steps and phases; and what links are found by."""
        return pl.DataFrame(
            {
                "id": np.arange(len(self.rows)),
                "track": self.track,
                "ts": self.ts,
                "dur": self.dur,
                "name": self.texts(self.events.base["name"][self.rows]).fill_null(""),
                "kind": kind_series(self.kind),
                "depth": np.zeros(len(self.rows), np.int32),
                "correlation": self._argument("correlation", Class.DEVICE, Class.RUNTIME),
                "sequence": self._argument("sequence", Class.OPERATOR, Class.ANNOTATION),
                "external": self._argument("external", Class.DEVICE, Class.OPERATOR),
                "forward_thread": self._argument("forward_thread", Class.OPERATOR),
            }
        )

    def _argument(self, column: str, *kinds: Class) -> pl.Series:
        """Return an argument of every span; null where it has none."""
        # One entry more, for events that are no spans.
        values = np.full(len(self.rows) + 1, ABSENT, np.int64)
        for kind in kinds:
            columns = self.events.of(kind)
            values[self.of_event[columns["event"]]] = columns[column]
        return nullable(values[:-1])


_KINDS = pl.Series(list(KINDS), dtype=dtype("enum:kind"))


def nullable(values: Integers) -> pl.Series:
    """Return integers with null where they are absent."""
    series = pl.Series(values)
    return series.set(series == ABSENT, None) if len(series) else series


def kind_series(codes: npt.NDArray[np.uint8]) -> pl.Series:
    """Return the enumeration's values of kind numbers."""
    return _KINDS[pl.Series(codes)]


def build(events: Events, facts: Facts, ledger: LossLedger) -> Spans:
    """Make the spans of a file; events that cannot be spans are counted."""
    rows, durations = _intervals(events, ledger)
    starts = events.base["ts"][rows] + facts.base_ns
    kinds = _kinds(events, rows)
    tracks = Tracks(events)
    return Spans(events, rows, starts, durations, kinds, tracks.of_spans(rows, kinds), tracks)


def _intervals(events: Events, ledger: LossLedger) -> tuple[Integers, Integers]:
    """Return the events that are spans, and their durations in ns."""
    phase, ts, dur = events.base["phase"], events.base["ts"], events.base["dur"]
    complete = phase == ord("X")
    for category in kineto_kinds.SKIPPED_CATEGORIES & set(events.texts):
        complete &= events.base["category"] != events.texts.index(category)
    timed = (ts > BAD) & (np.abs(ts) < _LIMIT)
    has_duration = dur != ABSENT
    known = (dur > BAD) & (np.abs(dur) < _LIMIT)
    ledger.add("event_bad_time", int((complete & (~timed | (has_duration & ~known))).sum()))
    ledger.add("event_without_duration", int((complete & timed & ~has_duration).sum()))
    ledger.add("event_negative_duration", int((complete & timed & known & (dur < 0)).sum()))
    rows = np.flatnonzero(complete & timed & known & (dur >= 0))
    _count_unused(events, ledger)
    begun, ended = _pairs(events, ledger)
    if not len(begun):
        return rows, dur[rows]
    return np.concatenate([rows, begun]), np.concatenate([dur[rows], ts[ended] - ts[begun]])


def _count_unused(events: Events, ledger: LossLedger) -> None:
    """Count events of phases that are not read; marks that the profiler makes of itself are none."""
    known = np.zeros(256, np.bool_)
    known[list(b"XBEMCsft")] = True
    unused = ~known[events.base["phase"]]
    unused &= events.base["class"] != Class.MEMORY
    marks = events.base["name"][unused & (events.base["phase"] == ord("i"))]
    own = sum(text_of(events, code).startswith(_OWN_MARKS) for code in marks.tolist())
    ledger.add("event_unknown_kind", int(unused.sum()) - own)


def _pairs(events: Events, ledger: LossLedger) -> tuple[Integers, Integers]:
    """Match begin and end events of each thread, innermost first."""
    base = events.base
    rows = np.flatnonzero((base["phase"] == ord("B")) | (base["phase"] == ord("E")))
    rows = rows[np.argsort(base["ts"][rows], kind="stable")]
    open_events: dict[tuple[int, int], list[int]] = {}
    begun, ended, unmatched_ends = [], [], 0
    for row in rows.tolist():
        if not BAD < base["ts"][row] < _LIMIT:
            ledger.add("event_bad_time")
            continue
        stack = open_events.setdefault((int(base["process"][row]), int(base["thread"][row])), [])
        if base["phase"][row] == ord("B"):
            stack.append(row)
        elif stack:
            begun.append(stack.pop())
            ended.append(row)
        else:
            unmatched_ends += 1
    ledger.add("event_unmatched_end", unmatched_ends)
    ledger.add("event_unmatched_begin", sum(map(len, open_events.values())))
    return np.array(begun, np.int64), np.array(ended, np.int64)


def _kinds(events: Events, rows: Integers) -> npt.NDArray[np.uint8]:
    """Return the number of the kind of each span."""
    category, name = events.base["category"][rows], events.base["name"][rows]
    names, categories = distinct(name, events.texts), distinct(category, events.texts)
    name_class = np.zeros(len(events.texts) + 1, np.uint8)
    name_class[names] = [kineto_kinds.name_class(text_of(events, code)) for code in names]
    index = np.zeros(len(events.texts) + 1, np.int64)
    index[categories] = np.arange(len(categories))
    table = np.array(
        [[kineto_kinds.kind_of(text_of(events, code), number) for number in range(7)] for code in categories], np.uint8
    ).reshape(len(categories), 7)
    result = table[index[category], name_class[name]]
    result[_with_collective_arguments(events)[rows]] = KIND_CODE["collective"]
    return result


def _with_collective_arguments(events: Events) -> npt.NDArray[np.bool_]:
    """Return which events name the collective they are, on the host or on a stream."""
    result = np.zeros(len(events), np.bool_)
    result[events.of(Class.COLLECTIVE)["event"]] = True
    return result


def text_of(events: Events, code: int) -> str:
    """Return the text of a code; empty for −1."""
    return events.texts[code] if code >= 0 else ""


def one_of(events: Events, codes: Codes, texts: Iterable[str]) -> npt.NDArray[np.bool_]:
    """Return which codes are those of one of the texts."""
    chosen = np.zeros(len(events.texts) + 1, np.bool_)
    chosen[[events.texts.index(text) for text in texts if text in events.texts]] = True
    return chosen[codes]


def distinct(codes: Codes, texts: list[str]) -> Integers:
    """Return the codes that occur, −1 last."""
    seen = np.zeros(len(texts) + 1, np.bool_)
    seen[codes] = True
    found = np.flatnonzero(seen)
    return np.where(found == len(texts), -1, found)


def steps(spans: Spans) -> pl.DataFrame:
    """Return the table ``steps``: the marks that the program set by calling ``step()``."""
    rows = np.flatnonzero(spans.kind == KIND_CODE["step"])
    names = [text_of(spans.events, code) for code in spans.events.base["name"][spans.rows[rows]]]
    numbers = [int(name.rpartition("#")[2]) for name in names]
    return pl.DataFrame(
        {
            "number": pl.Series([number if number < 1 << 31 else None for number in numbers], dtype=pl.Int32),
            "ts": spans.ts[rows],
            "dur": spans.dur[rows],
            "source": pl.Series(["declared"] * len(rows), dtype=dtype("enum:step_source")),
        }
    ).drop_nulls("number")


def rows_of(spans: Spans, kind: Class, wanted: tuple[str, ...]) -> tuple[Columns, Integers]:
    """Return the columns of a class for those of its events that are spans of the wanted kinds, and the spans."""
    columns = spans.events.of(kind)
    ids = spans.of_event[columns["event"]]
    kept = ids >= 0
    chosen = np.zeros(len(KIND_CODE), np.bool_)
    chosen[[KIND_CODE[name] for name in wanted]] = True
    kept[kept] = chosen[spans.kind[ids[kept]]]
    if kept.all():
        return columns, ids
    return {name: column[kept] for name, column in columns.items()}, ids[kept]


def gather(values: pl.Series, of: Integers, codes: Codes) -> pl.Series:
    """Return for each code the value computed for that distinct code."""
    if not len(codes):
        return values.clear()
    return (
        values.gather(np.searchsorted(of, codes))
        if of[-1] >= 0
        else values.gather(np.where(codes < 0, len(of) - 1, np.searchsorted(of[:-1], codes)))
    )
