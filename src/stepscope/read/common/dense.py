"""Distinct values, matches and nulls in long columns of small integers, found without sorting."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.common.nesting import Integers

# A table of this many entries beside a column costs less than sorting the column.
_SMALL_TABLE = 1 << 20


def distinct_rows(columns: Sequence[npt.NDArray[Any]]) -> tuple[Integers, Integers]:
    """Find the distinct combinations of integer columns of equal length.

    Returns:
        The row in which each combination occurs first, ascending; and for each row the number of its combination.
    """
    combined, count = _dense(columns[0])
    for column in columns[1:]:
        values, distinct = _dense(column)
        if count * distinct >= 1 << 31:
            combined = combined.astype(np.int64)
        combined, count = _dense(combined * distinct + values)
    first = np.full(count, len(combined), np.int64)
    # Assigned backwards: the first row of each combination is written last and stays.
    first[combined[::-1]] = np.arange(len(combined) - 1, -1, -1)
    order = np.argsort(first)
    number = np.empty(count, np.int64)
    number[order] = np.arange(count)
    return first[order], number[combined]


def _dense(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], int]:
    """Number the distinct values of a column in ascending order; return the numbers and how many there are."""
    if not len(values):
        return np.zeros(0, np.int32), 0
    low, high = int(values.min()), int(values.max())
    if low == high:
        return np.zeros(len(values), np.int32), 1
    if high - low > max(_SMALL_TABLE, 4 * len(values)):
        found, inverse = np.unique(values, return_inverse=True)
        return inverse, len(found)
    offset = values if low == 0 else values.astype(np.int64) - low
    seen = np.zeros(high - low + 1, np.bool_)
    seen[offset] = True
    number = np.cumsum(seen, dtype=np.int32) - np.int32(1)
    return number[offset], int(number[-1]) + 1


def or_null(name: str, numbers: Integers) -> pl.Series:
    """Return numbers as a column, with null in place of negative ones."""
    return without(pl.Series(name, numbers, dtype=pl.Int64), numbers < 0)


def nullable(values: npt.NDArray[Any], absent: float) -> pl.Series:
    """Return integers or reals as a column, with null in place of the value ``absent``, which may be NaN."""
    missing = np.isnan(values) if absent != absent else values == absent
    if missing.all():
        return _null(pl.Int64()).new_from_index(0, len(values))
    return without(pl.Series(values), missing)


def places(numbers: Integers) -> pl.Series:
    """Return row numbers as Polars indexes with them, with null in place of −1.

    They are unsigned: Polars searches signed ones for negative values first, and refuses nulls on an empty column.
    """
    return without(pl.Series(numbers.astype(np.uint32)), numbers < 0)


def without(column: pl.Series, missing: npt.NDArray[np.bool_]) -> pl.Series:
    """Return a column with null where a value is missing."""
    if not missing.any():
        return column
    return _null(column.dtype).zip_with(pl.Series(missing), column).alias(column.name)


@cache
def _null(kind: pl.DataType) -> pl.Series:
    return pl.Series([None], dtype=kind)


def first_places(keys: Integers, wanted: Integers) -> Integers:
    """Return for each wanted number its first position among the keys; −1 if it is not among them."""
    if not len(keys) or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    low, high = int(keys.min()), int(keys.max())
    if high - low > max(_SMALL_TABLE, 4 * len(keys)):
        found, first = np.unique(keys, return_index=True)
        place = np.minimum(np.searchsorted(found, wanted), len(found) - 1)
        return np.where(found[place] == wanted, first[place], -1)
    # The last entry stands for all numbers outside the table.
    table = np.full(high - low + 2, -1, np.int64)
    table[keys[::-1] - low] = np.arange(len(keys) - 1, -1, -1)
    inside = (wanted >= low) & (wanted <= high)
    result: Integers = table[np.where(inside, wanted - low, -1)]
    return result
