"""A profiler's SQLite file, read as it lies: nothing beside it is opened, nothing is written, nothing in it runs.

Such databases keep a text once, in a table of texts, and its number everywhere else; the values of a column with few
values are in a table ``ENUM_…``. Any table and any column may be missing, depending on the options of the recording and
on the version.
"""

from __future__ import annotations

import itertools
import sqlite3
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.errors import DamagedTraceError
from stepscope.read.common.database.sqlite_columns import columns_of, quoted
from stepscope.read.common.distinct import same
from stepscope.read.common.source import open_trace
from stepscope.trace.ascend_columns import FLOAT, INT, NAME, TEXT, UNREAD
from stepscope.trace.losses import LossLedger

#: First bytes of every SQLite file.
MAGIC = b"SQLite format 3\0"
#: Of the head: bytes of a page, number of changes, of pages, and of the change that wrote the number of pages.
_HEAD = struct.Struct(">16xH6xII60xI")
_NUMBERS = (INT, FLOAT)
_PLAIN = (*_NUMBERS, TEXT)
#: What a column holds → type of the values in the file; ``ENUM_…`` are numbers too.
_STORED: dict[str, pl.DataType] = {INT: pl.Int64(), FLOAT: pl.Float64(), TEXT: pl.String(), NAME: pl.Int64()}
#: No table numbers a text so.
_NO_NUMBER = -(1 << 63)
#: Rows fetched at once: a few MB of Python's objects.
_BATCH = 50_000
#: Longest value, in bytes; no text of a profiler is longer.
_LONGEST = 64 << 20
#: A table with up to this number of rows is fetched at once.
SMALL_TABLE = 10_000
#: Table → its columns that are not read; None for all of them.
LeftOut: TypeAlias = Mapping[str, "frozenset[str] | None"]


class Dialect(NamedTuple):
    """What the tables of a profiler are called.

    Attributes:
        tables: Table → its columns, and what each holds: ``INT``, ``FLOAT``, ``TEXT``, ``NAME`` (the number of a text),
            the name of a table ``ENUM_…``, or ``UNREAD``.
        texts: The table of texts, whose columns are ``id`` and ``value``.
    """

    tables: Mapping[str, Mapping[str, str]] = {}
    texts: str = "STRING_IDS"


_NO_DIALECT = Dialect()


def is_database(path: Path) -> bool:
    """Return whether a file begins as SQLite's do.

    Raises:
        InputError: It cannot be read.
    """
    with open_trace(path) as file:
        return file.read(len(MAGIC)) == MAGIC


def _claimed(path: Path) -> int:
    """Return the size in bytes that the head of a database states; 0 if it states none."""
    with open_trace(path) as file:
        head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return 0
    page, changes, pages, valid_for = _HEAD.unpack(head)
    # The number of pages is valid only if it was written with the last change.
    return pages * (65536 if page == 1 else page) if changes == valid_for else 0


@contextmanager
def database(
    path: Path, ledger: LossLedger, dialect: Dialect = _NO_DIALECT, left_out: LeftOut | None = None
) -> Iterator[SqliteDatabase]:
    """Open a file for reading.

    Args:
        path: The file; a write-ahead log beside it stays closed.
        ledger: Counts losses.
        dialect: What its tables are called.
        left_out: What need not be read.

    Raises:
        InputError: It cannot be read.
        DamagedTraceError: It is not an SQLite file, or damaged at its head.
    """
    if not is_database(path):
        message = f"{path} is not a database."
        raise DamagedTraceError(message, "Copy it again, or record again.")
    ledger.add("file_cut", int(path.stat().st_size < _claimed(path)))
    # Immutable: neither locks nor logs are looked for, and the file system need not be writable.
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        if hasattr(connection, "setlimit"):  # Python 3.11
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
        connection.text_factory = _TextOrLoss(ledger)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            # Without it SQLite refuses a file that was cut, although most of its pages are there.
            connection.execute("PRAGMA writable_schema = ON")
            yield SqliteDatabase(connection, ledger, dialect, left_out or {})
        except sqlite3.DatabaseError as error:
            message = f"{path} is damaged: {error}."
            raise DamagedTraceError(message, "Copy it again, or record again.") from None


class _TextOrLoss:
    """Makes text of a value's bytes; bytes that are not UTF-8 are replaced and counted."""

    def __init__(self, ledger: LossLedger) -> None:
        self._ledger = ledger

    def __call__(self, value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError:
            self._ledger.add("text_not_utf8")
            return value.decode(errors="replace")


def has_table(path: Path, head: bytes, names: Sequence[str]) -> bool | None:
    """Return whether a file that begins so is a database with a table of one of the names; None if it is damaged."""
    if not head.startswith(MAGIC):
        return False
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        try:
            connection.execute("PRAGMA writable_schema = ON")
            chosen = ", ".join("?" * len(names))
            query = f"SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ({chosen})"  # noqa: S608
            return bool(connection.execute(query, names).fetchone()[0])
        except sqlite3.DatabaseError:
            return None


class SqliteDatabase:
    """An open database.

    Args:
        connection: Connection to it.
        ledger: Counts losses.
        dialect: What its tables are called.
        left_out: What is not read: such a table has no rows, such a column only null.
    """

    def __init__(self, connection: sqlite3.Connection, ledger: LossLedger, dialect: Dialect, left_out: LeftOut) -> None:
        self._connection = connection
        self._ledger = ledger
        self._dialect = dialect
        self._left_out = left_out

    @cached_property
    def tables(self) -> dict[str, tuple[str, ...]]:
        """Table → its columns; without views and virtual tables, which are programs."""
        # Generated columns are not among these.
        query = """SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c
            WHERE m.type = 'table' AND m.sql LIKE 'CREATE TABLE%' AND m.name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"""
        found: dict[str, tuple[str, ...]] = {}
        for table, column in self._connection.execute(query):
            found[table] = (*found.get(table, ()), column)
        return found

    def holds(self, table: str) -> bool:
        """Return whether the database has a table, and it is read."""
        return table in self.tables and self._left_out.get(table, ()) is not None

    def rows(self, table: str, columns: Mapping[str, str] | None = None) -> pl.DataFrame:
        """Return a table's columns; null if a column is missing or a value has another type.

        Args:
            table: Its name; a missing table has no rows.
            columns: Column → what it holds; by default those of the dialect.
                ``TEXT``, ``NAME`` and ``ENUM_…`` become categorical texts.
        """
        if columns is None:
            columns = {name: sort for name, sort in self._dialect.tables[table].items() if sort != UNREAD}
        wanted = {name: _STORED[sort] if sort in _NUMBERS else pl.Categorical() for name, sort in columns.items()}
        if not self.holds(table):
            return pl.DataFrame(schema=wanted)
        unread = self._left_out.get(table) or ()
        present = [name for name in columns if name in self.tables[table] and name not in unread]
        frame = self._frame(table, {name: _STORED.get(columns[name], pl.Int64()) for name in present})
        found = {one.name: one.cast(pl.Categorical()) if one.dtype == pl.String else one for one in frame}
        found |= self._named(frame, {name: columns[name] for name in present if columns[name] not in _PLAIN})
        height = len(frame)
        return pl.DataFrame(
            [found[name] if name in found else same(name, None, height, dtype) for name, dtype in wanted.items()]
        )

    def _frame(self, table: str, dtypes: Mapping[str, pl.DataType]) -> pl.DataFrame:
        if not dtypes:
            return pl.DataFrame()
        query = f"SELECT {', '.join(map(quoted, dtypes))} FROM {quoted(table)}"  # noqa: S608 - quoted
        with self._strict():
            whole = None if pl.String() in dtypes.values() else columns_of(self._connection, table, dtypes)
            few = self._few(query) if whole is None else None
        if whole is not None:
            return whole
        if few is not None:
            return self._part(few, dtypes)
        return pl.concat(
            [pl.DataFrame(schema=dict(dtypes)), *(self._part(one, dtypes) for one in self._batches(query))]
        )

    @contextmanager
    def _strict(self) -> Iterator[None]:
        """Raise for text that is not UTF-8: this is faster, and the second, tolerant reading counts each loss once."""
        careful, self._connection.text_factory = self._connection.text_factory, str
        try:
            yield
        finally:
            self._connection.text_factory = careful

    def _few(self, query: str) -> list[tuple[object, ...]] | None:
        """Return the rows of a small table; None if it has more, or is damaged."""
        try:
            rows = self._connection.execute(query).fetchmany(SMALL_TABLE + 1)
        except sqlite3.DatabaseError:
            return None
        return rows if len(rows) <= SMALL_TABLE else None

    def _batches(self, query: str) -> Iterator[list[tuple[object, ...]]]:
        """Yield rows up to the first damaged page, which is counted."""
        batch: list[tuple[object, ...]] = []
        try:
            cursor = self._connection.execute(query)
            while True:
                batch = []
                batch.extend(itertools.islice(cursor, _BATCH))  # unlike fetchmany, keeps what came before an error
                if not batch:
                    return
                yield batch
        except sqlite3.DatabaseError:
            self._ledger.add("database_damaged")
            if batch:
                yield batch

    def _part(self, batch: list[tuple[object, ...]], dtypes: Mapping[str, pl.DataType]) -> pl.DataFrame:
        if not batch:
            return pl.DataFrame(schema=dict(dtypes))
        columns = []
        for (name, dtype), values in zip(dtypes.items(), zip(*batch, strict=True), strict=True):
            column = pl.Series(name, values, dtype=dtype, strict=False)
            columns.append(column)
            if column.null_count():
                self._ledger.add("value_unreadable", column.null_count() - values.count(None))
        return pl.DataFrame(columns)

    def _named(self, frame: pl.DataFrame, sorts: Mapping[str, str]) -> dict[str, pl.Series]:
        """Return texts for columns of numbers; null for a number without a text."""
        found: dict[str, pl.Series] = {}
        for sort in dict.fromkeys(sorts.values()):
            names = [name for name in sorts if sorts[name] == sort]
            # All columns at once: a look-up has a high fixed cost.
            numbers = pl.concat([frame[name].alias("id") for name in names])
            texts = self.texts(numbers) if sort == NAME else self._dictionary(sort, "name").of(numbers)
            self._ledger.add("value_unreadable", texts.null_count() - numbers.null_count())
            height = len(frame)
            found |= {name: texts.slice(place * height, height).alias(name) for place, name in enumerate(names)}
        return found

    def intervals(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows whose ``ts`` and ``dur`` are known and not negative; the others are counted."""
        known = frame
        if frame["ts"].null_count() or frame["dur"].null_count():
            known = frame.drop_nulls(["ts", "dur"])
            self._ledger.add("event_bad_time", len(frame) - len(known))
        sound = (known["ts"] >= 0) & (known["dur"] >= 0)
        self._ledger.add("event_negative_duration", len(known) - int(sound.sum()))
        return known if sound.all() else known.filter(sound)

    def texts(self, numbers: pl.Series) -> pl.Series:
        """Return the texts of numbers; null for a number without a text."""
        return self._strings.of(numbers)

    @cached_property
    def _strings(self) -> _StoredTexts:
        return self._dictionary(self._dialect.texts, "value")

    def _dictionary(self, table: str, text: str) -> _StoredTexts:
        present = {"id", text} <= set(self.tables.get(table, ()))
        stored = {"id": pl.Int64(), text: pl.String()}
        frame = self._frame(table, stored) if present else pl.DataFrame(schema=stored)
        return _StoredTexts(frame["id"], frame[text])


class _StoredTexts:
    """Finds texts by their numbers.

    Args:
        numbers: The numbers; of two that are equal the first counts.
        texts: Their texts.
    """

    def __init__(self, numbers: pl.Series, texts: pl.Series) -> None:
        self._texts = pl.concat([texts, pl.Series([None], dtype=pl.String)]).cast(pl.Categorical())
        known = _whole(numbers)
        self._order = np.argsort(known, kind="stable")
        self._sorted = known[self._order]

    def of(self, numbers: pl.Series) -> pl.Series:
        """Return the texts of numbers; null for a number without a text."""
        missing = len(self._sorted)
        if not missing or not len(numbers):
            return same(numbers.name, None, len(numbers))
        asked = _whole(numbers)
        place = np.minimum(np.searchsorted(self._sorted, asked), missing - 1)
        found = (self._sorted[place] == asked) & (asked != _NO_NUMBER)
        return self._texts[pl.Series(np.where(found, self._order[place], missing), dtype=pl.UInt32)].alias(numbers.name)


def _whole(numbers: pl.Series) -> npt.NDArray[np.int64]:
    known: npt.NDArray[np.int64] = (numbers.fill_null(_NO_NUMBER) if numbers.null_count() else numbers).to_numpy()
    return known
