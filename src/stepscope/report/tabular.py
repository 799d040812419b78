"""The tables among the results as CSV files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from stepscope.report.documents import dumps
from stepscope.report.files import replacing
from stepscope.report.protocol import Source
from stepscope.report.text import csv_cell, csv_cells


@dataclass(frozen=True)
class Csv:
    """One ``<name>.csv`` for each result that is a table; UTF-8, comma, header row, numbers with 3 decimals."""

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
        return written


def safe(frame: pl.DataFrame) -> pl.DataFrame:
    """Return ``frame`` with every text, also in the header, safe to open in a spreadsheet; lists become JSON text."""
    columns = []
    for column in frame:
        if isinstance(column.dtype, pl.List | pl.Struct | pl.Array):
            column = pl.Series(column.name, [None if value is None else dumps(value) for value in column.to_list()])
        if column.dtype in (pl.String, pl.Categorical, pl.Enum):
            column = csv_cells(column)
        columns.append(column.alias(csv_cell(column.name)))
    return pl.DataFrame(columns)
