"""What the others do: the median of the peers of each rank, link or stage, itself left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl


def median_of_others(frame: pl.DataFrame, by: Sequence[str], column: str) -> pl.Series:
    """Return the median of a column over the other rows that are equal in ``by``; null if the row is the only one."""
    values = frame[column].to_numpy()
    group = frame.select(pl.struct(by).rank("dense"))[by[0]].to_numpy().astype(np.int64)
    order = np.lexsort((values, group))
    ordered, group = values[order], group[order]
    begin = np.searchsorted(group, group)
    others = np.searchsorted(group, group, side="right") - begin - 1
    place = np.arange(len(group)) - begin
    middle = np.zeros(len(group))
    for half in ((others - 1) // 2, others // 2):
        half = np.maximum(half, 0)
        middle += ordered[np.minimum(begin + half + (half >= place), len(ordered) - 1)] / 2 if len(ordered) else 0
    result = np.empty(len(group))
    result[order] = np.where(others > 0, middle, np.nan)
    return pl.Series(result).fill_nan(None)
