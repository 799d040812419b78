"""The tables among the results as CSV files."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import polars as pl

from stepscope.report.files.json_results import dumps
from stepscope.report.protocol import Source
from stepscope.report.safe_text import csv_cell, csv_cells
from stepscope.report.whole_files import replacing


@dataclass(frozen=True)
class Csv:
    """One ``<name>.csv`` for each result that is a table; UTF-8, comma, header row, numbers with 3 decimals.

    A document of lists is a table on its side: a line for each, its name in front, as many cells as it has values.
    """

    name: str = "csv"

    def write(self, source: Source, directory: Path) -> list[Path]:
        """Write the files; see :class:`stepscope.report.protocol.Format`."""
        written = []
        for name, result in source.results.items():
            if isinstance(result, pl.DataFrame):
                path = directory / f"{name}.csv"
                with replacing(path) as temporary:
                    safe(result).write_csv(temporary, float_precision=3)
                written.append(path)
            elif _on_its_side(result):
                path = directory / f"{name}.csv"
                with replacing(path) as temporary:
                    _write_lines(result, temporary)
                written.append(path)
        return written


def safe(frame: pl.DataFrame) -> pl.DataFrame:
    """Return ``frame`` with every text, also in the header, safe to open in a spreadsheet; lists become JSON text."""
    columns = [
        pl.Series(column.name, [None if value is None else dumps(value) for value in column.to_list()])
        if isinstance(column.dtype, pl.List | pl.Struct | pl.Array)
        else column
        for column in frame
    ]
    texts = [number for number, column in enumerate(columns) if column.dtype in (pl.String, pl.Categorical, pl.Enum)]
    for number, cells in zip(texts, csv_cells([columns[number] for number in texts]), strict=True):
        columns[number] = cells
    return pl.DataFrame([column.alias(csv_cell(column.name)) for column in columns])


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
