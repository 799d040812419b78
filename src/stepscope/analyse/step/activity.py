"""What a rank was doing, as sets of time: computing, communication, copies, waits for data, host activity.

The tracks that do the work are the device's streams; on a rank without a device, the host threads that run operators.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analyse.intervals import EMPTY, Intervals, Times, subtract, union, unite
from stepscope.trace.clock import APART_NS
from stepscope.trace.schema import KINDS, NOT_RECORDED, PHASES, STATED
from stepscope.trace.tables import Tables, codes, columns_of, facts, has_rows, shared

Rows = npt.NDArray[np.int64]
#: Numbers of kinds of spans: places in :data:`KINDS`.
Codes = npt.NDArray[np.uint8]
_CODE = {kind: code for code, kind in enumerate(KINDS)}

#: Kinds of spans that are work when they lie on a device's stream.
DEVICE_WORK: tuple[str, ...] = ("kernel", "memcpy", "memset", "collective", "other")
#: Those of them that are computing.
DEVICE_COMPUTING: tuple[str, ...] = ("kernel", "memset", "other")
#: Kinds of spans that show that the host runs operators or Python.
HOST_ACTIVITY: tuple[str, ...] = (
    "operator", "collective", "runtime", "driver", "python", "sync", "garbage", "overhead", "compile", "other",
)  # fmt: skip


_POINT_TO_POINT = "^(i?send|i?recv|receive)(_|$)"
BETWEEN_TWO = re.compile(_POINT_TO_POINT)
#: Whether a row of the table ``collectives`` moves data between two ranks rather than within a group.
IS_POINT_TO_POINT: pl.Expr = (
    pl.col("operation").cast(pl.String).str.contains(_POINT_TO_POINT)
    | pl.col("source").is_not_null()
    | pl.col("destination").is_not_null()
)


@dataclass(frozen=True, eq=False)
class Work:
    """Sets of time of one rank; all may overlap each other.

    Attributes:
        on_device: Whether the work is that of device streams; else that of host threads.
        computing: Work that is neither communication nor a copy.
        communication: Collectives and point-to-point communication.
        receiving: The part of the communication that is point to point.
        copying: Copies to, from and within a device.
        data: A host thread waits for its next batch.
        host: Host threads run operators, Python, or calls of the device's runtime.
    """

    on_device: bool
    computing: Intervals
    communication: Intervals
    receiving: Intervals
    copying: Intervals
    data: Intervals
    host: Intervals


@dataclass(frozen=True, eq=False)
class Windows:
    """The steps as windows of time.

    Attributes:
        number: Number of each step, int64; a single 0 where the rank has no steps.
        start: Starts in ns.
        end: Ends in ns.
        declared: Whether there are steps at all; else the one window is the range of everything recorded.
    """

    number: Times
    start: Times
    end: Times
    declared: bool


@shared
def track_kinds(tables: Tables) -> dict[int, str]:
    """Return the kind of each track, ``thread`` or ``stream`` or another, by its id."""
    return dict(columns_of(tables, "tracks", "id", "kind").iter_rows())


def track_ids(tables: Tables, kind: str) -> list[int]:
    """Return the ids of the tracks of one kind: ``thread``, ``stream``, …; filtering by them is faster than a join."""
    return [track for track, found in track_kinds(tables).items() if found == kind]


def on_tracks(tables: Tables, kind: str) -> npt.NDArray[np.bool_]:
    """Return which rows of ``spans`` lie on tracks of one kind; what is returned must not be changed."""
    found = _on_tracks(tables)
    if kind not in found:
        track = columns_of(tables, "spans", "track")["track"].to_numpy()
        found[kind] = np.isin(track, track_ids(tables, kind))
    return found[kind]


def rows_by_track(track: npt.NDArray[np.integer[Any]]) -> dict[int, Rows]:
    """Return the places of each value of ``track``, in their order, by the value: one pass for all tracks."""
    if not len(track):
        return {}
    low, high = int(track.min()), int(track.max())
    order = np.argsort((track - low).astype(np.min_scalar_type(high - low)), kind="stable")  # 16 bits: a radix sort
    ordered = track[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    return dict(zip(ordered[first].tolist(), np.split(order, first[1:]), strict=True))


@shared
def _on_tracks(_: Tables) -> dict[str, npt.NDArray[np.bool_]]:
    return {}


def of_tracks(tables: Tables, track: pl.Series, *columns: str) -> list[pl.Series]:
    """Return what columns of the table ``tracks`` say of the track of each row."""
    tracks = columns_of(tables, "tracks", "id", *columns)
    known = tracks["id"].to_numpy()
    order = np.argsort(known, kind="stable")
    rows = order[np.searchsorted(known[order], track.to_numpy())]
    return tracks[pl.Series(rows.astype(np.uint32))].get_columns()[1:]


class SpanCodes(NamedTuple):
    """Numbers of what the rows of ``spans`` say in words; −1 for null.

    Attributes:
        kind: Place of the kind in :data:`KINDS`, see :func:`of_kinds`.
        phase: Place of the phase in :data:`PHASES`.
        name: Number of the name; spans of one name have one number.
    """

    kind: Codes
    phase: npt.NDArray[Any]
    name: npt.NDArray[Any]


@shared
def span_codes(tables: Tables) -> SpanCodes:
    """Return the numbers of kinds, phases and names of all rows of ``spans``."""
    kind, phase, name = codes(*columns_of(tables, "spans", "kind", "phase", "name").get_columns())
    return SpanCodes(np.asarray(kind, np.uint8), phase, name)


def span_kinds(tables: Tables) -> Codes:
    """Return the number of the kind of each row of ``spans``, see :func:`of_kinds`."""
    return span_codes(tables).kind


def of_kinds(codes: Codes, *kinds: str) -> npt.NDArray[np.bool_]:
    """Return which spans have one of the kinds."""
    chosen = np.zeros(len(KINDS), np.bool_)
    chosen[[_CODE[kind] for kind in kinds]] = True
    return chosen[codes]


def texts_of(tables: Tables, rows: Rows) -> list[str | None]:
    """Return the names of rows of ``spans``; None for -1."""
    names = columns_of(tables, "spans", "name")["name"]
    if not len(names):
        return [None] * len(rows)
    found = names[pl.Series(np.maximum(rows, 0).astype(np.uint32))].to_list()
    return [text if row >= 0 else None for text, row in zip(found, rows.tolist(), strict=True)]


@shared
def device_rows(tables: Tables) -> Rows:
    """Return the rows of ``spans`` that are kernels, copies, fills and collectives on a device's stream."""
    return np.flatnonzero(on_tracks(tables, "stream") & of_kinds(span_kinds(tables), *DEVICE_WORK))


def devices_of(tables: Tables, track: pl.Series) -> tuple[list[str], Rows]:
    """Return the names of the devices that tracks belong to, in order, and the number of the device of each track."""
    device_of = dict(sorted(columns_of(tables, "tracks", "id", "device").iter_rows()))
    row = np.searchsorted(np.array(list(device_of), np.int64), track.to_numpy())
    devices = list(device_of.values())
    names = sorted({devices[used] for used in np.flatnonzero(np.bincount(row, minlength=len(devices)))})
    number = np.array([names.index(device) if device in names else -1 for device in devices], np.int64)
    return names, number[row]


@dataclass(frozen=True, eq=False)
class Located:
    """The spans on host threads and device streams.

    Attributes:
        id: Number of each.
        track: Its track.
        ts: Start in ns.
        end: End in ns.
        kind: Number of its kind, see :func:`of_kinds`.
        on_stream: Whether it lies on a stream.
    """

    id: Rows
    track: npt.NDArray[np.int32]
    ts: Times
    end: Times
    kind: Codes
    on_stream: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ts)

    def of(self, rows: npt.NDArray[Any]) -> Located:
        """Return some of them, chosen by a mask or by rows."""
        return Located(
            *(values[rows] for values in (self.id, self.track, self.ts, self.end, self.kind, self.on_stream))
        )

    def time(self, chosen: npt.NDArray[np.bool_], *kinds: str) -> Intervals:
        """Return the time that the chosen spans of these kinds cover."""
        rows = np.flatnonzero(chosen & of_kinds(self.kind, *kinds))
        return unite(self.ts[rows], self.end[rows])


def located(tables: Tables) -> Located:
    """Return the spans on host threads and device streams.

    An operator of the phase ``communication`` (a call of torch.distributed that waits for its result) is a collective.
    """
    spans = columns_of(tables, "spans", "id", "track", "ts", "dur")
    number, track, ts, dur = (spans[name].to_numpy() for name in spans.columns)
    kind = span_kinds(tables)
    calls = (kind == _CODE["operator"]) & (span_codes(tables).phase == PHASES.index("communication"))
    on_stream = on_tracks(tables, "stream")
    found = Located(number, track, ts, ts + dur, np.where(calls, np.uint8(_CODE["collective"]), kind), on_stream)
    kept = on_stream | on_tracks(tables, "thread")
    return found if kept.all() else found.of(np.flatnonzero(kept))


def windows(tables: Tables, spans: Located) -> Windows:
    """Return the steps in order; without steps, one window over all ``spans``."""
    steps = columns_of(tables, "steps", "number", "ts", "dur")
    if len(steps):
        number, ts, dur = (steps[name].to_numpy() for name in ("number", "ts", "dur"))
        order = np.argsort(ts, kind="stable")
        return Windows(number[order].astype(np.int64), ts[order], (ts + dur)[order], declared=True)
    if not len(spans):
        return Windows(EMPTY.start, EMPTY.start, EMPTY.start, declared=False)
    ts, end = spans.ts, spans.end
    if ts.max() - ts.min() > APART_NS:  # several recordings, or clocks: the one with most spans
        ordered = np.sort(ts)
        edges = [0, *(np.flatnonzero(np.diff(ordered) > APART_NS) + 1).tolist(), len(ordered)]
        begin, behind = max(itertools.pairwise(edges), key=lambda pair: pair[1] - pair[0])
        chosen = (ts >= ordered[begin]) & (ts <= ordered[behind - 1])
        ts, end = ts[chosen], end[chosen]
    return Windows(np.zeros(1, np.int64), np.array([ts.min()]), np.array([end.max()]), declared=False)


def work(tables: Tables, spans: Located) -> Work:
    """Return what the rank was doing in ``spans``."""
    device = spans.on_stream & of_kinds(spans.kind, *DEVICE_WORK)
    on_device, on_thread = bool(device.any()), ~spans.on_stream
    worker = device if on_device else on_thread
    receiving = EMPTY
    if has_rows(tables, "collectives"):
        pairs = _between_two_ranks(tables)
        if len(pairs):
            receiving = spans.time(worker & np.isin(spans.id, pairs), "collective")
    return Work(
        on_device=on_device,
        computing=spans.time(device, *DEVICE_COMPUTING) if on_device else _computing_on_threads(spans, on_thread),
        communication=spans.time(worker, "collective"),
        receiving=receiving,
        copying=spans.time(device, "memcpy"),
        data=spans.time(on_thread, "data"),
        host=spans.time(on_thread, *HOST_ACTIVITY),
    )


def _between_two_ranks(tables: Tables) -> Rows:
    """Return the spans of point-to-point communication."""
    rows = columns_of(tables, "collectives", "span", "operation", "source", "destination")
    named = any(BETWEEN_TWO.match(text or "") for text in set(rows["operation"].to_list()))
    if not named and all(rows[name].null_count() == len(rows) for name in ("source", "destination")):
        return np.empty(0, np.int64)
    return np.asarray(rows.filter(IS_POINT_TO_POINT)["span"].to_numpy(), np.int64)


@shared
def not_recorded(tables: Tables) -> frozenset[str]:
    """Return the parts of a step that the source did not record; nothing is known of their time."""
    said = facts(tables).get(NOT_RECORDED)
    return frozenset(json.loads(said)) if said else frozenset()


def stated(tables: Tables, result: str) -> list[dict[str, Any]]:
    """Return the rows of a result as the source states them, under the result's columns; none if it states none."""
    said = facts(tables).get(STATED + result)
    return list(json.loads(said)) if said else []


def with_stated(found: pl.DataFrame, tables: Tables, result: str, device: pl.Expr) -> pl.DataFrame:
    """Return a result with the rows that the source states of it behind its own, on a device."""
    said = pl.DataFrame(stated(tables, result), infer_schema_length=None)
    if said.is_empty():
        return found
    rows = said.with_columns(Device_id=device)
    columns = (pl.col(name) if name in rows.columns else pl.lit(None).alias(name) for name in found.columns)
    return pl.concat([found, rows.select(columns).cast(found.schema)])


def _computing_on_threads(found: Located, on_thread: npt.NDArray[np.bool_]) -> Intervals:
    """Return when host threads run operators: on each, without its waits for data and its communication calls.

    An operator inside a wait for data (a batch put together on the training thread) belongs to that wait; one around or
    inside a communication call does not compute while that lasts.
    """
    threads = [on_thread & (found.track == track) for track in np.unique(found.track[on_thread])]
    parts = [subtract(found.time(mine, "operator"), found.time(mine, "data", "collective")) for mine in threads]
    return union(*parts) if parts else EMPTY
