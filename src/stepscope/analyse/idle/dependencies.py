"""What work waits for: device work for what ran before it or launched it, threads for devices and other threads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analyse.idle.gaps import launches
from stepscope.analyse.idle.hand_over import hand_over
from stepscope.analyse.idle.idle_pieces import SAYING, preparing
from stepscope.analyse.idle.thread_time import thread_times
from stepscope.analyse.intervals import Intervals, Times, unite
from stepscope.analyse.operators.operator_calls import rows_of
from stepscope.analyse.step.activity import Rows, device_rows, devices_of, of_kinds, rows_by_track, span_kinds
from stepscope.analyse.step.device_waits import waiting
from stepscope.trace.tables import Tables, columns_of, has_rows, shared

#: Why a piece of device work begins when it does: the work before it on its stream ended, work on another stream ended
#: for which an event was awaited, it was launched then, or nobody knows.
BEFORE, AWAITED, LAUNCHED, UNKNOWN = range(4)
#: Clocks of hosts and devices agree within so many ns: a call may return that much before its work seems to end.
_SKEW = 10_000
_LOWEST = np.iinfo(np.int64).min


@dataclass(frozen=True, eq=False)
class DeviceWork:
    """The work of all devices, in order of stream and start, and what each piece waited for last.

    Attributes:
        row: Row of ``spans``.
        track: Track of its stream.
        start: Starts in ns.
        end: Ends in ns; at most the start of the next piece on the stream.
        bound: Which of :data:`BEFORE`, … it is.
        bound_at: When that happened, in ns.
        source: Number of the awaited piece; -1 unless an event was awaited.
        launch: Row of the launching call; -1 if unknown.
    """

    row: Rows
    track: Rows
    start: Times
    end: Times
    bound: Rows
    bound_at: Times
    source: Rows
    launch: Rows


@shared
def device_work(tables: Tables) -> DeviceWork:
    """Return the work of all devices and what each piece waited for last: a later one of several counts."""
    spans = columns_of(tables, "spans", "track", "ts", "dur")
    rows = device_rows(tables)
    track, ts, dur = (spans[name].to_numpy() for name in ("track", "ts", "dur"))
    rows = rows[np.lexsort((ts[rows], track[rows]))]
    start, lane = ts[rows], track[rows].astype(np.int64)
    end = start + dur[rows]
    same = np.append(False, lane[1:] == lane[:-1])[: len(rows)]
    before = np.where(same, np.minimum(np.append(_LOWEST, end[:-1])[: len(rows)], start), _LOWEST)
    launch = launches(tables)[rows]
    called = np.where(launch >= 0, np.minimum(np.append(ts, 0)[launch], start), _LOWEST)
    source = _awaited(tables, rows, lane, launch)
    source = np.where(source >= 0, source, _ended_just_before(lane, start, end, np.maximum(before, called), tables))
    awaited = np.where(source >= 0, np.minimum(np.append(end, 0)[source], start), _LOWEST)
    instants = np.stack((before, awaited, called))
    bound = np.argmax(instants, axis=0) if len(rows) else np.empty(0, np.int64)
    at = instants.max(axis=0)
    bound = np.where(at == _LOWEST, UNKNOWN, bound)
    return DeviceWork(rows, lane, start, end, bound, np.where(at == _LOWEST, start, at), source, launch)


def _ended_just_before(lane: Rows, start: Times, end: Times, ready: Times, tables: Tables) -> Rows:
    """Return the work whose end let each piece begin that nothing else on its stream or host delayed; -1 for none.

    Most captures do not say for which events a stream waits. What ends on another stream of the device within
    :data:`_SKEW` before the piece begins, and later than the piece was ready by more than that, is what it waited for.
    """
    result = np.full(len(start), -1, np.int64)
    _, device = devices_of(tables, pl.Series(lane))
    for number in np.unique(device).tolist():
        mine = np.flatnonzero(device == number)
        ordered = mine[np.argsort(end[mine], kind="stable")]
        asked = mine[start[mine] - ready[mine] > _SKEW]
        place = np.searchsorted(end[ordered], start[asked], side="right") - 1
        source = ordered[place]
        good = (place >= 0) & (start[asked] - end[source] <= _SKEW) & (end[source] > ready[asked])
        good &= (lane[source] != lane[asked]) & (start[source] < start[asked])
        result[asked[good]] = source[good]
    return result


def _awaited(tables: Tables, rows: Rows, lane: Rows, launch: Rows) -> Rows:
    """Return the number of the work for which a stream waited (an event) before each piece; -1 for none.

    The wait concerns the first work on the stream that is launched after the call that asks for the wait.
    """
    result = np.full(len(rows), -1, np.int64)
    waits = _event_waits(tables)
    if waits is None:
        return result
    number = _numbers(rows, len(columns_of(tables, "spans", "id")))
    ts = np.append(columns_of(tables, "spans", "ts")["ts"].to_numpy(), np.iinfo(np.int64).max)
    for stream in np.unique(lane).tolist():
        mine = np.flatnonzero(lane == stream)
        mine = mine[np.argsort(ts[launch[mine]], kind="stable")]
        asked = waits.filter(pl.col("lane") == stream).sort("called")
        place = np.searchsorted(ts[launch[mine]], asked["called"].to_numpy(), side="left")
        behind = place < len(mine)
        result[mine[place[behind]]] = number[asked["source"].to_numpy()[behind]]
    return result


@shared
def _event_waits(tables: Tables) -> pl.DataFrame | None:
    """Return the waits for events; None if the source does not say any.

    Columns: ``source``, the row of the awaited work; ``lane``, the track of the waiting stream, null if the host waits;
    ``call``, the row of the call that asks for the wait; ``called``, when it did.
    """
    if not has_rows(tables, "flows"):
        return None
    arrows = columns_of(tables, "flows", "from", "to", "kind")
    arrows = arrows[np.flatnonzero(arrows["kind"] == "wait")]
    if not len(arrows):
        return None
    spans = columns_of(tables, "spans", "id", "name", "track", "ts", "correlation")
    source, wait = rows_of(spans["id"], arrows["from"]), rows_of(spans["id"], arrows["to"])
    rows = np.flatnonzero(of_kinds(span_kinds(tables), "runtime", "driver"))
    calls = spans[rows].select("correlation", called="ts").with_columns(call=rows).drop_nulls()
    places = columns_of(tables, "tracks", "id", "kind", "device", "stream")
    streams = places.filter(pl.col("kind") == "stream").select("device", "stream", lane=pl.col("id").cast(pl.Int64))
    lanes = places.join(streams, on=["device", "stream"], how="inner").select(track="id", lane="lane")
    asked = spans[wait].select("track", "correlation").with_columns(source=source)
    asked = asked.join(calls.unique("correlation", keep="first"), on="correlation", how="inner")
    host = waiting(tables)[asked["call"].to_numpy()]
    asked = asked.join(lanes, on="track", how="left", maintain_order="left")
    return asked.with_columns(lane=pl.when(~pl.Series(host)).then("lane")).select("source", "lane", "call", "called")


def _numbers(rows: Rows, count: int) -> Rows:
    """Return the number of each row of ``spans`` among the given rows; -1 for others, and behind the last."""
    number = np.full(count + 1, -1, np.int64)
    number[rows] = np.arange(len(rows))
    return number


@shared
def releases(tables: Tables) -> pl.DataFrame:
    """Return when threads went on after they had waited for a device or for another thread, in order of time.

    Columns: ``thread``, track of the thread; ``at``, when it went on, and ``since``, when what it waited for ended, in
    ns; ``work``, the number of that piece of :func:`device_work`, or ``other``, the track of that thread, else -1;
    ``call``, the row of the call in which it waited, or -1.
    """
    columns = ("thread", "at", "since", "work", "other", "call")
    handed = hand_over(runs_of_threads(tables))
    none = np.full(len(handed.at), -1, np.int64)
    found = [*_ends_of_calls(tables), (handed.thread, handed.at, handed.since, none, handed.other, none)]
    parts = [pl.DataFrame(dict(zip(columns, one, strict=True))) for one in found]
    return pl.concat(parts or [pl.DataFrame(schema=dict.fromkeys(columns, pl.Int64))]).sort("thread", "at", "since")


_Part = tuple[Rows, Times, Times, Rows, Rows, Rows]


def _ends_of_calls(tables: Tables) -> list[_Part]:
    """Return the ends of calls that waited for a device."""
    work = device_work(tables)
    spans = columns_of(tables, "spans", "track", "ts", "dur", "correlation")
    ts, dur = spans["ts"].to_numpy(), spans["dur"].to_numpy()
    track = spans["track"].to_numpy().astype(np.int64)
    calls = np.flatnonzero(waiting(tables) & (dur > 0) & np.isin(track, list(thread_times(tables))))
    if not len(calls) or not len(work.row):
        return []
    until = ts[calls] + dur[calls]
    released = _own_work(work, calls)
    lanes = _lanes_of(tables, spans["correlation"].gather(calls))
    for lane in [-1, *np.unique(work.track).tolist()]:
        asked = np.flatnonzero((lanes == lane) & (released < 0))
        mine = np.arange(len(work.row)) if lane < 0 else np.flatnonzero(work.track == lane)
        mine = mine[np.argsort(work.end[mine], kind="stable")]
        place = np.searchsorted(work.end[mine], until[asked] + _SKEW, side="right") - 1
        released[asked] = np.where(place >= 0, mine[place], -1)
    for source, call in _awaited_by_calls(tables, work, calls):
        released[call] = source
    waited = np.flatnonzero((released >= 0) & (work.end[released] > ts[calls]))
    since = np.minimum(work.end[released], until)[waited]
    none = np.full(len(waited), -1, np.int64)
    return [(track[calls[waited]], until[waited], since, released[waited], none, calls[waited])]


def _own_work(work: DeviceWork, calls: Rows) -> Rows:
    """Return the last piece of work that each call launched itself, for which it then waits; -1 for none."""
    order = np.lexsort((work.end, work.launch))
    launch = work.launch[order]
    place = np.searchsorted(launch, calls, side="right") - 1
    return np.where((place >= 0) & (launch[place] == calls), order[place], -1)


def _lanes_of(tables: Tables, correlation: pl.Series) -> Rows:
    """Return the stream for which each call waits, where the device says so; -1 for all streams."""
    spans = columns_of(tables, "spans", "track", "correlation")[np.flatnonzero(of_kinds(span_kinds(tables), "sync"))]
    places = columns_of(tables, "tracks", "id", "kind", "device", "stream")
    streams = places.filter(pl.col("kind") == "stream").select("device", "stream", lane=pl.col("id").cast(pl.Int64))
    lanes = places.filter(pl.col("kind") == "other").join(streams, on=["device", "stream"], how="inner")
    waits = spans.join(lanes.select(track="id", lane="lane"), on="track").drop_nulls().unique("correlation", keep="any")
    found = correlation.to_frame().join(waits, on="correlation", how="left", maintain_order="left")["lane"]
    return np.asarray(found.fill_null(-1).to_numpy(), np.int64)


def _awaited_by_calls(tables: Tables, work: DeviceWork, calls: Rows) -> list[tuple[int, int]]:
    """Return the number of the awaited piece, and the place of the call among ``calls``, of waits for events."""
    waits = _event_waits(tables)
    if waits is None:
        return []
    number = _numbers(work.row, len(span_kinds(tables)))
    place = _numbers(calls, len(span_kinds(tables)))
    found = waits.filter(pl.col("lane").is_null())
    pairs = zip(number[found["source"].to_numpy()].tolist(), place[found["call"].to_numpy()].tolist(), strict=True)
    return [(source, call) for source, call in pairs if source >= 0 and call >= 0]


@shared
def runs_of_threads(tables: Tables) -> dict[int, Intervals]:
    """Return when each thread that prepares work was in a span that says what it did, Python functions apart."""
    spans, kinds = columns_of(tables, "spans", "track", "ts", "dur"), span_kinds(tables)
    said = np.flatnonzero(of_kinds(kinds, *(kind for kind in SAYING if kind not in ("python", "overhead"))))
    start, dur = spans["ts"].to_numpy()[said], spans["dur"].to_numpy()[said]
    rows, runs = rows_by_track(spans["track"].to_numpy()[said]), {}
    for thread in preparing(tables):
        mine = rows.get(thread, np.empty(0, np.int64))
        runs[thread] = unite(start[mine], start[mine] + dur[mine])
    return runs
