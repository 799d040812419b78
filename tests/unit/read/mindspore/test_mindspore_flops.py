"""Floating-point operations of MindSpore's operators, against counts by hand."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest

from stepscope.read.mindspore.mindspore_flops import count, multiplication

NO, FIRST, SECOND, BOTH = (False, False), (True, False), (False, True), (True, True)


def flops(*rows: dict[str, Any]) -> list[int | None]:
    """Count operators given as type, shapes (as lists), and whatever else is known."""
    columns = ("type", "shapes", "phase", "call", "concrete")
    texts = [{**row, "shapes": json.dumps(row["shapes"]) if row["shapes"] is not None else None} for row in rows]
    frame = pl.DataFrame(
        [[row.get(name) for name in columns] for row in texts], schema=dict.fromkeys(columns, pl.String), orient="row"
    )
    return count(frame).to_list()


@pytest.mark.parametrize(
    ("first", "second", "way", "expected"),
    [
        ([2, 3], [3, 5], NO, 2 * 2 * 3 * 5),
        ([3, 2], [3, 5], FIRST, 2 * 2 * 3 * 5),
        ([2, 3], [5, 3], SECOND, 2 * 2 * 3 * 5),
        ([3, 2], [5, 3], BOTH, 2 * 2 * 3 * 5),
        ([7, 2, 3], [7, 3, 5], NO, 7 * 2 * 2 * 3 * 5),
        ([7, 2, 3], [3, 5], NO, 7 * 2 * 2 * 3 * 5),
        ([4, 1, 2, 3], [7, 3, 5], NO, 4 * 7 * 2 * 2 * 3 * 5),
        ([3], [3, 5], NO, 2 * 3 * 5),
        ([2, 3], [3], NO, 2 * 2 * 3),
        ([2, 0], [0, 5], NO, 0),
        ([2, 3], [4, 5], NO, None),
        ([2, 2, 3], [3, 3, 5], NO, None),
        ([], [3, 5], NO, None),
    ],
)
def test_products(first: list[int], second: list[int], way: tuple[bool, bool], expected: int | None) -> None:
    assert multiplication(first, second, [way]) == expected


def test_a_recorded_call_says_what_is_transposed() -> None:
    # Given: two matrices that can be multiplied in two ways
    shapes = [[8, 512], [8, 512]]
    values = {
        name: json.dumps(["", "", *flags]) for name, flags in {"a": ("True", "False"), "b": ("False", "True")}.items()
    }
    assert flops(
        {"type": "MatMul", "shapes": [*shapes, [], []], "call": "MatMul", "concrete": values["a"]},
        {"type": "MatMul", "shapes": [*shapes, [], []], "call": "MatMul", "concrete": values["b"]},
    ) == [2 * 512 * 8 * 512, 2 * 8 * 512 * 8]


def test_dense_and_matmul_ext() -> None:
    assert flops(
        {"type": "MatMul", "shapes": [[4, 6], [6, 6], [6]], "call": "Dense", "concrete": '["","",""]'},
        {"type": "BatchMatMul", "shapes": [[2, 4, 6], [2, 6, 3]], "call": "MatMulExt", "concrete": '["",""]'},
    ) == [2 * 4 * 6 * 6, 2 * 2 * 4 * 6 * 3]


def test_without_a_call_the_shapes_must_fit_and_the_phase_decides() -> None:
    both = [[8, 512], [8, 512]]
    assert flops(
        {"type": "MatMul", "shapes": [[4, 512], [16, 512], [], []], "phase": "forward"},
        {"type": "MatMul", "shapes": both, "phase": "forward"},
        {"type": "MatMul", "shapes": both, "phase": "backward"},
        {"type": "MatMul", "shapes": [[4, 5], [6, 7]], "phase": "forward"},
    ) == [2 * 4 * 512 * 16, 2 * 8 * 512 * 8, 2 * 512 * 8 * 512, None]


def test_convolutions_and_their_gradients() -> None:
    # Given: 3 → 8 channels with a 5 × 3 kernel on 4 images of 16 × 16, of which 7 × 14 stay
    macs = 4 * 8 * 7 * 14 * 3 * 5 * 3
    given, weight, output = [4, 3, 16, 16], [8, 3, 5, 3], [4, 8, 7, 14]
    assert flops(
        {"type": "Conv2D", "shapes": [given, weight]},
        {"type": "ReLU", "shapes": [output]},
        {"type": "Conv2DBackpropInput", "shapes": [output, weight, [4]], "phase": "backward"},
        {"type": "Conv2DBackpropFilter", "shapes": [output, given, [4]], "phase": "backward"},
    ) == [2 * macs, None, 2 * macs, 2 * macs]


def test_grouped_convolution() -> None:
    assert (
        flops({"type": "Conv2D", "shapes": [[1, 8, 4, 4], [8, 1, 3, 3]]}, {"type": "ReLU", "shapes": [[1, 8, 4, 4]]})[0]
        == 2 * 8 * 16 * 9
    )


def test_a_convolution_whose_output_nobody_takes_is_not_counted() -> None:
    assert flops({"type": "Conv2D", "shapes": [[1, 3, 4, 4], [8, 3, 3, 3]]}, {"type": "ReLU", "shapes": [[1, 3]]}) == [
        None,
        None,
    ]


def test_attention() -> None:
    # Q·Kᵀ and the product with V, in both layouts
    assert flops(
        {"type": "FlashAttentionScore", "shapes": [[2, 128, 64], [2, 256, 64], [2, 256, 64]]},
        {"type": "FlashAttentionScore", "shapes": [[2, 8, 128, 16], [2, 8, 256, 16], [2, 8, 256, 16]]},
    ) == [2 * 2 * 2 * 128 * 256 * 64, 2 * 2 * 2 * 8 * 128 * 256 * 16]


@pytest.mark.parametrize("text", ["", "{", "[[1,[2]]]", "[1]", '[["a"]]', "[[1.5]]", "null", "[" * 5000])
def test_shapes_that_are_none_count_nothing(text: str) -> None:
    frame = pl.DataFrame({"type": ["MatMul", "Conv2D"], "shapes": [text, text], "phase": [None, None]})
    assert count(frame).to_list() == [None, None]
