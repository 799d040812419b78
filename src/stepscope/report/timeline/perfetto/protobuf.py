"""Protocol-buffer messages by column: many messages of one shape at once, as a matrix of bytes.

A field has one width in all rows, that of its largest value. Smaller values are padded: a varint may carry leading
groups of zeros, which every decoder accepts. So no message is built on its own, and a million take a second or two.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

#: One message (or part of one) per row, in uint8.
Matrix = npt.NDArray[np.uint8]

_VARINT, _FIXED64, _LENGTH = 0, 1, 2


def varint(number: int) -> bytes:
    """Return ``number`` (not negative) as a varint."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def integer(field: int, number: int) -> bytes:
    """Return an integer, enum or bool field."""
    return varint(field << 3 | _VARINT) + varint(number)


def block(field: int, content: bytes) -> bytes:
    """Return a bytes or message field."""
    return varint(field << 3 | _LENGTH) + varint(len(content)) + content


def text(field: int, content: str) -> bytes:
    """Return a string field; what UTF-8 cannot hold is replaced."""
    return block(field, content.encode("utf-8", "replace"))


def integers(field: int, column: npt.NDArray[np.int64]) -> Matrix:
    """Return an integer field of each row; negative numbers as two's complement, as int64 fields have them."""
    values = column.astype(np.uint64)
    width = len(varint(int(values.max(initial=0))))
    groups = values[:, None] >> (np.uint64(7) * np.arange(width, dtype=np.uint64))
    out = (groups & np.uint64(0x7F)).astype(np.uint8)
    out[:, :-1] |= 0x80
    return beside(len(column), varint(field << 3 | _VARINT), out)


def doubles(field: int, column: npt.NDArray[np.float64]) -> Matrix:
    """Return a double field of each row."""
    return beside(len(column), varint(field << 3 | _FIXED64), column.astype("<f8").view(np.uint8).reshape(-1, 8))


def fixed64(field: int, column: npt.NDArray[np.int64]) -> Matrix:
    """Return a fixed64 field of each row."""
    return beside(len(column), varint(field << 3 | _FIXED64), column.astype("<u8").view(np.uint8).reshape(-1, 8))


def blocks(field: int, content: Matrix) -> Matrix:
    """Return a message field of each row."""
    return beside(len(content), varint(field << 3 | _LENGTH) + varint(content.shape[1]), content)


def beside(rows: int, *parts: bytes | Matrix) -> Matrix:
    """Put parts beside each other in each of ``rows`` rows; bytes are the same in all."""
    columns: list[Matrix] = []
    for part in parts:
        if isinstance(part, bytes):
            part = np.broadcast_to(np.frombuffer(part, np.uint8), (rows, len(part)))
        columns.append(part)
    return np.concatenate(columns, axis=1)


def interleave(total: int, groups: Iterable[tuple[npt.NDArray[np.int64], Matrix]]) -> bytes:
    """Return messages of several shapes in one order.

    Args:
        total: Number of messages.
        groups: Per shape, the index of each message in the order, and the messages.
    """
    groups = list(groups)
    width = np.zeros(total, np.int64)
    for places, messages in groups:
        width[places] = messages.shape[1]
    start = np.cumsum(width) - width
    out = np.zeros(int(width.sum()), np.uint8)
    for places, messages in groups:
        if len(places):
            rows = np.lib.stride_tricks.sliding_window_view(out, messages.shape[1], writeable=True)
            rows[start[places]] = messages
    return out.tobytes()
