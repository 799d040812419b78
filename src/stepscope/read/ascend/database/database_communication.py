"""Communication from a database of events, and from the database of what the profiler added up."""

from __future__ import annotations

import polars as pl

from stepscope.read.ascend.database.database_device import known, unquoted
from stepscope.read.common.database.sqlite import SqliteDatabase
from stepscope.read.common.distinct import combinations, either, found, nth, of_all, of_each, ordered, same, where
from stepscope.trace.ascend_columns import COMMUNICATION_MOVED, COMMUNICATION_TIMES, INT, NO_NOTIFICATION

_TIMES = {number.ours: number for number in COMMUNICATION_TIMES}
_SUMS = tuple(name for name in _TIMES if name not in ("ts", "dur"))
#: How text files write “no notification”.
_NO_NOTIFY_TEXT = str(2**64 - 1)
#: What the name of an operation in the matrix ends with.
_PLACE = r"-(top\d+|middle|bottom\d+|total)$"


def operations(opened: SqliteDatabase) -> pl.DataFrame:
    """Return the frame ``communications`` with the column ``id``."""
    rows = ordered(opened.rows("COMMUNICATION_OP"), "startNs")
    tasks = opened.rows("TASK", {"connectionId": INT, "deviceId": INT, "modelId": INT})
    task = tasks[found(rows["connectionId"], tasks["connectionId"])]
    _, lane = combinations(rows["groupName"])
    made = [
        rows["opId"].alias("id"),
        rows["startNs"].alias("ts"),
        (rows["endNs"] - rows["startNs"]).alias("dur"),
        either(rows["deviceId"], task["deviceId"]).alias("device"),
        rows["opName"].alias("name"),
        of_each(unquoted, rows["opType"]).alias("operation"),
        rows["groupName"].alias("group"),
        # In order of first appearance.
        pl.Series("lane", lane, dtype=pl.Int64),
        of_each(unquoted, rows["algType"]).alias("algorithm"),
        of_each(_said, rows["dataType"]).alias("dtype"),
        rows["count"],
        task["modelId"].alias("model"),
        rows["connectionId"].alias("connection"),
    ]
    return opened.intervals(pl.DataFrame(made))


def _said(text: str | None) -> str | None:
    return None if text == "N/A" else text


def tasks(opened: SqliteDatabase, communications: pl.DataFrame, ran: pl.DataFrame) -> pl.DataFrame:
    """Return the frame ``communication_tasks``.

    Args:
        opened: The database.
        communications: The operations, with the column ``id``.
        ran: The rows of ``TASK`` that belong to operations.
    """
    rows = opened.rows("COMMUNICATION_TASK_INFO")
    task = found(rows["globalTaskId"], ran["globalTaskId"])
    order = pl.DataFrame([ran["startNs"][task], task.alias("task")]).with_row_index("row").drop_nulls("task")
    order = ordered(order, "startNs")
    rows, ran = rows[order["row"]], ran[order["task"]]
    owner = found(rows["opId"], communications["id"])
    dur, size = ran["endNs"] - ran["startNs"], rows["size"]
    # Bytes per ns; nothing takes no time.
    counted = either(where(dur > 0, size / dur), where(size == 0, same("", 0.0, len(rows), pl.Float64())))
    transport, link, dtype = of_all(_said, [rows[name] for name in ("transportType", "linkType", "dataType")])
    made = [
        owner.cast(pl.Int64).alias("row"),
        communications["lane"][owner],
        ran["startNs"].alias("ts"),
        dur.alias("dur"),
        ran["deviceId"].alias("device"),
        rows["taskType"].alias("name"),
        rows["planeId"].alias("plane"),
        ran["streamId"].alias("stream"),
        ran["taskId"].alias("task"),
        known(ran["contextId"]).alias("context"),
        of_each(_notification, rows["notifyId"]).alias("notify"),
        known(rows["srcRank"]).alias("source"),
        known(rows["dstRank"]).alias("destination"),
        transport.alias("transport"),
        link.alias("link"),
        of_each(_rdma, rows["rdmaType"]).alias("rdma"),
        size.alias("bytes"),
        dtype.alias("dtype"),
        either(rows["bandwidth"] / 1e9, counted),
    ]
    return opened.intervals(pl.DataFrame(made))


def _notification(number: int | None) -> str | None:
    return None if number is None else _NO_NOTIFY_TEXT if number == NO_NOTIFICATION else str(number)


def _rdma(text: str | None) -> str | None:
    return None if text in {"N/A", "INVALID_TYPE"} else text


def summed(opened: SqliteDatabase, communications: pl.DataFrame | None) -> dict[str, pl.DataFrame]:
    """Return the frames ``bandwidths`` and ``matrix``, and ``communications`` with what the profiler added up.

    Args:
        opened: The database of sums.
        communications: The operations of the database of events; None if the capture has none.
    """
    measured = _times(opened)
    operations_ = measured if communications is None else _with_times(communications, measured)
    return {
        "communications": operations_,
        "bandwidths": _bandwidths(opened, operations_),
        "matrix": _matrix(opened),
    }


def _times(opened: SqliteDatabase) -> pl.DataFrame:
    """Return the operations that the sums name, in the columns of ``communications``."""
    rows = opened.rows("CommAnalyzerTime")
    rows = rows.filter(rows["hccl_op_name"] != "Total Op Info")
    # A float holds the digits of the µs and of their fraction only apart.
    start = pl.col(_TIMES["ts"].column)
    whole = start.floor()
    began = whole.cast(pl.Int64, strict=False) * 1000 + _whole((start - whole) * 1000)
    return rows.select_seq(
        _step(),
        ts=began,
        name="hccl_op_name",
        group="group_name",
        began=began,
        **{name: _whole(pl.col(number.column) * number.parts) for name, number in _TIMES.items() if name != "ts"},
    )


def _with_times(communications: pl.DataFrame, measured: pl.DataFrame) -> pl.DataFrame:
    """Add times to operations of the same name: the n-th of the name to the n-th."""
    measured = ordered(measured, "ts")
    both = pl.concat([communications["name"], measured["name"]])
    # The n-th of a name has the same text in both.
    rank = pl.concat([nth(communications["name"]), nth(measured["name"])])
    known = of_each(lambda name, number: None if name is None else f"{number} {name}", both, rank)
    height = len(communications)
    place = found(known[:height], known[height:])
    return communications.hstack([measured[name][place] for name in ("step", "began", *_SUMS)])


def _bandwidths(opened: SqliteDatabase, communications: pl.DataFrame) -> pl.DataFrame:
    rows = opened.rows("CommAnalyzerBandwidth")
    rows = rows.with_columns(found(rows["hccl_op_name"], communications["name"]).cast(pl.Int64).alias("row"))
    place = [_step(), _point_to_point(), pl.col("hccl_op_name").alias("name"), pl.col("group_name").alias("group")]
    place += [pl.col("row"), pl.col("transport_type").alias("transport")]
    whole = rows.unique(["hccl_op_name", "group_name", "step", "transport_type"], keep="first", maintain_order=True)
    everything = whole.select_seq(*place, *_moved(), large="large_packet_ratio")
    packets = rows.filter(rows["count"] > 0).select_seq(
        *place, packet=_millions("package_size"), count=_whole(pl.col("count")), time=_millions("total_duration")
    )
    return pl.concat([everything, packets], how="diagonal")


def _matrix(opened: SqliteDatabase) -> pl.DataFrame:
    rows = opened.rows("CommAnalyzerMatrix")
    name = pl.col("hccl_op_name").cast(pl.String)
    return rows.select_seq(
        _step(),
        _point_to_point(),
        *_moved(),
        operation=name.str.replace(_PLACE, ""),
        # MindSpore's has every operation by itself.
        place=name.str.extract(_PLACE).fill_null("one"),
        group="group_name",
        source=_rank("src_rank"),
        destination=_rank("dst_rank"),
        transport="transport_type",
        name=pl.when(pl.col("op_name") != "").then("op_name"),
    )


def _step() -> pl.Expr:
    return pl.col("step").cast(pl.String).str.extract(r"(\d+)$").cast(pl.Int64, strict=False).alias("step")


def _point_to_point() -> pl.Expr:
    return (pl.col("type").cast(pl.String).str.to_lowercase() == "p2p").alias("point_to_point")


def _whole(value: pl.Expr) -> pl.Expr:
    """Return a number as an integer; null if it is not one."""
    return value.round(0).cast(pl.Int64, strict=False)


def _millions(column: str) -> pl.Expr:
    """Return ms as ns, MB of 10^6 bytes as bytes."""
    return _whole(pl.col(column) * 1_000_000)


def _moved() -> list[pl.Expr]:
    """Return bytes, time and bandwidth of what was moved."""
    return [
        (pl.col(one.column) if one.parts == 1 else _whole(pl.col(one.column) * one.parts)).alias(one.ours)
        for one in COMMUNICATION_MOVED
    ]


def _rank(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.String).cast(pl.Int64, strict=False)
