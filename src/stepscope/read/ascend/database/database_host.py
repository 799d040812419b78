"""Calls on host threads, their stacks, and the arrows from them, from a database of events."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection

import numpy as np
import polars as pl

from stepscope.read.ascend.ascend_frames import empty
from stepscope.read.common.database.sqlite import SqliteDatabase
from stepscope.read.common.distinct import combinations, found, of_all, of_each, ordered, same, where, without_nulls
from stepscope.trace.ascend_columns import INT, LAYERS, MARK_CALL, NAME, PYTHON_CALL, QUEUE_CALL, UNKNOWN_32
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import FRAME

_SPAN = {"startNs": INT, "endNs": INT, "globalTid": INT, "name": NAME}
#: Layers of calls by number in ``ENUM_API_TYPE``.
_LEVELS = {number: level for number, level, _ in LAYERS}
_SORTS = {PYTHON_CALL: "python", MARK_CALL: "range"}
#: Beginning of a name → kind of the call.
_NAMED = {"ProfilerStep#": "step", "enumerate(DataLoader)": "data"}
_LETTER = re.compile("[A-Za-z]")
_FRAME = re.compile(r"^(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)$", re.DOTALL)


def calls(opened: SqliteDatabase, ledger: LossLedger) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the frames ``host``, with the column ``key`` that ``CONNECTION_IDS`` has for it, and ``stacks``."""
    parts = [make(opened) for table, make in _SOURCES.items() if table in opened.tables]
    rows = pl.concat([_NOTHING, *parts], how="diagonal")
    host = opened.intervals(ordered(rows, "ts"))
    numbers, stacks = _stacks(opened, ledger)
    number = numbers["number"][found(host["stack"], numbers["id"])]
    return host.with_columns(number.alias("stack")), stacks


def _span(rows: pl.DataFrame, name: pl.Series, sort: pl.Series | str, *more: pl.Series) -> pl.DataFrame:
    """Return rows of ``host`` of rows of a table."""
    start, thread = rows["startNs"], rows["globalTid"]
    return pl.DataFrame(
        [
            start.alias("ts"),
            (rows["endNs"] - start).alias("dur"),
            (thread // 2**32).alias("process"),
            (thread % 2**32).alias("thread"),
            name.alias("name"),
            same("sort", sort, len(rows)) if isinstance(sort, str) else sort.alias("sort"),
            *more,
        ]
    )


def _framework(opened: SqliteDatabase) -> pl.DataFrame:
    rows = opened.rows("PYTORCH_API")
    shapes, dtypes = _inputs(rows)
    queued = opened.rows("CONNECTION_IDS")
    shared = queued["connectionId"][found(rows["connectionId"], queued["id"])]
    sort = of_each(_sort_of, rows["name"], rows["type"])
    sequence, forward = rows["sequenceNumber"], rows["fwdThreadId"]
    return _span(
        rows,
        rows["name"],
        sort,
        rows["connectionId"].alias("key"),
        where((sort == "enqueue") | (sort == "dequeue"), shared).alias("connection"),
        where(sequence >= 0, sequence).alias("sequence"),
        where(forward > 0, forward).alias("forward_thread"),
        rows["callchainId"].alias("stack"),
        shapes.alias("shapes"),
        dtypes.alias("dtypes"),
    )


def _sort_of(name: str | None, type_: int | None) -> str:
    """Return the kind of a call of the framework, as the column ``sort`` has it."""
    name = name or ""
    if type_ == QUEUE_CALL or (type_ is None and name.startswith(("Enqueue", "Dequeue"))):
        return "dequeue" if name.startswith("Dequeue") else "enqueue"
    if type_ in _SORTS:
        return _SORTS[type_]
    return next((sort for begin, sort in _NAMED.items() if name.startswith(begin)), "operator")


def _inputs(rows: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Return shapes and types of inputs; torch_npu's first versions wrote each in the column of the other."""
    shapes, dtypes = of_all(_one_line, [rows["inputShapes"], rows["inputDtypes"]])
    lettered = [
        of_each(lambda text: _LETTER.search(text or "") is not None, column, dtype=pl.Boolean()).sum()
        for column in (shapes, dtypes)
    ]
    return (dtypes, shapes) if lettered[0] > lettered[1] else (shapes, dtypes)


def _one_line(text: str | None) -> str | None:
    return None if text is None else text.replace("\r", "").replace("\n", "")


def _cann(opened: SqliteDatabase) -> pl.DataFrame:
    rows = opened.rows("CANN_API")
    level = of_each(_LEVELS.get, rows["type"]).alias("level")
    return _span(rows, rows["name"], "api", level, rows["connectionId"].alias("connection"))


def _ranges(opened: SqliteDatabase) -> pl.DataFrame:
    columns = {"startNs": INT, "endNs": INT, "globalTid": INT, "message": NAME, "domainId": INT, "connectionId": INT}
    rows = opened.rows("MSTX_EVENTS", columns)
    # The first versions have no domains and write a number that is not in STRING_IDS.
    domain = opened.texts(rows["domainId"]).alias("domain")
    shared = where(rows["connectionId"] < UNKNOWN_32, rows["connectionId"]).alias("connection")
    return _span(rows, rows["message"], "range", domain, shared)


def _garbage(opened: SqliteDatabase) -> pl.DataFrame:
    rows = opened.rows("GC_RECORD")
    return _span(rows, same("name", "GC", len(rows)), "garbage")


def _system(opened: SqliteDatabase) -> pl.DataFrame:
    rows = opened.rows("OSRT_API", _SPAN)
    return _span(rows, rows["name"], "api", same("level", "system", len(rows)))


#: Table → what makes rows of ``host`` of it.
_SOURCES: dict[str, Callable[[SqliteDatabase], pl.DataFrame]] = {
    "PYTORCH_API": _framework,
    "CANN_API": _cann,
    "MSTX_EVENTS": _ranges,
    "GC_RECORD": _garbage,
    "OSRT_API": _system,
}
_NOTHING = pl.DataFrame(
    schema={
        **dict.fromkeys(("ts", "dur", "process", "thread", "key", "connection", "stack"), pl.Int64),
        **dict.fromkeys(("name", "sort"), pl.Categorical),
    }
)


def _stacks(opened: SqliteDatabase, ledger: LossLedger) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the number of the stack of each chain of calls, and the frame ``stacks``.

    A line in another form than ``file(line): function`` is a function without a file.
    """
    if not opened.holds("PYTORCH_CALLCHAINS"):
        return pl.DataFrame(schema={"id": pl.Int64, "number": pl.Int64}), empty("stacks")
    rows = opened.rows("PYTORCH_CALLCHAINS")
    sound = without_nulls(rows, rows.columns)
    ledger.add("value_unreadable", len(rows) - len(sound))
    lines, line = combinations(sound["stack"])
    order = np.lexsort((sound["stackDepth"].to_numpy(), sound["id"].to_numpy()))
    ids, begin = np.unique(sound["id"].to_numpy()[order], return_index=True)
    distinct: dict[tuple[int, ...], int] = {}
    numbers = [distinct.setdefault(tuple(chain.tolist()), len(distinct)) for chain in np.split(line[order], begin[1:])]
    return pl.DataFrame({"id": ids, "number": pl.Series(numbers[: len(ids)], dtype=pl.Int64)}), _table(lines, distinct)


def _table(lines: list[tuple[str]], chains: Collection[tuple[int, ...]]) -> pl.DataFrame:
    """Return the frame ``stacks``.

    Args:
        lines: Texts of lines.
        chains: Each chain's lines by number.
    """
    known = pl.DataFrame([_frame(*line) for line in lines], FRAME.to_schema(), orient="row").to_struct("frames")
    flat = known[pl.Series(list(itertools.chain.from_iterable(chains)), dtype=pl.UInt32)].to_frame()
    number = np.repeat(np.arange(len(chains)), [len(chain) for chain in chains])
    return flat.insert_column(0, pl.Series("id", number)).group_by("id", maintain_order=True).agg("frames")


def _frame(text: str) -> tuple[str, int | None, str]:
    """Return file, line and function."""
    match = _FRAME.match(text)
    if match is None or len(match["line"]) > 9:
        return "", None, text
    return match["file"], int(match["line"]), match["function"]


def flows(
    opened: SqliteDatabase, host: pl.DataFrame, tasks: pl.DataFrame, communications: pl.DataFrame
) -> pl.DataFrame:
    """Return the frame ``flows``: what shares a connection."""
    rows = pl.DataFrame([host["connection"], host["key"], pl.Series("from", np.arange(len(host)))])
    begins = {sort: rows.filter(host["sort"] == sort) for sort in ("api", "operator", "range", "enqueue", "dequeue")}
    targets = [
        pl.DataFrame([frame["connection"], same("frame", name, len(frame)), pl.Series("to", np.arange(len(frame)))])
        for name, frame in (("tasks", tasks), ("communications", communications))
    ]
    ends = pl.concat(without_nulls(one, ["connection"]) for one in targets)
    links = opened.rows("CONNECTION_IDS").unique(maintain_order=True)
    operators = begins["operator"].drop("connection").join(links, left_on="key", right_on="id")
    operators = operators.rename({"connectionId": "connection"})
    pairs = operators.filter(found(operators["connection"], begins["api"]["connection"]).is_null())
    sorts = {
        "launch": _joined(begins["api"], ends),
        "operator": _joined(operators, ends),
        "range": _joined(begins["range"], ends),
        "queue": _pairs(begins["enqueue"], begins["dequeue"]),
        # Forward comes before backward on the time line, and so in the frame.
        "forward_backward": _pairs(pairs, pairs),
    }
    drawn = [
        pl.DataFrame([*(frame[name] for name in ("from", "frame", "to")), same("sort", sort, len(frame))])
        for sort, frame in sorts.items()
        if frame is not None
    ]
    return pl.concat(drawn) if drawn else empty("flows")


def _joined(begins: pl.DataFrame, ends: pl.DataFrame) -> pl.DataFrame | None:
    return begins.join(ends, on="connection") if len(begins) and len(ends) else None


def _pairs(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame | None:
    ends = pl.DataFrame([after["connection"], same("frame", "host", len(after)), after["from"].alias("to")])
    joined = _joined(before, ends)
    return None if joined is None else joined.filter(joined["from"] < joined["to"])
