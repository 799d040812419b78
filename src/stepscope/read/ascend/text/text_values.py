"""Texts of Ascend's files → numbers, in bulk; empty cells and ``N/A`` are null, other texts are counted too.

Times are µs as decimal text, with up to three decimals and sometimes more; they never pass through a float.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import polars as pl

from stepscope.read.chrome_json.decoded_values import unusual_time
from stepscope.read.chrome_json.event_schema import BAD
from stepscope.read.common.plain_text import json_of
from stepscope.trace.ascend_columns import BYTES
from stepscope.trace.losses import LossLedger

#: Texts that mean “unknown”, in lower case.
NOTHING = ("", "n/a", "na", "nan", "none", "null", "-")

_MOST = 1 << 62
_PLAIN = r"^(\d{1,17})(?:\.(\d{1,40}))?$"
_WHOLE = r"^([+-]?\d{1,19})(?:\.0*)?$"


def json_object(text: str, ledger: LossLedger, *, strict: bool = True) -> dict[str, Any]:
    """Return a JSON object; for anything else an empty one, and a loss. ``strict``: its texts have no newlines."""
    try:
        found = json_of(text, strict=strict)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    ledger.add("value_unreadable")
    return {}


@cache
def _cleaned() -> pl.Expr:
    """Return texts without white space and quotes around them; null for the texts of :data:`NOTHING`."""
    text = pl.first().cast(pl.String).str.strip_chars(' \t\r\n"')
    return pl.when(~text.str.to_lowercase().is_in(NOTHING)).then(text)


def _made(column: pl.Series, *made: pl.Expr) -> tuple[pl.Series, ...]:
    """Return the cleaned texts of a column and the values made of them, with one plan each: columns are short."""
    text = column.to_frame("text").select(_cleaned().alias("text"))
    found = text.select(one.alias(str(place)) for place, one in enumerate(made))
    return (text.to_series(), *(one.alias(column.name) for one in found))


def ns(column: pl.Series, ledger: LossLedger, scale: int = 1) -> pl.Series:
    """Return times in ns, rounded half up; null for other texts.

    Args:
        column: Times as text.
        ledger: Counts the other texts.
        scale: µs of one unit: 1000 if the texts are milliseconds.
    """
    decimals = len(str(1000 * scale)) - 1
    parts = pl.first().str.extract_groups(_PLAIN)
    digits = parts.struct.field("2").fill_null("").str.slice(0, decimals + 1).str.pad_end(decimals + 1, "0")
    number = parts.struct.field("1").cast(pl.Int64, strict=False)
    whole = pl.when(number <= _MOST // (1000 * scale)).then(number * (1000 * scale))
    text, value = _made(column, whole + (digits.cast(pl.Int64, strict=False) + 5) // 10)
    if value.null_count() == text.null_count():
        return value
    odd = (text.is_not_null() & value.is_null()).arg_true()
    repaired = pl.Series([_odd(source, scale) for source in text.gather(odd).to_list()], dtype=pl.Int64)
    ledger.add("value_unreadable", repaired.null_count())
    return value.scatter(odd, repaired)


def _odd(text: str, scale: int) -> int | None:
    value = unusual_time(text.encode("ascii", "replace"))
    return None if value <= BAD or abs(value) > _MOST // scale else value * scale


def integers(column: pl.Series, ledger: LossLedger) -> pl.Series:
    """Return whole numbers; null for other texts and for numbers of more than 64 bits."""
    text, value = _made(column, pl.first().str.extract(_WHOLE, 1).str.strip_prefix("+").cast(pl.Int64, strict=False))
    ledger.add("value_unreadable", value.null_count() - text.null_count())
    return value


def reals(column: pl.Series, ledger: LossLedger) -> pl.Series:
    """Return real numbers; null for other texts and for infinite numbers."""
    number = pl.first().cast(pl.Float64, strict=False)
    text, value = _made(column, pl.when(number.is_finite()).then(number))
    ledger.add("value_unreadable", value.null_count() - text.null_count())
    return value


def sizes(column: pl.Series, unit: str, ledger: LossLedger) -> pl.Series:
    """Return sizes in bytes of numbers of KB or MB (of 1024); a negative number means “unknown” and is null."""
    number = pl.first() * BYTES.get(unit, 1)
    value = reals(column, ledger).to_frame()
    return value.select(
        pl.when((number >= 0) & (number < float(_MOST))).then(number.round(0)).cast(pl.Int64)
    ).to_series()


def texts(column: pl.Series) -> pl.Series:
    """Return texts as categories."""
    return column.to_frame().select(_cleaned().cast(pl.Categorical())).to_series().alias(column.name)


def quoted(column: pl.Series) -> pl.Series:
    """Return texts that have quotes of their own, as categories; ``""`` is known, and empty."""
    text = pl.first().cast(pl.String).str.strip_chars(" \t\r\n")
    known = pl.when(~text.str.to_lowercase().is_in(NOTHING)).then(text.str.strip_chars('"'))
    return column.to_frame().select(known.cast(pl.Categorical())).to_series().alias(column.name)


def whole(column: pl.Series) -> pl.Series:
    """Return texts unchanged, as categories; null if they are empty."""
    text = column.cast(pl.String)
    return text.set(text == "", None).cast(pl.Categorical())
