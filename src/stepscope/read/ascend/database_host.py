"""Calls on host threads, their stacks, and the arrows from them, from a database of events."""

from __future__ import annotations

import re
from collections.abc import Callable

import polars as pl

from stepscope.read.ascend.database_device import NONE
from stepscope.read.ascend.frames import empty
from stepscope.read.ascend.sqlite import INT, NAME, Database
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import FRAME

#: Tables that are read here.
TABLES = {"PYTORCH_API", "CONNECTION_IDS", "PYTORCH_CALLCHAINS", "CANN_API", "MSTX_EVENTS", "GC_RECORD", "OSRT_API"}

_SPAN = {"startNs": INT, "endNs": INT, "globalTid": INT, "name": NAME}
_TORCH = {
    **_SPAN,
    "connectionId": INT,
    "sequenceNumber": INT,
    "fwdThreadId": INT,
    "inputDtypes": NAME,
    "inputShapes": NAME,
    "callchainId": INT,
    "type": INT,
}
#: Layers of calls by number, as every database has them in ``ENUM_API_TYPE``.
_LEVELS = {5000: "runtime", 5500: "hccl", 10000: "node", 15000: "model", 20000: "acl"}
_QUEUE, _PYTHON, _MARK = 50002, 50003, 50004
_FRAME = re.compile(r"^(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)$", re.DOTALL)


def calls(opened: Database, ledger: LossLedger) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the frames ``host``, with the column ``key`` that ``CONNECTION_IDS`` has for it, and ``stacks``."""
    parts = [make(opened) for table, make in _SOURCES.items() if table in opened.tables]
    rows = pl.concat([_NOTHING, *parts], how="diagonal")
    host = opened.intervals(rows.sort("ts", maintain_order=True))
    numbers, stacks = _stacks(opened, ledger)
    known = host.join(numbers, left_on="stack", right_on="id", how="left", maintain_order="left", suffix="_of_chain")
    return known.with_columns(stack=pl.col("number")).drop("number"), stacks


def _span(*more: pl.Expr, **named: pl.Expr) -> list[pl.Expr]:
    thread = pl.col("globalTid")
    return [
        pl.col("startNs").alias("ts"),
        (pl.col("endNs") - pl.col("startNs")).alias("dur"),
        (thread // 2**32).alias("process"),
        (thread % 2**32).alias("thread"),
        *more,
        *(value.alias(name) for name, value in named.items()),
    ]


def _framework(opened: Database) -> pl.DataFrame:
    rows = opened.rows("PYTORCH_API", _TORCH)
    shapes, dtypes = _inputs(rows)
    queued = opened.rows("CONNECTION_IDS", {"id": INT, "connectionId": INT}).unique("id", keep="first")
    queued = queued.select(pl.col("id").alias("connectionId"), pl.col("connectionId").alias("shared"))
    rows = rows.with_columns(shapes.alias("shapes"), dtypes.alias("dtypes"))
    rows = rows.join(queued, on="connectionId", how="left", maintain_order="left")
    name, type_ = pl.col("name"), pl.col("type")
    queue = (type_ == _QUEUE) | (type_.is_null() & name.str.contains("^(Enqueue|Dequeue)"))
    sort = (
        pl.when(queue & name.str.starts_with("Dequeue"))
        .then(pl.lit("dequeue"))
        .when(queue)
        .then(pl.lit("enqueue"))
        .when(type_ == _PYTHON)
        .then(pl.lit("python"))
        .when(type_ == _MARK)
        .then(pl.lit("range"))
        .when(name.str.starts_with("ProfilerStep#"))
        .then(pl.lit("step"))
        .when(name.str.starts_with("enumerate(DataLoader)"))
        .then(pl.lit("data"))
        .otherwise(pl.lit("operator"))
    )
    return rows.select(
        *_span(
            name,
            sort=sort,
            key=pl.col("connectionId"),
            connection=pl.when(queue).then("shared"),
            sequence=pl.when(pl.col("sequenceNumber") >= 0).then("sequenceNumber"),
            forward_thread=pl.when(pl.col("fwdThreadId") > 0).then("fwdThreadId"),
            stack=pl.col("callchainId"),
        ),
        "shapes",
        "dtypes",
    )


def _inputs(rows: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Return shapes and types of inputs; torch_npu's first versions wrote each in the column of the other."""
    shapes, dtypes = (rows[name].str.replace_all(r"[\r\n]+", "") for name in ("inputShapes", "inputDtypes"))
    lettered = [column.str.contains(r"[A-Za-z]").sum() for column in (shapes, dtypes)]
    return (dtypes, shapes) if lettered[0] > lettered[1] else (shapes, dtypes)


def _cann(opened: Database) -> pl.DataFrame:
    rows = opened.rows("CANN_API", {**_SPAN, "connectionId": INT, "type": INT})
    level = pl.col("type").replace_strict(_LEVELS, default=None, return_dtype=pl.String)
    return rows.select(_span(pl.col("name"), sort=pl.lit("api"), level=level, connection=pl.col("connectionId")))


def _ranges(opened: Database) -> pl.DataFrame:
    columns = {"startNs": INT, "endNs": INT, "globalTid": INT, "message": NAME, "domainId": INT, "connectionId": INT}
    rows = opened.rows("MSTX_EVENTS", columns)
    # The first versions knew no domains, and wrote a number that is no text's.
    domain = opened.texts(rows["domainId"])
    shared = pl.when(pl.col("connectionId") < NONE).then("connectionId")
    return rows.select(_span(name=pl.col("message"), sort=pl.lit("range"), domain=pl.lit(domain), connection=shared))


def _garbage(opened: Database) -> pl.DataFrame:
    rows = opened.rows("GC_RECORD", {"startNs": INT, "endNs": INT, "globalTid": INT})
    return rows.select(_span(name=pl.lit("GC"), sort=pl.lit("garbage")))


def _system(opened: Database) -> pl.DataFrame:
    return opened.rows("OSRT_API", _SPAN).select(_span(pl.col("name"), sort=pl.lit("api"), level=pl.lit("system")))


#: Table → what makes rows of ``host`` of it.
_SOURCES: dict[str, Callable[[Database], pl.DataFrame]] = {
    "PYTORCH_API": _framework,
    "CANN_API": _cann,
    "MSTX_EVENTS": _ranges,
    "GC_RECORD": _garbage,
    "OSRT_API": _system,
}
_NOTHING = pl.DataFrame(
    schema={
        **dict.fromkeys(("ts", "dur", "process", "thread", "key", "connection", "stack"), pl.Int64),
        **dict.fromkeys(("name", "sort"), pl.String),
    }
)


def _stacks(opened: Database, ledger: LossLedger) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the number of the stack of each chain of calls, and the frame ``stacks``.

    A line that is no ``file(line): function`` is a function without a file.
    """
    if "PYTORCH_CALLCHAINS" not in opened.tables:
        return pl.DataFrame(schema={"id": pl.Int64, "number": pl.Int64}), empty("stacks")
    rows = opened.rows("PYTORCH_CALLCHAINS", {"id": INT, "stack": NAME, "stackDepth": INT})
    sound = rows.drop_nulls()
    ledger.add("value_unreadable", len(rows) - len(sound))
    chains = sound.sort("id", "stackDepth").group_by("id", maintain_order=True).agg(pl.col("stack").alias("lines"))
    distinct = chains.select("lines").unique(maintain_order=True).with_row_index("number").cast({"number": pl.Int64})
    numbers = chains.join(distinct, on="lines", how="left", maintain_order="left").select("id", "number")
    frames = distinct.select(
        pl.col("number").alias("id"),
        pl.Series("frames", [list(map(_frame, lines)) for lines in distinct["lines"]], dtype=pl.List(FRAME)),
    )
    return numbers, frames


def _frame(text: str) -> dict[str, object]:
    match = _FRAME.match(text)
    if match is None or len(match["line"]) > 9:
        return {"file": "", "line": None, "function": text}
    return {"file": match["file"], "line": int(match["line"]), "function": match["function"]}


def flows(opened: Database, host: pl.DataFrame, tasks: pl.DataFrame, communications: pl.DataFrame) -> pl.DataFrame:
    """Return the frame ``flows``: what shares a connection."""
    numbered = host.select("sort", "connection", "key", pl.int_range(pl.len(), dtype=pl.Int64).alias("from"))
    targets = pl.concat(
        frame.select("connection", frame=pl.lit(name), to=pl.int_range(pl.len(), dtype=pl.Int64)).drop_nulls()
        for name, frame in (("tasks", tasks), ("communications", communications))
    )
    links = opened.rows("CONNECTION_IDS", {"id": INT, "connectionId": INT}).unique()
    operators = numbered.filter(pl.col("sort") == "operator").join(links, left_on="key", right_on="id")
    operators = operators.drop("connection").rename({"connectionId": "connection"})
    pairs = operators.join(numbered.filter(pl.col("sort") == "api"), on="connection", how="anti")
    sorts = {
        "launch": numbered.filter(pl.col("sort") == "api").join(targets, on="connection"),
        "operator": operators.join(targets, on="connection"),
        "range": numbered.filter(pl.col("sort") == "range").join(targets, on="connection"),
        "queue": _pairs(numbered, "enqueue", "dequeue"),
        # Forward comes before backward on the time line, and so in the frame.
        "forward_backward": _pairs(pairs, "operator", "operator"),
    }
    columns = ["from", "frame", "to", "sort"]
    return pl.concat(frame.with_columns(sort=pl.lit(sort)).select(columns) for sort, frame in sorts.items())


def _pairs(rows: pl.DataFrame, before: str, after: str) -> pl.DataFrame:
    ends = rows.filter(pl.col("sort") == after).select("connection", pl.col("from").alias("to"))
    found = rows.filter(pl.col("sort") == before).join(ends, on="connection").filter(pl.col("from") < pl.col("to"))
    return found.with_columns(frame=pl.lit("host"))
