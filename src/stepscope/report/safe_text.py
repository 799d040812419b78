r"""Text from a trace, made safe to be shown.

Names in a trace come from anywhere: kernels, file paths, user ranges, metadata. They are shown as what they are, text:
a terminal must not obey them, a spreadsheet must not compute them, and every file stays valid. Escapes are written
``\xNN`` (``\uNNNN`` above 255), so that the reader sees which character was there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
import polars as pl

#: Control characters (C0, DEL, C1), which a terminal or a line-based reader would obey.
_CONTROLS = r"\x00-\x1f\x7f-\x9f"
#: Invisible characters that reorder or hide the text around them, line separators, and halves of surrogate pairs.
_INVISIBLE = r"\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
_UNPRINTABLE = re.compile(f"[{_CONTROLS}{_INVISIBLE}]")
_CONTROL = re.compile(f"[{_CONTROLS}]")
_SURROGATE = re.compile("[\ud800-\udfff]")
#: Where a spreadsheet begins to compute (also in their full-width forms).
_FORMULA = re.compile("^[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
#: The same two questions for Polars, whose strings cannot hold surrogates.
_CSV_HOSTILE = r"^[=+\-@\t\r\n\x{ff1d}\x{ff0b}\x{ff0d}\x{ff20}]|[\x00-\x1f\x7f-\x9f]"


def printable(text: str) -> str:
    r"""Return ``text`` on one line without a character that a terminal obeys or that hides or reorders others.

    Line breaks, tabs, escape sequences, direction marks and lone surrogates become ``\xNN`` or ``\uNNNN``; everything
    else, also non-Latin text and emoji, stays.
    """
    return _UNPRINTABLE.sub(lambda match: _escape(match[0]), text)


def unprintable_as_json(json: str) -> str:
    r"""Return JSON with the characters that :func:`printable` escapes written as JSON's own ``\uNNNN``.

    Line breaks between values, which an indented document has, stay.
    """
    if json.isascii() and json.isprintable():
        return json
    return _UNPRINTABLE.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", json)


def storable(text: str) -> str:
    r"""Return ``text`` with lone surrogates, which no UTF-8 file can hold, written as ``\uNNNN``."""
    return text if text.isascii() else _SURROGATE.sub(lambda match: _escape(match[0]), text)


def json_bytes(value: object) -> bytes:
    """Return plain values as JSON in UTF-8; the path of a file may hold lone surrogates, which become storable."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_all_storable(value))


def _all_storable(value: object) -> object:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(key): _all_storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_all_storable(item) for item in value]
    return value


def csv_cell(text: str) -> str:
    r"""Return ``text`` as a CSV cell that a spreadsheet shows and does not compute, and that is one line.

    A text that begins with ``= + - @``, a tab or a line break gets an apostrophe in front; control characters become
    ``\xNN``. The field separator and quotes are the CSV writer's business. Numbers in numeric columns never pass here.
    """
    guard = "'" if _FORMULA.match(text) else ""
    return guard + _CONTROL.sub(lambda match: _escape(match[0]), storable(text))


def csv_cells(texts: Sequence[pl.Series]) -> list[pl.Series]:
    """Return text columns of any lengths with :func:`csv_cell` applied; only distinct hostile values cost time."""
    columns = [column.cast(pl.String) for column in texts]
    if not columns:
        return columns
    found = pl.concat([column.alias("") for column in columns]).str.contains(_CSV_HOSTILE)
    if not found.any():
        return columns
    hostile = np.flatnonzero(found.fill_null(value=False).to_numpy())
    ends = np.cumsum([len(column) for column in columns])
    for number in np.unique(np.searchsorted(ends, hostile, side="right")).tolist():
        column = columns[number]
        values = column.filter(column.str.contains(_CSV_HOSTILE)).unique().drop_nulls()
        columns[number] = column.replace(values, pl.Series([csv_cell(text) for text in values]))
    return columns


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
