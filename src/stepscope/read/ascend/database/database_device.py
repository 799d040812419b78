"""Tasks of the device and their counters, from a database of events."""

from __future__ import annotations

import re

import polars as pl

from stepscope.read.common.database.sqlite import SqliteDatabase
from stepscope.read.common.distinct import either, found, of_all, of_each, ordered, where, without_nulls
from stepscope.trace.ascend_columns import COUNTER_OF_DATABASE, DATABASE, INT, KERNEL_DETAILS, UNKNOWN_32

#: Columns of the frame that are those of the table.
_PLACE = {
    "device": "deviceId",
    "stream": "streamId",
    "type": "taskType",
    "task": "taskId",
    "model": "modelId",
    "connection": "connectionId",
}
_TEXTS = {
    column.ours: column.database
    for column in KERNEL_DETAILS
    if column.database in DATABASE["COMPUTE_TASK_INFO"] and column.ours != "name"
}
#: Columns of the tables of kernels that say neither type nor core.
DESCRIPTIONS = frozenset(column for ours, column in _TEXTS.items() if ours not in ("op_type", "core"))
_UNIT = re.compile(r"\((.*)\)\Z")
#: Counters of the database → the columns of the text file.
_RENAMED = {theirs: name for name, theirs in COUNTER_OF_DATABASE.items()}


def tasks(opened: SqliteDatabase) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the frame ``tasks`` with the column ``id``, and the tasks that belong to communication operations."""
    every = ordered(opened.rows("TASK"), "startNs")
    planes = opened.rows("COMMUNICATION_TASK_INFO", {"globalTaskId": INT})
    in_planes = found(every["globalTaskId"], planes["globalTaskId"]).is_not_null()
    own = every.filter(in_planes)
    # Communication that an AI CPU schedules has a table of its own; of several kernels of one task the first counts.
    scheduled = opened.rows("COMMUNICATION_SCHEDULE_TASK_INFO", DATABASE["COMPUTE_TASK_INFO"])
    kernels = pl.concat([opened.rows("COMPUTE_TASK_INFO"), scheduled])
    rest = _without_wholes(every.filter(~in_planes), every, kernels)
    copies = opened.rows("MEMCPY_INFO")
    kernel = kernels[found(rest["globalTaskId"], kernels["globalTaskId"])]
    copy = copies[found(rest["globalTaskId"], copies["globalTaskId"])]
    made = [
        rest["globalTaskId"].alias("id"),
        rest["startNs"].alias("ts"),
        (rest["endNs"] - rest["startNs"]).alias("dur"),
        *(rest[name].alias(column) for column, name in _PLACE.items()),
        either(kernel["name"], rest["taskType"]),
        known(rest["contextId"]).alias("context"),
        copy["size"].alias("bytes"),
        copy["memcpyOperation"].alias("direction"),
        either(kernel["blockNum"], kernel["blockDim"]).alias("blocks"),
        either(kernel["mixBlockNum"], kernel["mixBlockDim"]).alias("mix_blocks"),
        *of_all(unquoted, [kernel[name].alias(column) for column, name in _TEXTS.items()]),
    ]
    return opened.intervals(pl.DataFrame(made)), own


def _without_wholes(rest: pl.DataFrame, every: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Leave out a task whose parts have rows of their own, as the text files do."""
    place = ["deviceId", "streamId", "taskId"]
    parts = every.filter(every["contextId"] != UNKNOWN_32)
    wholes = rest.filter(rest["contextId"] == UNKNOWN_32)
    if not len(parts) or not len(wholes):
        return rest
    wholes = wholes.filter(found(wholes["globalTaskId"], kernels["globalTaskId"]).is_null())
    wholes = wholes.join(parts, on=place, how="semi")
    return rest.filter(found(rest["globalTaskId"], wholes["globalTaskId"]).is_null())


def known(number: pl.Series) -> pl.Series:
    """Return a number; null for :data:`UNKNOWN_32`."""
    return where(number != UNKNOWN_32, number)


def unquoted(text: str | None) -> str | None:
    """Return a text without the quotes around it; None for ``N/A`` and the empty text."""
    return None if text in (None, "N/A", "") else text.strip('"')


def counters(opened: SqliteDatabase, made: pl.DataFrame) -> pl.DataFrame:
    """Return the frame ``task_counters``: times in µs as in the text file; the database has ns."""
    rows = opened.rows("TASK_PMU_INFO")
    row = found(rows["globalTaskId"], made["id"]).alias("row")
    rows = without_nulls(pl.DataFrame([row, rows["name"], rows["value"]]), ["row", "name", "value"])
    # Nine decimals survive the way back to ns.
    us = (rows["value"] / 1000).round(9)
    is_time = of_each(lambda name: name.endswith("_time"), rows["name"], dtype=pl.Boolean())
    return pl.DataFrame(
        [
            rows["row"],
            of_each(_counter, rows["name"]),
            us.zip_with(is_time, rows["value"]),
            of_each(_unit, rows["name"]).alias("unit"),
        ]
    )


def _counter(name: str) -> str:
    """Return the name of a counter without its unit."""
    bare = _UNIT.sub("", name)
    return _RENAMED.get(bare, bare)


def _unit(name: str) -> str:
    unit = _UNIT.search(name)
    return "us" if name.endswith("_time") else unit[1] if unit else ""
