"""The tables among the results as CSV files."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, TypeGuard

import polars as pl

from stepscope.report.files.json_results import dumps
from stepscope.report.protocol import Source
from stepscope.report.safe_text import csv_cell, csv_cells
from stepscope.report.whole_files import replacing, write_whole
from stepscope.trace.tables import with_series

#: Tables of up to so many rows are written together: one plan for each would cost more than the writing.
_FEW_ROWS = 1 << 16
_TEXT = (pl.String, pl.Categorical, pl.Enum)
_NESTED = (pl.List, pl.Struct, pl.Array)


@dataclass(frozen=True)
class Csv:
    """One ``<name>.csv`` for each result that is a table; UTF-8, comma, header row, numbers with 3 decimals.

    A document of lists is a table on its side: a line for each, its name in front, as many cells as it has values.
    """

    name: str = "csv"

    def write(self, source: Source, directory: Path) -> list[Path]:
        """Write the files; see :class:`stepscope.report.protocol.Format`."""
        written = []
        frames: dict[Path, pl.DataFrame] = {}
        for name, result in source.results.items():
            path = directory / f"{name}.csv"
            if isinstance(result, pl.DataFrame):
                written.append(path)
                if len(result) <= _FEW_ROWS:
                    frames[path] = result
                    continue
                with replacing(path) as temporary:  # at once: it must not stay in memory beside the next results
                    _write_tables([temporary], [result])
            elif _on_its_side(result):
                with replacing(path) as temporary:
                    _write_lines(result, temporary)
                written.append(path)
            del result
        small = {path: BytesIO() for path in frames}
        _write_tables(small.values(), list(frames.values()))
        for path, file in small.items():
            write_whole(path, file.getbuffer())
        return written


def _write_tables(files: Iterable[Path | BytesIO], tables: Sequence[pl.DataFrame]) -> None:
    pairs = zip(files, _safe(tables), strict=True)
    pl.collect_all([table.lazy().sink_csv(file, float_precision=3, lazy=True) for file, table in pairs])


def safe(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table with every text, also in the header, safe to open in a spreadsheet; lists become JSON text."""
    return _safe([table])[0]


def _safe(tables: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    texts = [
        [_flat(table[name]) for name, kind in table.schema.items() if isinstance(kind, (*_TEXT, *_NESTED))]
        for table in tables
    ]
    cells = iter(csv_cells([column for of_table in texts for column in of_table]))
    flat = [with_series(table, [next(cells) for _ in of_table]) for table, of_table in zip(tables, texts, strict=True)]
    for table in flat:
        table.columns = [_title(name) for name in table.columns]
    return flat


_title = cache(csv_cell)


def _flat(column: pl.Series) -> pl.Series:
    if isinstance(column.dtype, _TEXT):
        return column
    return pl.Series(column.name, [None if value is None else dumps(value) for value in column.to_list()], pl.String)


def _on_its_side(result: Any) -> TypeGuard[dict[str, list[Any]]]:  # noqa: ANN401 - any result
    return isinstance(result, dict) and bool(result) and all(isinstance(values, list) for values in result.values())


def _write_lines(lines: dict[str, list[Any]], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([_cell(value) for value in (name, *values)] for name, values in lines.items())


def _cell(value: object) -> object:
    """Return a value as a cell that a spreadsheet shows and does not compute; lists become JSON text."""
    if isinstance(value, list | dict):
        value = dumps(value)
    return csv_cell(value) if isinstance(value, str) else value
