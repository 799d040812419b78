"""How busy each device was from its first to its last piece of work, whatever the steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analyse.intervals import Times, unite_groups
from stepscope.analyse.step.activity import (
    DEVICE_COMPUTING,
    DEVICE_WORK,
    Codes,
    Rows,
    device_rows,
    devices_of,
    not_recorded,
    of_kinds,
    span_kinds,
)
from stepscope.analyse.units import timestamp_us, titled, us
from stepscope.trace.schema import ANY_WORK
from stepscope.trace.tables import Tables, columns_of, of_arrays

#: Kinds of device work in order of priority, for time that several of them cover.
_COMPUTING, _COMMUNICATION, _COPY = DEVICE_COMPUTING, ("collective",), ("memcpy",)


def device_time(tables: Tables) -> pl.DataFrame:
    """Return one row per device, times in µs: the work of all its streams united, so that no instant counts twice.

    Range is the time from the start of its first to the end of its last piece of work; Idle is the range less Busy.
    What some work does not cover is unknown where other work may be missing.
    """
    rows = device_rows(tables)
    spans = columns_of(tables, "spans", "track", "ts", "dur")[rows]
    devices, device = devices_of(tables, spans["track"])
    work = _Work(device, spans["ts"].to_numpy(), (spans["ts"] + spans["dur"]).to_numpy(), span_kinds(tables)[rows])
    found = of_arrays({"device": pl.Series(devices, dtype=pl.String), **work.measured(len(devices))})
    missing = not_recorded(tables)
    unknown = [name for name, parts in _NOT_COVERED.items() if missing & parts]
    return found.with_columns(pl.lit(None, pl.Int64).alias(name) for name in unknown).select_seq(_SHOWN)


#: Time that some work does not cover → the parts of a step that must be recorded for it.
_NOT_COVERED = {"exposed": {"computing"}, "exposed_copy": {"computing", "communication"}, "idle": set(ANY_WORK)}


_SHOWN = titled({
    "Device_id": "device", "Start Time(us)": timestamp_us("ts"), "Range(us)": us("range"), "Busy(us)": us("busy"),
    "Computing(us)": us("computing"), "Communication(us)": us("communication"),
    "Communication(Not Overlapped)(us)": us("exposed"), "Copy(us)": us("copy"),
    "Copy(Not Overlapped)(us)": us("exposed_copy"), "Idle(us)": us("idle"),
    "Busy(%)": (100 * pl.when(pl.col("idle").is_not_null()).then("busy") / pl.col("range")).fill_nan(0).round(3),
})  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Work:
    """Work of devices: the number of the device, start and end in ns, and the number of the kind of each piece."""

    device: Rows
    start: Times
    end: Times
    kind: Codes

    def measured(self, devices: int) -> dict[str, Times]:
        """Return the columns of the result for so many devices, in ns."""
        busy, computing = self.united(devices, *DEVICE_WORK), self.united(devices, *_COMPUTING)
        both = self.united(devices, *_COMPUTING, *_COMMUNICATION)
        first, last = np.full(devices, np.iinfo(np.int64).max), np.full(devices, np.iinfo(np.int64).min)
        np.minimum.at(first, self.device, self.start)
        np.maximum.at(last, self.device, self.end)
        return {
            "ts": first,
            "range": last - first,
            "busy": busy,
            "computing": computing,
            "communication": self.united(devices, *_COMMUNICATION),
            "exposed": both - computing,
            "copy": self.united(devices, *_COPY),
            "exposed_copy": busy - both,
            "idle": last - first - busy,
        }

    def united(self, devices: int, *kinds: str) -> Times:
        """Return per device the time that work of these kinds covers, in ns."""
        rows = np.flatnonzero(of_kinds(self.kind, *kinds))
        group, busy = unite_groups(self.device[rows], self.start[rows], self.end[rows])
        lengths = np.zeros(devices, np.int64)
        np.add.at(lengths, group, busy.end - busy.start)
        return lengths
