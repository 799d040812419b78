"""Decoded values → columns, in bulk: the usual case runs without a Python call per value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from typing import Any

import msgspec
import numpy as np
import polars as pl

from stepscope.read.kineto_columns import Column, Integers
from stepscope.read.kineto_schema import ABSENT, BAD

#: The text of a value that is not there.
NOTHING = msgspec.Raw()
#: A number's place in a pool, given its text.
Code = Callable[[Any], int]

_INT64 = range(ABSENT + 1, -ABSENT)
_PLAIN_DECIMAL = r"^-?\d{1,16}\.\d{1,3}$"


def codes(values: list[Any], code: Code) -> Column:
    """Return the codes of texts or numbers; −1 where there is none."""
    if None in values:
        return np.array([-1 if value is None else code(value) for value in values], np.int32)
    return np.array(list(map(code, values)), np.int32)


def json_codes(values: list[Any], code: Code) -> Column:
    """Return the codes of JSON values as written; −1 where there is none, or null."""
    if values.count(NOTHING) == len(values):
        return np.full(len(values), -1, np.int32)
    found = [-1 if value is NOTHING else code(bytes(value)) for value in values]
    result = np.array(found, np.int32)
    result[np.isin(result, [code(b"null"), code(b"")])] = -1
    return result


def integers(values: list[Any], *, unsigned: bool) -> tuple[Integers, int]:
    """Return integers, absent where there is none, and how many were too large and are left out.

    Args:
        values: Integers, :data:`ABSENT` or None.
        unsigned: Numbers up to 2^64 are kept as the bits of signed ones.
    """
    try:
        return np.array(values, np.int64), 0
    except (OverflowError, TypeError):
        fitting = [_fitting(value, unsigned=unsigned) for value in values]
    large = fitting.count(None)
    return np.array([ABSENT if value is None else value for value in fitting], np.int64), large


def _fitting(value: int | None, *, unsigned: bool) -> int | None:
    """Return an integer that fits 64 bits; None where it cannot."""
    if value is None or value in _INT64:
        return ABSENT if value is None else value
    if unsigned and 0 <= value < 1 << 64:
        return value - (1 << 64)
    return None


def reals(values: list[Any]) -> Column:
    """Return real numbers, not-a-number where there is none."""
    return np.array([np.nan if value is None else value for value in values], np.float64)


def identifiers(values: list[Any], code: Code) -> Integers:
    """Return identifiers as numbers: texts like ``0x1f`` by their value, others by their place in the pool."""
    if values.count(None) == len(values):
        return np.full(len(values), ABSENT, np.int64)
    return np.array([ABSENT if value is None else _identifier(value, code) for value in values], np.int64)


def _identifier(value: int | str, code: Code) -> int:
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return (1 << 62) + code(value)
    return value if value in _INT64 else ABSENT


def times(sources: Sequence[bytes]) -> Integers:
    """Return times written in µs as ns, exactly; digits beyond the nanosecond are rounded half up.

    A time that is not there is :data:`ABSENT`; one that is no number, or lies outside 64 bits of ns, is :data:`BAD`.
    """
    texts = pl.Series(sources, dtype=pl.Binary).cast(pl.String, strict=False)
    whole = texts.cast(pl.Int64, strict=False)
    result = whole.fill_null(0).to_numpy() * 1000
    done = whole.is_not_null().to_numpy() & (np.abs(result // 1000) < 1 << 53)
    absent = (texts == "").fill_null(value=False).to_numpy()
    result[absent] = ABSENT
    rows = np.flatnonzero(~(done | absent))
    if len(rows):
        result[rows] = _decimals(texts.gather(rows), [sources[row] for row in rows.tolist()])
    return result


def _decimals(texts: pl.Series, sources: list[bytes]) -> Integers:
    plain = texts.str.contains(_PLAIN_DECIMAL).fill_null(value=False)
    exact = texts.cast(pl.Decimal(38, 3), strict=False).to_physical().cast(pl.Int64, strict=False)
    result = exact.fill_null(BAD).to_numpy().copy()
    for row in np.flatnonzero(~plain.to_numpy()).tolist():
        result[row] = unusual_time(sources[row])
    return result


def unusual_time(source: bytes) -> int:
    """Return a time that is not written as a plain number: with an exponent, more digits, as a text, or not at all."""
    if source in (b"", b"null"):
        return ABSENT
    try:
        with localcontext(prec=60):
            value = int((Decimal(source.strip(b'"').decode()) * 1000).quantize(Decimal(1), ROUND_HALF_UP))
    except (InvalidOperation, ValueError, OverflowError):
        return BAD
    return value if BAD < value < -ABSENT else BAD
