"""Communication from a database of events, and from the database of what the profiler added up."""

from __future__ import annotations

import polars as pl

from stepscope.read.ascend.database_device import known, told
from stepscope.read.ascend.sqlite import FLOAT, INT, NAME, TEXT, Database

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
    rows = opened.rows("COMMUNICATION_OP", _OPERATION).sort("startNs", maintain_order=True)
    places = opened.rows("TASK", {"connectionId": INT, "deviceId": INT, "modelId": INT}).unique("connectionId")
    rows = rows.join(places, on="connectionId", how="left", maintain_order="left")
    made = rows.select(
        pl.col("opId").alias("id"),
        ts="startNs",
        dur=pl.col("endNs") - pl.col("startNs"),
        device=pl.coalesce("deviceId", "deviceId_right"),
        name="opName",
        operation=told(pl.col("opType")),
        group="groupName",
        lane=_lanes(rows["groupName"]),
        algorithm=told(pl.col("algType")),
        dtype=_said("dataType"),
        count="count",
        model="modelId",
        connection="connectionId",
    )
    return opened.intervals(made)


def _lanes(groups: pl.Series) -> pl.Series:
    """Return the number of each group, in order of first appearance."""
    distinct = groups.unique(maintain_order=True)
    numbers = pl.DataFrame({"group": distinct, "lane": pl.Series(range(len(distinct)), dtype=pl.Int64)})
    return groups.to_frame("group").join(numbers, on="group", how="left", nulls_equal=True, maintain_order="left")[
        "lane"
    ]


def _said(column: str) -> pl.Expr:
    return pl.when(pl.col(column) != "N/A").then(column)


def tasks(opened: Database, communications: pl.DataFrame, ran: pl.DataFrame) -> pl.DataFrame:
    """Return the frame ``communication_tasks``.

    Args:
        opened: The database.
        communications: The operations, with the column ``id``.
        ran: The rows of ``TASK`` that belong to operations.
    """
    owners = communications.select(
        pl.col("id").alias("opId"), "lane", pl.int_range(pl.len(), dtype=pl.Int64).alias("row")
    ).unique("opId", keep="first")
    rows = opened.rows("COMMUNICATION_TASK_INFO", _TASK)
    rows = rows.join(owners, on="opId", how="left", maintain_order="left")
    rows = rows.join(ran.unique("globalTaskId"), on="globalTaskId", how="inner", maintain_order="left")
    dur = pl.col("endNs") - pl.col("startNs")
    counted = pl.when(dur > 0).then(pl.col("size") / dur).when(pl.col("size") == 0).then(0.0)  # bytes per ns
    made = rows.sort("startNs", maintain_order=True).select(
        "row",
        "lane",
        ts="startNs",
        dur=dur,
        device="deviceId",
        name="taskType",
        plane="planeId",
        stream="streamId",
        task="taskId",
        context=known(pl.col("contextId")),
        notify=pl.col("notifyId").cast(pl.String).replace(str(_NO_NOTIFY), _NO_NOTIFY_TEXT),
        source=known(pl.col("srcRank")),
        destination=known(pl.col("dstRank")),
        transport=_said("transportType"),
        link=_said("linkType"),
        rdma=pl.when(~pl.col("rdmaType").is_in(["N/A", "INVALID_TYPE"])).then("rdmaType"),
        bytes="size",
        dtype=_said("dataType"),
        bandwidth=pl.coalesce(pl.col("bandwidth") / 1e9, counted),
    )
    return opened.intervals(made)


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
    rows = rows.filter(pl.col("hccl_op_name") != "Total Op Info")
    # Multiplied by 1000 the whole would lose digits.
    whole = pl.col("start_timestamp").floor()
    began = whole.cast(pl.Int64, strict=False) * 1000 + _whole((pl.col("start_timestamp") - whole) * 1000)
    return rows.select(
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
    nth = pl.int_range(pl.len()).over("name").alias("nth")
    added = measured.sort("ts", maintain_order=True).with_columns(nth).drop("ts", "dur", "group")
    return (
        communications.with_columns(nth).join(added, on=["name", "nth"], how="left", maintain_order="left").drop("nth")
    )


def _bandwidths(opened: Database, communications: pl.DataFrame) -> pl.DataFrame:
    numbers = ("transit_size", "transit_time", "bandwidth", "large_packet_ratio", "package_size", "count")
    texts = ("hccl_op_name", "group_name", "transport_type", "step", "type")
    columns = {**dict.fromkeys(texts, TEXT), **dict.fromkeys((*numbers, "total_duration"), FLOAT)}
    rows = opened.rows("CommAnalyzerBandwidth", columns)
    owners = communications.select("name", pl.int_range(pl.len(), dtype=pl.Int64).alias("row")).unique("name")
    rows = rows.join(owners, left_on="hccl_op_name", right_on="name", how="left", maintain_order="left")
    place = [_step(), _point_to_point(), pl.col("hccl_op_name").alias("name"), pl.col("group_name").alias("group")]
    place += [pl.col("row"), pl.col("transport_type").alias("transport")]
    whole = rows.unique(["hccl_op_name", "group_name", "step", "transport_type"], keep="first", maintain_order=True)
    everything = whole.select(
        *place, bytes=_mb("transit_size"), time=_ms("transit_time"), bandwidth="bandwidth", large="large_packet_ratio"
    )
    packets = rows.filter(pl.col("count") > 0).select(
        *place, packet=_mb("package_size"), count=_whole(pl.col("count")), time=_ms("total_duration")
    )
    return pl.concat([everything, packets], how="diagonal")


def _matrix(opened: Database) -> pl.DataFrame:
    texts = ("hccl_op_name", "group_name", "src_rank", "dst_rank", "transport_type", "step", "type", "op_name")
    columns = {**dict.fromkeys(texts, TEXT), "transit_size": FLOAT, "transit_time": FLOAT, "bandwidth": FLOAT}
    rows = opened.rows("CommAnalyzerMatrix", columns)
    name = pl.col("hccl_op_name")
    return rows.select(
        _step(),
        _point_to_point(),
        operation=name.str.replace(_PLACE, ""),
        # MindSpore's has every operation by itself.
        place=name.str.extract(_PLACE).fill_null("one"),
        group="group_name",
        source=pl.col("src_rank").cast(pl.Int64, strict=False),
        destination=pl.col("dst_rank").cast(pl.Int64, strict=False),
        transport="transport_type",
        bytes=_mb("transit_size"),
        time=_ms("transit_time"),
        bandwidth="bandwidth",
        name=pl.when(pl.col("op_name") != "").then("op_name"),
    )


def _step() -> pl.Expr:
    return pl.col("step").str.extract(r"(\d{1,9})$").cast(pl.Int64).alias("step")


def _point_to_point() -> pl.Expr:
    return (pl.col("type").str.to_lowercase() == "p2p").alias("point_to_point")


def _whole(value: pl.Expr) -> pl.Expr:
    """Return a number as an integer; null where it is none."""
    return value.round(0).cast(pl.Int64, strict=False)


def _ms(column: str) -> pl.Expr:
    return _whole(pl.col(column) * 1_000_000)


def _mb(column: str) -> pl.Expr:
    return _whole(pl.col(column) * 1_000_000)
