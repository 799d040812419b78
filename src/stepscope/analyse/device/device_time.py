"""How busy each device was from its first to its last piece of work, whatever the steps."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analyse.intervals import Times, unite_groups
from stepscope.analyse.step.activity import DEVICE_WORK
from stepscope.analyse.units import timestamp_us, us
from stepscope.trace.tables import Tables

#: Kinds of device work in order of priority, for time that several of them cover.
_COMPUTING, _COMMUNICATION, _COPY = ("kernel", "memset"), ("collective",), ("memcpy",)


def device_time(tables: Tables) -> pl.DataFrame:
    """Return one row per device, times in µs: the work of all its streams united, so that no instant counts twice.

    Range is the time from the start of its first to the end of its last piece of work; Idle is the range less Busy.
    """
    streams = tables["tracks"].filter(pl.col("kind") == "stream").select(pl.col("id").alias("track"), "device")
    spans = tables["spans"].filter(pl.col("kind").is_in(DEVICE_WORK)).join(streams, on="track", how="inner")
    work = spans.select(pl.col("device").cast(pl.String), "kind", "ts", (pl.col("ts") + pl.col("dur")).alias("end"))
    rows = _measured(work.collect())
    times = ("range", "busy", "computing", "communication", "exposed", "copy", "exposed_copy", "idle")
    shown = [us(name).alias(title) for name, title in zip(times, _TITLES, strict=True)]
    busy = (100 * pl.col("busy") / pl.col("range")).fill_nan(0).round(3).alias("Busy(%)")
    return rows.select(pl.col("device").alias("Device_id"), timestamp_us("ts").alias("Start Time(us)"), *shown, busy)


_TITLES: tuple[str, ...] = (
    "Range(us)",
    "Busy(us)",
    "Computing(us)",
    "Communication(us)",
    "Communication(Not Overlapped)(us)",
    "Copy(us)",
    "Copy(Not Overlapped)(us)",
    "Idle(us)",
)


def _measured(work: pl.DataFrame) -> pl.DataFrame:
    devices = work.group_by("device").agg(pl.col("ts").min(), pl.col("end").max()).sort("device")
    busy, computing = _united(work, devices), _united(work, devices, *_COMPUTING)
    both = _united(work, devices, *_COMPUTING, *_COMMUNICATION)
    columns = {
        "range": (devices["end"] - devices["ts"]).to_numpy(),
        "busy": busy,
        "computing": computing,
        "communication": _united(work, devices, *_COMMUNICATION),
        "exposed": both - computing,
        "copy": _united(work, devices, *_COPY),
        "exposed_copy": busy - both,
        "idle": (devices["end"] - devices["ts"]).to_numpy() - busy,
    }
    return devices.with_columns(pl.Series(name, values, pl.Int64) for name, values in columns.items())


def _united(work: pl.DataFrame, devices: pl.DataFrame, *kinds: str) -> Times:
    """Return per device the time that work of these kinds covers, in ns; of all kinds where none is named."""
    chosen = work.filter(pl.col("kind").is_in(kinds)) if kinds else work
    device = devices["device"].search_sorted(chosen["device"]).cast(pl.Int64).to_numpy()
    group, busy = unite_groups(device, chosen["ts"].to_numpy(), chosen["end"].to_numpy())
    lengths = np.zeros(len(devices), np.int64)
    np.add.at(lengths, group, busy.end - busy.start)
    return lengths
