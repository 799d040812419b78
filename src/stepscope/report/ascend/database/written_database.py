"""The databases of Ascend's layout: one of events, one of steps and communication; SQLite, texts by number."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.report.ascend.calls import Call, bandwidths, links, times
from stepscope.report.ascend.database.event_tables import events
from stepscope.report.ascend.overlap_analysis import RankWork
from stepscope.report.ascend.variant import PYTORCH, Variant
from stepscope.report.protocol import Source
from stepscope.report.safe_text import storable
from stepscope.report.whole_files import replacing
from stepscope.trace.ascend_columns import COMMUNICATION_MOVED, COMMUNICATION_TIMES

_BATCH = 50_000


def write(source: Source, work: RankWork, variant: Variant, directory: Path, rank: int) -> None:
    """Write both databases."""
    _write(directory / variant.profiler_database.format(rank=rank), events(source, work, variant, rank))
    _write(directory / variant.analysis_database, analysis(work, variant))


def _write(path: Path, tables: Mapping[str, pl.DataFrame]) -> None:
    with replacing(path) as temporary, closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
        # The file replaces the old one only when complete, so a rollback is never needed.
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN")
        for name, frame in tables.items():
            _insert(connection, name, frame)
        connection.execute("COMMIT")


def _insert(connection: sqlite3.Connection, name: str, frame: pl.DataFrame) -> None:
    columns = ", ".join(f"{column} {_type(dtype)}" for column, dtype in frame.schema.items())
    connection.execute(f"CREATE TABLE {name} ({columns})")
    statement = f"INSERT INTO {name} VALUES ({', '.join('?' * frame.width)})"  # noqa: S608 - names of our own
    for batch in frame.iter_slices(_BATCH):
        connection.executemany(statement, batch.rows())


def _type(dtype: pl.DataType) -> str:
    if dtype.is_integer():
        return "INTEGER"
    return "NUMERIC" if dtype.is_float() else "TEXT"


def analysis(work: RankWork, variant: Variant) -> dict[str, pl.DataFrame]:
    """Return the tables of the database of steps and communication, in the units of the text files.

    torch_npu's has the matrix, MindSpore's has the links of every operation, from which tools make the matrix.
    """
    rows = {
        "CommAnalyzerTime": (_time(work, call) for call in work.calls),
        "CommAnalyzerBandwidth": (row for call in work.calls for row in _sizes(work, call)),
        "CommAnalyzerMatrix": _links(work) if variant is PYTORCH else _operation_links(work),
    }
    summed = {
        name: pl.DataFrame(list(found), infer_schema_length=None)
        for name, found in rows.items()
        if work.communication_known
    }
    return {"StepTraceTime": _steps(work, variant), **summed}


def _steps(work: RankWork, variant: Variant) -> pl.DataFrame:
    steps = work.step_trace_time(variant)
    plain = {name: name.lower().replace("(", "_").replace(")", "").replace(" ", "_") for name in steps.columns}
    number = pl.col("step").cast(pl.String) if work.windows.declared else pl.lit(None, pl.String)
    return steps.rename(plain).with_columns(number.alias("step"))


def _call(work: RankWork, call: Call) -> dict[str, Any]:
    step = f"step{call.operation.step}" if work.windows.declared else "step0"
    return {"step": step, "type": "p2p" if call.operation.point_to_point else "collective"}


def _time(work: RankWork, call: Call) -> dict[str, Any]:
    found = times([call])
    named = {"hccl_op_name": call.name, "group_name": call.group}
    return {**named, **{one.column: found[one.key] for one in COMMUNICATION_TIMES}, **_call(work, call)}


def _sizes(work: RankWork, call: Call) -> Iterator[dict[str, Any]]:
    """Return a row for each transport and size that the operation used."""
    for transport, moved in bandwidths([call]).items():
        if moved["Transit Time(ms)"]:
            for size, (count, duration) in (moved["Size Distribution"] or {"0": (0, 0.0)}).items():
                yield {
                    "hccl_op_name": call.name,
                    "group_name": call.group,
                    "transport_type": storable(transport),
                    **_moved(moved),
                    "large_packet_ratio": 0.0,
                    "package_size": float(size),
                    "count": int(count),
                    "total_duration": duration,
                    **_call(work, call),
                }


def _links(work: RankWork) -> Iterator[dict[str, Any]]:
    """Return a row for each link of the matrix."""
    for step, sorts in work.matrix.items():
        for sort, document in sorts.items():
            for label, cells in document.items():
                name, _, group = label.rpartition("@")
                for link, cell in cells.items():
                    last = {"step": step, "type": sort, "op_name": cell.get("Op Name", "")}
                    yield {"hccl_op_name": name, "group_name": group, **_link(link, cell), **last}


def _operation_links(work: RankWork) -> Iterator[dict[str, Any]]:
    """Return a row for each link of each operation."""
    for call in work.calls:
        for joined, cell in links(call).items():
            yield {"hccl_op_name": call.name, "group_name": call.group, **_link(joined, cell)}


def _link(joined: str, cell: dict[str, Any]) -> dict[str, Any]:
    source, _, destination = joined.partition("-")
    return {
        "src_rank": source,
        "dst_rank": destination,
        "transport_type": storable(cell["Transport Type"]),
        **_moved(cell),
    }


def _moved(cell: dict[str, Any]) -> dict[str, float]:
    return {one.column: float(cell[one.key]) for one in COMMUNICATION_MOVED}
