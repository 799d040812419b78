"""Perfetto's own format: slices, counters and flows of track events → tables.

What other recorders put into such a file (the kernel's scheduler, a GPU's stages, heaps) is counted, and not read. Of
stepscope's own ``trace.pftrace``, the tables are those that it was written of.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import polars as pl

from stepscope.errors import DamagedTraceError
from stepscope.read.common.communication import transport_of_kernel
from stepscope.read.common.distinct import of_each, same
from stepscope.read.common.named_steps import add_named_steps
from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import PartBuilder, sound_spans
from stepscope.read.common.protobuf import FIXED64
from stepscope.read.common.source import Progress, read_blocks
from stepscope.read.common.torch_events import kind_of, name_class
from stepscope.read.perfetto import slice_details
from stepscope.read.perfetto.packets import EVENT, Packets
from stepscope.read.perfetto.perfetto_tracks import PerfettoTracks
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import KINDS
from stepscope.trace.tables import labelled

#: Fields of ``TrackEvent``.
_CATEGORY_NUMBER, _LEGACY, _TYPE, _NAME_NUMBER, _TRACK, _CATEGORY, _NAME = 3, 6, 9, 10, 11, 22, 23
_INTEGER, _REAL = 30, 44
#: Further counters of an event: their tracks, by defaults too, and their values.
_FURTHER = ((31, 12), (45, 46))
_FLOWS = ((47, FIXED64), (48, FIXED64), (36, 0), (42, 0))
#: ``TrackEvent.Type``, and the phases of Chrome's events that mean the same.
_BEGIN, _END, _COUNTER, _WHOLE = 1, 2, 4, 88
_PHASES = {ord("B"): _BEGIN, ord("E"): _END, ord("X"): _WHOLE}
#: Vocabularies of ``InternedData``.
_CATEGORIES, _EVENT_NAMES = 1, 2
_STEP = re.compile(r"step (-?\d+)")
_LAUNCHING = ("runtime", "driver")
_NO_WRITER = -1


def read(
    path: Path, ledger: LossLedger, progress: Progress | None = None, *, rank: int | None = None
) -> dict[str, pl.DataFrame]:
    """Read one file, plain or gzip. All processes in it are one rank, but in a timeline that stepscope made of a job.

    Args:
        path: The file.
        ledger: Counts losses.
        progress: Called with bytes read, and in total.
        rank: Rank to read, of a timeline of a job.

    Raises:
        InputError: The file cannot be read, or holds no packet.
    """
    packets = Packets.of(b"".join(read_blocks(path, ledger, progress)), path, ledger, rank)
    if not len(packets):
        message = f"{path} holds no packet of Perfetto."
        raise DamagedTraceError(message, "Copy it again, or record again.")
    return _PerfettoTrace(packets).tables()


class _PerfettoTrace:
    """One trace: its events as rows, and the part that they become."""

    def __init__(self, packets: Packets) -> None:
        self._packets = packets
        self._ledger = packets.ledger
        self._tracks = PerfettoTracks(packets)
        self._part = PartBuilder(self._tracks.rank or 0, self._tracks.host)
        self._of_packet, messages = packets.fields.within(EVENT)
        self._fields = messages.fields()
        self._ledger.add("event_damaged", int(self._fields.broken.sum()))
        self._rows = self._events()

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables of the part."""
        self._add_slices()
        self._add_counters()
        for label in self._tracks.labels:
            self._part.add_facts(labelled(label))
        if not self._part.spans:
            self._ledger.add("files_without_events")
        return self._part.tables()

    def _events(self) -> pl.DataFrame:
        """Return a row for each event: its type, time, track, and the duration of those that are whole."""
        fields, at = self._fields, pl.Series(self._of_packet, dtype=pl.UInt32)
        default = self._packets.default(EVENT, _TRACK)[at]
        uuid, kind = fields.integers(_TRACK), fields.integers(_TYPE)
        owners, legacy = fields.within(_LEGACY)
        phases, lengths = (legacy.fields().integers(number).to_list() for number in (2, 3))
        types, durations = kind.to_list(), [None] * len(kind)
        for owner, phase, length in zip(owners.tolist(), phases, lengths, strict=True):
            if types[owner] is None:
                types[owner] = _PHASES.get(phase)
                durations[owner] = length if types[owner] == _WHOLE and length is not None else None
        return pl.DataFrame(
            {
                "type": pl.Series(types, dtype=pl.Int64),
                "ts": self._packets.times[at],
                "dur": pl.Series(durations, dtype=pl.Int64) * 1000,
                "uuid": uuid.zip_with(uuid.is_not_null(), default),
                "writer": self._packets.sequence[self._of_packet],
            }
        ).with_row_index("event")

    def _named(self, number: int, text: int, vocabulary: int) -> pl.Series:
        """Return each event's first text in a field, written out or by its number in a vocabulary; null without one."""
        owners, words = self._fields.every_text(text, self._ledger)
        holders, numbers = self._fields.packed_integers(number)
        asked = pl.DataFrame({"state": self._packets.state[self._of_packet[holders]], "number": numbers})
        known = asked.join(self._packets.texts(vocabulary), on=["state", "number"], how="left", maintain_order="left")
        self._ledger.add("value_unreadable", known["text"].null_count())
        events = np.concatenate([owners, holders])
        texts = pl.concat([pl.Series("text", words, dtype=pl.Categorical()), known["text"]])
        place = np.full(self._rows.height, len(texts), np.int64)
        place[events[::-1]] = np.arange(len(texts))[::-1]
        return pl.concat([texts, pl.Series("text", [None], pl.Categorical())])[pl.Series(place, dtype=pl.UInt32)]

    def _add_slices(self) -> None:
        slices = self._slices()
        event = slices["event"]
        names = self._named(_NAME_NUMBER, _NAME, _EVENT_NAMES)[event].fill_null("").alias("name")
        category = self._named(_CATEGORY_NUMBER, _CATEGORY, _CATEGORIES)[event].alias("category")
        kinds = of_each(_kind, category, names, dtype=pl.String()).alias("kind")
        of_writer = slices["writer"].zip_with(slices["uuid"].is_null(), same("", _NO_WRITER, slices.height, pl.Int64()))
        lanes = [uuid for uuid in slices["uuid"].unique().to_list() if self._tracks.is_steps(uuid)]
        on_lane = slices["uuid"].is_in(lanes).fill_null(value=False)
        slices = slices.with_columns(names, kinds, of_writer.alias("writer"))
        said = slices.filter(on_lane).with_columns(
            number=pl.col("name").cast(pl.String).str.extract(_STEP.pattern).cast(pl.Int64, strict=False)
        )
        marks = said.filter(said["name"].cast(pl.String).str.contains(_STEP.pattern))
        self._part.add_steps(marks.select("number", "ts", "dur"), "declared")
        slices = slices.filter(~on_lane)
        track = self._part.tracks.numbered(self._tracks.row, slices["uuid"], slices["writer"])
        rows = slice_details.annotated(self._packets, self._fields, self._of_packet)
        own = slice_details.own(rows, self._rows.height)
        slices = sound_spans(slices.with_columns(track), self._ledger)
        slices = slices.hstack(own[slices["event"].cast(pl.UInt32)])
        if not lanes:
            slices = add_named_steps(self._part, slices)
        columns = ("track", "ts", "dur", "name", "kind", *slice_details.OWN.values())
        first = self._part.add_spans(slices.select(columns))
        span_of = np.full(self._rows.height, -1, np.int64)
        span_of[slices["event"].to_numpy()] = np.arange(first, first + slices.height)
        slice_details.add_to(self._part, rows, pl.Series(span_of).set(pl.Series(span_of < 0), None))
        self._add_arrows(slices)

    def _slices(self) -> pl.DataFrame:
        """Return ``event``, ``ts``, ``dur``, ``uuid`` and ``writer`` of each slice; an end is that of the innermost."""
        rows = self._rows.filter(pl.col("type").is_in([_BEGIN, _END, _WHOLE]))
        known = rows.drop_nulls("ts")
        self._ledger.add("event_bad_time", rows.height - known.height)
        unused = self._rows.filter(~pl.col("type").is_in([_BEGIN, _END, _WHOLE, _COUNTER]) | pl.col("type").is_null())
        self._ledger.add("event_unknown_kind", unused.height, "Marks of Perfetto." if unused.height else "")
        whole = known.filter(pl.col("type") == _WHOLE)
        self._ledger.add("event_without_duration", whole["dur"].null_count())
        marks = known.filter(pl.col("type") != _WHOLE).sort("ts", maintain_order=True)
        open_slices: dict[tuple[int | None, int], list[tuple[int, int]]] = {}
        found: list[tuple[int, int]] = []
        unmatched = 0
        for event, kind, ts, uuid, writer in marks.select("event", "type", "ts", "uuid", "writer").iter_rows():
            stack = open_slices.setdefault((uuid, writer if uuid is None else 0), [])
            if kind == _BEGIN:
                stack.append((event, ts))
            elif stack:
                begun, start = stack.pop()
                found.append((begun, ts - start))
            else:
                unmatched += 1
        self._ledger.add("event_unmatched_end", unmatched)
        self._ledger.add("event_unmatched_begin", sum(map(len, open_slices.values())))
        ended = pl.DataFrame(found, schema={"event": pl.UInt32, "dur": pl.Int64}, orient="row")
        paired = marks.drop("dur").join(ended.cast({"event": marks["event"].dtype}), on="event", maintain_order="left")
        columns = ["event", "ts", "dur", "uuid", "writer"]
        return pl.concat([paired.select(columns), whole.drop_nulls("dur").select(columns)])

    def _add_arrows(self, slices: pl.DataFrame) -> None:
        """Add an arrow between any two slices that follow each other on a flow."""
        flows = [self._fields.every_integer(number, wire) for number, wire in _FLOWS]
        events, numbers = (np.concatenate([flow[place] for flow in flows]) for place in (0, 1))
        if not len(events):
            return
        points = pl.DataFrame({"event": events, "flow": numbers}).cast({"event": slices["event"].dtype})
        streams = [number for number, row in enumerate(self._part.tracks.rows) if row.kind == "stream"]
        points = points.join(slices.select("event", "ts", "track", "kind"), on="event").unique(["event", "flow"])
        points = points.sort("flow", "ts", "event").with_columns(on_stream=pl.col("track").is_in(streams))
        names = ("track", "ts", "kind", "on_stream")
        pairs = points.with_columns(pl.col(name).shift(-1).over("flow").alias(f"to_{name}") for name in names)
        launches = pl.col("kind").is_in(_LAUNCHING) & pl.col("to_on_stream")
        operators = (pl.col("kind") == "operator") & (pl.col("to_kind") == "operator")
        kind = pl.when(launches).then(pl.lit("launch")).when(operators).then(pl.lit("forward_backward"))
        kind = kind.when(pl.col("on_stream") & (pl.col("to_kind") == "sync")).then(pl.lit("wait"))
        drawn = pairs.drop_nulls("to_ts").select(
            kind=kind.otherwise(pl.lit("other")), from_track="track", from_ts="ts", to_track="to_track", to_ts="to_ts"
        )
        self._part.add("arrows", drawn)

    def _add_counters(self) -> None:
        fields, events = self._fields, self._rows
        whole, real = fields.integers(_INTEGER).cast(pl.Float64), fields.doubles(_REAL)
        value = real.zip_with(real.is_not_null(), whole).alias("value")
        samples = [events.with_columns(value).filter(pl.col("type") == _COUNTER).select("ts", "uuid", "value")]
        for tracks, values in _FURTHER:
            samples.append(self._further(tracks, values))
        rows = pl.concat(samples)
        known = rows.drop_nulls(["ts", "uuid", "value"])
        self._ledger.add("event_damaged", rows.height - known.height)
        for (uuid,), given in known.sort("ts", maintain_order=True).partition_by("uuid", as_dict=True).items():
            row, unit, multiplier, counts_on = self._tracks.counter(uuid)
            number = self._part.tracks.number(row)
            value = given["value"].cum_sum() if counts_on else given["value"]
            columns = {"ts": given["ts"], "value": value * multiplier, "track": number, "name": row.name, "unit": unit}
            self._part.add("counters", pl.DataFrame(columns))

    def _further(self, tracks: int, values: int) -> pl.DataFrame:
        """Return the samples of counters that events of other sorts carry."""
        fields = self._fields
        owners, uuids = fields.packed_integers(tracks)
        if tracks == _FURTHER[0][0]:
            holders, found = fields.packed_integers(values)
        else:
            holders, words = fields.every_integer(values, FIXED64)
            found = words.view(np.float64)
        places = [pl.Series("place", _places(one)) for one in (owners, holders)]
        asked = pl.DataFrame({"event": owners, "uuid": uuids}).with_columns(places[0])
        given = pl.DataFrame({"event": holders, "value": found.astype(np.float64)}).with_columns(places[1])
        joined = asked.join(given, on=["event", "place"]).cast({"event": self._rows["event"].dtype})
        self._ledger.add("value_unreadable", abs(len(holders) - len(owners)))
        return joined.join(self._rows.select("event", "ts"), on="event").select("ts", "uuid", "value")


def _places(owners: Integers) -> Integers:
    """Return how many rows before each have the same owner; owners are in order."""
    first = np.searchsorted(owners, owners)
    places: Integers = np.arange(len(owners)) - first
    return places


def _kind(category: str | None, name: str | None) -> str:
    category, name = category or "", name or ""
    kind = category if category in KINDS else tuple(KINDS)[kind_of(category, name_class(name))]
    return "collective" if kind == "kernel" and transport_of_kernel(name) else kind
