"""What a rank was doing, as sets of time: computing, communication, copies, waits for data, host activity.

The tracks that do the work are the device's streams; on a rank without a device, the host threads that run operators.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analyse.intervals import EMPTY, Intervals, Times, subtract, union, unite
from stepscope.trace.schema import KINDS
from stepscope.trace.tables import Tables, collected, columns_of, dtype, has_rows, shared

Rows = npt.NDArray[np.int64]
#: Numbers of kinds of spans: places in :data:`KINDS`.
Codes = npt.NDArray[np.uint8]
_CODE = {kind: code for code, kind in enumerate(KINDS)}

#: Kinds of spans that are work when they lie on a device's stream.
DEVICE_WORK: tuple[str, ...] = ("kernel", "memcpy", "memset", "collective")
#: Kinds of spans that show that the host runs operators or Python.
HOST_ACTIVITY: tuple[str, ...] = (
    "operator", "collective", "runtime", "driver", "python", "sync", "garbage", "overhead", "compile",
)  # fmt: skip


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


@shared
def span_kinds(tables: Tables) -> Codes:
    """Return the number of the kind of each row of ``spans``, see :func:`of_kinds`."""
    return codes_of(columns_of(tables, "spans", "kind")["kind"])


def codes_of(kinds: pl.Series) -> Codes:
    """Return kinds of spans as numbers: their places in :data:`KINDS`."""
    return np.asarray(kinds.to_physical().to_numpy(), np.uint8)


def of_kinds(codes: Codes, *kinds: str) -> npt.NDArray[np.bool_]:
    """Return which spans have one of the kinds."""
    chosen = np.zeros(len(KINDS), np.bool_)
    chosen[[_CODE[kind] for kind in kinds]] = True
    return chosen[codes]


@shared
def device_rows(tables: Tables) -> Rows:
    """Return the rows of ``spans`` that are kernels, copies, fills and collectives on a device's stream."""
    streams = np.isin(columns_of(tables, "spans", "track")["track"].to_numpy(), track_ids(tables, "stream"))
    return np.flatnonzero(streams & of_kinds(span_kinds(tables), *DEVICE_WORK))


def devices_of(tables: Tables, track: pl.Series) -> tuple[list[str], Rows]:
    """Return the names of the devices that tracks belong to, in order, and the number of the device of each track."""
    device_of = dict(sorted(columns_of(tables, "tracks", "id", "device").iter_rows()))
    row = np.searchsorted(np.array(list(device_of), np.int64), track.to_numpy())
    devices = list(device_of.values())
    names = sorted({devices[used] for used in np.flatnonzero(np.bincount(row, minlength=len(devices)))})
    number = np.array([names.index(device) if device in names else -1 for device in devices], np.int64)
    return names, number[row]


@shared
def located(tables: Tables) -> pl.DataFrame:
    """Return the spans on host threads and device streams: id, track, ts, end, kind, on_stream.

    An operator of the phase ``communication`` (a call of torch.distributed that waits for its result) is a collective.
    """
    spans = columns_of(tables, "spans", "id", "track", "ts", "dur", "kind", "phase")
    track = spans["track"].to_numpy()
    on_stream = np.isin(track, track_ids(tables, "stream"))
    kept = on_stream | np.isin(track, track_ids(tables, "thread"))
    if not kept.all():
        rows = np.flatnonzero(kept)
        spans, on_stream = spans[rows], on_stream[rows]
    kind, calls = spans["kind"], (spans["kind"] == "operator") & (spans["phase"] == "communication")
    if calls.any():
        kind = pl.Series("kind", ["collective"], dtype("enum:kind")).new_from_index(0, len(kind)).zip_with(calls, kind)
    end = (spans["ts"] + spans["dur"]).alias("end")
    return pl.DataFrame([spans["id"], spans["track"], spans["ts"], end, kind, pl.Series("on_stream", on_stream)])


def windows(tables: Tables, spans: pl.DataFrame) -> Windows:
    """Return the steps in order; without steps, one window over all ``spans``, which :func:`located` returned."""
    steps = columns_of(tables, "steps", "number", "ts", "dur")
    if len(steps):
        number, ts, dur = (steps[name].to_numpy() for name in ("number", "ts", "dur"))
        order = np.argsort(ts, kind="stable")
        return Windows(number[order].astype(np.int64), ts[order], (ts + dur)[order], declared=True)
    if not len(spans):
        return Windows(EMPTY.start, EMPTY.start, EMPTY.start, declared=False)
    first, last = spans["ts"].to_numpy().min(), spans["end"].to_numpy().max()
    return Windows(np.zeros(1, np.int64), np.array([first]), np.array([last]), declared=False)


def work(tables: Tables, spans: pl.DataFrame) -> Work:
    """Return what the rank was doing in ``spans``, which :func:`located` returned."""
    track, ts, end = (spans[name].to_numpy() for name in ("track", "ts", "end"))
    found = _Located(track, ts, end, codes_of(spans["kind"]))
    on_stream = spans["on_stream"].to_numpy()
    device = on_stream & of_kinds(found.kind, *DEVICE_WORK)
    on_device = bool(device.any())
    worker = device if on_device else ~on_stream
    receiving = EMPTY
    if has_rows(tables, "collectives"):
        rows = tables["collectives"].filter(is_point_to_point()).select("span").pipe(collected, tables)
        if len(rows):
            receiving = found.time(worker & np.isin(spans["id"].to_numpy(), rows["span"].to_numpy()), "collective")
    return Work(
        on_device=on_device,
        computing=found.time(device, "kernel", "memset") if on_device else _computing_on_threads(found, ~on_stream),
        communication=found.time(worker, "collective"),
        receiving=receiving,
        copying=found.time(device, "memcpy"),
        data=found.time(~on_stream, "data"),
        host=found.time(~on_stream, *HOST_ACTIVITY),
    )


def is_point_to_point() -> pl.Expr:
    """Return whether a row of the table ``collectives`` moves data between two ranks rather than within a group."""
    named = pl.col("operation").cast(pl.String).str.contains("^(i?send|i?recv|receive)(_|$)")
    return named | pl.col("source").is_not_null() | pl.col("destination").is_not_null()


@dataclass(frozen=True, eq=False)
class _Located:
    """Columns of :func:`located`."""

    track: Rows
    ts: Times
    end: Times
    kind: Codes

    def time(self, chosen: npt.NDArray[np.bool_], *kinds: str) -> Intervals:
        """Return the time that the chosen spans of these kinds cover."""
        rows = np.flatnonzero(chosen & of_kinds(self.kind, *kinds))
        return unite(self.ts[rows], self.end[rows])


def _computing_on_threads(found: _Located, on_thread: npt.NDArray[np.bool_]) -> Intervals:
    """Return when host threads run operators: on each, without its waits for data and its communication calls.

    An operator inside a wait for data (a batch put together on the training thread) belongs to that wait; one around or
    inside a communication call does not compute while that lasts.
    """
    threads = [on_thread & (found.track == track) for track in np.unique(found.track[on_thread])]
    parts = [subtract(found.time(mine, "operator"), found.time(mine, "data", "collective")) for mine in threads]
    return union(*parts) if parts else EMPTY
