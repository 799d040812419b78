"""Work of the device in the tables of Ascend's database of events, see ``event_tables``."""

from __future__ import annotations

import polars as pl

from stepscope.report.ascend.overlap_analysis import RankWork
from stepscope.report.ascend.text.csv_tables import core, kernel_shapes, kernel_types, task_details, texts
from stepscope.report.ascend.variant import MINDSPORE, Variant
from stepscope.trace.ascend_columns import (
    BYTES_OF_TYPE,
    COUNTER_OF_DATABASE,
    KERNEL_DETAILS,
    L2_CACHE,
    NO_NOTIFICATION,
    UNKNOWN_32,
)

DATA_TYPES = (
    *("INT8", "INT16", "INT32", "FP16", "FP32", "INT64", "UINT64", "UINT8", "UINT16", "UINT32", "FP64", "BFP16"),
    "INT128",
)
LINK_TYPES = ("ON_CHIP", "HCCS", "PCIE", "ROCE", "SIO", "HCCS_SW", "STANDARD_ROCE", "RESERVED")
TRANSPORT_TYPES = ("SDMA", "RDMA", "LOCAL")
RDMA_TYPES = (
    *("RDMA_SEND_NOTIFY", "RDMA_SEND_PAYLOAD", "RDMA_PAYLOAD_PREPARE"),
    *("RDMA_PAYLOAD_CHECK", "RDMA_PAYLOAD_ACK", "RDMA_SEND_OP"),
)
NO_TYPE, INVALID_TYPE = 65534, 65535
_BYTES = {number: BYTES_OF_TYPE[name] for number, name in enumerate(DATA_TYPES)}
_TYPE_OF_ELEMENTS = {"char": 0, "short": 1, "int": 2, "half": 3, "float": 4, "long": 5, "byte": 7, "double": 10}
_TYPE_OF_ELEMENTS |= {"int8": 0, "int16": 1, "int32": 2, "float16": 3, "float32": 4, "int64": 5, "float64": 10}
_TYPE_OF_ELEMENTS |= {"bfloat16": 11} | {name.lower(): number for number, name in enumerate(DATA_TYPES)}
#: Columns of the table ``tasks`` that are texts of a kernel.
_DETAILS = ("state", "input_formats", "output_formats", "output_dtypes", "attributes")


def index(device: str) -> int | None:
    """Return the number in a device's name: ``cuda:1`` → 1; 0 for the host, None for a device of unknown number."""
    number = device.partition(":")[2]
    return int(number) if number.isdecimal() else 0 if device == "cpu" else None


def numbered(work: RankWork) -> pl.DataFrame:
    """Return every task by ``globalTaskId``: the work except communication, and the other tasks of an NPU.

    The column ``owner`` is the lane of the group of a part of communication, and null for all others.
    """
    rows = pl.concat([work.pieces, _no_copies(work), _others(work)], how="diagonal_relaxed")
    rows = rows.join(task_details(work), on="id", how="left", maintain_order="left").with_row_index("globalTaskId")
    return rows.with_columns(
        pl.col("globalTaskId").cast(pl.Int64),
        pl.coalesce("launch", "id").alias("call"),
        pl.col("kind").cast(pl.String),
        pl.coalesce("lane", "recorded_stream").alias("lane"),
    )


def _no_copies(work: RankWork) -> pl.DataFrame:
    """Return a copy without length at the start of each step of a rank that copied nothing; else no row.

    ``msprof-analyze`` 26.2 ends its summary of times with an error if no rank has a copy.
    """
    if "memcpy" in work.pieces["kind"]:
        return work.pieces.clear()
    kind = pl.lit("memcpy", work.pieces.schema["kind"]).alias("kind")
    return pl.DataFrame({"ts": work.windows.start}).with_columns(pl.lit(0, pl.Int64).alias("dur"), kind)


def _others(work: RankWork) -> pl.DataFrame:
    """Return the tasks of an NPU that are not work: events, waits, the parts of communication."""
    known = pl.concat([work.pieces["id"], pl.Series([call.operation.span for call in work.calls], dtype=pl.Int64)])
    tracks = work.tables["tracks"].select(
        pl.col("id").alias("track"),
        pl.col("device").cast(pl.String).alias("device_name"),
        pl.col("stream").alias("lane"),
        pl.when(pl.col("kind") == "other").then("name").alias("owner"),
    )
    spans = work.tables["spans"].filter(~pl.col("id").is_in(known.implode()))
    rows = spans.join(work.tables["tasks"].select(pl.col("span").alias("id")), on="id", how="semi")
    columns = ("id", "track", "ts", "dur", pl.col("name").cast(pl.String), "kind", "correlation")
    return rows.select(columns).join(tracks, on="track").sort("ts", "id").collect()


def connected(frame: pl.DataFrame, work: RankWork, calls: pl.DataFrame) -> pl.DataFrame:
    """Add ``connectionId``: the recorded one, else that of the call whose span ``call`` names.

    0 means “none”; no call has it.
    """
    if work.recorded_by_npu and "correlation" in frame.columns:
        return frame.with_columns(pl.col("correlation").fill_null(0).alias("connectionId"))
    known = calls.select(pl.col("span").alias("call"), "connectionId")
    joined = frame.join(known, on="call", how="left", maintain_order="left")
    return joined.with_columns(pl.col("connectionId").fill_null(0))


def tasks(rows: pl.DataFrame, work: RankWork, calls: pl.DataFrame, parts: pl.DataFrame) -> pl.DataFrame:
    """Return every task; work of the host is its own call, and ``parts`` of communication were launched with it."""
    device = rows["device_name"].unique().drop_nulls()
    numbers = pl.Series([index(name) for name in device], dtype=pl.Int64)
    # Tools find copies by this name only.
    copies = pl.when(pl.col("kind") == "memcpy").then(pl.lit("MEMCPY_ASYNC"))
    computes = copies.when(pl.col("operation").is_not_null()).then("type")
    rest = computes.when(pl.col("type").is_not_null()).then("name").otherwise(pl.col("kind").str.to_uppercase())
    context = pl.coalesce("recorded_context", pl.when(pl.col("type").is_null()).then("context"))
    found = connected(rows, work, calls).join(
        parts.select("globalTaskId", pl.col("connectionId").alias("of_operation"), pl.col("modelId").alias("of_model")),
        on="globalTaskId",
        how="left",
        maintain_order="left",
    )
    return found.select(
        pl.col("ts").alias("startNs"),
        (pl.col("ts") + pl.col("dur")).alias("endNs"),
        pl.col("device_name").replace_strict(device, numbers, default=0, return_dtype=pl.Int64).alias("deviceId"),
        pl.coalesce("of_operation", "connectionId").alias("connectionId"),
        "globalTaskId",
        pl.lit(0).alias("globalPid"),
        rest.alias("taskType"),
        context.fill_null(UNKNOWN_32).alias("contextId"),
        pl.col("lane").alias("streamId"),
        pl.coalesce("task", "globalTaskId").alias("taskId"),
        pl.coalesce("model", "of_model").fill_null(UNKNOWN_32).alias("modelId"),
    )


def compute_tasks(rows: pl.DataFrame, work: RankWork, variant: Variant) -> pl.DataFrame:
    """Return the tasks that compute."""
    rows = rows.filter(pl.col("id").is_in(work.computing["id"].implode()))
    blocks = "blockNum" if variant is MINDSPORE else "blockDim"
    recorded = pl.col("operation").is_not_null()
    grid = pl.col("grid").list.eval(pl.element().product()).list.first()
    shapes, types = texts(rows["shapes"], kernel_shapes), texts(rows["dtypes"], kernel_types)
    details = {"reduced_precision": "hf32"} | {name: name for name in _DETAILS}
    if not work.recorded_by_npu or rows["state"].null_count() == len(rows):
        del details["reduced_precision"], details["state"]
    known = {ours: pl.col(name) for name, ours in details.items()} | {
        "core": pl.coalesce("core", core()),
        "op_type": pl.coalesce("operation", "name"),
        "input_dtypes": pl.when(recorded).then("input_dtypes").otherwise(types),
        "input_shapes": pl.when(recorded).then(_quoted("input_shapes")).otherwise(shapes),
        "output_shapes": _quoted("output_shapes"),
    }
    return rows.select(
        "name",
        "globalTaskId",
        pl.coalesce("recorded_blocks", grid).fill_null(0).alias(blocks),
        pl.col("mix_blocks").fill_null(0).alias(f"mixB{blocks[1:]}"),
        *(known[one.ours].fill_null("N/A").alias(one.database) for one in KERNEL_DETAILS if one.ours in known),
    )


def _quoted(column: str) -> pl.Expr:
    return pl.format('"{}"', pl.col(column))


def counters(rows: pl.DataFrame, work: RankWork) -> pl.DataFrame:
    """Return the hardware counters of tasks, times in ns; databases do not have those of the L2 cache."""
    places = rows.select("globalTaskId", "id").drop_nulls().lazy()
    name, unit = pl.col("name").cast(pl.String), pl.col("unit").cast(pl.String)
    found = work.tables["kernel_counters"].join(places, left_on="span", right_on="id").filter(~name.is_in(L2_CACHE))
    time = unit == "us"
    titled = pl.when((unit == "") | time).then(name).otherwise(pl.format("{}({})", name, unit))
    return (
        found.sort("globalTaskId", maintain_order=True)
        .select(
            "globalTaskId",
            titled.replace(COUNTER_OF_DATABASE).alias("name"),
            pl.when(time).then(pl.col("value") * 1000).otherwise("value").alias("value"),
        )
        .collect()
    )


def copies(rows: pl.DataFrame, work: RankWork) -> pl.DataFrame:
    """Return size and direction of the recorded copies; the direction as a number."""
    said = work.tables["arguments"].filter(pl.col("key").cast(pl.String) == "direction")
    directions = said.select(pl.col("span").alias("id"), pl.col("value").str.strip_chars('"').alias("said")).collect()
    found = rows.filter((pl.col("kind") == "memcpy") & pl.col("bytes").is_not_null() & pl.col("type").is_not_null())
    joined = found.join(directions, on="id", how="left", maintain_order="left")
    number = pl.col("said").replace_strict(
        {name: number for number, name in MEMCPY_OPERATIONS}, default=65535, return_dtype=pl.Int64
    )
    return joined.select("globalTaskId", pl.col("bytes").alias("size"), number.alias("memcpyOperation"))


MEMCPY_OPERATIONS = (
    *enumerate(
        (
            *("host to host", "host to device", "device to host", "device to device", "managed memory"),
            *("addr device to device", "host to device ex", "device to host ex"),
        )
    ),
    (65535, "other"),
)


def communication(work: RankWork, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the communication operations; the last two columns, track and model, are none of the table."""
    schema = {"span": pl.Int64, "opName": pl.String, "startNs": pl.Int64, "endNs": pl.Int64}
    schema |= {"groupName": pl.String, "opType": pl.String}
    rows = [
        (call.operation.span, call.name, call.operation.start, call.end, call.operation.group, call.type)
        for call in work.calls
    ]
    launches = work.tables["kernels"].select("span", "launch")
    details = work.tables["collectives"].select("span", pl.col("dtype").cast(pl.String), "bytes_in", "algorithm")
    places = work.tables["spans"].select(pl.col("id").alias("span"), "correlation", "track")
    models = work.tables["tasks"].select("span", "model")
    frame = pl.DataFrame(rows, schema=schema, orient="row").with_row_index("opId", offset=1).lazy()
    for added in (launches, details, places, models):
        frame = frame.join(added, on="span", how="left", maintain_order="left").unique("opId", maintain_order=True)
    found = frame.with_columns(pl.coalesce("launch", "span").alias("call")).collect()
    return connected(found, work, calls).select(
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
        "track",
        pl.col("model").alias("modelId"),
    )


def _elements() -> pl.Expr:
    name = pl.col("dtype").str.to_lowercase().str.replace(r"^c10::", "").str.replace(r" int$", "")
    return name.replace_strict(_TYPE_OF_ELEMENTS, default=NO_TYPE, return_dtype=pl.Int64).alias("dataType")


def communication_tasks(rows: pl.DataFrame, work: RankWork, operations: pl.DataFrame) -> pl.DataFrame:
    """Return the recorded parts of communication; each belongs to the operation around it.

    The last two columns are the operation's, and no columns of the table.
    """
    parts = rows.drop_nulls("owner").with_columns(pl.col("owner").str.extract(r"Group (\d+)").alias("group"))
    tracks = work.tables["tracks"].select(pl.col("id").alias("track"), "name").collect()
    lanes = operations.join(tracks, on="track", how="left", maintain_order="left").select(
        "opName",
        "groupName",
        "opId",
        "connectionId",
        "modelId",
        pl.col("startNs").alias("ts"),
        pl.col("name").str.extract(r"Group (\d+)").alias("group"),
    )
    owned = parts.sort("ts", maintain_order=True).join_asof(
        lanes.sort("ts"), on="ts", by="group", strategy="backward", check_sortedness=False
    )
    owned = owned.drop("bytes").join(said_of_parts(work), on="id", how="left", maintain_order="left")
    return owned.select(
        pl.col("opName").alias("name"),
        "globalTaskId",
        pl.col("name").alias("taskType"),
        pl.col("owner").str.extract(r"Plane (\d+)").cast(pl.Int64).alias("planeId"),
        "groupName",
        pl.col("notification").cast(pl.Int64, strict=False).fill_null(NO_NOTIFICATION).alias("notifyId"),
        _enumerated("rdma type", RDMA_TYPES, INVALID_TYPE).alias("rdmaType"),
        pl.col("source").fill_null(UNKNOWN_32).alias("srcRank"),
        pl.col("destination").fill_null(UNKNOWN_32).alias("dstRank"),
        _enumerated("transport", TRANSPORT_TYPES, NO_TYPE).alias("transportType"),
        pl.col("bytes").fill_null(0).alias("size"),
        _enumerated("data type", DATA_TYPES, NO_TYPE).alias("dataType"),
        _enumerated("link", LINK_TYPES, NO_TYPE).alias("linkType"),
        "opId",
        "connectionId",
        "modelId",
    )


def said_of_parts(work: RankWork) -> pl.DataFrame:
    """Return the bytes, ranks and other arguments of parts of communication, by ``id``."""
    texts_ = pl.col("transport", "link").cast(pl.String)
    columns = (pl.col("span").alias("id"), "source", "destination", "bytes", "bandwidth", texts_)
    moved = work.tables["transfers"].filter(pl.col("link").is_not_null()).select(columns).unique("id").collect()
    return _arguments(work).join(moved, on="id", how="full", coalesce=True)


def _arguments(work: RankWork) -> pl.DataFrame:
    wanted = ("notification", "data type", "rdma type")
    rows = work.tables["arguments"].with_columns(pl.col("key").cast(pl.String)).filter(pl.col("key").is_in(wanted))
    found = rows.select(pl.col("span").alias("id"), "key", pl.col("value").str.strip_chars('"')).collect()
    wide = found.pivot("key", index="id", values="value", aggregate_function="first")
    absent = [pl.lit(None, pl.String).alias(name) for name in wanted if name not in wide.columns]
    return wide.with_columns(absent)


def _enumerated(column: str, names: tuple[str, ...], nothing: int) -> pl.Expr:
    numbers = {name: number for number, name in enumerate(names)} | {"INVALID_TYPE": INVALID_TYPE}
    return pl.col(column).replace_strict(numbers, default=nothing, return_dtype=pl.Int64)


def enumerations() -> dict[str, list[tuple[int, str]]]:
    """Return the tables of names of numbers."""
    nothing = [(NO_TYPE, "N/A"), (INVALID_TYPE, "INVALID_TYPE")]
    return {
        "ENUM_HCCL_DATA_TYPE": [*enumerate(DATA_TYPES), *nothing],
        "ENUM_HCCL_LINK_TYPE": [*enumerate(LINK_TYPES), *nothing],
        "ENUM_HCCL_TRANSPORT_TYPE": [*enumerate(TRANSPORT_TYPES), *nothing],
        "ENUM_HCCL_RDMA_TYPE": [*enumerate(RDMA_TYPES), *nothing],
        "ENUM_MEMCPY_OPERATION": list(MEMCPY_OPERATIONS),
    }
