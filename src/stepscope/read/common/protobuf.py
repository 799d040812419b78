"""Fields of protocol-buffer messages by column: many messages of one shape at once, also of damaged files.

The counterpart of ``report/timeline/perfetto/protobuf.py``. A library refuses a damaged file as a whole, and makes an
object of every message; here the fields of all messages are columns, and what lies before a damage is there. Which
fields there are, and what their values mean, the caller says: the wire format only tells integers, fixed words and
blocks apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.common.nesting import Integers
from stepscope.read.common.plain_text import printable
from stepscope.trace.losses import LossLedger

Bytes: TypeAlias = npt.NDArray[np.uint8]
#: Number of the field, kind on the wire, integer value or bytes, first place of the value, first place behind it.
_Field: TypeAlias = tuple[int, int, int, int, int]

VARINT, FIXED64, BLOCK, FIXED32 = 0, 1, 2, 5
#: Not on the wire: a block that its message ends in, and bytes that are not a field.
CUT_BLOCK, DAMAGED = 6, 7
_FIXED = {FIXED64: 8, FIXED32: 4}
#: A varint of 64 bits, in groups of 7.
_LONGEST = 10
_SHIFTS = np.uint64(7) * np.arange(_LONGEST, dtype=np.uint64)
#: Behind the content, so that a varint at its end can be looked at without asking how long it may be.
PADDING = bytes(_LONGEST)
_LARGEST = (1 << 63) - 1
#: Fewer messages than this are read one by one: numpy's calls would cost more.
FEW_MESSAGES = 24


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages of one kind, as places in a buffer.

    Attributes:
        content: The buffer, with :data:`PADDING` behind.
        start: First place of each message.
        end: First place behind each message.
    """

    content: bytes | bytearray
    start: Integers
    end: Integers

    @staticmethod
    def whole(content: bytes) -> Messages:
        """Return the one message that a file is."""
        return Messages(content + PADDING, np.zeros(1, np.int64), np.full(1, len(content), np.int64))

    def __len__(self) -> int:
        return len(self.start)

    def fields(self) -> Fields:
        """Return the fields of all messages."""
        at, owners = self.start.copy(), np.flatnonzero(self.start < self.end)
        broken = np.zeros(len(self), np.bool_)
        buffer = np.frombuffer(self.content, np.uint8)
        parts = [np.empty((0, 6), np.int64)]
        while len(owners) >= FEW_MESSAGES:
            found, sound = _next_fields(buffer, at[owners], self.end[owners])
            broken[owners[~sound]] = True
            kept = sound | (found[:, 1] == CUT_BLOCK)
            parts.append(np.column_stack([owners[kept], found[kept]]))
            at[owners] = found[:, 4]
            owners = owners[sound & (found[:, 4] < self.end[owners])]
        for owner in owners.tolist():
            rows = list(fields_of(self.content, int(at[owner]), int(self.end[owner])))
            broken[owner] = bool(rows) and rows[-1][1] in (CUT_BLOCK, DAMAGED)
            own = np.array([row for row in rows if row[1] != DAMAGED], np.int64).reshape(-1, 5)
            parts.append(np.column_stack([np.full(len(own), owner), own]))
        table = np.concatenate(parts)
        return Fields(self, table[np.argsort(table[:, 0], kind="stable")], broken)


@dataclass(frozen=True, eq=False)
class Fields:
    """The fields of messages, in order of message and place.

    Attributes:
        messages: The messages.
        table: A row per field: message, number of the field, kind on the wire, value, first place of the value, first
            place behind it.
        broken: Which messages hold bytes that are not a field, or end in the middle of one; what comes before is there.
    """

    messages: Messages
    table: Integers
    broken: npt.NDArray[np.bool_]
    _texts: dict[bytes, str] = field(default_factory=dict)

    def integers(self, number: int) -> pl.Series:
        """Return an integer field of each message, 64 bits; null where it is missing."""
        return self._last(number, VARINT, 3)

    def floats(self, number: int) -> pl.Series:
        """Return a float field (32 bits) of each message; null where it is missing."""
        words = self._last(number, FIXED32, 3)
        if not len(words):
            return pl.Series([], dtype=pl.Float32)
        values = words.fill_null(0).to_numpy().astype(np.uint32).view(np.float32)
        return pl.Series(values).set(words.is_null(), None)

    def doubles(self, number: int) -> pl.Series:
        """Return a double field (64 bits) of each message; null where it is missing."""
        words = self._last(number, FIXED64, 3)
        if not len(words):
            return pl.Series([], dtype=pl.Float64)
        return pl.Series(words.fill_null(0).to_numpy().view(np.float64)).set(words.is_null(), None)

    def texts(self, number: int, ledger: LossLedger) -> pl.Series:
        """Return a text field of each message; null where it is missing. Bytes that are not UTF-8 are escaped."""
        start, end = self._last(number, BLOCK, 4), self._last(number, BLOCK, 5)
        content = self.messages.content
        return pl.Series(
            [
                None if first is None else self._text(content[first:behind], ledger)
                for first, behind in zip(start.to_list(), end.to_list(), strict=True)
            ],
            dtype=pl.String,
        )

    def every_integer(self, number: int, wire: int = VARINT) -> tuple[Integers, Integers]:
        """Return the values of an integer field that may repeat, and for each the message that it lies in."""
        rows = self._rows(number, wire)
        return rows[:, 0], rows[:, 3]

    def packed_integers(self, number: int) -> tuple[Integers, Integers]:
        """Return the values of a repeated integer field, packed or not, and for each the message that it lies in.

        Of a block that ends inside a value, the values before it are there.
        """
        loose = self._rows(number, VARINT)
        blocks = self._rows(number, BLOCK)
        owners, values = _values_of(np.frombuffer(self.messages.content, np.uint8), blocks)
        owners, values = np.concatenate([loose[:, 0], owners]), np.concatenate([loose[:, 3], values])
        order = np.argsort(owners, kind="stable")
        return owners[order], values[order]

    def every_text(self, number: int, ledger: LossLedger) -> tuple[Integers, list[str]]:
        """Return the values of a text field that may repeat, and for each the message that it lies in."""
        rows = self._rows(number, BLOCK)
        content = self.messages.content
        return rows[:, 0], [self._text(content[start:end], ledger) for start, end in rows[:, 4:6].tolist()]

    def within(self, number: int, *, cut: bool = False) -> tuple[Integers, Messages]:
        """Return the messages in a field, and for each the message that it lies in.

        Args:
            number: Number of the field.
            cut: Whether to return also what is left of a message that the outer one ends in.
        """
        rows = self.table[np.isin(self._key, (number << 3 | BLOCK, number << 3 | CUT_BLOCK if cut else -1))]
        return rows[:, 0], Messages(self.messages.content, rows[:, 4], rows[:, 5])

    @cached_property
    def _key(self) -> Integers:
        key: Integers = self.table[:, 1] << 3 | self.table[:, 2]
        return key

    def _rows(self, number: int, wire: int) -> Integers:
        rows: Integers = self.table[self._key == number << 3 | wire]
        return rows

    def _last(self, number: int, wire: int, column: int) -> pl.Series:
        """Return a column of the last field of this number in each message, as the format wants it; else null."""
        rows = self._rows(number, wire)
        value = np.zeros(len(self.messages), np.int64)
        known = np.zeros(len(self.messages), np.bool_)
        value[rows[:, 0]] = rows[:, column]
        known[rows[:, 0]] = True
        if not known.any():
            return pl.Series([None], dtype=pl.Int64).new_from_index(0, len(value))
        return pl.Series(value) if known.all() else pl.Series(value).scatter(np.flatnonzero(~known), None)

    def _text(self, content: bytes | bytearray, ledger: LossLedger) -> str:
        source = bytes(content)
        text = self._texts.get(source)
        if text is None:
            text = printable(source.decode("utf-8", "surrogateescape"))
            ledger.add("text_not_utf8", int(not _is_utf8(source)))
            self._texts[source] = text
        return text


def _is_utf8(source: bytes) -> bool:
    try:
        source.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _next_fields(buffer: Bytes, at: Integers, end: Integers) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Return the field at each place as number, wire, value, start, end; and which of them are sound."""
    key, behind, sound = _varints(buffer, at)
    wire = (key & np.uint64(7)).astype(np.int64)
    number = (key >> np.uint64(3)).astype(np.int64)
    value, after, whole = _varints(buffer, np.minimum(behind, end))
    has_varint = (wire == VARINT) | (wire == BLOCK)
    start = np.where(has_varint, after, behind)
    stop = start.copy()
    for kind, width in _FIXED.items():
        chosen = wire == kind
        stop[chosen] += width
        value[chosen] = _words(buffer, np.minimum(start, end)[chosen], width)
    sound &= (number > 0) & (number < 1 << 29) & (start <= end) & (whole | ~has_varint)
    sound &= np.isin(wire, (VARINT, FIXED64, BLOCK, FIXED32))
    blocks = sound & (wire == BLOCK)
    fitting = value <= np.maximum(end - start, 0).astype(np.uint64)
    stop[blocks & fitting] += value[blocks & fitting].astype(np.int64)
    cut = blocks & ~fitting
    sound &= (stop <= end) & ~cut
    wire[cut], stop[cut] = CUT_BLOCK, end[cut]
    value[cut] = np.minimum(value[cut], np.uint64(_LARGEST))
    wire[~sound & ~cut] = -1
    return np.column_stack([number, wire, value.astype(np.int64), start, stop]), sound


def _varints(buffer: Bytes, at: Integers) -> tuple[Any, Integers, npt.NDArray[np.bool_]]:
    """Return the varint at each place, the place behind it, and whether it ends within 64 bits."""
    groups = buffer[at[:, None] + np.arange(_LONGEST)]
    continues = groups >= 0x80
    length = np.argmin(continues, axis=1) + 1
    whole = ~continues.all(axis=1)
    used = np.arange(_LONGEST) < length[:, None]
    bits = np.where(used, groups & np.uint8(0x7F), np.uint8(0)).astype(np.uint64) << _SHIFTS
    return np.bitwise_or.reduce(bits, axis=1), at + length, whole


def _values_of(buffer: Bytes, blocks: Integers) -> tuple[Integers, Integers]:
    """Return the varints that blocks consist of, and for each the message of its block (column 0 of the rows)."""
    start, length = blocks[:, 4], blocks[:, 5] - blocks[:, 4]
    ends = np.cumsum(length)
    at = np.arange(int(length.sum()), dtype=np.int64) + np.repeat(start - (ends - length), length)
    last = at[buffer[at] < 0x80]
    block = np.searchsorted(ends, np.flatnonzero(buffer[at] < 0x80), side="right")
    before = np.empty_like(last)
    before[1:] = last[:-1] + 1
    new = np.flatnonzero(np.diff(block, prepend=-1))
    before[new] = start[block[new]]
    whole = last - before < _LONGEST
    values, _, _ = _varints(buffer, before[whole])
    return blocks[block[whole], 0], values.astype(np.int64)


def _words(buffer: Bytes, at: Integers, width: int) -> Any:  # noqa: ANN401 - unsigned integers
    shifts = np.uint64(8) * np.arange(width, dtype=np.uint64)
    return np.bitwise_or.reduce(buffer[at[:, None] + np.arange(width)].astype(np.uint64) << shifts, axis=1)


def fields_of(content: bytes | bytearray, at: int, end: int) -> Iterator[_Field]:
    """Yield what :func:`_next_fields` returns, for all fields of one message; last :data:`DAMAGED` where it is not."""
    while at < end:
        key, start = varint(content, at)
        number, wire = key >> 3, key & 7
        value = 0
        if wire in (VARINT, BLOCK) and 0 < start <= end:
            value, start = varint(content, start)
        stop = start + (value if wire == BLOCK else _FIXED.get(wire, 0))
        known = 0 < number < 1 << 29 and wire in (VARINT, FIXED64, BLOCK, FIXED32)
        if not 0 < start <= end or not known or (stop > end and wire != BLOCK):
            yield 0, DAMAGED, 0, at, end
            return
        if stop > end:
            yield number, CUT_BLOCK, min(value, _LARGEST), start, end
            return
        if wire in _FIXED:
            value = int.from_bytes(content[start:stop], "little")
        yield number, wire, value - (1 << 64) if value >> 63 else value, start, stop
        at = stop


def varint(content: bytes | bytearray, at: int) -> tuple[int, int]:
    """Return the varint at a place and the place behind it; 0 where it does not end within 64 bits."""
    value = shift = 0
    for byte in content[at : at + _LONGEST]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    return 0, 0
