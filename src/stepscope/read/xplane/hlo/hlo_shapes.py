"""Types and shapes of a compiled program's values (XLA's ``ShapeProto``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TypeVar

from stepscope.read.common.nesting import Integers
from stepscope.read.common.protobuf import Fields, Messages

T = TypeVar("T")

#: Number of an element type in XLA's ``xla_data.proto`` → its name in HLO text, bytes of an element.
TYPES: dict[int, tuple[str, int]] = {
    1: ("pred", 1),
    2: ("s8", 1),
    3: ("s16", 2),
    4: ("s32", 4),
    5: ("s64", 8),
    6: ("u8", 1),
    7: ("u16", 2),
    8: ("u32", 4),
    9: ("u64", 8),
    10: ("f16", 2),
    11: ("f32", 4),
    12: ("f64", 8),
    14: ("opaque", 0),
    15: ("c64", 8),
    16: ("bf16", 2),
    17: ("token", 0),
    18: ("c128", 16),
    19: ("f8e5m2", 1),
    20: ("f8e4m3fn", 1),
    21: ("s4", 1),
    22: ("u4", 1),
    23: ("f8e4m3b11fnuz", 1),
    24: ("f8e5m2fnuz", 1),
    25: ("f8e4m3fnuz", 1),
    26: ("s2", 1),
    27: ("u2", 1),
    28: ("f8e4m3", 1),
    29: ("f8e3m4", 1),
    30: ("s1", 1),
    31: ("u1", 1),
    32: ("f4e2m1fn", 1),
    33: ("f8e8m0fnu", 1),
}
_TUPLE = 13
#: Deeper tuples than this are damage.
_DEEPEST = 8


@dataclass(frozen=True)
class Shape:
    """Type and shape of one value, or of the several in a tuple.

    Attributes:
        dtype: Type of the elements as HLO text writes it: ``f32``; ``tuple``; ``?`` where it cannot be read.
        dims: Size of each dimension.
        parts: Of a tuple, its values.
        bits: Bits of an element where the layout packs them; 0 where it does not say.
    """

    dtype: str
    dims: tuple[int, ...] = ()
    parts: tuple[Shape, ...] = ()
    bits: int = 0

    @cached_property
    def leaves(self) -> tuple[Shape, ...]:
        """The arrays: the shape itself, or those of a tuple at any depth."""
        return tuple(leaf for part in self.parts for leaf in part.leaves) if self.dtype == "tuple" else (self,)

    @cached_property
    def elements(self) -> int:
        """Number of elements, of a tuple those of all its arrays."""
        return sum(leaf.elements for leaf in self.leaves) if self.dtype == "tuple" else prod(self.dims)

    @cached_property
    def bytes(self) -> int:
        """Size in memory without padding, of a tuple that of all its arrays."""
        if self.dtype == "tuple":
            return sum(leaf.bytes for leaf in self.leaves)
        return -(-self.elements * self.bits // 8) if self.bits else self.elements * _BYTES.get(self.dtype, 0)

    @cached_property
    def text(self) -> str:
        """As HLO text writes it, without the layout: ``f32[64,128]``, ``(f32[2], s32[])``."""
        if self.dtype == "tuple":
            return f"({', '.join(part.text for part in self.parts)})"
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


_BYTES = dict(TYPES.values())
#: What could not be read.
UNKNOWN = Shape("?")


def read(messages: Messages, depth: int = 0) -> list[Shape]:
    """Return the shape that each message is."""
    if not len(messages) or depth > _DEEPEST:
        return [UNKNOWN] * len(messages)
    fields = messages.fields()
    dims = numbers(fields, 3)
    owners, inner = fields.within(4)
    parts = grouped(owners, read(inner, depth + 1), len(messages))
    owners, layouts = fields.within(5)
    bits = dict(zip(owners.tolist(), layouts.fields().integers(7).fill_null(0).to_list(), strict=True))
    known: dict[tuple[object, ...], Shape] = {}
    result = []
    for number, kind in enumerate(fields.integers(2).fill_null(0).to_list()):
        name = "tuple" if kind == _TUPLE else TYPES.get(kind, ("?", 0))[0]
        sizes = tuple(dims[number])
        key = (name, sizes if min(sizes, default=0) >= 0 else (), tuple(parts[number]), max(bits.get(number, 0), 0))
        result.append(known.setdefault(key, Shape(*key)))
    return result


def grouped(owners: Integers, values: Sequence[T], number: int) -> list[list[T]]:
    """Return the values of each owner, in order."""
    result: list[list[T]] = [[] for _ in range(number)]
    for owner, value in zip(owners.tolist(), values, strict=True):
        result[owner].append(value)
    return result


def numbers(fields: Fields, number: int) -> list[list[int]]:
    """Return the values of a repeated integer field of each message."""
    owners, values = fields.packed_integers(number)
    return grouped(owners, values.tolist(), len(fields.messages))
