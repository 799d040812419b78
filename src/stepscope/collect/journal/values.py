"""Convert the program's values to plain JSON for the journal, without reading the value or text of other objects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice

_ELEMENTS = 100
_SIMPLE = frozenset((int, float, str, bool, type(None)))


def freeze(args: Mapping[str, object]) -> Mapping[str, object]:
    """Return arguments that later changes by the program do not affect; the same object if its values are immutable."""
    for value in args.values():
        if type(value) not in _SIMPLE:
            return {key: plain(value) for key, value in args.items()}
    return args


def plain(value: object, depth: int = 4) -> object:
    """Return a copy of ``value`` that JSON can hold.

    Numbers, texts, booleans and None stay; lists, tuples, sets and mappings are copied up to 100 elements and
    ``depth`` levels. Any other object becomes its type's name, such as ``<Tensor>``, because reading its value or text
    could wait for a device.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return finite(float(value))
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [plain(element, depth - 1) for element in islice(value, _ELEMENTS)]
    if depth and isinstance(value, dict):
        return {text(key): plain(element, depth - 1) for key, element in islice(value.items(), _ELEMENTS)}
    return f"<{type(value).__name__}>"


def finite(value: float) -> float | str:
    """Return ``value``; nan and the infinities as texts, because JSON has no numbers for them."""
    return value if math.isfinite(value) else str(value)


def text(value: object) -> str:
    r"""Return text that UTF-8 can encode: lone surrogates become ``\udc80``, other objects the name of their type."""
    if not isinstance(value, str):
        value = str(value) if isinstance(value, int | float) else f"<{type(value).__name__}>"
    return value.encode("utf-8", "backslashreplace").decode("utf-8")
