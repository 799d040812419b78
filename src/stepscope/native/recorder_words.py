"""The C counterpart of ``stepscope/read/recorder/recorder_words.py``, and of the arithmetic of its clock."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope import native

Column = npt.NDArray[Any]

#: Columns to fill, in the order of ``ss_recorder_columns``; the stack and its capacity come before them.
OPERATOR_COLUMNS: dict[str, type[np.generic]] = {
    "begin": np.uint64,
    "end": np.uint64,
    "name": np.uint64,
    "forward": np.uint64,
    "identity": np.uint64,
    "launch": np.uint64,
    "inputs": np.uint32,
    "line": np.uint32,
    "state": np.uint8,
}
PLACE_COLUMNS: dict[str, type[np.generic]] = {"memory": np.int64, "definition": np.int64}
ENDING_COLUMNS: dict[str, type[np.generic]] = {
    "ended": np.uint64,
    "ended_identity": np.uint64,
    "ended_row": np.int64,
}


class Walk(ctypes.Structure):
    """State of the walk over one thread's words, see ``recorder_words.h``."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in ("depth", "unknown", "rows", "memories", "definitions", "endings", "unmatched", "damaged")
    )


def words(block: Column, walk: Walk, stack: Column, columns: dict[str, Column]) -> bool:
    """Walk over the words of a block; without the library a no-op that returns False.

    Args:
        block: The words.
        walk: State of the walk; advanced by this call.
        stack: Rows of the open operators, with capacity for further ones.
        columns: All columns, each with capacity for one more entry per word.
    """
    library = native.loaded()
    if library is None:
        return False
    addresses = (ctypes.c_void_p * (len(columns) + 2))(
        stack.ctypes.data, len(stack), *(column.ctypes.data for column in columns.values())
    )
    library.ss_recorder_words(block.ctypes.data, len(block), ctypes.byref(walk), addresses)
    return True


def times(ticks: Column, at: Column, ns: Column) -> bool:
    """Convert ticks to ns in place; without the library a no-op that returns False.

    Args:
        ticks: Unsigned 64-bit integers; the results are stored as signed ones.
        at: Ticks of two or more knots, ascending.
        ns: Their times.
    """
    library = native.loaded()
    if library is None:
        return False
    library.ss_recorder_times(len(ticks), ticks.ctypes.data, len(at), at.ctypes.data, ns.ctypes.data)
    return True
