"""The C counterpart of ``stepscope/read/xplane/xplane_events.py``."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope import native

Column = npt.NDArray[Any]

#: Columns of events and of their stats, in the order of ``ss_xplane_columns``.
EVENT_COLUMNS: dict[str, type[np.generic]] = {
    "metadata": np.int64,
    "offset": np.int64,
    "duration": np.int64,
    "state": np.uint8,
}
STAT_COLUMNS: dict[str, type[np.generic]] = {
    "owner": np.int32,
    "key": np.int64,
    "value": np.int64,
    "end": np.int64,
    "field": np.uint8,
}
_ALL = (1 << 63) - 1


class LineHead(ctypes.Structure):
    """The fields of a line without its events, see ``xplane.h``."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in ("id", "timestamp", "name", "name_end", "display", "display_end", "events", "stats", "broken")
    )


class Walked(NamedTuple):
    """Result of a walk over a line: the offset behind the walked part, and the fields of the line."""

    place: int
    head: LineHead


def walk(content: Column, start: int, end: int, most: int = _ALL) -> Walked | None:
    """Walk a line up to the end of event ``most``, if given also counting stats; None without the library."""
    library = native.loaded()
    if library is None:
        return None
    head = LineHead()
    return Walked(int(library.ss_xplane_line(content.ctypes.data, start, end, most, ctypes.byref(head))), head)


def events(content: Column, start: int, end: int, counted: LineHead) -> dict[str, Column]:
    """Return the columns of the events, and of the stats, between two offsets that :func:`walk` returned."""
    library = native.loaded()
    assert library is not None  # noqa: S101 - walk() was called before
    columns: dict[str, Column] = {name: np.empty(counted.events, dtype) for name, dtype in EVENT_COLUMNS.items()}
    columns |= {name: np.empty(counted.stats, dtype) for name, dtype in STAT_COLUMNS.items()}
    addresses = (ctypes.c_void_p * len(columns))(*(column.ctypes.data for column in columns.values()))
    library.ss_xplane_events(content.ctypes.data, start, end, addresses)
    return columns
