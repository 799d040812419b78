"""What decides when a step ends: the critical path through threads, launches, streams and waits.

Definition: ``docs/definitions.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stepscope.analyse.idle.dependencies import (
    AWAITED,
    BEFORE,
    LAUNCHED,
    DeviceWork,
    device_work,
    releases,
    runs_of_threads,
)
from stepscope.analyse.idle.idle_pieces import LATENCY, REASONS, reasons_of
from stepscope.analyse.idle.thread_time import nearest_around, thread_times
from stepscope.analyse.intervals import Times, all_of, unite
from stepscope.analyse.step.activity import (
    DEVICE_COMPUTING,
    Codes,
    Rows,
    Windows,
    devices_of,
    of_kinds,
    on_tracks,
    span_kinds,
)
from stepscope.analyse.step.step_trace_time import split
from stepscope.analyse.units import us
from stepscope.trace.tables import Tables, columns_of, shared


@dataclass
class _Walk:
    """The path from its end to its start: what was passed, each as (start, end, …) in ns.

    Attributes:
        chains: Work of a stream without a gap in what it waited for: first and last number, and the end of the last.
        latencies: From a launch to the work: start, end, row of the call.
        waits: From the end of awaited work to that of the call that waited: start, end, row of the call or -1.
        threads: Time on a thread: start, end, track.
    """

    chains: list[tuple[int, int, int]] = field(default_factory=list)
    latencies: list[tuple[int, int, int]] = field(default_factory=list)
    waits: list[tuple[int, int, int]] = field(default_factory=list)
    threads: list[tuple[int, int, int]] = field(default_factory=list)


def _walked(tables: Tables, begin: int, end: int) -> _Walk:
    """Walk from ``end`` to ``begin``: at each instant to what the work then going on had waited for last."""
    work, walk = device_work(tables), _Walk()
    head = np.maximum.accumulate(np.where(work.bound != BEFORE, np.arange(len(work.row)), 0))
    waited = {key[0]: one for key, one in releases(tables).partition_by("thread", as_dict=True).items()}
    freed = {
        thread: list(zip(*(one[name].to_list() for name in _WAITED), strict=True)) for thread, one in waited.items()
    }
    track = columns_of(tables, "spans", "track")["track"].to_numpy()
    main, time, number = _last(tables, work)
    if end > time:
        walk.threads.append((time, end, main))
    thread, seen = main, set()
    while time > begin:
        if number >= 0 and head[number] not in seen:
            first = int(head[number])
            seen.add(first)
            walk.chains.append((first, number, time))
            at, bound, launch = int(work.bound_at[first]), work.bound[first], int(work.launch[first])
            walk.latencies.append((at, min(int(work.start[first]), time), launch if bound == LAUNCHED else -1))
            thread = int(track[launch]) if bound == LAUNCHED else thread
            number = int(work.source[first]) if bound == AWAITED else -1
            time = min(time, at)
            continue
        past = freed.get(thread, [])
        while past and past[-1][0] > time:
            past.pop()
        if not past:
            walk.threads.append((begin, time, thread))
            break
        at, since, number, other, call = past.pop()
        walk.threads.append((at if call >= 0 else since, time, thread))
        walk.waits.append((since, at if call >= 0 else since, call))
        time, thread = since, other if other >= 0 else thread
    return walk


_WAITED = ("at", "since", "work", "other", "call")


def _last(tables: Tables, work: DeviceWork) -> tuple[int, int, int]:
    """Return the main thread, the end of everything, and the number of the device work that ends then, or -1."""
    threads = {thread: int(runs.end[-1]) for thread, runs in runs_of_threads(tables).items() if len(runs)}
    main = max(threads, key=lambda one: threads[one], default=-1)
    on_device = int(np.argmax(work.end)) if len(work.row) else -1
    if on_device >= 0 and (main < 0 or work.end[on_device] > threads[main]):
        return next(iter(threads), -1), int(work.end[on_device]), on_device
    return main, threads.get(main, 0), -1


@dataclass(frozen=True, eq=False)
class PathPieces:
    """The critical path in pieces, in no order, which do not overlap.

    Attributes:
        start: Starts in ns.
        end: Ends in ns.
        track: Track that each lies on.
        part: Number of the part, a place in :data:`PATH_PARTS`.
        name: Row of ``spans`` of the work, call or wait; -1 for none.
        operator: Row of ``spans`` of the operator around it; -1 for none.
    """

    start: Times
    end: Times
    track: Rows
    part: Rows
    name: Rows
    operator: Rows


#: Parts of the path: what devices do, then the reasons for which they would be idle.
PATH_PARTS = ("computing", "communication", "copy", *REASONS)
_FIRST_REASON = 3
#: What threads do for a device is what they do themselves on a rank without one.
_ON_THREADS = {"host preparing": "computing", "collective": "communication"}


def _path(tables: Tables, windows: Windows) -> Iterator[PathPieces]:
    """Yield the path from the first step to the last, a part at a time: what was summed up is dropped."""
    walk = _walked(tables, int(windows.start.min()), int(windows.end.max()))
    work, kinds = device_work(tables), span_kinds(tables)
    yield from _on_devices(walk, work, kinds)
    yield from _on_threads(tables, walk)
    operators = of_kinds(kinds, "operator")
    spans = columns_of(tables, "spans", "dur", "track")
    dur, tracks = np.append(spans["dur"].to_numpy(), 0), np.append(spans["track"].to_numpy().astype(np.int64), -1)
    for code, given in (("launch latency", walk.latencies), ("synchronising call", walk.waits)):
        start, end, call = np.array(given, np.int64).reshape(-1, 3).T
        around = nearest_around(tables, call, operators)
        queued = (call < 0) | ((code == "launch latency") & (end - start > dur[call] + LATENCY))
        reason = _FIRST_REASON + np.where(queued, REASONS.index("queued"), REASONS.index(code))
        yield PathPieces(start, end, tracks[call], reason, call, around)


@shared
def path_pieces(tables: Tables) -> PathPieces:
    """Return the critical path from the first step to the last; no pieces without steps or spans."""
    windows = split(tables).windows
    none = np.empty(0, np.int64)
    parts = [PathPieces(*[none] * 6)]
    if len(windows.start) and len(span_kinds(tables)):
        parts += _path(tables, windows)
    names = ("start", "end", "track", "part", "name", "operator")
    return PathPieces(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _on_devices(walk: _Walk, work: DeviceWork, kinds: Codes) -> list[PathPieces]:
    """Return the work of the chains, and the time between two pieces of work."""
    first, last, until = np.array(walk.chains, np.int64).reshape(-1, 3).T
    count = last - first + 1
    number = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    limit = np.append(work.start[1:], 0)[number] if len(number) else number
    limit[np.cumsum(count) - 1] = until
    limit = np.minimum(limit, np.repeat(until, count))
    start, end = work.start[number], np.minimum(work.end[number], limit)
    kind = kinds[work.row[number]]
    part = np.where(of_kinds(kind, *DEVICE_COMPUTING), 0, np.where(of_kinds(kind, "collective"), 1, 2))
    nothing = np.full(len(number), -1, np.int64)
    queued = nothing + 1 + _FIRST_REASON + REASONS.index("queued")
    gap_end = limit.copy()
    gap_end[np.cumsum(count) - 1] = end[np.cumsum(count) - 1]
    return [
        PathPieces(start, end, work.track[number], part, work.row[number], nothing),
        PathPieces(end, gap_end, work.track[number], queued, nothing, nothing),
    ]


def _on_threads(tables: Tables, walk: _Walk) -> Iterator[PathPieces]:
    """Yield what the threads did while the path lay on them."""
    passed = np.array(walk.threads, np.int64).reshape(-1, 3)
    for thread in np.unique(passed[:, 2]).tolist():
        start, end, _ = passed[passed[:, 2] == thread].T
        if thread not in thread_times(tables):
            none = np.full(len(start), -1, np.int64)
            unknown = none + 1 + _FIRST_REASON + REASONS.index("nothing known")
            yield PathPieces(start, end, none, unknown, none, none)
            continue
        for pieces in thread_times(tables)[thread].between(start, end):
            reason, name, operator = reasons_of(tables, pieces.owner)
            part = _FIRST_REASON + reason
            if not len(device_work(tables).row):
                for meanwhile, does in _ON_THREADS.items():
                    part[reason == REASONS.index(meanwhile)] = PATH_PARTS.index(does)
            yield PathPieces(pieces.start, pieces.end, all_of(thread, len(part)), part, name, operator)


def critical_path(tables: Tables) -> pl.DataFrame:
    """Return one row per part and name on the critical path, and per name of device work beside it. Times in µs.

    The times on the path add up to the time of the steps.
    """
    windows = split(tables).windows
    if not len(windows.start) or not len(span_kinds(tables)):
        return _shown(_EMPTY, 1, 0)
    on_path, beside = _on_path(tables, windows), _of_devices(tables, windows)
    rows = on_path.join(beside, on=["device", "part", "name"], how="full", coalesce=True)
    rows = rows.with_columns(pl.col("count", "time").fill_null(0))
    rows = rows.filter((pl.col("time") > 0) | (pl.col("total") > 0))
    return _shown(rows, len(windows.start), int((windows.end - windows.start).sum()))


_EMPTY = pl.DataFrame(
    schema={"device": pl.String, "part": pl.String, "name": pl.String, "operator": pl.String, "count": pl.Int64,
            "time": pl.Int64, "total": pl.Int64, "slack": pl.Float64}
)  # fmt: skip


def _shown(rows: pl.DataFrame, steps: int, whole: int) -> pl.DataFrame:
    keys = ["time", "total", "device", "part", "name", "operator"]
    return rows.sort(keys, descending=[True, True, *[False] * 4], nulls_last=True).select(
        pl.col("device").alias("Device_id"), pl.col("part").str.to_titlecase().alias("Part"),
        pl.col("name").alias("Name"), pl.col("operator").alias("Operator"), pl.col("count").alias("Count"),
        us("time").alias("On Path(us)"), (pl.col("time") / 1000 / steps).round(3).alias("On Path per Step(us)"),
        (100 * pl.col("time") / max(whole, 1)).round(3).alias("Share(%)"),
        us("total").alias("Total Time(us)"), (pl.col("slack") / 1000).round(3).alias("Slack(us)"),
    )  # fmt: skip


def _on_path(tables: Tables, windows: Windows) -> pl.DataFrame:
    """Return the path inside the steps, summed up by device, part, name and operator."""
    inside, spans = unite(windows.start, windows.end), columns_of(tables, "spans", "name", "track")
    codes = np.append(spans["name"].to_physical().to_numpy().astype(np.int64), -1)
    tracks = np.append(spans["track"].to_numpy().astype(np.int64), -1)
    on_stream = np.append(on_tracks(tables, "stream"), False)
    summed = []
    for path in _path(tables, windows):
        time = inside.within(path.start, np.maximum(path.end, path.start))
        kept = np.flatnonzero(time)
        name, operator = path.name[kept], path.operator[kept]
        columns = {
            "track": np.where(on_stream[name], tracks[name], -1), "part": path.part[kept], "named": codes[name],
            "asked": codes[operator], "name": name, "operator": operator, "time": time[kept],
        }  # fmt: skip
        rows = pl.DataFrame(columns).group_by("track", "part", "named", "asked")
        summed.append(
            rows.agg(pl.col("name", "operator").first(), count=pl.len().cast(pl.Int64), time=pl.col("time").sum())
        )
    found = pl.concat(summed)
    device = dict(columns_of(tables, "tracks", "id", "device").iter_rows())
    shown = found.with_columns(
        device=pl.Series([device.get(track, "cpu") for track in found["track"]], dtype=pl.String),
        part=pl.Series(PATH_PARTS).gather(found["part"]),
        name=_texts(spans["name"], found["name"]),
        operator=_texts(spans["name"], found["operator"]),
    )
    return shown.group_by("device", "part", "name", "operator").agg(pl.col("count", "time").sum())


def _texts(names: pl.Series, rows: pl.Series) -> pl.Series:
    shown = names.gather(rows.clip(0)).cast(pl.String)
    return pl.select(pl.when(rows >= 0).then(shown)).to_series()


def _of_devices(tables: Tables, windows: Windows) -> pl.DataFrame:
    """Return device work inside the steps by device, part and name: its time, and how much later a call could end.

    That is until the next work on the stream, or what waits for it, begins (its free float).
    """
    work, kinds = device_work(tables), span_kinds(tables)
    inside = unite(windows.start, windows.end).within(work.start, work.end)
    last = int(work.end.max(initial=0))
    same = np.append(work.track[1:] == work.track[:-1], False)[: len(work.row)]
    later = np.where(same, np.append(work.start[1:], 0)[: len(work.row)], last)
    waiting = np.flatnonzero(work.source >= 0)
    np.minimum.at(later, work.source[waiting], work.start[waiting])
    freed = releases(tables).filter(pl.col("work") >= 0)
    np.minimum.at(later, freed["work"].to_numpy(), freed["at"].to_numpy())
    kind = kinds[work.row]
    part = np.where(of_kinds(kind, *DEVICE_COMPUTING), 0, np.where(of_kinds(kind, "collective"), 1, 2))
    spans = columns_of(tables, "spans", "name", "track")
    names, number = devices_of(tables, spans["track"].gather(work.row))
    frame = pl.DataFrame(
        {
            "device": pl.Series(names, dtype=pl.String).gather(number),
            "part": pl.Series(PATH_PARTS).gather(part),
            "name": spans["name"].gather(work.row).cast(pl.String),
            "total": inside,
            "slack": np.maximum(later - work.end, 0),
        }
    ).filter(pl.col("total") > 0)
    return frame.group_by("device", "part", "name").agg(pl.col("total").sum(), pl.col("slack").mean())
