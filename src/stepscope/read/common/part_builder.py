"""The one builder of a part: tracks, spans, details, facts and losses of one capture → tables of the schema.

A reader registers tracks, hands over columns of spans in as many batches as it likes, and details with the numbers of
their spans. Codes become texts, and numbers of kinds become the enumeration, here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.common.dense import places
from stepscope.read.common.distinct import combinations
from stepscope.trace.losses import CATALOGUE, LossLedger
from stepscope.trace.schema import KINDS, TABLES
from stepscope.trace.tables import FRAME, conform, dtype, of_columns, schema, together

Mask: TypeAlias = npt.NDArray[np.bool_]

#: Times and durations up to this, ns, can be added within 64 bits; what lies beyond is damage.
LARGEST_TIME = 1 << 62
#: No file has more lines; a larger number is damage. Numbers of steps have as many bits.
_LAST_LINE = _LAST_STEP = (1 << 31) - 1
#: Number of a kind in the enumeration of the schema.
KIND_CODE = {name: code for code, name in enumerate(KINDS)}
_KINDS = pl.Series(list(KINDS), dtype=dtype("enum:kind"))
#: Arrows whose ends are a track and a time on it.
_NO_ARROWS = pl.DataFrame(
    schema={"kind": pl.String, "from_track": pl.Int32, "from_ts": pl.Int64, "to_track": pl.Int32, "to_ts": pl.Int64}
)


def whole_number(digits: str) -> int:
    """Return the number that digits say, at most :data:`LARGEST_TIME`."""
    return min(int(digits.lstrip("0")[:20] or "0"), LARGEST_TIME)


class TrackRow(NamedTuple):
    """A track: its kind, its device (``cpu``, ``cuda:0``), its name, and the numbers that the system knows it by."""

    kind: str
    device: str
    name: str
    process: int | None = None
    thread: int | None = None
    stream: int | None = None


class PartTracks:
    """The tracks of one part, numbered in the order of registration."""

    def __init__(self, rank: int = 0, host: str = "") -> None:
        self.rank = rank
        self.host = host
        self.rows: list[TrackRow] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, track: TrackRow, key: Hashable = None) -> int:
        """Return the number of a track; the first call with a key, by default all its values, registers it."""
        number = self._numbers.setdefault(track if key is None else key, len(self.rows))
        if number == len(self.rows):
            self.rows.append(track)
        return number

    def known(self, key: Hashable) -> int:
        """Return the number of a registered track, −1 for an unknown key."""
        return self._numbers.get(key, -1)

    def numbered(self, make: Callable[..., TrackRow], *columns: pl.Series) -> pl.Series:
        """Return the track of each row, as the column ``track``.

        Args:
            make: Makes the track of one combination of values; it is called once for each distinct one.
            columns: Integers, truths or categorical texts that identify the track; null is passed as None.
        """
        rows, which = combinations(*columns)
        numbers = np.array([self.number(make(*row)) for row in rows], np.int32)
        return pl.Series("track", numbers[which], dtype=pl.Int32)

    def table(self) -> pl.DataFrame:
        """Return the table ``tracks``."""
        count = len(self.rows)
        values = dict(zip(TrackRow._fields, zip(*self.rows, strict=True), strict=True)) if self.rows else {}
        columns = {"id": range(count), "order": range(count), "rank": [self.rank] * count, "host": [self.host] * count}
        columns.update(values)
        return of_columns([pl.Series(name, columns.get(name, []), kind) for name, kind in schema("tracks").items()])


class PartBuilder:
    """Gathers the tables of one part."""

    def __init__(self, rank: int = 0, host: str = "") -> None:
        self.tracks = PartTracks(rank, host)
        #: Number of spans so far, which is the number of the next one.
        self.spans = 0
        self._pieces: dict[str, list[pl.DataFrame]] = {}

    def add_spans(self, columns: pl.DataFrame | Mapping[str, Any]) -> int:
        """Add spans; return the number of the first.

        Args:
            columns: ``track``, ``ts``, ``dur`` (ns, not negative), ``name``, ``kind``, and what the assembly links by:
                ``correlation``, ``sequence``, ``external``, ``forward_thread``, ``calling_line``, ``said_phase``.
        """
        first = self.spans
        frame = columns if isinstance(columns, pl.DataFrame) else pl.DataFrame(columns)
        self.add("spans", frame)
        self.spans += frame.height
        return first

    def add(self, table: str, rows: pl.DataFrame | Mapping[str, Any]) -> None:
        """Add rows of a table; they may have further columns that the assembly knows."""
        frame = rows if isinstance(rows, pl.DataFrame) else pl.DataFrame(rows)
        if frame.height:
            self._pieces.setdefault(table, []).append(frame)

    def add_rows(self, table: str, rows: Iterable[Sequence[Any]], *columns: str) -> None:
        """Add rows of a table, each a sequence of the values of these columns."""
        kinds, listed = schema(table), list(rows)
        if listed:
            self.add(table, pl.DataFrame(listed, schema={name: kinds[name] for name in columns}, orient="row"))

    def add_facts(self, facts: Mapping[str, str]) -> None:
        """Add rows of the table ``metadata``: each value is JSON."""
        self.add_rows("metadata", facts.items(), "key", "value")

    def add_stacks(self, frames: Iterable[Sequence[Mapping[str, Any]]]) -> None:
        """Add the table ``stacks``: each is a list of ``file``, ``line`` and ``function``; ids count from 0.

        A line that no file has becomes null, and is counted.
        """
        listed = [list(stack) for stack in frames]
        impossible = 0
        for stack in listed:
            for place, frame in enumerate(stack):
                if frame["line"] is not None and abs(frame["line"]) > _LAST_LINE:
                    stack[place] = {**frame, "line": None}
                    impossible += 1
        self.add_losses({"value_unreadable": impossible}, "stacks")
        if listed:
            self.add(
                "stacks", pl.DataFrame({"id": range(len(listed)), "frames": pl.Series(listed, dtype=pl.List(FRAME))})
            )

    def add_steps(self, frame: pl.DataFrame | Mapping[str, Any], source: str) -> None:
        """Add steps: ``number``, ``ts``, ``dur``; the source is ``declared`` or ``inferred``."""
        steps = self.possible_steps(frame if isinstance(frame, pl.DataFrame) else pl.DataFrame(frame))
        said = pl.Series("source", [source], dtype("enum:step_source")).new_from_index(0, steps.height)
        self.add("steps", steps.hstack([said]))

    def possible_steps(self, marks: pl.DataFrame) -> pl.DataFrame:
        """Return the marks whose ``number`` a step can have; the others are counted."""
        possible = (marks["number"] >= 0) & (marks["number"] <= _LAST_STEP)
        impossible = marks.height - int(possible.sum())
        self.add_losses({"step_number_large": impossible}, "steps")
        return marks.filter(possible) if impossible else marks

    def add_losses(self, counts: Mapping[str, int], source: str) -> None:
        """Add what a collector counted while it recorded."""
        rows = [(what, count, *CATALOGUE.get(what, ("info", "")), source) for what, count in counts.items() if count]
        self.add_rows("losses", rows, "what", "count", "severity", "advice", "source")

    def add_ledger(self, ledger: LossLedger) -> None:
        """Add what a ledger counted, under the ledger's own source."""
        rows = [(loss.what, loss.count, loss.severity, loss.advice, loss.source) for loss in ledger.rows()]
        self.add_rows("losses", rows, "what", "count", "severity", "advice", "source")

    def piece(self, table: str) -> pl.DataFrame:
        """Return the rows of a table so far."""
        return together(table, self._pieces.get(table, []))

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return every table, with the schema's columns before those that only the assembly knows, and ``arrows``.

        The spans lack id, depth and what else the assembly finds.
        """
        self.add("tracks", self.tracks.table())
        tables = {name: _as_in_schema(name, self.piece(name)) for name in TABLES}
        return {**tables, "arrows": pl.concat(self._pieces.get("arrows", [_NO_ARROWS]))}


def _as_in_schema(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame as the schema has it, and its further columns behind; spans stay as they are until assembly."""
    if table == "spans" or not frame.height:
        return frame
    further = [name for name in frame.columns if name not in schema(table)]
    if not further:
        return conform(table, frame)
    own = of_columns([frame.get_column(name) for name in frame.columns if name not in further])
    return conform(table, own).hstack([frame.get_column(name) for name in further])


def sound(ledger: LossLedger, **conditions: Mask | pl.Series) -> Mask:
    """Return which rows meet all conditions; each other row is counted once, as the first that it does not meet.

    Args:
        ledger: Counts the rows that are left out.
        conditions: Name of a loss → which rows are free of it, checked in this order; null is not.
    """
    masks = {
        what: holds.fill_null(value=False).to_numpy() if isinstance(holds, pl.Series) else holds
        for what, holds in conditions.items()
    }
    kept = np.ones(len(next(iter(masks.values()))), np.bool_)
    for what, holds in masks.items():
        ledger.add(what, int(np.count_nonzero(kept & ~holds)))
        kept &= holds
    return kept


def sound_rows(frame: pl.DataFrame, ledger: LossLedger, **conditions: pl.Expr) -> pl.DataFrame:
    """Return the rows of a frame that meet all conditions, see :func:`sound`."""
    if not frame.height:
        return frame
    kept = sound(ledger, **frame.select(**conditions).to_dict())
    return frame if kept.all() else frame.filter(pl.Series(kept))


def sound_spans(frame: pl.DataFrame, ledger: LossLedger) -> pl.DataFrame:
    """Return the rows whose ``ts`` and ``dur`` are possible; count the others."""
    timed = pl.col("ts").is_between(0, LARGEST_TIME) & (pl.col("dur") < LARGEST_TIME)
    return sound_rows(frame, ledger, event_bad_time=timed, event_negative_duration=pl.col("dur") >= 0)


def kinds_of(codes: npt.NDArray[np.uint8]) -> pl.Series:
    """Return the kinds of spans by their numbers."""
    return _KINDS[pl.Series(codes)]


def coded(texts: Sequence[str | None] | pl.Series, codes: npt.NDArray[Any]) -> pl.Series:
    """Return the texts of codes as a categorical column; null for −1. Each text is kept once."""
    pool = texts if isinstance(texts, pl.Series) else pl.Series(texts, dtype=pl.Categorical())
    return pool[places(codes)] if len(pool) else pl.Series([None], dtype=pl.Categorical()).new_from_index(0, len(codes))


def as_json(values: Mapping[str, Any]) -> dict[str, str]:
    """Return facts with their values as JSON."""
    return {key: msgspec.json.encode(value).decode() for key, value in values.items()}
