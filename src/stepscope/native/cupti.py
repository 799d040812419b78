"""The buffers that CUPTI fills, see ``cupti.c``. A process has one set, because it has one pair of callbacks."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from stepscope import native

#: Slots of the hash set for the names of one buffer: a power of two, more than twice the records that fit.
_ROOM = 1 << 16
_KINDS = 64
_Table = ctypes.c_uint32 * _KINDS


class CuptiBuffers:
    """Lends buffers to CUPTI and takes them back full.

    Args:
        sizes: Bytes of a record by the number of its kind.
        names: Offset of the pointer to its name in a record, by the number of its kind.

    Raises:
        RuntimeError: The C library is missing.
    """

    def __init__(self, sizes: Mapping[int, int], names: Mapping[int, int]) -> None:
        library = native.loaded()
        if library is None:
            message = f"the C library of stepscope is {native.available()}; callbacks in Python could deadlock"
            raise RuntimeError(message)
        self._library = library
        self._sizes, self._names = _table(sizes), _table(names)
        self._found = (ctypes.c_uint64 * _ROOM)()

    def callbacks(self) -> tuple[int, int]:
        """Return the addresses of the two functions for ``cuptiActivityRegisterCallbacks``."""
        functions = self._library.ss_cupti_requested, self._library.ss_cupti_completed
        requested, completed = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)
        return requested or 0, completed or 0

    def open(self, size: int) -> None:
        """Lend buffers of ``size`` bytes from now on."""
        self._library.ss_cupti_open(size)

    def close(self) -> None:
        """Stop lending buffers, and free those that CUPTI does not hold."""
        self._library.ss_cupti_close()

    def take(self) -> tuple[int, int] | None:
        """Return address and valid bytes of the oldest completed buffer; None if no buffer waits."""
        valid = ctypes.c_uint64()
        address = self._library.ss_cupti_take(ctypes.byref(valid))
        return (address, valid.value) if address else None

    def give_back(self, address: int) -> None:
        """Return a buffer that was taken."""
        self._library.ss_cupti_give_back(address)

    @property
    def lent(self) -> int:
        """Number of buffers that CUPTI holds."""
        return int(self._library.ss_cupti_lent())

    @property
    def refused(self) -> int:
        """Number of CUPTI's requests that failed because all buffers waited to be written."""
        return int(self._library.ss_cupti_refused())

    def names(self, address: int, valid: int) -> list[int]:
        """Return the distinct pointers to kernel names in a buffer's records."""
        tables = self._sizes, self._names, self._found
        count = self._library.ss_cupti_names(address, valid, *tables, _ROOM)
        return self._found[:count]


def _table(values: Mapping[int, int]) -> ctypes.Array[ctypes.c_uint32]:
    return _Table(*(values.get(kind, 0) for kind in range(_KINDS)))
