"""The tables of Ascend's database of events; times in ns since the epoch, texts as numbers of ``STRING_IDS``.

Work and the call that launched it share a connection. Work of the host is its own call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

import polars as pl

from stepscope.report.ascend.calls import parallel_group_info
from stepscope.report.ascend.database import host_events as host
from stepscope.report.ascend.database import task_events as device
from stepscope.report.ascend.database.sample_events import samples
from stepscope.report.ascend.overlap_analysis import RankWork
from stepscope.report.ascend.variant import PYTORCH, Variant
from stepscope.report.protocol import Result, Source
from stepscope.report.safe_text import storable
from stepscope.trace import ascend_columns as ascend
from stepscope.trace.ascend_columns import AscendColumn, unit_of
from stepscope.trace.tables import is_derived_fact

#: ``ENUM_API_TYPE``.
_API_TYPES = {number: level for number, level, _ in ascend.LAYERS}
_API_TYPES |= {
    ascend.OPERATOR_CALL: "op",
    ascend.QUEUE_CALL: "queue",
    ascend.PYTHON_CALL: "trace",
    ascend.MARK_CALL: "mstx",
}
#: Tables that are written only if they have rows.
_WHERE_KNOWN = {"COMMUNICATION_TASK_INFO", "TASK_PMU_INFO", "MEMCPY_INFO", "GC_RECORD", "PYTORCH_CALLCHAINS"}


@dataclass
class _NumberedTexts:
    """Texts by number."""

    numbers: dict[str, int] = field(default_factory=dict)

    def column(self, column: pl.Series) -> pl.Series:
        """Return a column of texts as their numbers; null stays null."""
        column = column.cast(pl.String)
        distinct = column.unique(maintain_order=True).drop_nulls()
        if distinct.is_empty():
            return pl.Series(column.name, [None] * len(column), dtype=pl.Int64)
        made = [self.numbers.setdefault(storable(text), len(self.numbers)) for text in distinct]
        return column.replace_strict(distinct, pl.Series(made, dtype=pl.Int64), default=None, return_dtype=pl.Int64)

    def table(self, name: str, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the columns of a table, in its order and with the numbers of texts."""
        holds = ascend.DATABASE.get(name) or dict.fromkeys(
            frame.columns, ascend.TEXT if name == "ENUM_MODULE" else ascend.NAME
        )
        chosen = frame.select(column for column in holds if column in frame.columns)
        # PYTORCH_API has times as text.
        texts = [one for one in chosen if one.dtype == pl.String and holds[one.name] not in (ascend.TEXT, ascend.INT)]
        return chosen.with_columns(self.column(one) for one in texts)


def events(source: Source, work: RankWork, variant: Variant, rank: int) -> dict[str, pl.DataFrame]:
    """Return the tables by name; those that readers ask for unseen are there without rows too."""
    apis = host.apis(work)
    rows = device.numbered(work)
    operations = device.communication(work, apis)
    parts = device.communication_tasks(rows, work, operations)
    tables = {
        "COMPUTE_TASK_INFO": device.compute_tasks(rows, work, variant),
        "TASK": device.tasks(rows, work, apis, parts),
        "COMMUNICATION_OP": operations,
        "CANN_API": apis,
        "COMMUNICATION_TASK_INFO": parts,
        "TASK_PMU_INFO": device.counters(rows, work),
        "MEMCPY_INFO": device.copies(rows, work),
        "GC_RECORD": host.garbage(work),
        **samples(work),
    }
    if variant is PYTORCH:
        tables["PYTORCH_API"] = host.framework(work)
        tables["CONNECTION_IDS"] = host.connections(work, apis)
        tables["PYTORCH_CALLCHAINS"] = host.callchains(work)
        tables["OP_MEMORY"] = _stored(_table(source.results["operator_memory"]), ascend.OPERATOR_MEMORY)
        tables["MEMORY_RECORD"] = _memory_record(source.results["memory_record"], work, variant)
    if work.windows.declared:
        steps = work.windows
        tables["STEP_TIME"] = pl.DataFrame({"id": steps.number, "startNs": steps.start, "endNs": steps.end})
    strings = _NumberedTexts()
    stored = {
        name: strings.table(name, frame) for name, frame in tables.items() if len(frame) or name not in _WHERE_KNOWN
    }
    stored["STRING_IDS"] = pl.DataFrame(
        {"id": list(strings.numbers.values()), "value": list(strings.numbers)},
        schema={"id": pl.Int64, "value": pl.String},
    )
    return stored | _facts(source, work, rank)


def _facts(source: Source, work: RankWork, rank: int) -> dict[str, pl.DataFrame]:
    hosts = [host for host in source.tables["tracks"].select("host").collect()["host"].cast(pl.String) if host]
    located = pl.DataFrame({"ts": work.located.ts, "end": work.located.end})
    ends = located.select(pl.col("ts").min().alias("startTimeNs"), pl.col("end").max().alias("endTimeNs"))
    devices = work.pieces["device_name"].unique().sort().to_list()
    enumeration = {"id": pl.Int64, "name": pl.String}
    return {
        "META_DATA": pl.DataFrame(
            _metadata(source, work), schema={"name": pl.String, "value": pl.String}, orient="row"
        ),
        "SESSION_TIME_INFO": ends,
        "HOST_INFO": pl.DataFrame({"hostUid": [hosts[0] if hosts else ""], "hostName": [hosts[0] if hosts else ""]}),
        "NPU_INFO": pl.DataFrame([(device.index(name), name) for name in devices], schema=enumeration, orient="row"),
        "RANK_DEVICE_MAP": pl.DataFrame({"rankId": [rank], "deviceId": [device.index(devices[0]) if devices else 0]}),
        "ENUM_API_TYPE": pl.DataFrame(list(_API_TYPES.items()), schema=enumeration, orient="row"),
        **{
            name: pl.DataFrame(rows, schema=enumeration, orient="row")
            for name, rows in device.enumerations().items()
            if work.recorded_by_npu or name == "ENUM_HCCL_DATA_TYPE"
        },
    }


def _metadata(source: Source, work: RankWork) -> list[tuple[str, str]]:
    version = [("SCHEMA_VERSION_MAJOR", "1"), ("SCHEMA_VERSION_MINOR", "0"), ("SCHEMA_VERSION_MICRO", "0")]
    rows = source.tables["metadata"].filter(~is_derived_fact()).collect().iter_rows()
    facts = {key: text for key, text in rows if key != "traceEvents"}
    groups = parallel_group_info(work.calls)
    known = {"parallel_group_info": json.dumps(groups)} if groups else {}
    return [*version, ("SCHEMA_VERSION", "1.0.0"), *{**known, **facts}.items()]


def _memory_record(result: Result, work: RankWork, variant: Variant) -> pl.DataFrame:
    """Return memory over time in bytes; the memory of an NPU's process has a table of its own."""
    rows = _table(result)
    active = pl.col("Total Active(MB)")
    if work.recorded_by_npu:
        # Components without streams do not measure active memory and have 0.
        rows = rows.filter(pl.col("Component") != "APP").with_columns(active.fill_null(0))
    pointer = [] if "Stream Ptr" in rows.columns else [pl.lit(None, pl.Int64).alias("Stream Ptr")]
    named = rows.with_columns(pl.col("Component").replace("Framework", variant.component), *pointer)
    return _stored(named, ascend.MEMORY_RECORD)


def _table(result: Result) -> pl.DataFrame:
    return result if isinstance(result, pl.DataFrame) else pl.DataFrame()


def _stored(rows: pl.DataFrame, columns: Iterable[AscendColumn]) -> pl.DataFrame:
    """Return a result in the columns of its table: ns, bytes, the number of the device."""
    made = []
    for column in columns:
        value, (_, unit) = pl.col(column.torch), unit_of(column.torch)
        if column.sort == ascend.STAMP:
            value = (value * 1000).cast(pl.Int64)
        elif column.sort in (ascend.HELD, ascend.SIZE, ascend.HELD_SIZE):
            value = (value * (1000 if column.sort == ascend.HELD else ascend.BYTES[unit])).round(0).cast(pl.Int64)
        elif column.sort == ascend.DEVICE:
            value = _device_index(rows)
        else:
            value = value.cast(pl.String if column.sort == ascend.LABEL else pl.Int64)
        made.append(value.alias(column.database))
    return rows.select(made)


def _device_index(rows: pl.DataFrame) -> pl.Expr:
    names = rows["Device Type"].cast(pl.String).unique().drop_nulls()
    numbers = pl.Series([device.index(name) for name in names], dtype=pl.Int64)
    return pl.col("Device Type").cast(pl.String).replace_strict(names, numbers, default=0)
