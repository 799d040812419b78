"""Memory and samples of counters, from a database of events."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stepscope.read.ascend.ascend_frames import empty
from stepscope.read.common.database.sqlite import SqliteDatabase
from stepscope.read.common.dense import places
from stepscope.read.common.distinct import combinations, filled, ordered, same, where, without_nulls
from stepscope.trace.ascend_columns import (
    FLOAT,
    INT,
    MEMORY_RECORD,
    NAME,
    OPERATOR_MEMORY,
    SAMPLE_LABELS,
    SAMPLES,
    SampledTable,
)

#: Our column → that of OP_MEMORY.
_BLOCK = {column.ours: column.database for column in OPERATOR_MEMORY if column.ours}
_CHANGE = {
    "operatorName": NAME,
    "addr": INT,
    "type": NAME,
    "size": INT,
    "timestampNs": INT,
    "globalTid": INT,
    "totalAllocate": INT,
    "totalReserve": INT,
    "component": NAME,
    "deviceId": INT,
}


def counters(opened: SqliteDatabase) -> pl.DataFrame:
    """Return the frame ``counters``."""
    sampled = [part for kind in SAMPLES if opened.holds(kind.table) for part in _sampled(opened, kind)]
    return pl.concat(sampled) if sampled else empty("counters")


def _sampled(opened: SqliteDatabase, kind: SampledTable) -> Iterator[pl.DataFrame]:
    label = kind.labels
    columns = {"timestampNs": INT, "deviceId": INT, **label, **dict.fromkeys(kind.values, FLOAT)}
    rows = opened.rows(kind.table, columns)
    labels, label_of = combinations(*(rows[name] for name in label)) if label else ([()], np.zeros(len(rows), np.int64))
    device = same("device", None, len(rows), pl.Int64()) if kind.host else rows["deviceId"].alias("device")
    for column, (name, unit, parts) in kind.values.items():
        names = pl.Series("name", [_named(name, one) for one in labels], pl.Categorical())
        sampled = [
            rows["timestampNs"].alias("ts"),
            device,
            same("group", kind.group, len(rows)),
            names[places(label_of)],
            (rows[column] / parts).alias("value"),
            same("unit", unit, len(rows)),
        ]
        yield without_nulls(pl.DataFrame(sampled), ["value"])


def _named(name: str, labels: tuple[object, ...]) -> str:
    """Return the name of a counter with its labels in it."""
    return name.format(*("" if one is None else SAMPLE_LABELS.get(str(one), one) for one in labels))


def memory(opened: SqliteDatabase) -> pl.DataFrame:
    """Return the frame ``memory``: memory of the components of the framework, and of the whole process."""
    rows = opened.rows("MEMORY_RECORD")
    process = opened.rows("NPU_MEM", {"type": NAME, "ddr": INT, "hbm": INT, "timestampNs": INT, "deviceId": INT})
    # Components without streams do not measure active memory and have 0.
    measured = rows["streamPtr"].is_not_null() | (rows["totalActive"] > 0)
    active = where(measured, rows["totalActive"]).alias("active")
    recorded = [rows[column.database].alias(column.ours) for column in MEMORY_RECORD if column.ours != "active"]
    process = process.filter(process["type"] == "app")
    whole = [
        process["timestampNs"].alias("ts"),
        process["deviceId"].alias("device"),
        same("component", "APP", len(process)),
        (filled(process["ddr"], 0) + filled(process["hbm"], 0)).alias("reserved"),
    ]
    return ordered(pl.concat([pl.DataFrame([*recorded, active]), pl.DataFrame(whole)], how="diagonal"), "ts")


def blocks(opened: SqliteDatabase) -> pl.DataFrame:
    """Return the frame ``blocks``; without blocks of the framework, from the allocations and releases that GE wrote."""
    if opened.holds("OP_MEMORY"):
        rows = opened.rows("OP_MEMORY")
        return pl.DataFrame([rows[name].alias(column) for column, name in _BLOCK.items()])
    if not opened.holds("NPU_OP_MEM"):
        return empty("blocks")
    rows = ordered(opened.rows("NPU_OP_MEM", _CHANGE), "timestampNs")
    changes = rows.with_columns(
        pl.col("type").cum_count().over("addr", "type").alias("nth"), (pl.col("globalTid") % 2**32).alias("thread")
    )
    taken = changes.filter(pl.col("type") == "allocate").select(
        "nth",
        "thread",
        "component",
        address="addr",
        device="deviceId",
        name="operatorName",
        bytes="size",
        ts="timestampNs",
        allocated="totalAllocate",
        reserved="totalReserve",
    )
    freed = changes.filter(pl.col("type") == "release").select(
        "nth",
        address="addr",
        release="timestampNs",
        released_allocated="totalAllocate",
        released_reserved="totalReserve",
    )
    return taken.join(freed, on=["address", "nth"], how="left", maintain_order="left").drop("nth")
