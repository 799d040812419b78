"""The tables of Ascend's database of events; times in ns since the epoch, texts as numbers of ``STRING_IDS``.

Work and the call that launched it share a connection. Where the host itself works, the work is its own call.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import polars as pl

from stepscope.report.ascend.calls import parallel_group_info
from stepscope.report.ascend.tables import (
    L2_CACHE,
    NO_MODEL,
    core,
    kernel_shapes,
    kernel_types,
    operator_shapes,
    texts,
    told,
)
from stepscope.report.ascend.variant import MEBIBYTE, PYTORCH, Variant
from stepscope.report.ascend.work import RankWork
from stepscope.report.protocol import Result, Source
from stepscope.report.text import storable

#: Numbers of the sorts of calls.
_API_TYPES = {5000: "runtime", 5500: "hccl", 10000: "node", 15000: "model", 20000: "acl", 50001: "op"}
_TYPE_OF_KIND = {"runtime": 5000, "driver": 5000, "sync": 5000, "collective": 5500, "operator": 10000}
_DATA_TYPES = (
    "INT8",
    "INT16",
    "INT32",
    "FP16",
    "FP32",
    "INT64",
    "UINT64",
    "UINT8",
    "UINT16",
    "UINT32",
    "FP64",
    "BFP16",
)
_BYTES = dict(enumerate((1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2)))
_NO_TYPE = 65534
_TYPE_OF_ELEMENTS = {"char": 0, "short": 1, "int": 2, "half": 3, "float": 4, "long": 5, "byte": 7, "double": 10}
_TYPE_OF_ELEMENTS |= {"int8": 0, "int16": 1, "int32": 2, "float16": 3, "float32": 4, "int64": 5, "float64": 10}
_TYPE_OF_ELEMENTS |= {"bfloat16": 11} | {name.lower(): number for number, name in enumerate(_DATA_TYPES)}


@dataclass
class _Strings:
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

    def frame(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return a table with all texts as their numbers."""
        return frame.with_columns(self.column(column) for column in frame if column.dtype == pl.String)


def events(source: Source, work: RankWork, variant: Variant, rank: int) -> dict[str, pl.DataFrame]:
    """Return the tables by name; those that readers ask for unseen are there without rows too."""
    strings, apis = _Strings(), _apis(work)
    tables = {
        "COMPUTE_TASK_INFO": strings.frame(_compute_tasks(work, variant)),
        "TASK": strings.frame(_tasks(work, apis)),
        "COMMUNICATION_OP": strings.frame(_communication(work, apis)),
        "CANN_API": strings.frame(apis.drop("span")),
    }
    counters = _counters(work)
    if len(counters):
        tables["TASK_PMU_INFO"] = strings.frame(counters)
    if variant is PYTORCH:
        tables["PYTORCH_API"] = strings.frame(_operators(work))
        tables["CONNECTION_IDS"] = _connections(work, apis)
        tables["OP_MEMORY"] = strings.frame(_operator_memory(source.results["operator_memory"]))
        tables["MEMORY_RECORD"] = strings.frame(_memory_record(source.results["memory_record"], variant))
    if work.windows.declared:
        steps = work.windows
        tables["STEP_TIME"] = pl.DataFrame({"id": steps.number, "startNs": steps.start, "endNs": steps.end})
    tables["STRING_IDS"] = pl.DataFrame(
        {"id": list(strings.numbers.values()), "value": list(strings.numbers)},
        schema={"id": pl.Int64, "value": pl.String},
    )
    return tables | _facts(source, work, rank)


def _facts(source: Source, work: RankWork, rank: int) -> dict[str, pl.DataFrame]:
    hosts = [host for host in source.tables["tracks"].select("host").collect()["host"].cast(pl.String) if host]
    ends = work.located.select(pl.col("ts").min().alias("startTimeNs"), pl.col("end").max().alias("endTimeNs"))
    devices = work.pieces["device_name"].unique().sort().to_list()
    types = [*enumerate(_DATA_TYPES), (_NO_TYPE, "N/A")]
    enumeration = {"id": pl.Int64, "name": pl.String}
    return {
        "META_DATA": pl.DataFrame(
            _metadata(source, work), schema={"name": pl.String, "value": pl.String}, orient="row"
        ),
        "SESSION_TIME_INFO": ends,
        "HOST_INFO": pl.DataFrame({"hostUid": [hosts[0] if hosts else ""], "hostName": [hosts[0] if hosts else ""]}),
        "NPU_INFO": pl.DataFrame([(_index(name), name) for name in devices], schema=enumeration, orient="row"),
        "RANK_DEVICE_MAP": pl.DataFrame({"rankId": [rank], "deviceId": [_index(devices[0]) if devices else 0]}),
        "ENUM_API_TYPE": pl.DataFrame(list(_API_TYPES.items()), schema=enumeration, orient="row"),
        "ENUM_HCCL_DATA_TYPE": pl.DataFrame(types, schema=enumeration, orient="row"),
    }


def _metadata(source: Source, work: RankWork) -> list[tuple[str, str]]:
    version = [("SCHEMA_VERSION_MAJOR", "1"), ("SCHEMA_VERSION_MINOR", "0"), ("SCHEMA_VERSION_MICRO", "0")]
    facts = {key: text for key, text in source.tables["metadata"].collect().iter_rows() if key != "traceEvents"}
    groups = parallel_group_info(work.calls)
    known = {"parallel_group_info": json.dumps(groups)} if groups else {}
    return [*version, ("SCHEMA_VERSION", "1.0.0"), *{**known, **facts}.items()]


def _index(device: str) -> int:
    """Return the number in a device's name: ``cuda:1`` → 1; 0 for the host."""
    number = device.partition(":")[2]
    return int(number) if number.isdecimal() else 0


def _apis(work: RankWork) -> pl.DataFrame:
    """Return the calls: those of the device's software; on a rank without a device also the work of the host itself."""
    spans = work.tables["spans"].select("id", "track", "ts", "dur", "name", "kind")
    own = pl.Series([call.operation.span for call in work.calls], dtype=pl.Int64)
    if not work.work.on_device:
        own = pl.concat([own, work.pieces["id"]])
    wanted = pl.col("kind").is_in(["runtime", "driver", "sync"]) | pl.col("id").is_in(own.implode())
    threads = work.tables["tracks"].filter(pl.col("kind") == "thread")
    place = threads.select(pl.col("id").alias("track"), _thread().alias("globalTid"))
    rows = spans.filter(wanted).join(place, on="track", how="inner").sort("ts", "id")
    return rows.select(
        pl.col("id").alias("span"),
        pl.col("ts").alias("startNs"),
        (pl.col("ts") + pl.col("dur")).alias("endNs"),
        pl.col("kind").cast(pl.String).replace_strict(_TYPE_OF_KIND, default=5000, return_dtype=pl.Int64).alias("type"),
        "globalTid",
        (pl.int_range(pl.len()) + 1).alias("connectionId"),
        pl.col("name").cast(pl.String),
    ).collect()


def _thread() -> pl.Expr:
    """Return process and thread as one number."""
    return (pl.col("process").fill_null(0) * 2**32 + pl.col("thread").fill_null(0)).cast(pl.Int64)


def _connected(frame: pl.DataFrame, call: str, apis: pl.DataFrame) -> pl.DataFrame:
    """Add ``connectionId``: that of the call whose span the column ``call`` names; 0 for none, as no call has it."""
    known = apis.select(pl.col("span").alias(call), "connectionId")
    return frame.join(known, on=call, how="left", maintain_order="left").with_columns(
        pl.col("connectionId").fill_null(0)
    )


def _tasks(work: RankWork, apis: pl.DataFrame) -> pl.DataFrame:
    """Return every piece of work but communication; on the host it is its own call."""
    rows = pl.concat([work.pieces, _no_copies(work)], how="diagonal_relaxed").with_row_index("globalTaskId")
    rows = rows.with_columns(pl.coalesce("launch", "id").alias("call"), pl.col("kind").cast(pl.String))
    rows = rows.join(told(work), on="id", how="left", maintain_order="left")
    device = rows["device_name"].unique().drop_nulls()
    numbers = pl.Series([_index(name) for name in device], dtype=pl.Int64)
    copies = pl.when(pl.col("kind") == "memcpy").then(pl.lit("MEMCPY_ASYNC"))
    return _connected(rows, "call", apis).select(
        pl.col("ts").alias("startNs"),
        (pl.col("ts") + pl.col("dur")).alias("endNs"),
        pl.col("device_name").replace_strict(device, numbers, default=0, return_dtype=pl.Int64).alias("deviceId"),
        "connectionId",
        pl.col("globalTaskId").cast(pl.Int64),
        pl.lit(0).alias("globalPid"),
        # Tools find copies by this one name, whatever the device calls them.
        copies.otherwise(pl.coalesce("type", pl.col("kind").str.to_uppercase())).alias("taskType"),
        pl.coalesce("told_context", pl.when(pl.col("type").is_null()).then("context"))
        .fill_null(NO_MODEL)
        .alias("contextId"),
        pl.col("lane").alias("streamId"),
        pl.coalesce("task", pl.col("globalTaskId").cast(pl.Int64)).alias("taskId"),
        pl.col("model").fill_null(NO_MODEL).alias("modelId"),
    )


def _no_copies(work: RankWork) -> pl.DataFrame:
    """Return a copy without length at the start of each step of a rank that copied nothing; else no row.

    ``msprof-analyze`` 26.2 ends its summary of times with an error where no rank has a copy.
    """
    if "memcpy" in work.pieces["kind"]:
        return work.pieces.clear()
    kind = pl.lit("memcpy", work.pieces.schema["kind"]).alias("kind")
    return pl.DataFrame({"ts": work.windows.start}).with_columns(pl.lit(0, pl.Int64).alias("dur"), kind)


def _compute_tasks(work: RankWork, variant: Variant) -> pl.DataFrame:
    rows = work.pieces.with_row_index("globalTaskId").filter(pl.col("kind") != "memcpy")
    rows = rows.join(told(work), on="id", how="left", maintain_order="left")
    blocks = variant.blocks[0].removeprefix("Block ")
    recorded = pl.col("operation").is_not_null()
    grid = pl.col("grid").list.eval(pl.element().product()).list.first()
    shapes, types = texts(rows["shapes"], kernel_shapes), texts(rows["dtypes"], kernel_types)
    more = {"attrInfo": "attributes"} | (
        {"opState": "state", "hf32Eligible": "reduced_precision"} if len(told(work)) else {}
    )
    return rows.select(
        "name",
        pl.col("globalTaskId").cast(pl.Int64),
        pl.coalesce("told_blocks", grid).fill_null(0).alias(f"block{blocks}"),
        pl.col("mix_blocks").fill_null(0).alias(f"mixBlock{blocks}"),
        pl.coalesce("core", core()).alias("taskType"),
        pl.coalesce("operation", "name").alias("opType"),
        _or_unknown("input_formats").alias("inputFormats"),
        pl.when(recorded).then("input_dtypes").otherwise(types).fill_null("N/A").alias("inputDataTypes"),
        pl.when(recorded).then(_quoted("input_shapes")).otherwise(shapes).fill_null("N/A").alias("inputShapes"),
        _or_unknown("output_formats").alias("outputFormats"),
        _or_unknown("output_dtypes").alias("outputDataTypes"),
        _quoted("output_shapes").fill_null("N/A").alias("outputShapes"),
        *(_or_unknown(column).alias(name) for name, column in more.items()),
    )


def _quoted(column: str) -> pl.Expr:
    return pl.format('"{}"', pl.col(column))


def _or_unknown(column: str) -> pl.Expr:
    return pl.col(column).fill_null("N/A")


def _counters(work: RankWork) -> pl.DataFrame:
    """Return the hardware counters of tasks, times in ns; those of the L2 cache have no place in a database."""
    tasks = work.pieces.with_row_index("globalTaskId").select("globalTaskId", "id").lazy()
    rows = work.tables["kernel_counters"].join(tasks, left_on="span", right_on="id")
    name = pl.col("name").cast(pl.String)
    found = rows.filter(~name.is_in(L2_CACHE)).sort("globalTaskId", maintain_order=True)
    time = pl.col("unit").cast(pl.String) == "us"
    unit = pl.col("unit").cast(pl.String)
    titled = pl.when((unit == "") | time).then(name).otherwise(pl.format("{}({})", name, unit))
    return found.select(
        pl.col("globalTaskId").cast(pl.Int64),
        titled.replace(_OF_DATABASE).alias("name"),
        pl.when(time).then(pl.col("value") * 1000).otherwise("value").alias("value"),
    ).collect()


#: Counters of the text file → their names in databases.
_OF_DATABASE = {"aicore_time": "aic_total_time", "aiv_time": "aiv_total_time"}


def _communication(work: RankWork, apis: pl.DataFrame) -> pl.DataFrame:
    schema = {"span": pl.Int64, "opName": pl.String, "startNs": pl.Int64, "endNs": pl.Int64}
    schema |= {"groupName": pl.String, "opType": pl.String}
    rows = [
        (call.operation.span, call.name, call.operation.start, call.end, call.operation.group, call.type)
        for call in work.calls
    ]
    launches = work.tables["kernels"].select("span", "launch")
    details = work.tables["collectives"].select("span", pl.col("dtype").cast(pl.String), "bytes_in", "algorithm")
    frame = pl.DataFrame(rows, schema=schema, orient="row").with_row_index("opId", offset=1).lazy()
    joined = frame.join(launches, on="span", how="left", maintain_order="left").unique("opId", maintain_order=True)
    joined = joined.join(details, on="span", how="left", maintain_order="left").unique("opId", maintain_order=True)
    found = joined.with_columns(pl.coalesce("launch", "span").alias("call")).collect()
    return _connected(found, "call", apis).select(
        "opName",
        "startNs",
        "endNs",
        "connectionId",
        "groupName",
        pl.col("opId").cast(pl.Int64),
        pl.lit(0).alias("relay"),
        pl.lit(0).alias("retry"),
        _elements(),
        pl.col("algorithm").cast(pl.String).fill_null("N/A").alias("algType"),
        (pl.col("bytes_in") // _elements().replace_strict(_BYTES, default=None)).alias("count"),
        "opType",
    )


def _elements() -> pl.Expr:
    name = pl.col("dtype").str.to_lowercase().str.replace(r"^c10::", "").str.replace(r" int$", "")
    return name.replace_strict(_TYPE_OF_ELEMENTS, default=_NO_TYPE, return_dtype=pl.Int64).alias("dataType")


def _operators(work: RankWork) -> pl.DataFrame:
    """Return the operators of host threads; ``connectionId`` is a number in ``CONNECTION_IDS``."""
    spans = work.tables["spans"].filter(pl.col("kind") == "operator")
    threads = work.tables["tracks"].filter(pl.col("kind") == "thread")
    place = threads.select(pl.col("id").alias("track"), _thread().alias("globalTid"))
    inputs = work.tables["operators"].select(pl.col("span").alias("id"), "shapes", "dtypes", "forward_thread")
    launching = work.tables["kernels"].select(pl.col("operator").alias("id"), launching=True).drop_nulls().unique()
    rows = (
        spans.join(place, on="track")
        .join(inputs.unique("id"), on="id", how="left")
        .join(launching, on="id", how="left")
    )
    found = rows.sort("ts", "id").collect()
    return found.select(
        pl.col("ts").cast(pl.String).alias("startNs"),
        (pl.col("ts") + pl.col("dur")).cast(pl.String).alias("endNs"),
        "globalTid",
        pl.when("launching").then("id").alias("connectionId"),
        pl.col("name").cast(pl.String),
        pl.col("sequence").alias("sequenceNumber"),
        pl.col("forward_thread").alias("fwdThreadId"),
        texts(found["dtypes"], operator_shapes).alias("inputDtypes"),
        texts(found["shapes"], operator_shapes).alias("inputShapes"),
        pl.lit(None, pl.Int64).alias("callchainId"),
        pl.lit(50001).alias("type"),
    )


def _connections(work: RankWork, apis: pl.DataFrame) -> pl.DataFrame:
    """Return operator (its number in ``PYTORCH_API``) and the connections of what it launched."""
    launches = work.tables["kernels"].select(pl.col("operator").alias("id"), "launch").drop_nulls().collect()
    known = apis.select(pl.col("span").alias("launch"), "connectionId")
    return launches.join(known, on="launch", how="inner").select("id", "connectionId").unique(maintain_order=True)


def _memory_record(result: Result, variant: Variant) -> pl.DataFrame:
    """Return memory over time in bytes."""
    rows = _table(result)
    pointer = pl.col("Stream Ptr").cast(pl.Int64) if "Stream Ptr" in rows.columns else pl.lit(None, pl.Int64)
    return rows.select(
        pl.col("Component").replace("Framework", variant.component).alias("component"),
        _ns("Timestamp(us)").alias("timestamp"),
        *(_bytes(f"Total {name}(MB)", MEBIBYTE).alias(f"total{name}") for name in ("Allocated", "Reserved", "Active")),
        pointer.alias("streamPtr"),
        _device_index(rows),
    )


def _operator_memory(result: Result) -> pl.DataFrame:
    """Return the life of every block in bytes and ns."""
    rows = _table(result)
    moments = {"allocationTime": "Allocation Time(us)", "releaseTime": "Release Time(us)"}
    totals = {
        f"{moment.lower()}Total{name}": _bytes(f"{moment} Total {name}(MB)", MEBIBYTE)
        for moment in ("Allocation", "Release")
        for name in ("Allocated", "Reserved", "Active")
    }
    return rows.select(
        pl.col("Name").cast(pl.String).alias("name"),
        _bytes("Size(KB)", 1024).alias("size"),
        *(_ns(name).alias(column) for column, name in moments.items()),
        _ns("Active Release Time(us)").alias("activeReleaseTime"),
        _bytes("Duration(us)", 1000).alias("duration"),
        _bytes("Active Duration(us)", 1000).alias("activeDuration"),
        *(value.alias(column) for column, value in totals.items()),
        pl.col("Stream Ptr").cast(pl.Int64).alias("streamPtr"),
        _device_index(rows),
    )


def _table(result: Result) -> pl.DataFrame:
    return result if isinstance(result, pl.DataFrame) else pl.DataFrame()


def _ns(column: str) -> pl.Expr:
    return (pl.col(column) * 1000).cast(pl.Int64)


def _bytes(column: str, unit: int) -> pl.Expr:
    return (pl.col(column) * unit).round(0).cast(pl.Int64)


def _device_index(rows: pl.DataFrame) -> pl.Expr:
    names = rows["Device Type"].cast(pl.String).unique().drop_nulls()
    numbers = pl.Series([_index(name) for name in names], dtype=pl.Int64)
    return pl.col("Device Type").cast(pl.String).replace_strict(names, numbers, default=0).alias("deviceId")
