"""From nanoseconds and bytes to the units of the result files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import polars as pl

from stepscope.analyse.intervals import Times

#: Type of a time since the epoch in µs with three decimals: exact, where a float has steps of a quarter of a µs.
TIMESTAMP = pl.Decimal(38, 3)

MEBIBYTE = 1024 * 1024


@cache
def us(column: str) -> pl.Expr:
    """Return integer nanoseconds as µs: the float nearest to the exact value, so that it prints with three decimals.

    Polars divides by multiplying with the reciprocal, which is one unit in the last place off for one value in eight;
    rounding puts that right.
    """
    return (pl.col(column) / 1000).round(3)


@cache
def timestamp_us(column: str) -> pl.Expr:
    """Return integer nanoseconds since the epoch as µs, exactly."""
    return (pl.col(column).cast(TIMESTAMP) / 1000).cast(TIMESTAMP)


def timestamps_us(times: Times) -> pl.Series:
    """Return integer nanoseconds since the epoch as µs, see :func:`timestamp_us`."""
    return pl.Series("", times, pl.Int64).to_frame().select_seq(timestamp_us("")).to_series()


@cache
def mib(column: str) -> pl.Expr:
    """Return bytes as MB of 1024 x 1024 bytes, as the deliverables of torch_npu do."""
    return pl.col(column) / MEBIBYTE


def titled(columns: Mapping[str, str | pl.Expr]) -> list[pl.Expr]:
    """Return columns, by name or as expressions, under their titles in a result file."""
    return [(pl.col(column) if isinstance(column, str) else column).alias(title) for title, column in columns.items()]
