"""Traffic of GPUs with the host and with their memory, from counters sampled while the program ran.

Files and first columns are those of MindSpore's profiler (``pcie.csv``, ``hbm.csv``). NVIDIA's management library
tells sent from received on PCIe, but no posted from non-posted packets; and how busy the memory is, but not reads from
writes: those columns are empty. MB are 10^6 bytes.
"""

from __future__ import annotations

import re

import polars as pl

from stepscope.trace.tables import Tables, columns_of

_MEGA = 1e6
_LANE = r"^GPU (\d+)$"
_DIRECTIONS = {"PCIe sent": "Tx(MB/s)", "PCIe received": "Rx(MB/s)"}


def gpus_sampled(tables: Tables) -> bool:
    """Return whether counters of a GPU may have been sampled: there is a lane for them."""
    return any(re.search(_LANE, name) for name in columns_of(tables, "tracks", "name")["name"].to_list())


def pcie(tables: Tables) -> pl.DataFrame:
    """Return one row per GPU and direction, seen from the GPU: least, most and mean traffic of all samples."""
    samples = _samples(tables).filter(pl.col("name").is_in(list(_DIRECTIONS)))
    value = pl.col("value") / _MEGA
    rows = samples.group_by("Device_id", pl.col("name").replace(_DIRECTIONS).alias("Mode"))
    return rows.agg(Min=value.min(), Max=value.max(), Avg=value.mean()).sort("Device_id", "Mode").collect()


def hbm(tables: Tables) -> pl.DataFrame:
    """Return one row per GPU: mean traffic of its memory, and for how much of the time it was busy.

    *Total* is known of GPUs from Hopper on. *Busy* is the share of what the memory can carry there, elsewhere the share
    of the time in which it was read or written.
    """
    samples = _samples(tables).with_columns(pl.col("value").cast(pl.Float64))
    busy = _mean("HBM busy").fill_null(_mean("memory busy"))
    rows = samples.group_by("Device_id").agg(
        (_mean("HBM traffic") / _MEGA).alias("Total(MB/s)"),
        busy.alias("Busy(%)"),
        pl.col("name").is_in(["HBM traffic", "HBM busy", "memory busy"]).any().alias("known"),
    )
    none = pl.lit(None, pl.Float64)
    unknown = (pl.lit("Average").alias("Metric"), none.alias("Read(MB/s)"), none.alias("Write(MB/s)"))
    return rows.filter("known").sort("Device_id").select("Device_id", *unknown, "Total(MB/s)", "Busy(%)").collect()


def _mean(name: str) -> pl.Expr:
    return pl.col("value").filter(pl.col("name") == name).mean()


def _samples(tables: Tables) -> pl.LazyFrame:
    """Return the samples that lie in lanes of GPUs, with the GPU's number."""
    lanes = tables["tracks"].select(
        track="id", Device_id=pl.col("name").str.extract(_LANE).cast(pl.Int64, strict=False)
    )
    counters = tables["counters"].with_columns(pl.col("name").cast(pl.String))
    return counters.join(lanes.filter(pl.col("Device_id").is_not_null()), on="track")
