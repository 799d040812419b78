"""Decoded values → columns, in bulk: the usual case runs without a Python call per value."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any

import msgspec
import numpy as np
import polars as pl

from stepscope.read.chrome_json.columns import Column
from stepscope.read.chrome_json.event_schema import ABSENT, BAD
from stepscope.read.common.nesting import Integers

#: The text of an absent value.
NOTHING = msgspec.Raw()
#: Text → its code in a pool.
Code = Callable[[Any], int]

_INT64 = range(ABSENT + 1, -ABSENT)
# From µs to ns.
_DECIMALS = 3
_LARGEST = (1 << 63) - 1
# A number of so many digits and a point fits 64 bits.
_MOST_DIGITS = 18


def codes(values: Iterable[Any], code: Code) -> Column:
    """Return the codes of texts or numbers; −1 for None."""
    return np.fromiter(map(code, values), np.int32)


def json_codes(values: list[Any], code: Code) -> Column:
    """Return the codes of JSON values as written; −1 for absent ones and null."""
    if _all_are(NOTHING, values):
        return np.full(len(values), -1, np.int32)
    found = codes(map(bytes, values), code)
    found[(found == code(b"")) | (found == code(b"null"))] = -1
    return found


def _all_are(value: object, values: list[Any]) -> bool:
    return all(map(operator.is_, values, itertools.repeat(value)))


def integers(values: list[Any], *, unsigned: bool) -> tuple[Integers, int]:
    """Return integers (:data:`ABSENT` for None) and how many were too large; ``unsigned`` ones keep their 64 bits."""
    try:
        return np.array(values, np.int64), 0
    except (OverflowError, TypeError):
        fitting = [_fitting(value, unsigned=unsigned) for value in values]
    large = fitting.count(None)
    return np.array([ABSENT if value is None else value for value in fitting], np.int64), large


def _fitting(value: int | None, *, unsigned: bool) -> int | None:
    """Return an integer that fits 64 bits; None where it cannot."""
    if value is None or value == ABSENT:
        return ABSENT
    if value in _INT64:
        return value
    if unsigned and 0 <= value < 1 << 64:
        return value - (1 << 64)
    return None


def reals(values: list[Any]) -> Column:
    """Return real numbers; NaN for None."""
    return np.array([np.nan if value is None else value for value in values], np.float64)


def identifiers(values: list[Any], code: Code) -> Integers:
    """Return identifiers as numbers: texts like ``0x1f`` by their value, others by their code in the pool."""
    if _all_are(None, values):
        return np.full(len(values), ABSENT, np.int64)
    numbers = [ABSENT if value is None else value for value in values]
    if set(map(type, numbers)) == {int}:
        try:
            return np.array(numbers, np.int64)
        except OverflowError:
            pass
    return np.array([_identifier(value, code) for value in numbers], np.int64)


def _identifier(value: int | str, code: Code) -> int:
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return (1 << 62) + code(value)
    return value if value in _INT64 else ABSENT


def times(values: Sequence[msgspec.Raw]) -> Integers:
    """Return times written in µs as ns, exactly; digits beyond the nanosecond are rounded half up.

    An absent time is :data:`ABSENT`; one that is not a number, or exceeds 64 bits of ns, is :data:`BAD`.
    """
    joined = b"\n".join(values)
    usual = _usual_times(joined, len(values))
    if usual is not None:
        return usual
    texts = split(values)
    length, point = texts.str.len_bytes(), texts.str.find(".", literal=True)
    decimals = (length - point - 1).fill_null(0).to_numpy()
    digits = texts.str.replace(".", "", literal=True).cast(pl.Int64, strict=False)
    known = digits.is_not_null().to_numpy() & (decimals <= _DECIMALS)
    scale = 10 ** (_DECIMALS - np.where(known, decimals, _DECIMALS).astype(np.int64))
    number = digits.fill_null(0).to_numpy()
    plain = known & (np.abs(number) <= _LARGEST // scale)
    result: Integers = number * scale
    absent = length == 0
    result[absent.to_numpy()] = ABSENT
    for row in np.flatnonzero(~(plain | absent.to_numpy())).tolist():
        result[row] = unusual_time(bytes(values[row]))
    return result


def _usual_times(joined: bytes, count: int) -> Integers | None:
    """Return times, a line each, empty if absent, if all have the same number of decimals, up to three; else None."""
    text = np.frombuffer(joined + b"\n", np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    length = np.diff(ends, prepend=-1) - 1
    there = length > 0
    points = joined.count(b".")
    if len(ends) != count or length.max(initial=0) > _MOST_DIGITS or points not in (0, int(there.sum())):
        return None
    decimals = 0
    if points:
        place = np.flatnonzero(text == ord("."))
        behind = ends[there] - place - 1
        decimals = int(behind[0])
        if not 0 < decimals <= _DECIMALS or (behind != decimals).any() or (place <= ends[there] - length[there]).any():
            return None
    digits = joined.replace(b".", b"")
    if digits.translate(None, b"0123456789\n"):
        return None
    numbers = np.fromstring(digits.decode(), np.int64, sep="\n")
    scale = 10 ** (_DECIMALS - decimals)
    if numbers.max(initial=0) > _LARGEST // scale:
        return None
    result = np.full(count, ABSENT, np.int64)
    result[there] = numbers * scale
    return result


def split(values: Sequence[msgspec.Raw]) -> pl.Series:
    """Return values as texts: joined and split again, which costs a fifth of making an object of each."""
    joined = b"\n".join(values)
    if values and joined.count(b"\n") == len(values) - 1:
        return pl.Series([joined.decode("utf-8", "replace")]).str.split("\n").explode()
    return pl.Series([bytes(value).decode("utf-8", "replace") for value in values], dtype=pl.String)


def unusual_time(source: bytes) -> int:
    """Return a time that is not written as a plain number: with an exponent, more digits, as a text, or not at all."""
    if source in (b"", b"null"):
        return ABSENT
    try:
        with localcontext(prec=60):
            value = int((Decimal(source.strip(b'"').decode()) * 1000).quantize(Decimal(1), ROUND_HALF_UP))
    except (ArithmeticError, ValueError):
        return BAD
    return value if BAD < value < -ABSENT else BAD
