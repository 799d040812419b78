"""The tables of a rank as Polars frames: made, conformed to the schema, written and scanned.

A set of tables is a plain mapping from table name to frame in which every table of the schema is present, empty where
the source has nothing for it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypeAlias

import polars as pl

from stepscope.errors import StepscopeError
from stepscope.trace.schema import ENUMS, TABLES, Table

#: What readers return: every table, in memory.
Frames: TypeAlias = dict[str, pl.DataFrame]
#: What analyses take: every table, lazily.
Tables: TypeAlias = Mapping[str, pl.LazyFrame]

FRAME = pl.Struct({"file": pl.String, "line": pl.Int64, "function": pl.String})

_DTYPES: dict[str, pl.DataType] = {
    "int64": pl.Int64(),
    "int32": pl.Int32(),
    "float64": pl.Float64(),
    "bool": pl.Boolean(),
    "text": pl.String(),
    "category": pl.Categorical(),
    "list[int64]": pl.List(pl.Int64),
    "list[frame]": pl.List(FRAME),
    **{f"enum:{name}": pl.Enum(values) for name, values in ENUMS.items()},
}


def dtype(name: str) -> pl.DataType:
    """Return the Polars type of a schema type such as ``int64`` or ``enum:kind``."""
    return _DTYPES[name]


def schema(table: str) -> dict[str, pl.DataType]:
    """Return column names and Polars types of a table, in order."""
    return {column.name: dtype(column.dtype) for column in TABLES[table].columns}


@cache
def empty(table: str) -> pl.DataFrame:
    """Return the table without rows: always the same frame, which nobody changes in place."""
    return pl.DataFrame(schema=schema(table))


def conform(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return ``frame`` with exactly the table's columns, order and types.

    Columns that may be null are added where they are missing. Types are cast.

    Raises:
        StepscopeError: A column is missing that may not be null, is unknown, or holds null where it may not.
    """
    definition = TABLES[table]
    _refuse_unknown(definition, frame)
    columns = []
    for column in definition.columns:
        if column.name in frame.columns:
            columns.append(pl.col(column.name).cast(dtype(column.dtype)))
        elif column.nullable:
            columns.append(pl.lit(None, dtype=dtype(column.dtype)).alias(column.name))
        else:
            message = f"Table {table} lacks the column {column.name}."
            raise StepscopeError(message, "This is a defect of the reader: please report it.")
    if not frame.height:
        return empty(table)
    result = frame.select(columns)
    _refuse_nulls(definition, result)
    return result


def _refuse_unknown(table: Table, frame: pl.DataFrame) -> None:
    unknown = set(frame.columns) - {column.name for column in table.columns}
    if unknown:
        message = f"Table {table.name} has no column {', '.join(sorted(unknown))}."
        raise StepscopeError(message, "This is a defect of the reader: please report it.")


def _refuse_nulls(table: Table, frame: pl.DataFrame) -> None:
    for column in table.columns:
        if not column.nullable and frame[column.name].null_count():
            message = f"Column {column.name} of table {table.name} holds {frame[column.name].null_count()} nulls."
            raise StepscopeError(message, "This is a defect of the reader: please report it.")


def complete(frames: Mapping[str, pl.DataFrame]) -> Frames:
    """Return all tables of the schema: those given, conformed; the others empty."""
    return {name: conform(name, frames[name]) if name in frames else empty(name) for name in TABLES}


def lazy(frames: Mapping[str, pl.DataFrame]) -> dict[str, pl.LazyFrame]:
    """Return the tables as analyses take them."""
    return {name: frame.lazy() for name, frame in frames.items()}


def write(frames: Mapping[str, pl.DataFrame], directory: Path) -> None:
    """Write every table as ``<name>.parquet`` (zstd) into ``directory``, each under a temporary name first."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, frame in frames.items():
        handle, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".parquet", dir=directory)
        os.close(handle)
        try:
            frame.write_parquet(temporary, compression="zstd")
            Path(temporary).replace(directory / f"{name}.parquet")
        finally:
            Path(temporary).unlink(missing_ok=True)


def scan(directory: Path) -> dict[str, pl.LazyFrame]:
    """Return the tables of ``directory`` lazily; a table that is not there is empty."""
    tables = {}
    for name in TABLES:
        path = directory / f"{name}.parquet"
        tables[name] = pl.scan_parquet(path) if path.exists() else empty(name).lazy()
    return tables
