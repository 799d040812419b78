"""Floating-point operations of MindSpore's operators, from the shapes of their inputs.

Counted as PyTorch counts them: a multiplication with its addition is two operations, nothing else is counted. MatMul,
BatchMatMul and what calls them, Conv2D and its gradients, and flash attention.

MindSpore's files say neither which matrix is transposed nor how large an output is. Where a recorded call says the
former it is taken from there. Else both shapes must fit; where several ways fit that differ, a forward product
transposes its second matrix (as Dense does), a backward one its first (as the gradient of a weight does). The output
of a convolution is what one of the next operators takes, or the gradient that its backward takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import msgspec
import polars as pl

_PRODUCTS = frozenset({"MatMul", "BatchMatMul"})
_CONVOLUTIONS = frozenset({"Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"})
_COUNTED = (*sorted(_PRODUCTS | _CONVOLUTIONS), "FlashAttentionScore")

#: Which of two factors is transposed, the likeliest first.
_FORWARD = [(False, False), (False, True), (True, False), (True, True)]
_BACKWARD = [(True, False), (False, True), (False, False), (True, True)]

#: Operators behind a convolution among which the one lies that takes its output.
_NEAR = 8

_Shapes = Sequence[Sequence[int]]
_DECODER = msgspec.json.Decoder(list[list[int]])
_VALUES = msgspec.json.Decoder(list[str])


def count(operators: pl.DataFrame) -> pl.Series:
    """Return the operations of each operator; null if they are unknown.

    Args:
        operators: Columns type, shapes, phase and, where calls were recorded, call and concrete; in order of start.
    """
    missing = [pl.lit(None, pl.String).alias(name) for name in ("call", "concrete") if name not in operators.columns]
    rows = operators.with_columns(missing).select("type", "shapes", "phase", "call", "concrete").with_row_index("row")
    counted = rows.filter(pl.col("type").is_in(_COUNTED) & pl.col("shapes").is_not_null())
    result: list[int | None] = [None] * operators.height
    convolutions = _Convolutions(operators["type"].to_list(), operators["shapes"].to_list())
    known: dict[tuple[object, ...], int | None] = {}
    for row, *key in counted.iter_rows():
        kind, text, *said = key
        if kind in _CONVOLUTIONS:
            result[row] = convolutions.count(row)
            continue
        if tuple(key) not in known:
            known[tuple(key)] = _count(kind, _shapes(text), *said)
        result[row] = known[tuple(key)]
    return pl.Series("flops", result, dtype=pl.Int64, strict=False)  # what 64 bits do not hold is damage: null


def _count(kind: str, shapes: _Shapes | None, phase: str | None, call: str | None, values: str | None) -> int | None:
    if shapes is None or len(shapes) < 2:
        return None
    if kind == "FlashAttentionScore":
        return _attention(shapes)
    flags = _flags(call, values)
    likely = _BACKWARD if phase == "backward" else _FORWARD
    return multiplication(shapes[0], shapes[1], [flags] if flags else likely)


def _shapes(text: str | None) -> _Shapes | None:
    """Return the shapes of a JSON text; None if they are not lists of sizes (those of lists of tensors)."""
    try:
        return _DECODER.decode(text or "")
    except (ValueError, RecursionError):
        return None


def _flags(call: str | None, values: str | None) -> tuple[bool, bool] | None:
    """Return which matrix a recorded call transposes; None where it does not say."""
    if call == "MatMulExt":
        return False, False
    if call == "Dense":
        return False, True
    said = [value == "True" for value in _VALUES.decode(values or "[]") if value in ("True", "False")]
    return (said[0], said[1]) if len(said) == 2 else None


def multiplication(first: Sequence[int], second: Sequence[int], ways: Iterable[tuple[bool, bool]]) -> int | None:
    """Return the operations of a matrix product.

    Args:
        first: Shape of the first factor; leading dimensions are a batch.
        second: Shape of the second factor.
        ways: Which of them is transposed, the likeliest first; the first that fits the shapes counts.
    """
    if not first or not second:
        return None
    left, right = [1, *first][-2:] if len(first) == 1 else first[-2:], [*second, 1] if len(second) == 1 else second[-2:]
    batch = _broadcast(first[:-2], second[:-2])
    for transposed, other in ways:
        rows, inner = reversed(left) if transposed else left
        depth, columns = reversed(right) if other else right
        if inner == depth and batch is not None:
            return 2 * batch * rows * inner * columns
    return None


def _broadcast(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Return the size of two batches together; None where they do not go together."""
    short, long = sorted((list(one), list(other)), key=len)
    padded = [1] * (len(long) - len(short)) + short
    if any(a != b and 1 not in (a, b) for a, b in zip(padded, long, strict=True)):
        return None
    return prod(max(a, b) for a, b in zip(padded, long, strict=True))


def _attention(shapes: _Shapes) -> int | None:
    """Return the operations of softmax(Q·Kᵀ)·V: batch, length, width, or batch, heads, length, width."""
    query, key = shapes[0], shapes[1]
    if len(query) != len(key) or len(query) not in (3, 4):
        return None
    return 4 * prod(query[:-2]) * query[-2] * key[-2] * query[-1]


class _Convolutions:
    """Two-dimensional convolutions in NCHW: input, weight [out, in / groups, height, width]."""

    def __init__(self, types: Sequence[str], texts: Sequence[str | None]) -> None:
        self._types = types
        self._texts = texts
        self._shapes: dict[str | None, _Shapes | None] = {}
        self._weights: dict[tuple[tuple[int, ...], int], Sequence[int]] = {}

    def count(self, row: int) -> int | None:
        """Return the operations of the convolution in ``row``; rows are asked for in order."""
        shapes = self._of(row)
        if shapes is None or len(shapes) < 2 or any(len(shape) != 4 for shape in shapes[:2]):
            return None
        first, second = shapes[0], shapes[1]
        if self._types[row] == "Conv2DBackpropInput":  # gradient of the output, weight
            return 2 * prod(first) * prod(second[1:])
        if self._types[row] == "Conv2DBackpropFilter":  # gradient of the output, input
            weight = self._weights.get((tuple(second), first[1]))
            return None if weight is None else 2 * prod(first) * prod(weight[1:])
        self._weights[tuple(first), second[0]] = second
        output = self._output(row, first, second[0])
        return None if output is None else 2 * prod(output) * prod(second[1:])

    def _output(self, row: int, given: Sequence[int], channels: int) -> Sequence[int] | None:
        """Return the first input of an operator behind it that can be the output of the convolution."""
        for later in range(row + 1, min(row + 1 + _NEAR, len(self._types))):
            shapes = self._of(later)
            taken = shapes[0] if shapes else ()
            if len(taken) == 4 and list(taken[:2]) == [given[0], channels] and taken[2] <= given[2] + 8:
                return taken
        return None

    def _of(self, row: int) -> _Shapes | None:
        text = self._texts[row]
        if text not in self._shapes:
            self._shapes[text] = _shapes(text)
        return self._shapes[text]
