"""The tables of a rank as Polars frames: made, conformed to the schema, written and scanned.

A set of tables is a plain mapping from table name to frame in which every table of the schema is present, empty where
the source has nothing for it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias, TypeVar

import polars as pl

from stepscope.errors import StepscopeError
from stepscope.trace.schema import ENUMS, TABLES, Table

#: What readers return: every table, in memory.
Frames: TypeAlias = dict[str, pl.DataFrame]
#: What analyses take: every table, lazily.
Tables: TypeAlias = Mapping[str, pl.LazyFrame]

_T = TypeVar("_T")

#: A Parquet file of up to so many bytes is read whole: several scans of it would cost more.
_SMALL = 1 << 18
#: Up to so many rows, the fixed cost of a plan is more than that of the rows: frames are written together.
_FEW_ROWS = 1 << 16
_PLAIN = pl.QueryOptFlags.none()

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


@cache
def schema(table: str) -> Mapping[str, pl.DataType]:
    """Return column names and Polars types of a table, in order."""
    return MappingProxyType({column.name: dtype(column.dtype) for column in TABLES[table].columns})


@cache
def empty(table: str) -> pl.DataFrame:
    """Return the table without rows: always the same frame, which must not be changed in place."""
    return pl.DataFrame(schema=schema(table))


def conform(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return ``frame`` with exactly the table's columns, order and types.

    Columns that may be null are added where they are missing. Types are cast.

    Raises:
        StepscopeError: A column is missing that may not be null, is unknown, or holds null where it may not.
    """
    if frame is empty(table):
        return frame
    definition = TABLES[table]
    _refuse_other_columns(definition, frame.columns)
    if not frame.height:
        return empty(table)
    given = {column.name: column for column in frame}
    absent = [name for name in schema(table) if name not in given]
    if absent and frame.height > _FEW_ROWS:  # these literals take no memory
        frame = frame.with_columns_seq(pl.lit(None, schema(table)[name]).alias(name) for name in absent)
        given = {column.name: column for column in frame}
    columns = []
    for name, kind in schema(table).items():
        column = given[name] if name in given else _null(name, kind).new_from_index(0, frame.height)
        columns.append(column if column.dtype == kind else column.cast(kind))
    _refuse_nulls(definition, columns)
    return pl.DataFrame(columns)


@cache
def _null(name: str, kind: pl.DataType) -> pl.Series:
    return pl.Series(name, [None], kind)


def _refuse_other_columns(table: Table, given: Collection[str]) -> None:
    unknown = set(given) - set(schema(table.name))
    if unknown:
        _refuse(f"Table {table.name} has no column {', '.join(sorted(unknown))}.")
    for column in table.columns:
        if column.name not in given and not column.nullable:
            _refuse(f"Table {table.name} lacks the column {column.name}.")


def _refuse_nulls(table: Table, columns: Sequence[pl.Series]) -> None:
    for column, values in zip(table.columns, columns, strict=True):
        if not column.nullable and values.null_count():
            _refuse(f"Column {column.name} of table {table.name} holds {values.null_count()} nulls.")


def _refuse(message: str) -> NoReturn:
    raise StepscopeError(message, "This is a defect of the reader: please report it.")


def complete(frames: Mapping[str, pl.DataFrame]) -> Frames:
    """Return all tables of the schema: those given, conformed; the others empty."""
    return {name: conform(name, frames[name]) if name in frames else empty(name) for name in TABLES}


def together(table: str, frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of frames of one table behind each other; those without rows cost nothing.

    They may have other columns than the schema's, of one type wherever they occur.
    """
    full = [frame for frame in frames if frame.height]
    if not full:
        return empty(table)
    return full[0] if len(full) == 1 else pl.concat([typed(table, frame) for frame in full], how="diagonal_relaxed")


def with_series(frame: pl.DataFrame, columns: Iterable[pl.Series]) -> pl.DataFrame:
    """Return a frame with columns in place of those of their names, or behind the others; this needs no plan."""
    given = {column.name: column for column in columns}
    return pl.DataFrame([given.pop(column.name, column) for column in frame] + list(given.values()))


def typed(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame whose columns have the schema's types, as far as they are the schema's."""
    wanted = schema(table)
    casts = [
        pl.col(name).cast(wanted[name])
        for name, given in zip(frame.columns, frame.dtypes, strict=True)
        if name in wanted and given != wanted[name]
    ]
    return frame.with_columns(casts) if casts else frame


@cache
def empty_lazily(table: str) -> pl.LazyFrame:
    """Return the table without rows as analyses take it: always the same frame, by which they can tell."""
    return empty(table).lazy()


def has_rows(tables: Tables, name: str) -> bool:
    """Return whether a table may have rows; False where it is known to have none."""
    return tables[name] is not empty_lazily(name)


class RankTables(dict[str, pl.LazyFrame]):
    """Every table of a rank, lazily; with those that are in memory, and what several analyses need of them.

    Attributes:
        in_memory: Tables that need no plan to be collected, by name.
        small: Whether every table is in memory and short.
        shared: What functions marked by :func:`shared` returned for these tables.
    """

    def __init__(self, found: Mapping[str, pl.LazyFrame], in_memory: Mapping[str, pl.DataFrame]) -> None:
        super().__init__(found)
        self.in_memory = in_memory
        full = (name for name in found if found[name] is not empty_lazily(name))
        self.small = all(name in in_memory and in_memory[name].height <= _FEW_ROWS for name in full)
        self.shared: dict[Callable[..., Any], Any] = {}


def lazy(frames: Mapping[str, pl.DataFrame]) -> RankTables:
    """Return the tables as analyses take them."""
    found = {name: frame.lazy() if frame.height else empty_lazily(name) for name, frame in frames.items()}
    return RankTables(found, frames)


def columns_of(tables: Tables, name: str, *columns: str) -> pl.DataFrame:
    """Collect columns of a table; a table that is in memory, or has no rows, needs no plan."""
    if not has_rows(tables, name):
        known: pl.DataFrame | None = empty(name)
    else:
        known = tables.in_memory.get(name) if isinstance(tables, RankTables) else None
    return tables[name].select(columns).collect() if known is None else known[list(columns)]


def collected(plan: pl.LazyFrame, tables: Tables) -> pl.DataFrame:
    """Collect a plan over tables; if these are small, without optimising and streaming: both would not pay."""
    if isinstance(tables, RankTables) and tables.small:
        return plan.collect(engine="in-memory", optimizations=_PLAIN)
    return plan.collect()


def shared(function: Callable[[Tables], _T]) -> Callable[[Tables], _T]:
    """Compute what several results need once for each :class:`RankTables`; what it returns must not be changed."""

    @wraps(function)
    def once(tables: Tables) -> _T:
        if not isinstance(tables, RankTables):
            return function(tables)
        if function not in tables.shared:
            tables.shared[function] = function(tables)
        result: _T = tables.shared[function]
        return result

    return once


def write(frames: Mapping[str, pl.DataFrame], directory: Path) -> None:
    """Write tables as ``<name>.parquet`` (zstd) into ``directory``, each under a temporary name first.

    A table without rows has no file.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = {path.name: path for path in directory.iterdir()}
    temporary: dict[str, str] = {}
    sinks = []
    try:
        for name, frame in frames.items():
            if not frame.height:
                if f"{name}.parquet" in before:
                    before[f"{name}.parquet"].unlink()
                continue
            handle, temporary[name] = tempfile.mkstemp(prefix=f".{name}.", suffix=".parquet", dir=directory)
            os.close(handle)
            if frame.height > _FEW_ROWS:
                frame.write_parquet(temporary[name], compression="zstd")
            else:
                sinks.append(frame.lazy().sink_parquet(temporary[name], compression="zstd", lazy=True))
        pl.collect_all(sinks)
        while temporary:
            name, written = temporary.popitem()
            Path(written).replace(directory / f"{name}.parquet")
    finally:
        for written in temporary.values():
            Path(written).unlink(missing_ok=True)


def scan(directory: Path, known: Mapping[str, pl.DataFrame] | None = None) -> RankTables:
    """Return the tables of ``directory`` lazily; a table that is not there is empty, a small one is read at once.

    Args:
        directory: The folder that :func:`write` was given.
        known: The frames that were written, where the caller still has them: small ones are not read again.
    """
    sizes = {path.name: path.stat().st_size for path in directory.iterdir()} if directory.is_dir() else {}
    found, in_memory = {}, {}
    for name in TABLES:
        path = directory / f"{name}.parquet"
        size = sizes.get(path.name)
        if size is None:
            found[name] = empty_lazily(name)
        elif size > _SMALL:
            found[name] = pl.scan_parquet(path)
        else:
            in_memory[name] = pl.read_parquet(path) if known is None else known[name]
            found[name] = in_memory[name].lazy()
    return RankTables(found, in_memory)
