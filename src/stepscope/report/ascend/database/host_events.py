"""Calls on host threads in the tables of Ascend's database of events, see ``event_tables``."""

from __future__ import annotations

import polars as pl

from stepscope.report.ascend.overlap_analysis import RankWork
from stepscope.report.ascend.text.csv_tables import operator_shapes, operator_types, texts
from stepscope.trace.ascend_columns import LAYERS, MARK_CALL, OPERATOR_CALL, PYTHON_CALL, QUEUE_CALL

#: Types of calls by kind of span, and by the layer in front of a name of CANN.
_TYPE_OF_KIND = {"runtime": 5000, "driver": 5000, "sync": 5000, "collective": 5500, "operator": 10000}
_TYPE_OF_LAYER = {layer: number for number, _, layer in LAYERS}
_LAYER = f"^({'|'.join(_TYPE_OF_LAYER)})@"
#: Types of the framework's events by kind of span.
_OF_FRAMEWORK = {
    **dict.fromkeys(("operator", "data", "step"), OPERATOR_CALL),
    **{"python": PYTHON_CALL, "annotation": MARK_CALL},
}
#: An operator is handed to the thread that launches, or taken by it.
QUEUED = "^(Enqueue$|Dequeue@|Dequeue$)"


def _threads(work: RankWork) -> pl.LazyFrame:
    """Return track and ``globalTid``, process and thread as one number, of host threads."""
    number = (pl.col("process").fill_null(0) * 2**32 + pl.col("thread").fill_null(0)).cast(pl.Int64)
    threads = work.tables["tracks"].filter(pl.col("kind") == "thread")
    return threads.select(pl.col("id").alias("track"), number.alias("globalTid"))


def queued() -> pl.Expr:
    """Return whether a span hands an operator to the thread that launches, or takes it."""
    return (pl.col("kind") == "runtime") & pl.col("name").cast(pl.String).str.contains(QUEUED)


def apis(work: RankWork) -> pl.DataFrame:
    """Return the calls: those of the device's software; on a rank without a device also the work of the host itself.

    A call has the recorded connection if the source records tasks of an NPU; else a new one.
    """
    spans = work.tables["spans"].select("id", "track", "ts", "dur", "name", "kind", "correlation")
    own = pl.Series([call.operation.span for call in work.calls], dtype=pl.Int64)
    if not work.work.on_device:
        own = pl.concat([own, work.pieces["id"]])
    of_software = pl.col("kind").is_in(["runtime", "driver", "sync"]) & ~queued()
    wanted = of_software | pl.col("id").is_in(own.implode())
    name = pl.col("name").cast(pl.String)
    kind = pl.col("kind").cast(pl.String).replace_strict(_TYPE_OF_KIND, default=5000, return_dtype=pl.Int64)
    layer = name.str.extract(_LAYER, 1).replace_strict(_TYPE_OF_LAYER, default=None, return_dtype=pl.Int64)
    rows = spans.filter(wanted).join(_threads(work), on="track", how="inner").sort("ts", "id").collect()
    return rows.with_columns(_connection(work, rows)).select(
        pl.col("id").alias("span"),
        pl.col("ts").alias("startNs"),
        (pl.col("ts") + pl.col("dur")).alias("endNs"),
        pl.coalesce(layer, kind).alias("type"),
        "globalTid",
        "connectionId",
        pl.when(layer.is_not_null()).then(name.str.replace(_LAYER, "")).otherwise(name).alias("name"),
    )


def _connection(work: RankWork, rows: pl.DataFrame) -> pl.Expr:
    place = pl.int_range(pl.len()) + 1
    if not work.recorded_by_npu:
        return place.alias("connectionId")
    said = pl.when(pl.col("correlation").is_first_distinct() & (pl.col("correlation") >= 0)).then("correlation")
    highest = rows["correlation"].max()
    return pl.coalesce(said, place + (highest if isinstance(highest, int) else 0)).alias("connectionId")


def framework(work: RankWork) -> pl.DataFrame:
    """Return the framework's calls; ``connectionId`` is a number in ``CONNECTION_IDS``."""
    kinds = pl.col("kind").is_in(list(_OF_FRAMEWORK))
    spans = work.tables["spans"].filter(kinds | queued()).join(_threads(work), on="track")
    inputs = work.tables["operators"].select(pl.col("span").alias("id"), "shapes", "dtypes", "forward_thread", "stack")
    connected = _connected_spans(work)
    rows = spans.join(inputs.unique("id"), on="id", how="left").join(connected, on="id", how="left")
    found = rows.sort("ts", "id").collect()
    type_ = pl.col("kind").cast(pl.String).replace_strict(_OF_FRAMEWORK, default=QUEUE_CALL, return_dtype=pl.Int64)
    return found.select(
        pl.col("ts").cast(pl.String).alias("startNs"),
        (pl.col("ts") + pl.col("dur")).cast(pl.String).alias("endNs"),
        "globalTid",
        pl.when("connected").then("id").alias("connectionId"),
        pl.col("name").cast(pl.String),
        pl.col("sequence").alias("sequenceNumber"),
        pl.col("forward_thread").alias("fwdThreadId"),
        texts(found["dtypes"], operator_types).alias("inputDtypes"),
        texts(found["shapes"], operator_shapes).alias("inputShapes"),
        pl.col("stack").alias("callchainId"),
        type_.alias("type"),
    )


def _joined(work: RankWork) -> pl.LazyFrame:
    """Return pairs of the framework's calls that share a connection of their own: forward and backward, the queue."""
    spans = work.tables["spans"].select(pl.col("id").alias("from"), queued().alias("queued"))
    flows = work.tables["flows"].join(spans, on="from")
    wanted = (pl.col("kind") == "forward_backward") | ((pl.col("kind") == "other") & pl.col("queued"))
    return flows.filter(wanted).select("from", "to")


def _connected_spans(work: RankWork) -> pl.LazyFrame:
    launching = work.tables["kernels"].select(pl.col("operator").alias("id")).drop_nulls()
    joined = _joined(work)
    ends = [joined.select(pl.col(end).alias("id")) for end in ("from", "to")]
    return pl.concat([launching, *ends]).unique().with_columns(connected=True)


def connections(work: RankWork, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the framework's call (its number in ``PYTORCH_API``) and the connections of what it launched or joins."""
    launches = work.tables["kernels"].select(pl.col("operator").alias("id"), "launch").drop_nulls().collect()
    known = calls.select(pl.col("span").alias("launch"), "connectionId")
    launched = launches.join(known, on="launch", how="inner").select("id", "connectionId")
    highest = calls["connectionId"].max()
    first = (highest if isinstance(highest, int) else 0) + 1
    pairs = _joined(work).with_row_index("number").with_columns(pl.col("number").cast(pl.Int64) + first).collect()
    ends = [pairs.select(pl.col(end).alias("id"), pl.col("number").alias("connectionId")) for end in ("from", "to")]
    return pl.concat([launched, *ends]).unique(maintain_order=True)


def callchains(work: RankWork) -> pl.DataFrame:
    """Return the lines of stacks, innermost first."""
    rows = work.tables["stacks"].explode("frames", empty_as_null=False).unnest("frames").collect()
    line = pl.format("{}({}): {}", "file", pl.col("line").fill_null(0), "function")
    return rows.select(
        "id",
        pl.when(pl.col("file") == "").then("function").otherwise(line).alias("stack"),
        pl.int_range(pl.len()).over("id").alias("stackDepth"),
    )


def garbage(work: RankWork) -> pl.DataFrame:
    """Return the pauses of Python's garbage collector."""
    spans = work.tables["spans"].filter(pl.col("kind") == "garbage").join(_threads(work), on="track").sort("ts", "id")
    return spans.select(
        pl.col("ts").alias("startNs"), (pl.col("ts") + pl.col("dur")).alias("endNs"), "globalTid"
    ).collect()
