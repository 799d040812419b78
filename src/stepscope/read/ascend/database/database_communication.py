"""Communication from a database of events, and from the database of what the profiler added up."""

from __future__ import annotations

import polars as pl

from stepscope.read.ascend.database.database_device import known, told
from stepscope.read.ascend.database.sqlite import FLOAT, INT, NAME, TEXT, Database
from stepscope.read.common.distinct import combinations, either, found, nth, of_all, of_each, ordered, same, where

#: Tables that are read here.
TABLES = {
    "COMMUNICATION_OP",
    "COMMUNICATION_TASK_INFO",
    "CommAnalyzerTime",
    "CommAnalyzerBandwidth",
    "CommAnalyzerMatrix",
}
_OPERATION = {
    "opName": NAME,
    "startNs": INT,
    "endNs": INT,
    "connectionId": INT,
    "groupName": NAME,
    "opId": INT,
    "dataType": "ENUM_HCCL_DATA_TYPE",
    "algType": NAME,
    "count": INT,
    "opType": NAME,
    "deviceId": INT,
}
_TASK = {
    "globalTaskId": INT,
    "taskType": NAME,
    "planeId": INT,
    "notifyId": INT,
    "rdmaType": "ENUM_HCCL_RDMA_TYPE",
    "srcRank": INT,
    "dstRank": INT,
    "transportType": "ENUM_HCCL_TRANSPORT_TYPE",
    "size": INT,
    "dataType": "ENUM_HCCL_DATA_TYPE",
    "linkType": "ENUM_HCCL_LINK_TYPE",
    "opId": INT,
    "bandwidth": FLOAT,
}
_TIMES = {
    "transit": "transit_time",
    "wait": "wait_time",
    "synchronisation": "synchronization_time",
    "idle": "idle_time",
}
#: Number of a notification in 63 bits that stands for none, and how text has it.
_NO_NOTIFY, _NO_NOTIFY_TEXT = 2**63 - 1, str(2**64 - 1)
#: What the name of an operation in the matrix ends with.
_PLACE = r"-(top\d+|middle|bottom\d+|total)$"


def operations(opened: Database) -> pl.DataFrame:
    """Return the frame ``communications`` with the column ``id``."""
    rows = ordered(opened.rows("COMMUNICATION_OP", _OPERATION), "startNs")
    tasks = opened.rows("TASK", {"connectionId": INT, "deviceId": INT, "modelId": INT})
    task = tasks[found(rows["connectionId"], tasks["connectionId"])]
    _, lane = combinations(rows["groupName"])
    made = [
        rows["opId"].alias("id"),
        rows["startNs"].alias("ts"),
        (rows["endNs"] - rows["startNs"]).alias("dur"),
        either(rows["deviceId"], task["deviceId"]).alias("device"),
        rows["opName"].alias("name"),
        of_each(told, rows["opType"]).alias("operation"),
        rows["groupName"].alias("group"),
        # In order of first appearance.
        pl.Series("lane", lane, dtype=pl.Int64),
        of_each(told, rows["algType"]).alias("algorithm"),
        of_each(_said, rows["dataType"]).alias("dtype"),
        rows["count"],
        task["modelId"].alias("model"),
        rows["connectionId"].alias("connection"),
    ]
    return opened.intervals(pl.DataFrame(made))


def _said(text: str | None) -> str | None:
    return None if text == "N/A" else text


def tasks(opened: Database, communications: pl.DataFrame, ran: pl.DataFrame) -> pl.DataFrame:
    """Return the frame ``communication_tasks``.

    Args:
        opened: The database.
        communications: The operations, with the column ``id``.
        ran: The rows of ``TASK`` that belong to operations.
    """
    rows = opened.rows("COMMUNICATION_TASK_INFO", _TASK)
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
    return None if number is None else _NO_NOTIFY_TEXT if number == _NO_NOTIFY else str(number)


def _rdma(text: str | None) -> str | None:
    return None if text in {"N/A", "INVALID_TYPE"} else text


def summed(opened: Database, communications: pl.DataFrame | None) -> dict[str, pl.DataFrame]:
    """Return the frames ``bandwidths`` and ``matrix``, and ``communications`` with what the profiler added up.

    Args:
        opened: The database of sums.
        communications: The operations of the database of events; None where there is none.
    """
    measured = _times(opened)
    operations_ = measured if communications is None else _with_times(communications, measured)
    return {
        "communications": operations_,
        "bandwidths": _bandwidths(opened, operations_),
        "matrix": _matrix(opened),
    }


def _times(opened: Database) -> pl.DataFrame:
    """Return operations as the sums tell them, in the columns of ``communications``."""
    columns = {"hccl_op_name": TEXT, "group_name": TEXT, "start_timestamp": FLOAT, "elapse_time": FLOAT, "step": TEXT}
    columns |= dict.fromkeys(_TIMES.values(), FLOAT)
    rows = opened.rows("CommAnalyzerTime", columns)
    rows = rows.filter(rows["hccl_op_name"] != "Total Op Info")
    # Multiplied by 1000 the whole would lose digits.
    whole = pl.col("start_timestamp").floor()
    began = whole.cast(pl.Int64, strict=False) * 1000 + _whole((pl.col("start_timestamp") - whole) * 1000)
    return rows.select_seq(
        _step(),
        ts=began,
        dur=_ms("elapse_time"),
        name="hccl_op_name",
        group="group_name",
        began=began,
        **{name: _ms(column) for name, column in _TIMES.items()},
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
    return communications.hstack([measured[name][place] for name in ("step", "began", *_TIMES)])


def _bandwidths(opened: Database, communications: pl.DataFrame) -> pl.DataFrame:
    numbers = ("transit_size", "transit_time", "bandwidth", "large_packet_ratio", "package_size", "count")
    texts = ("hccl_op_name", "group_name", "transport_type", "step", "type")
    columns = {**dict.fromkeys(texts, TEXT), **dict.fromkeys((*numbers, "total_duration"), FLOAT)}
    rows = opened.rows("CommAnalyzerBandwidth", columns)
    rows = rows.with_columns(found(rows["hccl_op_name"], communications["name"]).cast(pl.Int64).alias("row"))
    place = [_step(), _point_to_point(), pl.col("hccl_op_name").alias("name"), pl.col("group_name").alias("group")]
    place += [pl.col("row"), pl.col("transport_type").alias("transport")]
    whole = rows.unique(["hccl_op_name", "group_name", "step", "transport_type"], keep="first", maintain_order=True)
    everything = whole.select_seq(
        *place, bytes=_mb("transit_size"), time=_ms("transit_time"), bandwidth="bandwidth", large="large_packet_ratio"
    )
    packets = rows.filter(rows["count"] > 0).select_seq(
        *place, packet=_mb("package_size"), count=_whole(pl.col("count")), time=_ms("total_duration")
    )
    return pl.concat([everything, packets], how="diagonal")


def _matrix(opened: Database) -> pl.DataFrame:
    texts = ("hccl_op_name", "group_name", "src_rank", "dst_rank", "transport_type", "step", "type", "op_name")
    columns = {**dict.fromkeys(texts, TEXT), "transit_size": FLOAT, "transit_time": FLOAT, "bandwidth": FLOAT}
    rows = opened.rows("CommAnalyzerMatrix", columns)
    name = pl.col("hccl_op_name").cast(pl.String)
    return rows.select_seq(
        _step(),
        _point_to_point(),
        operation=name.str.replace(_PLACE, ""),
        # MindSpore's has every operation by itself.
        place=name.str.extract(_PLACE).fill_null("one"),
        group="group_name",
        source=_rank("src_rank"),
        destination=_rank("dst_rank"),
        transport="transport_type",
        bytes=_mb("transit_size"),
        time=_ms("transit_time"),
        bandwidth="bandwidth",
        name=pl.when(pl.col("op_name") != "").then("op_name"),
    )


def _step() -> pl.Expr:
    return pl.col("step").cast(pl.String).str.extract(r"(\d{1,9})$").cast(pl.Int64).alias("step")


def _point_to_point() -> pl.Expr:
    return (pl.col("type").cast(pl.String).str.to_lowercase() == "p2p").alias("point_to_point")


def _whole(value: pl.Expr) -> pl.Expr:
    """Return a number as an integer; null where it is none."""
    return value.round(0).cast(pl.Int64, strict=False)


def _ms(column: str) -> pl.Expr:
    return _whole(pl.col(column) * 1_000_000)


def _mb(column: str) -> pl.Expr:
    return _whole(pl.col(column) * 1_000_000)


def _rank(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.String).cast(pl.Int64, strict=False)
