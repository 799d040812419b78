"""Limits: how they are written, and what an interval says of one."""

from __future__ import annotations

import pytest

from stepscope.comparison.gates import FAILED, PASSED, UNSURE, Gate, between, parse_gates


def test_limits_are_read_as_they_are_written() -> None:
    text = "slower:5%, memory:2.5%,count:aten::copy_,operator:aten::mm:10%,operator:gemm<float, 3>:4%"
    assert parse_gates(text) == [
        Gate("slower", limit=0.05),
        Gate("memory", limit=0.025),
        Gate("count", "aten::copy_"),
        Gate("operator", "aten::mm", 0.1),
        Gate("operator", "gemm<float, 3>", 0.04),
    ]
    assert [*map(str, parse_gates(text))][3:] == ["operator:aten::mm:10%", "operator:gemm<float, 3>:4%"]


@pytest.mark.parametrize(
    ("change", "low", "high", "detectable", "outcome"),
    [
        (0.05, 0.02, 0.08, 0.04, FAILED),  # exactly the limit
        (0.02, 0.001, 0.04, 0.03, PASSED),  # slower for sure, but by less than the limit
        (0.0, -0.03, 0.03, 0.04, PASSED),
        (0.02, -0.03, 0.07, 0.045, PASSED),  # nearer to nothing, and the limit would have been seen
        (0.02, -0.06, 0.11, 0.12, UNSURE),
        (0.04, -0.01, 0.09, 0.06, UNSURE),
        (0.2, -0.1, 0.6, 0.7, UNSURE),
    ],
)
def test_the_line_lies_at_half_the_limit(
    change: float, low: float, high: float, detectable: float, outcome: str
) -> None:
    assert between(change, (low, high), detectable, 0.05) == outcome
