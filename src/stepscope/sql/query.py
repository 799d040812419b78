"""One question in SQL about a run: DuckDB answers it, over views of the run's tables and results.

A query comes from anywhere: a colleague, a page, a program that writes SQL. The database lies in memory and reads the
Parquet files of the run and nothing else: no other file, no address, no variable of the program; it loads no extension
and changes none of its settings. Statements other than ``SELECT`` are refused before that.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn, TypeAlias

import polars as pl
import psutil

from stepscope.errors import UsageError
from stepscope.run import Run
from stepscope.sql.views import Files, known_views, stored_views

#: A connection of DuckDB, which is installed with an extra only.
Connection: TypeAlias = Any

#: More threads than this do not pay for the tables of a run.
_MOST_THREADS = 8
#: Share of the free memory that a query may take; and the least and the most that it is given, in bytes.
_SHARE, _LEAST_MEMORY, _MOST_MEMORY = 0.5, 256 << 20, 8 << 30
_NO_ACCESS = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "python_enable_replacements": False,
    "temp_directory": "",
}
#: Where the rows of the answer are kept, in a schema of their own: ``SHOW TABLES`` does not show it.
_ANSWER = "stepscope.answer"
_SOURCE = "stepscope_source"
#: Decimal digits that every float holds.
_EXACT_DIGITS = 15
#: Types that Polars takes as they are; a column with another one becomes text.
_PLAIN = re.compile(
    r"(?:BOOLEAN|U?(?:TINY|SMALL|BIG|HUGE)?INT(?:EGER)?|FLOAT|DOUBLE|DECIMAL\(\d+,\d+\)|VARCHAR|BLOB|DATE|TIME"
    r"|TIMESTAMP(?:_S|_MS|_NS| WITH TIME ZONE)?)(?:\[\])*"
    r"|STRUCT\(file VARCHAR, line BIGINT, \"?function\"? VARCHAR\)(?:\[\])?"
)
_NO_TABLE = re.compile(r"Table with name (.+?) does not exist")


def query(run: Run, sql: str) -> pl.DataFrame:
    """Answer one ``SELECT`` over the tables and results of a run, of all its ranks.

    Every table of ``docs/tables.md`` and every result of ``docs/results.md`` is a view of its name, with a column
    ``rank``; nested results are rows of ``documents``. A run of several ranks has the results of the job besides.

    Args:
        run: The run, or captures of another tool.
        sql: One statement; DuckDB's dialect.

    Returns:
        The rows. Sums of integers are integers; types that Polars does not have become text.

    Raises:
        UsageError: The extra ``stepscope[sql]`` is not installed; the statement does more than select, is wrong, or
            needs more than half of the free memory, or 8 GiB.
        InputError: No rank can be read.
    """
    duckdb = _duckdb()
    views = known_views(run)
    limits = {"threads": min(len(os.sched_getaffinity(0)), _MOST_THREADS), "memory_limit": _memory()}
    with closing(duckdb.connect(":memory:", config={**_NO_ACCESS, **limits})) as connection:
        try:
            select = _only_select(duckdb, connection, sql)
            with TemporaryDirectory(prefix="stepscope-sql-") as folder:
                _give(connection, stored_views(run, _mentioned(select, views), Path(folder)))
                return _interruptible(connection, lambda: answer(connection, select))
        except duckdb.OutOfMemoryException:
            message = f"The query needs more than {limits['memory_limit']} of memory."
            raise UsageError(message, "Select fewer rows or columns, or aggregate them.") from None
        except duckdb.Error as error:
            _refuse(str(error), views)


def _duckdb() -> Any:  # noqa: ANN401 - the module of an optional package
    try:
        return importlib.import_module("duckdb")
    except ImportError:
        message = "Queries need DuckDB, which is not installed."
        raise UsageError(message, "Install it: pip install 'stepscope[sql]'.") from None


def _memory() -> str:
    share = int(psutil.virtual_memory().available * _SHARE)
    return f"{min(max(share, _LEAST_MEMORY), _MOST_MEMORY) >> 20}MiB"


def _only_select(duckdb: Any, connection: Connection, sql: str) -> str:  # noqa: ANN401 - as in `_duckdb`
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        message = f"A query is one statement, not {len(statements)}."
        raise UsageError(message, "Ask one after the other.")
    if statements[0].type != duckdb.StatementType.SELECT:
        message = f"A query only selects: {statements[0].type.name} is refused."
        raise UsageError(message, "Write SELECT …, or DESCRIBE name for the columns of a table.")
    return str(statements[0].query).strip().rstrip(";")


def _mentioned(select: str, views: Collection[str]) -> list[str]:
    """Return the views whose names are words of the statement; all of them if none is, as for ``SHOW TABLES``."""
    words = {word.casefold() for word in re.findall(r"\w+", select)}
    return [name for name in views if name.casefold() in words] or list(views)


def _give(connection: Connection, views: Mapping[str, Files]) -> None:
    """Make the views, then close the database to everything but their files, whatever a statement asks for."""
    paths = [_text(path) for files in views.values() for _, path in files]
    connection.execute(f"SET allowed_paths = [{', '.join(paths)}]")
    connection.execute("SET enable_external_access = false")
    for name, files in views.items():
        read = f"read_parquet([{', '.join(_text(path) for _, path in files)}], union_by_name = true"
        columns = {str(row[0]).casefold() for row in connection.execute(f"DESCRIBE FROM {read})").fetchall()}
        if "rank" in columns or any(rank is None for rank, _ in files):
            connection.execute(f'CREATE VIEW "{name}" AS FROM {read})')
        else:
            ranks = ", ".join(f"({_text(path)}, {rank}::INTEGER)" for rank, path in files)
            connection.execute(
                f'CREATE VIEW "{name}" AS SELECT r.rank, t.* EXCLUDE ({_SOURCE}) '  # noqa: S608 - names and paths of ours
                f"FROM {read}, filename = '{_SOURCE}') t JOIN (VALUES {ranks}) r ({_SOURCE}, rank) USING ({_SOURCE})"
            )
    connection.execute("CREATE SCHEMA stepscope")
    connection.execute("SET lock_configuration = true")


def _interruptible(connection: Connection, work: Callable[[], pl.DataFrame]) -> pl.DataFrame:
    """Do the work of a connection in another thread: DuckDB looks for no signal, so Ctrl-C would wait for its end.

    Polars' handler of SIGINT restarts system calls: a wait without a timeout would not end either.
    """
    with ThreadPoolExecutor(1, "stepscope-sql") as thread:
        future = thread.submit(work)
        try:
            while not future.done():
                wait([future], timeout=0.1)
            return future.result()
        except KeyboardInterrupt:
            while not future.done():  # what comes between two of its parts, DuckDB forgets
                connection.interrupt()
                wait([future], timeout=0.1)
            raise


def answer(connection: Connection, select: str) -> pl.DataFrame:
    """Return the rows; the database holds them first, so that its memory limit bounds them."""
    connection.execute(f"CREATE TABLE {_ANSWER} AS FROM (\n{select}\n)")
    types = {str(row[0]): str(row[1]) for row in connection.execute(f"DESCRIBE {_ANSWER}").fetchall()}
    columns = [
        quoted if _PLAIN.fullmatch(kind) else f"{quoted}::VARCHAR AS {quoted}"
        for name, kind in types.items()
        for quoted in ['"' + name.replace('"', '""') + '"']
    ]
    chosen = f"SELECT {', '.join(columns)} FROM {_ANSWER}"  # noqa: S608 - quoted
    frame = pl.DataFrame(_ArrowStream(connection.sql(chosen)))
    return frame.with_columns(_number(column) for column in frame if column.dtype.is_decimal())


class _ArrowStream:
    """Rows of DuckDB as Polars takes them. Polars keeps the class of what it is given for ever: never one of DuckDB's.

    With one of its classes alive, DuckDB ends the process with a page about leaks.
    """

    def __init__(self, rows: Any) -> None:  # noqa: ANN401 - as in `_duckdb`
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._rows.__arrow_c_stream__(requested_schema)


def _number(column: pl.Series) -> pl.Series:
    """Return decimals as integers or floats, where these hold every digit: times since the epoch stay decimals."""
    if column.dtype.precision <= _EXACT_DIGITS:  # type: ignore[attr-defined]
        return column.cast(pl.Float64)
    whole = column.cast(pl.Int64, strict=False)
    is_whole = column.dtype.scale == 0 and whole.null_count() == column.null_count()  # type: ignore[attr-defined]
    return whole if is_whole else column


def _refuse(reason: str, views: Collection[str]) -> NoReturn:
    """Raise what DuckDB says on one line, with the views that may have been meant."""
    if (missing := _NO_TABLE.search(reason)) is not None:
        near = difflib.get_close_matches(missing[1], views, n=3)
        remedy = f"Did you mean {' or '.join(near)}?" if near else "`stepscope query RUN` lists what can be named."
        message = f"No table or result is called {missing[1]!r}."
        raise UsageError(message, remedy)
    said = reason.split("\n\nLINE ")[0].removesuffix(".")
    message = f"The query cannot be answered: {said}."
    raise UsageError(message, "`DESCRIBE name` shows the columns of a table or result.")


def _text(value: object) -> str:
    return "'" + str(value).replace("'", "''") + "'"
