"""Operations of the instructions that multiply and add: matrix products, convolutions, Fourier transforms.

A multiplication with its addition is two operations. A convolution counts the products that exist: where its window
lies on padding or on the gaps of a dilation, nothing is multiplied.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from stepscope.read.common.protobuf import Fields
from stepscope.read.xplane.hlo.hlo_program import HloProgram
from stepscope.read.xplane.hlo.hlo_shapes import Shape, grouped, numbers

#: Steps of a window times its positions; more are damage.
_LARGEST_WINDOW = 1 << 24
_CONTRACTED = re.compile(r'"lhs_contracting_dimensions"\s*:\s*\[([^\]]{0,200})\]')
#: Called code of NVIDIA's and AMD's libraries that is a matrix product.
_PRODUCT_CALLS = ("__cublas$", "__triton_gemm")
#: Called code that is a convolution → where its input, its weights and its output are: operands, and −1 the result.
_CONVOLUTION_CALLS = {
    "__cudnn$convForward": (0, 1, -1),
    "__cudnn$convBiasActivationForward": (0, 1, -1),
    "__cudnn$convBackwardInput": (-1, 1, 0),
    "__cudnn$convBackwardFilter": (0, -1, 1),
}


@dataclass(frozen=True)
class Dimension:
    """One dimension of a window (XLA's ``WindowDimension``)."""

    size: int
    stride: int
    low: int
    high: int
    window_dilation: int
    base_dilation: int


@dataclass(frozen=True)
class _Numbers:
    """Which dimension is what in a convolution (XLA's ``ConvolutionDimensionNumbers``)."""

    batch: int
    features: int
    output_features: int
    input: list[int]
    kernel: list[int]
    output: list[int]


def products(program: HloProgram) -> dict[int, int | None]:
    """Return the operations of the instructions that are products; None where a program is damaged."""
    kinds = {
        "dot": _dots,
        "convolution": _convolutions,
        "fft": _transforms,
        "custom-call": _called_products,
    }
    result: dict[int, int | None] = {}
    for opcode, count in kinds.items():
        places = program.places(opcode)
        result |= count(program, places) if places else {}
    return result


def window(program: HloProgram, place: int) -> list[Dimension]:
    """Return the window of an instruction; empty where it has none."""
    return _windows(program.of([place]))[0]


def parameter_numbers(program: HloProgram, places: Sequence[int]) -> list[int]:
    """Return which parameter of its computation each instruction is."""
    return program.of(places).integers(9).fill_null(0).to_list() if places else []


def _dots(program: HloProgram, places: list[int]) -> dict[int, int | None]:
    fields = program.of(places)
    owners, said = fields.within(30)
    contracted = grouped(owners, numbers(said.fields(), 1), len(places))
    return {
        place: _dot(program.operand(place, 0), program.shapes[place], dims[-1] if dims else [])
        for place, dims in zip(places, contracted, strict=True)
    }


def _dot(left: Shape, result: Shape, contracted: Sequence[int]) -> int | None:
    if any(not 0 <= number < len(left.dims) for number in contracted) or left.dtype == "?":
        return None
    return 2 * result.elements * prod(left.dims[number] for number in contracted)


def _called_products(program: HloProgram, places: list[int]) -> dict[int, int | None]:
    """Return the operations of library calls that are products."""
    fields = program.of(places)
    targets = fields.texts(28, program.ledger).fill_null("").to_list()
    configs = fields.texts(43, program.ledger).fill_null("").to_list()
    found: dict[int, int | None] = {}
    for place, target, config in zip(places, targets, configs, strict=True):
        said = _CONTRACTED.search(config)
        if target.startswith(_PRODUCT_CALLS) and said:
            dims = [int(number) for number in re.findall(r"\d{1,9}", said[1])]
            leaves = program.shapes[place].leaves
            found[place] = _dot(program.operand(place, 0), leaves[0], dims) if leaves else None
    calls = {place: _CONVOLUTION_CALLS[t] for place, t in zip(places, targets, strict=True) if t in _CONVOLUTION_CALLS}
    return found | _of_convolutions(program, calls)


def _convolutions(program: HloProgram, places: list[int]) -> dict[int, int | None]:
    return _of_convolutions(program, dict.fromkeys(places, (0, 1, -1)))


def _of_convolutions(program: HloProgram, roles: dict[int, tuple[int, int, int]]) -> dict[int, int | None]:
    """Return the operations of convolutions.

    Args:
        program: The program.
        roles: Place → where its input, its weights and its output are: operands, and −1 the result.
    """
    if not roles:
        return {}
    places = list(roles)
    fields = program.of(places)
    windows, said = _windows(fields), _dimension_numbers(fields)
    groups = zip(fields.integers(50).fill_null(1), fields.integers(58).fill_null(1), strict=True)
    result: dict[int, int | None] = {}
    for place, dimensions, one, (features, batches) in zip(places, windows, said, groups, strict=True):
        shapes = [_role(program, place, role) for role in roles[place]]
        count = None if one is None else _convolution(shapes, dimensions, one)
        result[place] = None if count is None else 2 * count // (max(features, 1) * max(batches, 1))
    return result


def _role(program: HloProgram, place: int, role: int) -> Shape:
    if role >= 0:
        return program.operand(place, role)
    leaves = program.shapes[place].leaves
    return leaves[0] if leaves else program.shapes[place]


def _convolution(shapes: Sequence[Shape], dimensions: Sequence[Dimension], said: _Numbers) -> int | None:
    """Return the products of a convolution without groups; None where its shapes do not fit its dimensions."""
    given, weights, result = shapes
    spatial = list(zip(dimensions, said.input, said.kernel, said.output, strict=False))
    asked = [*said.input, said.batch, said.features]
    fits = all(0 <= number < len(given.dims) for number in asked)
    fits &= all(0 <= number < len(weights.dims) for number in said.kernel)
    fits &= all(0 <= number < len(result.dims) for number in [*said.output, said.output_features])
    if not fits or len(spatial) != len(dimensions):
        return None
    count = given.dims[said.features] * result.dims[said.output_features] * given.dims[said.batch]
    for dimension, one, kernel, output in spatial:
        positions = window_positions(dimension, given.dims[one], weights.dims[kernel], result.dims[output])
        if positions is None:
            return None
        count *= positions
    return count


def window_positions(dimension: Dimension, given: int, kernel: int, output: int) -> int | None:
    """Return how many pairs of weight and output position meet an element of the input, in one dimension."""
    if kernel * output > _LARGEST_WINDOW:
        return None
    dilation = max(dimension.base_dilation, 1)
    at = np.arange(output)[:, None] * dimension.stride - dimension.low
    at = at + np.arange(kernel) * dimension.window_dilation
    return int(((at >= 0) & (at % dilation == 0) & (at // dilation < given)).sum())


def _transforms(program: HloProgram, places: list[int]) -> dict[int, int | None]:
    """Return the operations of Fourier transforms: 8 · elements · log2 of each length (a complex product is 4)."""
    lengths = numbers(program.of(places), 32)
    return {
        place: 8 * prod(max(size.bit_length() - 1, 0) for size in sizes) * program.operand(place, 0).elements
        for place, sizes in zip(places, lengths, strict=True)
    }


def _windows(fields: Fields) -> list[list[Dimension]]:
    owners, outer = fields.within(15)
    inner, dimensions = outer.fields().within(1)
    of = dimensions.fields()
    columns = [of.integers(number).fill_null(0).clip(-(1 << 31), 1 << 31).to_list() for number in range(1, 7)]
    rows = [Dimension(*row) for row in zip(*columns, strict=True)]
    return grouped(owners[inner], rows, len(fields.messages))


def _dimension_numbers(fields: Fields) -> list[_Numbers | None]:
    owners, messages = fields.within(16)
    of = messages.fields()
    single = [of.integers(number).fill_null(0).to_list() for number in (7, 8, 10)]
    lists = [numbers(of, number) for number in (11, 6, 12)]
    result: list[_Numbers | None] = [None] * len(fields.messages)
    for owner, *row in zip(owners.tolist(), *single, *lists, strict=True):
        result[owner] = _Numbers(*row)
    return result
