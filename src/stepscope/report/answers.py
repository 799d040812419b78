"""The rows that answer a query, as a table for the screen, or as CSV, JSON or Parquet."""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import polars as pl
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from stepscope.report.files.csv_results import safe
from stepscope.report.files.json_results import dumps
from stepscope.report.safe_text import printable
from stepscope.report.whole_files import write_whole

#: Rows that a screen shows; the files hold all.
SHOWN_ROWS = 50
#: Characters that a cell of the screen shows.
_LONGEST_CELL = 200
#: Width that no table has.
_WIDEST = 1 << 20


def _csv(rows: pl.DataFrame) -> bytes:
    return safe(rows).write_csv().encode()


def _json(rows: pl.DataFrame) -> bytes:
    return (dumps(rows.to_dicts()) + "\n").encode()


def _parquet(rows: pl.DataFrame) -> bytes:
    content = BytesIO()
    rows.write_parquet(content, compression="zstd")
    return content.getvalue()


#: Formats of files by name, which is also the ending of their names.
ANSWERS: dict[str, Callable[[pl.DataFrame], bytes]] = {"csv": _csv, "json": _json, "parquet": _parquet}


def write_answer(rows: pl.DataFrame, form: str, path: Path | None) -> None:
    """Write rows as a file of one of :data:`ANSWERS`; without a path, on standard output.

    Text in CSV is safe for spreadsheets; JSON is a list with an object for each row, in strict JSON.

    Raises:
        OutputError: The file cannot be written.
    """
    content = ANSWERS[form](rows)
    if path is not None:
        write_whole(path, content)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(content)


def print_answer(rows: pl.DataFrame, console: Console) -> None:
    """Print rows as a table: numbers on the right, a dash for what is unknown, at most :data:`SHOWN_ROWS` rows.

    A table wider than the console becomes a block for each row, with a line for each column. Names from the trace are
    shown as text, whatever is in them.
    """
    dash = "-" if console.options.ascii_only else "–"
    names = [printable(name) for name in rows.columns]
    lines = [[dash if value is None else _cell(value) for value in row] for row in rows.head(SHOWN_ROWS).iter_rows()]
    table = _table(console)
    for name, kind in zip(names, rows.dtypes, strict=True):
        table.add_column(Text(name), justify="right" if kind.is_numeric() else "left", overflow="fold")
    for line in lines:
        table.add_row(*map(Text, line))
    wide = console.options.update(max_width=_WIDEST)
    if not lines:
        console.print(Text(f"0 rows of {', '.join(names)}"))
    elif Measurement.get(console, wide, table).maximum <= console.width:
        console.print(table)
    else:
        for number, line in enumerate(lines, 1):
            block = _table(console, title=f"row {number}", show_header=False)
            for name, value in zip(names, line, strict=True):
                block.add_row(Text(name), Text(value, overflow="fold"))
            console.print(block)
    if rows.height > SHOWN_ROWS:
        console.print(f"{SHOWN_ROWS} of {rows.height:,} rows; --format csv writes all.")


def _table(console: Console, *, title: str | None = None, show_header: bool = True) -> Table:
    form = box.ASCII2 if console.options.ascii_only else box.SIMPLE_HEAD
    return Table(box=form, title=title, title_justify="left", show_header=show_header, show_edge=False, pad_edge=False)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e-3 or abs(value) >= 1e15 else f"{value:.3f}".rstrip("0").rstrip(".")
    text = value if isinstance(value, str) else dumps(value)
    return printable(text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}…")
