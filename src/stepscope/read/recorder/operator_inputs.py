"""Definitions of inputs → shapes, types, strides and values as texts, spelled as Kineto spells them.

The bytes are described in :mod:`stepscope.collect.torch.native_collector`.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any, NamedTuple

from stepscope.trace.recorder_layout import Input

#: Names of ``c10::ScalarType`` by number, as ``caffe2::TypeMeta`` has them.
_TYPES = (
    "unsigned char", "signed char", "short int", "int", "long int", "c10::Half", "float", "double",
    "c10::complex<c10::Half>", "c10::complex<float>", "c10::complex<double>", "bool", "c10::qint8", "c10::quint8",
    "c10::qint32", "c10::BFloat16", "c10::quint4x2", "c10::quint2x4", "c10::bits1x8", "c10::bits2x4", "c10::bits4x2",
    "c10::bits8", "c10::bits16", "c10::Float8_e5m2", "c10::Float8_e4m3fn", "c10::Float8_e5m2fnuz",
    "c10::Float8_e4m3fnuz", "short unsigned int", "unsigned int", "long unsigned int",
    *(f"c10::dummy_{sign}1_7_t<{bits}>" for sign in ("uint", "int") for bits in range(1, 8)),
    "c10::Float8_e8m0fnu", "c10::Float4_e2m1fn_x2",
)  # fmt: skip

#: Bytes of an element, of the types that collectives move.
_SIZES = {
    "unsigned char": 1, "signed char": 1, "short int": 2, "int": 4, "long int": 8, "c10::Half": 2, "float": 4,
    "double": 8, "c10::complex<c10::Half>": 4, "c10::complex<float>": 8, "c10::complex<double>": 16, "bool": 1,
    "c10::BFloat16": 2, "c10::Float8_e5m2": 1, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2fnuz": 1,
    "c10::Float8_e4m3fnuz": 1, "short unsigned int": 2, "unsigned int": 4, "long unsigned int": 8,
    "c10::Float8_e8m0fnu": 1,
}  # fmt: skip

_REAL = struct.Struct("<d")
_LONGEST_NUMBER = 10
#: C++ prints whole numbers below this with a point behind and no decimals.
_WHOLE = 1e10


class InputTexts(NamedTuple):
    """What is known of the inputs of an operator, each a JSON list with one entry per input."""

    shapes: str
    dtypes: str
    strides: str
    concrete: str


class TensorSaid(NamedTuple):
    """What is known of a tensor; the type is empty, and the size of an element None, where nothing is."""

    shape: list[int]
    dtype: str
    strides: list[int]
    element_size: int | None


class GroupSaid(NamedTuple):
    """A process group: its name, the rank of the process in it, and its number of ranks."""

    name: str
    rank: int
    size: int


class InputItem(NamedTuple):
    """One input: its kind, the texts of a single value, its tensors, and the process group that it is."""

    kind: int
    value: str = ""
    tensors: tuple[TensorSaid, ...] = ()
    group: GroupSaid | None = None

    def columns(self) -> tuple[list[Any], str, list[Any], str]:
        """Return shapes, type, strides and value as Kineto spells them."""
        if self.kind == Input.TENSORS:
            return [each.shape for each in self.tensors], "TensorList", [each.strides for each in self.tensors], ""
        if self.kind == Input.TENSOR:
            (tensor,) = self.tensors
            return tensor.shape, tensor.dtype, tensor.strides, ""
        return [], _TYPE_OF_KIND.get(self.kind, ""), [], self.value


_UNDEFINED = TensorSaid([], "", [], None)
_SCALARS = (Input.INTEGER, Input.REAL, Input.BOOLEAN, Input.COMPLEX)
_TYPE_OF_KIND = dict.fromkeys(map(int, _SCALARS), "Scalar") | {int(Input.LIST): "ScalarList"}


def texts_of(content: bytes) -> tuple[InputTexts, bool]:
    """Return what a definition says, and whether it was read to its end; what comes before damage or a cut is there."""
    items, whole = items_of(content)
    columns = zip(*(item.columns() for item in items), strict=True) if items else ([], [], [], [])
    return InputTexts(*(json.dumps(list(column), separators=(",", ":")) for column in columns)), whole


def items_of(content: bytes) -> tuple[list[InputItem], bool]:
    """Return the inputs that a definition says, and whether it was read to its end."""
    bytes_ = _InputBytes(content)
    items: list[InputItem] = []
    whole = True
    try:
        while bytes_.left() and whole:
            kind = bytes_.byte()
            whole = kind != Input.CUT
            if whole:
                items.append(bytes_.item(kind))
    except ValueError:
        whole = False
    return items, whole


class _InputBytes:
    """A cursor in a definition. Its methods raise ``ValueError`` if the bytes are not what they read."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def left(self) -> int:
        return len(self._content) - self._at

    def _take(self, count: int) -> bytes:
        if count > self.left():
            message = "the definition ends"
            raise ValueError(message)
        self._at += count
        return self._content[self._at - count : self._at]

    def byte(self) -> int:
        return self._take(1)[0]

    def _number(self) -> int:
        value = 0
        for place in range(_LONGEST_NUMBER):
            byte = self.byte()
            value |= (byte & 127) << 7 * place
            if byte < 128:
                return value
        message = "no number is so long"
        raise ValueError(message)

    def _numbers(self, count: int) -> list[int]:
        if count > self.left():
            message = "there are fewer bytes than numbers"
            raise ValueError(message)
        return [self._number() for _ in range(count)]

    def _real(self) -> float:
        value: float = _REAL.unpack(self._take(_REAL.size))[0]
        return value

    def item(self, kind: int) -> InputItem:
        if kind in (Input.TENSOR, Input.UNDEFINED):
            return InputItem(kind, tensors=(self._tensor(kind),))
        if kind == Input.TENSORS:
            return InputItem(kind, tensors=self._tensors())
        if kind == Input.NESTED:
            lists = [self.item(self.byte()) for _ in range(self._number())]
            return InputItem(kind, tensors=tuple(tensor for each in lists for tensor in each.tensors))
        if kind == Input.LIST:
            values = [self._scalar(self.byte()) for _ in range(self._number())]
            return InputItem(kind, f"[{', '.join(values)}]")
        if kind == Input.GROUP:
            rank, size, length = (self._number() for _ in range(3))
            return InputItem(kind, group=GroupSaid(self._take(length).decode("utf-8", "replace"), rank, size))
        return InputItem(kind, "" if kind == Input.OTHER else self._scalar(kind))

    def _tensors(self) -> tuple[TensorSaid, ...]:
        return tuple(self._tensor(self.byte()) for _ in range(self._number()))

    def _tensor(self, kind: int) -> TensorSaid:
        if kind == Input.UNDEFINED:
            return _UNDEFINED
        if kind != Input.TENSOR:
            message = f"{kind} is not a tensor"
            raise ValueError(message)
        number = self.byte()
        shape = self._numbers(self._number())
        strides = self._numbers(len(shape)) if self.byte() else []
        dtype = _TYPES[number] if number < len(_TYPES) else f"ScalarType {number}"
        return TensorSaid(shape, dtype, strides, _SIZES.get(dtype))

    def _scalar(self, kind: int) -> str:
        if kind == Input.INTEGER:
            number = self._number()
            return str(number >> 1 ^ -(number & 1))
        if kind == Input.REAL:
            return _real_text(self._real())
        if kind == Input.BOOLEAN:
            return str(bool(self.byte()))
        if kind == Input.COMPLEX:
            real, imaginary = self._real(), self._real()
            return f"{_real_text(real)}{'+' if imaginary >= 0 else '-'}{_real_text(abs(imaginary))}j"
        if kind == Input.OTHER:
            return ""
        message = f"{kind} is not a scalar"
        raise ValueError(message)


def _real_text(value: float) -> str:
    """Return a number as C++ prints a ``c10::IValue``."""
    if math.isfinite(value) and abs(value) <= _WHOLE and value == int(value):
        return f"{int(value)}."
    return f"{value:.17g}"
