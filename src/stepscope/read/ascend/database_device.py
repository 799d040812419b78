"""Tasks of the device and their counters, from a database of events."""

from __future__ import annotations

import polars as pl

from stepscope.read.ascend.sqlite import FLOAT, INT, NAME, Database

#: Tables that are read here.
TABLES = {"TASK", "COMPUTE_TASK_INFO", "COMMUNICATION_SCHEDULE_TASK_INFO", "MEMCPY_INFO", "TASK_PMU_INFO", "DPU_TASK"}
#: What stands for no number in 32 bits.
NONE = 4294967295
_TASK = {
    "startNs": INT,
    "endNs": INT,
    "deviceId": INT,
    "connectionId": INT,
    "globalTaskId": INT,
    "taskType": NAME,
    "contextId": INT,
    "streamId": INT,
    "taskId": INT,
    "modelId": INT,
}
_KERNEL = {
    "name": NAME,
    "globalTaskId": INT,
    "blockNum": INT,
    "mixBlockNum": INT,
    # In the first versions the number of blocks, in the last ones text of another meaning besides blockNum.
    "blockDim": INT,
    "mixBlockDim": INT,
    "taskType": NAME,
    "opType": NAME,
    "opState": NAME,
    "hf32Eligible": NAME,
    "inputShapes": NAME,
    "inputDataTypes": NAME,
    "inputFormats": NAME,
    "outputShapes": NAME,
    "outputDataTypes": NAME,
    "outputFormats": NAME,
    "attrInfo": NAME,
}
_TEXTS = {
    "op_type": "opType",
    "core": "taskType_right",
    "state": "opState",
    "hf32": "hf32Eligible",
    "input_shapes": "inputShapes",
    "input_dtypes": "inputDataTypes",
    "input_formats": "inputFormats",
    "output_shapes": "outputShapes",
    "output_dtypes": "outputDataTypes",
    "output_formats": "outputFormats",
    "attributes": "attrInfo",
}
#: Counters of the database → the columns of the text file.
_RENAMED = {"aic_total_time": "aicore_time", "aiv_total_time": "aiv_time"}


def tasks(opened: Database) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the frame ``tasks`` with the column ``id``, and the tasks that belong to communication operations."""
    every = opened.rows("TASK", _TASK).sort("startNs", maintain_order=True)
    planes = opened.rows("COMMUNICATION_TASK_INFO", {"globalTaskId": INT})
    own = every.join(planes, on="globalTaskId", how="semi", maintain_order="left")
    kernels = _kernels(opened)
    rest = _without_wholes(every.join(planes, on="globalTaskId", how="anti", maintain_order="left"), every, kernels)
    copies = opened.rows(
        "MEMCPY_INFO", {"globalTaskId": INT, "size": INT, "memcpyOperation": "ENUM_MEMCPY_OPERATION"}
    ).unique("globalTaskId")
    joined = rest.join(kernels, on="globalTaskId", how="left", maintain_order="left")
    joined = joined.join(copies, on="globalTaskId", how="left", maintain_order="left")
    made = joined.select(
        pl.col("globalTaskId").alias("id"),
        ts="startNs",
        dur=pl.col("endNs") - pl.col("startNs"),
        device="deviceId",
        stream="streamId",
        name=pl.coalesce("name", "taskType"),
        type="taskType",
        task="taskId",
        context=known(pl.col("contextId")),
        model="modelId",
        connection="connectionId",
        bytes="size",
        direction="memcpyOperation",
        blocks=pl.coalesce("blockNum", "blockDim"),
        mix_blocks=pl.coalesce("mixBlockNum", "mixBlockDim"),
        **{column: told(pl.col(name)) for column, name in _TEXTS.items()},
    )
    return opened.intervals(made), own


def _without_wholes(rest: pl.DataFrame, every: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Leave out tasks that are nothing but the parts that have rows of their own, as the text files do."""
    place = ["deviceId", "streamId", "taskId"]
    parts = every.filter(pl.col("contextId") != NONE).select(place).unique()
    wholes = rest.filter(pl.col("contextId") == NONE).join(kernels, on="globalTaskId", how="anti")
    wholes = wholes.join(parts, on=place, how="semi")
    return rest.join(wholes, on="globalTaskId", how="anti", maintain_order="left")


def _kernels(opened: Database) -> pl.DataFrame:
    computing = opened.rows("COMPUTE_TASK_INFO", _KERNEL)
    # Communication that an AI CPU schedules.
    scheduled = opened.rows("COMMUNICATION_SCHEDULE_TASK_INFO", _KERNEL)
    return pl.concat([computing, scheduled]).unique("globalTaskId", keep="first", maintain_order=True)


def known(number: pl.Expr) -> pl.Expr:
    """Return a number; null for that which stands for none."""
    return pl.when(number != NONE).then(number)


def told(text: pl.Expr) -> pl.Expr:
    """Return a text without quotes around it; null for ``N/A`` and nothing."""
    plain = text.str.strip_chars('"')
    return pl.when(~text.is_in(["N/A", ""])).then(plain)


def counters(opened: Database, made: pl.DataFrame) -> pl.DataFrame:
    """Return the frame ``task_counters``: times in µs, as in the text file, where the database has ns."""
    rows = opened.rows("TASK_PMU_INFO", {"globalTaskId": INT, "name": NAME, "value": FLOAT})
    places = made.select(pl.col("id").alias("globalTaskId"), pl.int_range(pl.len(), dtype=pl.Int64).alias("row"))
    found = rows.join(places.unique("globalTaskId"), on="globalTaskId", how="inner", maintain_order="left")
    bare = pl.col("name").str.replace(r"\(.*\)$", "")
    time = pl.col("name").str.ends_with("_time")
    return found.drop_nulls(["name", "value"]).select(
        "row",
        name=bare.replace(_RENAMED),
        # With this many digits what is written again is the same.
        value=pl.when(time).then((pl.col("value") / 1000).round(9)).otherwise("value"),
        unit=pl.when(time).then(pl.lit("us")).otherwise(pl.col("name").str.extract(r"\((.*)\)$").fill_null("")),
    )
