"""Text that repeats, kept once: columns of names become columns of small integers."""

from __future__ import annotations

import json

import numpy as np
import polars as pl

from stepscope.report.files.json_results import dumps


class Vocabulary:
    """Distinct texts, numbered from 0 in the order they came."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.json: list[str] = []

    def __len__(self) -> int:
        return len(self.texts)

    def add(self, column: pl.Series, *, is_json: bool = False) -> pl.Series:
        """Add a column's texts and return their numbers (UInt32), null where the column is null.

        Args:
            column: Text, dictionary-encoded or not.
            is_json: Whether the texts are JSON; one that is not valid is taken as plain text.
        """
        column = column if isinstance(column.dtype, pl.Categorical) else column.cast(pl.Categorical)
        codes = column.to_physical()
        distinct = column.unique(maintain_order=True).drop_nulls()
        if distinct.is_empty():
            return pl.Series(column.name, codes, dtype=pl.UInt32)
        first = len(self.texts)
        for text in distinct.cast(pl.String):
            self.texts.append(text)
            self.json.append(_canonical(text) if is_json else dumps(text))
        numbers = np.zeros(int(codes.max()) + 1, np.uint32)  # type: ignore[arg-type]
        numbers[distinct.to_physical().to_numpy()] = np.arange(first, len(self.texts), dtype=np.uint32)
        return pl.Series(column.name, numbers).gather(codes)


def _canonical(text: str) -> str:
    try:
        return dumps(json.loads(text))
    except (ValueError, RecursionError):
        return dumps(text)
