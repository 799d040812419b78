"""Numbers of a table of SQLite, a column at a time: SQLite writes many as one JSON text, which is parsed at once.

Fetched row by row every number would become an object of Python, which costs ten times as much.
"""

from __future__ import annotations

import re
import sqlite3
import warnings
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

#: Rows of one text: a few MB of digits.
ROWS_PER_TEXT = 100_000
#: Up to this number of rows, reading row by row is as fast.
SMALL_TABLE = 1_000
#: Replaces null; a profiler writes no number as small.
_NULL = -(1 << 63)
#: A list of texts of digits, as torch_npu writes times.
_DIGITS = re.compile(r'\[(?:(?:"[0-8]?[0-9]{1,18}"|null),?)*\]')


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def columns_of(connection: sqlite3.Connection, table: str, dtypes: Mapping[str, pl.DataType]) -> pl.DataFrame | None:
    """Return columns of numbers; None if the table is small, damaged, or has other values in them."""
    if "rowid" in dtypes:
        return None
    integers = [name for name, dtype in dtypes.items() if dtype == pl.Int64]
    reals = [name for name in dtypes if name not in integers]
    try:
        (last,) = connection.execute(f"SELECT max(rowid) FROM {quoted(table)}").fetchone()  # noqa: S608 - quoted
        if last is None or last <= SMALL_TABLE or not integers:
            return None
        parts = [_part(*piece, integers) for piece in _pieces(connection, table, integers)]
        if any(part is None for part in parts):
            return None
        found = pl.concat([part for part in parts if part is not None])
        return found.hstack([_real(connection, table, name) for name in reals])[list(dtypes)]
    except (sqlite3.DatabaseError, pl.exceptions.PolarsError, TypeError):
        return None


def _pieces(connection: sqlite3.Connection, table: str, names: list[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield numbers of rows, and for each column its values as a JSON list."""
    texts = ", ".join(f"json_group_array({quoted(name)})" for name in names)
    query = f"""SELECT count(*), max(stepscope_row), {texts} FROM (SELECT rowid stepscope_row,
        {", ".join(map(quoted, names))} FROM {quoted(table)} WHERE rowid > ? ORDER BY rowid LIMIT {ROWS_PER_TEXT})"""  # noqa: S608 - quoted
    last = _NULL
    while True:
        count, furthest, *columns = connection.execute(query, (last,)).fetchone()
        if not count or furthest <= last:  # in a damaged tree, rows may come again without end
            return
        last = furthest
        yield count, tuple(columns)
        if count < ROWS_PER_TEXT:
            return


def _part(count: int, texts: tuple[str, ...], names: list[str]) -> pl.DataFrame | None:
    columns = []
    for name, text in zip(names, texts, strict=True):
        numbers = _parsed(text)
        if numbers is None or len(numbers) != count:
            return None
        column, absent = pl.Series(name, numbers), numbers == _NULL
        columns.append(column.set(pl.Series(absent), None) if absent.any() else column)
    return pl.DataFrame(columns)


def _parsed(text: str) -> npt.NDArray[np.int64] | None:
    """Return the numbers of a list of integers and nulls, or of texts of digits; None for any other list."""
    if '"' in text:
        if not _DIGITS.fullmatch(text):
            return None
        text = text.replace('"', "")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        try:
            return np.fromstring(text[1:-1].replace("null", str(_NULL)), np.int64, sep=",")
        except (DeprecationWarning, ValueError):
            return None


def _real(connection: sqlite3.Connection, table: str, name: str) -> pl.Series:
    """Return a column of real numbers, which lose digits if they become text."""
    query = f"SELECT {quoted(name)} FROM {quoted(table)} ORDER BY rowid"  # noqa: S608 - quoted
    return pl.Series(name, [value for (value,) in connection.execute(query)], dtype=pl.Float64)
