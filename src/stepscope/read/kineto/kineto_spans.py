"""Spans and tracks of a Kineto trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.chrome_json.columns import ChromeEvents, Codes, Columns
from stepscope.read.chrome_json.event_schema import ABSENT, BAD, Class
from stepscope.read.common.communication import transport_of_kernel
from stepscope.read.common.dense import distinct_rows, nullable, places
from stepscope.read.common.distinct import filled
from stepscope.read.common.named_steps import named_steps
from stepscope.read.common.nesting import Integers, unrounded
from stepscope.read.common.part_builder import KIND_CODE, LARGEST_TIME, Mask, PartBuilder, coded, kinds_of
from stepscope.read.common.plain_text import printable
from stepscope.read.common.torch_events import NAME_CLASSES, SKIPPED_CATEGORIES, add_steps, kind_of, name_class
from stepscope.read.kineto.kineto_facts import KinetoFacts
from stepscope.read.kineto.kineto_tracks import KinetoTracks
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import of_arrays

_OWN_MARKS = ("Iteration Start", "Record Window End")
#: What viztracer appends to the name of a range: where it is in the program.
_PLACE = r" \([^()]*:\d+\)$"


@dataclass
class KinetoSpans:
    """The spans of a file: which event each is, and where and when it lies.

    Attributes:
        events: The events they are made of.
        rows: Row of each span's event in ``events.base``.
        ts: Start, ns since the Unix epoch.
        dur: Duration, ns.
        kind: Number of the kind, see :data:`~stepscope.read.common.part_builder.KIND_CODE`.
        tracks: The tracks.
        track: Track of each span.
    """

    events: ChromeEvents
    rows: Integers
    ts: Integers
    dur: Integers
    kind: npt.NDArray[np.uint8]
    tracks: KinetoTracks
    track: Codes = field(init=False)

    def __post_init__(self) -> None:
        self.track = self.tracks.of_spans(self.rows, self.kind)

    @cached_property
    def _pool(self) -> pl.Series:
        return pl.Series(self.events.texts, dtype=pl.String).cast(pl.Categorical())

    def texts(self, codes: Codes) -> pl.Series:
        """Return the texts of codes as a categorical column; null for −1."""
        return coded(self._pool, codes)

    def made_of(self, codes: Codes, make: Callable[[str], object], kind: pl.DataType) -> pl.Series:
        """Return what is made of the text of each code, empty for −1; each distinct code is looked at once."""
        first, which = distinct_rows([codes])
        return pl.Series([make(text_of(self.events, codes[row])) for row in first], dtype=kind)[places(which)]

    @cached_property
    def of_event(self) -> Integers:
        """Span of each event; −1 for events that are not spans."""
        result = np.full(len(self.events), -1, np.int64)
        result[self.rows] = np.arange(len(self.rows))
        return result

    def named(self, column: str, *texts: str) -> Mask:
        """Return which spans have one of the texts as category or name."""
        return one_of(self.events, self.events.base[column], texts)[self.rows]

    def argument(self, column: str, *kinds: Class) -> pl.Series:
        """Return an argument of every span; null where it has none."""
        # One entry more, for events that are not spans.
        values = np.full(len(self.rows) + 1, ABSENT, np.int64)
        for kind in kinds:
            columns = self.events.of(kind)
            values[self.of_event[columns["event"]]] = columns[column]
        return nullable(values[:-1], ABSENT)


def add_to(part: PartBuilder, events: ChromeEvents, facts: KinetoFacts, ledger: LossLedger) -> KinetoSpans:
    """Add the spans and steps of a file; events that cannot be spans are counted."""
    rows, durations = _intervals(events, ledger)
    if len(copies := _copies(events, rows, durations)):
        ledger.add("event_twice", len(copies))
        rows, durations = np.delete(rows, copies), np.delete(durations, copies)
    tracks = KinetoTracks(events, part.tracks, facts)
    work = tracks.strange(rows)
    if work.any():
        work &= ~_containing(events, rows, durations)
    kinds = _kinds(events, rows, work)
    for code, count in zip(*np.unique(events.base["category"][rows[work]], return_counts=True), strict=True):
        ledger.add("kind_unknown", int(count), f"Device work of the category {printable(text_of(events, code))!r}.")
    spans = KinetoSpans(events, rows, events.base["ts"][rows] + facts.base_ns, durations, kinds, tracks)
    name = events.base["name"][rows]
    _declare_steps(part, spans)
    host = np.flatnonzero(events.base["class"][rows] != Class.DEVICE)
    durations[host] = unrounded(spans.track[host], spans.ts[host], durations[host])
    launched = _launched_kernels(spans)
    columns: Mapping[str, pl.Series | npt.NDArray[Any]] = {
        "track": spans.track,
        "ts": spans.ts,
        "dur": spans.dur,
        "name": filled(spans.texts(name), ""),
        "kind": kinds_of(spans.kind),
        "correlation": spans.argument("correlation", Class.DEVICE, Class.RUNTIME),
        "sequence": spans.argument("sequence", Class.OPERATOR, Class.ANNOTATION),
        "external": spans.argument("external", Class.DEVICE, Class.OPERATOR),
        "forward_thread": spans.argument("forward_thread", Class.OPERATOR),
        **launched,
    }
    part.add_spans(of_arrays(columns))
    return spans


def _declare_steps(part: PartBuilder, spans: KinetoSpans) -> None:
    """Add the steps of PyTorch's profiler; where a file has neither those nor operators, ranges named like steps."""
    events, name = spans.events, spans.events.base["name"][spans.rows]
    steps = np.flatnonzero(spans.kind == KIND_CODE["step"])
    add_steps(part, [text_of(events, code) for code in name[steps]], spans.ts[steps], spans.dur[steps])
    if len(steps) or (spans.kind == KIND_CODE["operator"]).any():
        return
    names = spans.texts(name).cast(pl.String).str.replace(_PLACE, "")
    # viztracer's ranges have the category that earlier versions give to functions, of which many are called `step`.
    ranges = spans.named("category", "FEE") & names.str.contains(r"\d$").fill_null(value=False).to_numpy()
    places = np.flatnonzero(ranges | (spans.kind == KIND_CODE["annotation"]))
    track, ts, dur = spans.track[places].astype(np.int64), spans.ts[places], spans.dur[places]
    found = named_steps(names[places].cast(pl.Categorical()), track, ts, dur)
    spans.kind[places[found.rows]] = KIND_CODE["step"]
    part.add_steps({"number": found.numbers, "ts": ts[found.rows], "dur": dur[found.rows]}, "declared")


def _launched_kernels(spans: KinetoSpans) -> dict[str, pl.Series]:
    """Return the column ``launches``: the kernel that each call launches; nothing if no call says it."""
    columns = spans.events.of(Class.RUNTIME)
    if not (columns["kernel"] >= 0).any():
        return {}
    codes = np.full(len(spans.rows) + 1, -1, np.int32)  # one more, for events that are not spans
    codes[spans.of_event[columns["event"]]] = columns["kernel"]
    return {"launches": spans.texts(codes[:-1])}


def _intervals(events: ChromeEvents, ledger: LossLedger) -> tuple[Integers, Integers]:
    """Return the events that are spans, and their durations in ns."""
    phase, ts, dur = events.base["phase"], events.base["ts"], events.base["dur"]
    complete = phase == ord("X")
    for category in SKIPPED_CATEGORIES & set(events.texts):
        complete &= events.base["category"] != events.texts.index(category)
    timed = (ts > BAD) & (np.abs(ts) < LARGEST_TIME)
    has_duration = dur != ABSENT
    known = (dur > BAD) & (np.abs(dur) < LARGEST_TIME)
    ledger.add("event_bad_time", int((complete & (~timed | (has_duration & ~known))).sum()))
    ledger.add("event_without_duration", int((complete & timed & ~has_duration).sum()))
    ledger.add("event_negative_duration", int((complete & timed & known & (dur < 0)).sum()))
    rows = np.flatnonzero(complete & timed & known & (dur >= 0))
    _count_unused(events, ledger)
    begun, ended = _pairs(events, ledger)
    if not len(begun):
        return rows, dur[rows]
    return np.concatenate([rows, begun]), np.concatenate([dur[rows], ts[ended] - ts[begun]])


#: Odd numbers that mix several into one of 64 bits: where these differ, so do the several.
_MIXERS = tuple(map(np.uint64, (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)))


def _copies(events: ChromeEvents, rows: Integers, durations: Integers) -> Integers:
    """Return the places of intervals that equal an earlier one, its number included: the file holds an event twice."""
    number = np.zeros(len(events), np.int64)
    for kind, column in ((Class.DEVICE, "correlation"), (Class.RUNTIME, "correlation"), (Class.OPERATOR, "external")):
        columns = events.of(kind)
        number[columns["event"]] = columns[column]
    places = np.flatnonzero((number[rows] > 0) & (durations > 0))
    chosen = rows[places]
    keys = {"number": number[chosen], "ts": events.base["ts"][chosen], "dur": durations[places]}
    mixed = np.sort(sum(values.astype(np.uint64) * odd for values, odd in zip(keys.values(), _MIXERS, strict=True)))
    if not (mixed[1:] == mixed[:-1]).any():
        return np.empty(0, np.int64)
    texts = {name: events.base[name][chosen] for name in ("process", "thread", "category", "name")}
    copies: Integers = places[~pl.DataFrame({**keys, **texts}).to_struct().is_first_distinct().to_numpy()]
    return copies


def _count_unused(events: ChromeEvents, ledger: LossLedger) -> None:
    """Count events of phases that are not read; marks that the profiler makes of itself are none."""
    known = np.zeros(256, np.bool_)
    known[list(b"XBEMCsft")] = True
    unused = ~known[events.base["phase"]]
    unused &= events.base["class"] != Class.MEMORY
    marks = events.base["name"][unused & (events.base["phase"] == ord("i"))]
    own = sum(text_of(events, code).startswith(_OWN_MARKS) for code in marks.tolist())
    ledger.add("event_unknown_kind", int(unused.sum()) - own)


def _pairs(events: ChromeEvents, ledger: LossLedger) -> tuple[Integers, Integers]:
    """Match begin and end events of each thread, innermost first."""
    base = events.base
    rows = np.flatnonzero((base["phase"] == ord("B")) | (base["phase"] == ord("E")))
    rows = rows[np.argsort(base["ts"][rows], kind="stable")]
    open_events: dict[tuple[int, int], list[int]] = {}
    begun, ended, unmatched_ends = [], [], 0
    for row in rows.tolist():
        if not BAD < base["ts"][row] < LARGEST_TIME:
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


def _containing(events: ChromeEvents, rows: Integers, durations: Integers) -> Mask:
    """Return which intervals contain the begin of another one of their thread or stream: work of a stream does not."""
    process, thread, ts = (events.base[name][rows] for name in ("process", "thread", "ts"))
    order = np.lexsort((-durations, ts, thread, process))
    after = order[1:]
    alike = (process[after] == process[order[:-1]]) & (thread[after] == thread[order[:-1]])
    result = np.zeros(len(rows), np.bool_)
    result[order[:-1]] = alike & (ts[after] < (ts + durations)[order[:-1]])
    return result


def _kinds(events: ChromeEvents, rows: Integers, work: Mask) -> npt.NDArray[np.uint8]:
    """Return the number of the kind of each span; ``work`` is that of a device, of an unknown category."""
    category, name = events.base["category"][rows], events.base["name"][rows]
    # Tables with an entry for each text, and a last one for −1.
    of_name = np.zeros(len(events.texts) + 1, np.uint8)
    for code in _distinct(name, events):
        of_name[code] = name_class(text_of(events, code))
    table = np.zeros((len(events.texts) + 1, NAME_CLASSES), np.uint8)
    for code in _distinct(category, events):
        table[code] = [kind_of(text_of(events, code), number) for number in range(NAME_CLASSES)]
    result: npt.NDArray[np.uint8] = table[category, of_name[name]]
    result[work] = KIND_CODE["other"]
    kernels = (result == KIND_CODE["kernel"]) | work
    communicating = np.zeros(len(events.texts) + 1, np.bool_)
    for code in _distinct(name[kernels], events):
        communicating[code] = transport_of_kernel(text_of(events, code)) is not None
    result[kernels & communicating[name]] = KIND_CODE["collective"]
    with_arguments = np.zeros(len(events), np.bool_)
    with_arguments[events.of(Class.COLLECTIVE)["event"]] = True
    result[with_arguments[rows]] = KIND_CODE["collective"]
    return result


def _distinct(codes: Codes, events: ChromeEvents) -> list[int]:
    """Return the codes that occur; −1 as itself, which is also the last entry of a table of texts."""
    seen = np.zeros(len(events.texts) + 1, np.bool_)
    seen[codes] = True
    return [code if code < len(events.texts) else -1 for code in np.flatnonzero(seen).tolist()]


def text_of(events: ChromeEvents, code: int) -> str:
    """Return the text of a code; empty for −1."""
    return events.texts[code] if code >= 0 else ""


def one_of(events: ChromeEvents, codes: Codes, texts: Iterable[str]) -> Mask:
    """Return which codes are those of one of the texts."""
    chosen = np.zeros(len(events.texts) + 1, np.bool_)
    chosen[[events.texts.index(text) for text in texts if text in events.texts]] = True
    return chosen[codes]


def rows_of(spans: KinetoSpans, kind: Class, wanted: tuple[str, ...]) -> tuple[Columns, Integers]:
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
