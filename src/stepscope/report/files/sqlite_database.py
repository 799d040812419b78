"""The trace and its results as one SQLite file, ``stepscope.db``."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from stepscope.report.files.json_results import dumps
from stepscope.report.protocol import Source
from stepscope.report.whole_files import replacing
from stepscope.trace.schema import TABLES

#: Rows that are Python objects at one time.
_BATCH = 50_000
#: Columns that questions about a trace look things up by; `id` columns are primary keys besides.
_INDEXES = {"spans": ("ts", "step", "parent"), "kernels": ("span",), "operators": ("span",), "flows": ("from", "to")}


@dataclass(frozen=True)
class Database:
    """``stepscope.db``: every table and every result as a table of that name.

    Times stay integers in nanoseconds, text is text, lists are JSON. Nested results and the manifest are rows of the
    table ``documents`` (name, json), open to SQLite's JSON functions.
    """

    name: str = "db"

    def write(self, source: Source, directory: Path) -> list[Path]:
        """Write the file; see :class:`stepscope.report.protocol.Format`."""
        path = directory / "stepscope.db"
        with replacing(path) as temporary, closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
            # The file replaces the old one only when complete, so there is nothing to roll back to.
            connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN")
            for name, table in source.tables.items():
                _insert(connection, name, table.collect())
            documents = {"manifest": dumps(source.manifest)} if source.manifest else {}
            for name, result in source.results.items():
                if isinstance(result, pl.DataFrame):
                    _insert(connection, name, result)
                else:
                    documents[name] = dumps(result)
            _insert(connection, "documents", pl.DataFrame({"name": list(documents), "json": list(documents.values())}))
            _index(connection, source.tables)
            connection.execute("COMMIT")
        return [path]


def _insert(connection: sqlite3.Connection, name: str, frame: pl.DataFrame) -> None:
    columns = ", ".join(f"{_quoted(column)} {_type(name, column, dtype)}" for column, dtype in frame.schema.items())
    connection.execute(f"CREATE TABLE {_quoted(name)} ({columns})")
    places = ", ".join("?" * frame.width)
    statement = f"INSERT INTO {_quoted(name)} VALUES ({places})"  # noqa: S608 - the name is quoted
    for batch in frame.select(_plain(frame)).iter_slices(_BATCH):
        connection.executemany(statement, batch.rows())


def _index(connection: sqlite3.Connection, tables: Collection[str]) -> None:
    for table, columns in _INDEXES.items():
        for column in columns if table in tables else ():
            connection.execute(f"CREATE INDEX {_quoted(f'{table}_{column}')} ON {_quoted(table)} ({_quoted(column)})")


def _type(table: str, column: str, dtype: pl.DataType) -> str:
    if column == "id" and table in TABLES:
        return "INTEGER PRIMARY KEY"
    if dtype.is_integer() or dtype == pl.Boolean:
        return "INTEGER"
    return "REAL" if dtype.is_float() else "TEXT"


def _plain(frame: pl.DataFrame) -> list[pl.Expr]:
    """Cast every column to what SQLite holds: integers, floats, text."""
    plain = []
    for name, dtype in frame.schema.items():
        column = pl.col(name)
        if isinstance(dtype, pl.List | pl.Struct | pl.Array):
            column = column.map_elements(_json, return_dtype=pl.String)
        elif not (dtype.is_integer() or dtype.is_float() or dtype == pl.Boolean):
            column = column.cast(pl.String)
        plain.append(column)
    return plain


def _json(value: pl.Series | dict[str, object]) -> str:
    return dumps(value.to_list() if isinstance(value, pl.Series) else value)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
