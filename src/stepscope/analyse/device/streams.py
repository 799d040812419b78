"""How each stream of a device is fed and used: its queue, launches, short work, and what runs beside it.

Definition: ``docs/definitions.md``.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analyse.idle.dependencies import device_work
from stepscope.analyse.intervals import Times, unite
from stepscope.analyse.step.activity import Rows, devices_of, rows_by_track
from stepscope.analyse.step.device_waits import waiting
from stepscope.analyse.units import us
from stepscope.trace.tables import Tables, columns_of

_EMPTY = pl.DataFrame(
    schema={"device": pl.String, **dict.fromkeys(("stream", "count", "launched", "most", "starved", "short"), pl.Int64),
            **dict.fromkeys(("busy", "alone", "beside", "median", "late", "mean", "short_time"), pl.Float64)}
)  # fmt: skip


def queue_lengths(tables: Tables) -> pl.DataFrame:
    """Return how much work of each stream was launched and had not begun, whenever that changes.

    Columns: ``track``, ``ts`` in ns, ``length``. Work whose launch is not known does not count.
    """
    work = device_work(tables)
    known = np.flatnonzero(work.launch >= 0)
    called = columns_of(tables, "spans", "ts")["ts"].to_numpy()[work.launch[known]]
    begun = columns_of(tables, "spans", "ts")["ts"].to_numpy()[work.row[known]]
    at, change = np.concatenate((called, begun)), np.repeat((1, -1), len(known))
    track = np.tile(work.track[known], 2)
    order = np.lexsort((-change, at, track))
    # All work that is launched begins: the sum over a whole stream is 0, and the next stream begins with 0.
    length = np.cumsum(change[order])
    return pl.DataFrame({"track": track[order], "ts": at[order], "length": length})


def streams(tables: Tables) -> pl.DataFrame:
    """Return one row per stream on which work ran, over the whole recording; times in µs."""
    work = device_work(tables)
    if not len(work.row):
        return _shown(_EMPTY)
    spans = columns_of(tables, "spans", "ts", "dur")
    ts, dur = spans["ts"].to_numpy(), spans["dur"].to_numpy()
    devices, device = devices_of(tables, pl.Series(work.track, dtype=pl.Int64))
    known, launch = work.launch >= 0, np.maximum(work.launch, 0)
    lasts, delay = dur[work.row], ts[work.row] - ts[launch]
    _, of_call, calls = np.unique(work.launch, return_inverse=True, return_counts=True)
    # A graph's launch is shared by its kernels; a call that waits for its work says nothing of what launching costs.
    short = known & ~waiting(tables)[launch] & (lasts * calls[of_call] < dur[launch])
    frame = pl.DataFrame(
        {
            "track": work.track,
            "device": pl.Series(devices, dtype=pl.String).gather(device),
            "dur": lasts,
            "known": known,
            "delay": pl.select(pl.when(pl.Series(known)).then(pl.Series(delay, dtype=pl.Int64))).to_series(),
            "short": short,
        }
    )
    rows = frame.group_by("track", "device").agg(
        pl.len().alias("count"),
        pl.col("known").sum().alias("launched"),
        pl.col("delay").median().alias("median"),
        pl.col("delay").quantile(0.95, "linear").alias("late"),
        pl.when(pl.col("known").any()).then(pl.col("short").sum()).alias("short"),
        pl.when(pl.col("known").any()).then(pl.col("dur").filter("short").sum()).alias("short_time"),
    )
    for column in (_queues(tables), _alone(work.track, device, ts[work.row], lasts)):
        rows = rows.join(column, on="track", how="left")
    names = columns_of(tables, "tracks", "id", "stream").select(pl.col("id").cast(pl.Int64).alias("track"), "stream")
    rows = rows.join(names, on="track", how="left").sort("device", "stream", "track")
    return _shown(rows)


def _shown(rows: pl.DataFrame) -> pl.DataFrame:
    rows = rows.with_columns(pl.col("count", "launched", "starved", "short").cast(pl.Int64))
    return rows.select(
        pl.col("device").alias("Device_id"), pl.col("stream").alias("Stream ID"), pl.col("count").alias("Count"),
        us("busy").alias("Busy(us)"), us("alone").alias("Alone(us)"), us("beside").alias("Concurrent(us)"),
        pl.col("launched").alias("Launched"), us("median").alias("Launch Delay Median(us)"),
        us("late").alias("Launch Delay P95(us)"), pl.col("mean").round(3).alias("Queue Length Mean"),
        pl.col("most").alias("Queue Length Max"), pl.col("starved").alias("Launched into Empty Queue"),
        pl.col("short").alias("Short"), us("short_time").alias("Short Time(us)"),
    )  # fmt: skip


def _queues(tables: Tables) -> pl.DataFrame:
    """Return mean (over time) and largest length of each stream's queue, and launches that found nothing queued."""
    lasts = (pl.col("ts").shift(-1) - pl.col("ts")).over("track").fill_null(0)
    grown = pl.col("length") > pl.col("length").shift(1, fill_value=0)
    series = queue_lengths(tables).with_columns(lasts=lasts, grown=grown)
    return series.group_by("track").agg(
        ((pl.col("length") * pl.col("lasts")).sum() / pl.col("lasts").sum()).fill_nan(None).alias("mean"),
        pl.col("length").max().alias("most"),
        (pl.col("grown") & (pl.col("length") == 1)).sum().alias("starved"),
    )


def _alone(track: Rows, device: Rows, start: Times, dur: Times) -> pl.DataFrame:
    """Return how long each stream is busy, and for how long of that no other stream of its device is."""
    rows, mine_of = [], rows_by_track(track)
    for of_device in range(int(device.max(initial=-1)) + 1):
        tracks = np.unique(track[device == of_device])
        busy = [unite(start[mine], start[mine] + dur[mine]) for mine in map(mine_of.__getitem__, tracks.tolist())]
        place = np.repeat(np.arange(len(busy)), [len(mine) for mine in busy])
        at = np.concatenate([mine.start for mine in busy] + [mine.end for mine in busy])
        order = np.argsort(at, kind="stable")
        covered = np.cumsum(np.repeat((1, -1), len(place))[order])[:-1]
        # Where one stream alone is busy, the sum of the numbers of those that are is its own.
        only = np.cumsum(np.concatenate((place, -place))[order])[:-1][covered == 1]
        alone = np.zeros(len(busy), np.int64)
        np.add.at(alone, only, np.diff(at[order])[covered == 1])
        rows += [
            (one, mine.length, by_itself, mine.length - by_itself)
            for one, mine, by_itself in zip(tracks.tolist(), busy, alone.tolist(), strict=True)
        ]
    names = ("track", "busy", "alone", "beside")
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64), orient="row")
