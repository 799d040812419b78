"""The C counterparts of the functions in ``stepscope/read/common/nesting.py``."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stepscope import native

Integers = npt.NDArray[np.int64]
_Type = TypeVar("_Type", bound=np.generic)


def nest(
    track: npt.NDArray[Any], ts: Integers, dur: Integers
) -> tuple[Integers, Integers, npt.NDArray[np.int32], npt.NDArray[np.bool_]] | None:
    """Return order, parent, depth and crossing of spans; None if the library is missing or fails."""
    library = native.loaded()
    if library is None:
        return None
    count = len(track)
    given: list[npt.NDArray[Any]] = [
        np.ascontiguousarray(track, np.int32),
        np.ascontiguousarray(ts, np.int64),
        np.ascontiguousarray(dur, np.int64),
    ]
    order, parent = np.empty(count, np.int64), np.empty(count, np.int64)
    depth, crossing = np.empty(count, np.int32), np.empty(count, np.bool_)
    results: list[npt.NDArray[Any]] = [order, parent, depth, crossing]
    failed = library.ss_nest(count, *(array.ctypes.data for array in (*given, *results)))
    return None if failed else (order, parent, depth, crossing)


def nearest(parent: Integers, chosen: npt.NDArray[np.bool_]) -> Integers | None:
    """Return every span's innermost chosen one, itself included; None without the library."""
    return _from_ancestors("ss_nearest", parent, np.ascontiguousarray(chosen, np.bool_), np.int64)


def inherit(parent: Integers, own: npt.NDArray[np.int8]) -> npt.NDArray[np.int8] | None:
    """Return every span's value, its own or its nearest ancestor's; None without the library."""
    return _from_ancestors("ss_inherit", parent, np.ascontiguousarray(own, np.int8), np.int8)


def _from_ancestors(
    function: str, parent: Integers, own: npt.NDArray[Any], dtype: type[_Type]
) -> npt.NDArray[_Type] | None:
    library = native.loaded()
    if library is None:
        return None
    parent, result = np.ascontiguousarray(parent, np.int64), np.empty(len(own), dtype)
    getattr(library, function)(len(own), *(array.ctypes.data for array in (parent, own, result)))
    return result
