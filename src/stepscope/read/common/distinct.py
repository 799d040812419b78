"""Columns made of columns with few distinct values: Python sees each combination once.

A capture has many columns and tables, most of them short. A Polars plan that uses other threads costs as much for one
row as for ten thousand. The functions here use no other threads, and cost no more for millions of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.common.dense import distinct_rows, first_places, places
from stepscope.read.common.nesting import Integers, looked_up
from stepscope.trace.tables import of_columns

_TEXT = pl.Categorical()
#: Numbers of texts, truths and values of an enumeration are never negative, so −1 stands for null.
_CODES = pl.all().to_physical().cast(pl.Int64).fill_null(-1)
_ZERO = pl.Series([0])


def of_each(make: Callable[..., object], *columns: pl.Series, dtype: pl.DataType = _TEXT) -> pl.Series:
    """Return what is made of each row's values, as a column with the name of the first.

    Args:
        make: Called with the values of columns, once for each distinct combination of them; null is None.
        columns: Integers, truths, or categorical texts.
        dtype: Type of what is made.
    """
    rows, number = combinations(*columns)
    name, made = columns[0].name, [make(*row) for row in rows]
    return same(name, made[0], len(number), dtype) if len(made) == 1 else pl.Series(name, made, dtype)[places(number)]


def combinations(*columns: pl.Series) -> tuple[list[tuple[Any, ...]], Integers]:
    """Return the distinct combinations of values in order of appearance, and for each row the number of its own."""
    height = len(columns[0])
    if height and all(column.null_count() == height for column in columns):
        return [(None,) * len(columns)], np.zeros(height, np.int64)
    first, number = distinct_rows(_comparable(columns))
    rows = places(first)
    return list(zip(*(column[rows].to_list() for column in columns), strict=True)), number


def _comparable(columns: Sequence[pl.Series]) -> list[npt.NDArray[Any]]:
    """Return numbers that are equal exactly where the values are; for nulls of integers, others say which they are."""
    others = [column.alias(str(place)) for place, column in enumerate(columns) if column.dtype != pl.Int64]
    found = [one.to_numpy() for one in of_columns(others).select_seq(_CODES).get_columns()] if others else []
    for column in (one for one in columns if one.dtype == pl.Int64):
        if column.null_count():
            missing = is_missing(column)
            found += [_ZERO.zip_with(pl.Series(missing), column).to_numpy(), missing.astype(np.int8)]
        else:
            found.append(column.to_numpy())
    return found


def is_missing(column: pl.Series) -> npt.NDArray[np.bool_]:
    """Return which of a column's integers are null."""
    # With nulls, numpy has reals: they have not all digits, but say which are null.
    return np.isnan(column.to_numpy()) if column.null_count() else np.zeros(len(column), np.bool_)


def where(mask: pl.Series, column: pl.Series) -> pl.Series:
    """Return a column; null where the mask is not true."""
    return column.zip_with(mask, pl.Series([None], dtype=column.dtype))


def same(name: str, value: object, height: int, dtype: pl.DataType = _TEXT) -> pl.Series:
    """Return a column of so many rows with the same value."""
    return pl.Series(name, [value], dtype=dtype).new_from_index(0, height)


def filled(column: pl.Series, value: object) -> pl.Series:
    """Return a column with a value in place of null."""
    if value is None or not column.null_count():
        return column
    return column.zip_with(column.is_not_null(), pl.Series([value], dtype=column.dtype))


def of_all(make: Callable[[Any], object], columns: Sequence[pl.Series]) -> list[pl.Series]:
    """Return what is made of each text of columns of equal length, with one look at each distinct text of all."""
    if not columns:
        return []
    made, height = of_each(make, pl.concat(columns)), len(columns[0])
    return [made.slice(place * height, height).alias(one.name) for place, one in enumerate(columns)]


def found(wanted: pl.Series, keys: pl.Series) -> pl.Series:
    """Return the first position of each number or text among keys; null for others, and for null."""
    if wanted.dtype == pl.Categorical:
        both = pl.concat([wanted, keys])
        number = where(both.is_not_null(), pl.Series(combinations(both)[1], dtype=pl.Int64))
        wanted, keys = number[: len(wanted)], number[len(wanted) :]
    if not wanted.null_count() and not keys.null_count():
        return places(first_places(keys.to_numpy(), wanted.to_numpy()))
    asked, known = ~is_missing(wanted), ~is_missing(keys)
    numbers = (column.filter(pl.Series(mask)).to_numpy() for column, mask in ((keys, known), (wanted, asked)))
    place = np.full(len(wanted), -1)
    place[asked] = looked_up(np.flatnonzero(known), first_places(*numbers))
    return places(place)


def nth(column: pl.Series) -> pl.Series:
    """Return how many rows before each have the same value."""
    _, number = combinations(column)
    order = np.argsort(number, kind="stable")
    first = np.searchsorted(number[order], number[order])
    result = np.empty(len(number), np.int64)
    result[order] = np.arange(len(number)) - first
    return pl.Series("nth", result)


def ordered(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """Return rows sorted by a column, stably; most columns come sorted."""
    return frame if frame[column].is_sorted() else frame.sort(column, maintain_order=True)


def either(column: pl.Series, other: pl.Series) -> pl.Series:
    """Return a column with the value of another in place of null."""
    return column.zip_with(column.is_not_null(), other) if column.null_count() else column


def without_nulls(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Return the rows in which none of the columns is null."""
    return frame.drop_nulls(columns) if any(frame[name].null_count() for name in columns) else frame
