"""Floating-point operations of PyTorch's operators, from their inputs, as torch.profiler counts them.

A multiplication with its addition is two operations. Products of matrices, two-dimensional convolutions, and ``mul``
and ``add`` by elements are counted; nothing else is (``torch/csrc/profiler/util.cpp``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from typing import Any

from stepscope.read.recorder.operator_inputs import InputTexts

#: Operator → which of its inputs are the factors.
_PRODUCTS = {"aten::mm": (0, 1), "aten::addmm": (1, 2), "aten::bmm": (0, 1), "aten::baddbmm": (1, 2)}
_BATCHES = frozenset({"aten::bmm", "aten::baddbmm"})
_BY_ELEMENT = frozenset({"aten::mul", "aten::add"})
_CONVOLUTION = "aten::conv2d"

#: Names of operators that are counted.
COUNTED = frozenset({*_PRODUCTS, *_BY_ELEMENT, _CONVOLUTION})

_Shape = Sequence[int]


def count(name: str, texts: InputTexts) -> int | None:
    """Return the operations of one call of an operator in :data:`COUNTED`, by its inputs; None if they are unknown."""
    shapes, values = json.loads(texts.shapes), json.loads(texts.concrete)
    try:
        if name in _BY_ELEMENT:
            counted = prod(shapes[0])
        elif name in _PRODUCTS:
            first, second = _PRODUCTS[name]
            left, right = shapes[first], shapes[second]
            counted = 2 * prod(left) * prod(right) // left[-1] // (left[0] if name in _BATCHES else 1)
        else:
            counted = _convolution(shapes[0], shapes[1], [json.loads(value) for value in values[3:7]])
    except (IndexError, TypeError, ValueError, ZeroDivisionError):  # other inputs than those of this operator
        return None
    return counted if 0 < counted < 1 << 63 else None


def _convolution(image: _Shape, weight: _Shape, values: Sequence[Any]) -> int:
    """Return the operations of a convolution: image [N, C, H, W], weight [out, C / groups, height, width]."""
    stride, padding, dilation, groups = values
    if not (isinstance(groups, int) and all(isinstance(pair, list) for pair in (stride, padding, dilation))):
        return 0
    batch, channels, *size = image
    out, _, *kernel = weight
    outputs = [(size[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in range(2)]
    counted: int = 2 * batch * prod(outputs) * prod(kernel) * channels * out // groups
    return counted
