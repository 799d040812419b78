"""Activity buffers of CUPTI → arrays of records, one per kind.

A buffer holds records of many kinds and sizes, back to back; the size of each gives the start of the next. A
plain loop finds the starts (0.1 µs a record), numpy does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.read.common.nesting import Integers
from stepscope.trace.cupti_layout import Kind, Layout
from stepscope.trace.losses import LossLedger

Records = npt.NDArray[np.void]

#: Kinds whose records point to a name.
_NAMED = (Kind.KERNEL, Kind.CONCURRENT_KERNEL)
_SLOT = 8


class RecordDecoder:
    """Decodes buffers, and keeps what is in them."""

    def __init__(self, layout: Layout, ledger: LossLedger) -> None:
        self._ledger = ledger
        self._words = {int(kind): size // 4 for kind, size in layout.sizes.items()}
        self._dtypes = {kind: _dtype(layout, kind) for kind in layout.sizes}
        self._found: dict[Kind, list[Records]] = {}
        self._names: dict[Kind, list[Integers]] = {}
        self.texts: list[str] = []
        self._text_codes: dict[str, int] = {}

    def add(self, buffer: bytes, names: Mapping[int, str]) -> None:
        """Decode the valid bytes of a buffer; ``names`` are texts by pointer, as they were when the buffer was full."""
        for kind, records in self._split(buffer).items():
            self._found.setdefault(kind, []).append(records)
            if kind in _NAMED:
                self._names.setdefault(kind, []).append(self._codes(records["name"], names))

    def of(self, kind: Kind) -> Records:
        """Return all records of a kind, in the order in which they came."""
        found = self._found.get(kind)
        return np.concatenate(found) if found else np.empty(0, self._dtypes.get(kind, np.dtype([])))

    def names(self, kind: Kind) -> Integers:
        """Return for each record of a kind of kernel the index of its name in :attr:`texts`."""
        found = self._names.get(kind)
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _split(self, buffer: bytes) -> dict[Kind, Records]:
        whole = buffer[: len(buffer) // _SLOT * _SLOT]
        words = memoryview(whole).cast("I")
        starts = np.array(self._starts(words), np.int64)
        kinds = np.frombuffer(whole, np.uint32)[starts] if len(starts) else np.empty(0, np.uint32)
        slots = starts // 2
        return {
            kind: _records(whole, dtype, slots[kinds == kind])
            for kind, dtype in self._dtypes.items()
            if (kinds == kind).any()
        }

    def _starts(self, words: memoryview[int]) -> list[int]:
        """Return the word at which each record starts; a damage ends the buffer and is counted."""
        starts: list[int] = []
        sizes, append, at, end = self._words, starts.append, 0, len(words)
        try:
            while at < end:
                size = sizes[words[at]]
                append(at)
                at += size
        except KeyError:
            self._ledger.add("device_records_damaged")
            return starts
        if at > end:
            starts.pop()
            self._ledger.add("device_records_damaged")
        return starts

    def _codes(self, pointers: npt.NDArray[np.uint64], names: Mapping[int, str]) -> Integers:
        distinct, inverse = np.unique(pointers, return_inverse=True)
        codes = [self._code(names.get(pointer, "")) for pointer in distinct.tolist()]
        self._ledger.add("device_name_missing", sum(pointer not in names for pointer in distinct.tolist()))
        return np.array(codes, np.int64)[inverse]

    def _code(self, text: str) -> int:
        text = text or "unknown kernel"
        code = self._text_codes.setdefault(text, len(self.texts))
        if code == len(self.texts):
            self.texts.append(text)
        return code


def _dtype(layout: Layout, kind: Kind) -> np.dtype[Any]:
    """Return the type of a record up to the last field that is read."""
    fields = layout.fields(kind)
    offsets = [offset for offset, _ in fields.values()]
    formats = [form for _, form in fields.values()]
    end = max(offset + int(form[1:]) for offset, form in fields.values())
    names: Sequence[str] = list(fields)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": end})  # type: ignore[arg-type, call-overload, no-any-return, unused-ignore]


def _records(buffer: bytes, dtype: np.dtype[Any], slots: Integers) -> Records:
    """Return the records that start at these multiples of 8 bytes."""
    count = max((len(buffer) - dtype.itemsize) // _SLOT + 1, 0)
    everywhere: Records = np.ndarray((count,), dtype, buffer, strides=(_SLOT,))
    return everywhere[slots]
