"""Limits: how they are written, and what an interval says of one."""

from __future__ import annotations

import pytest

from stepscope.comparison.comparison import SINGLE, Comparison, Side
from stepscope.comparison.exact import MemoryUse
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


def compared(**found: object) -> Comparison:
    return Comparison(a=Side(name="a", runs=[]), b=Side(name="b", runs=[]), design=SINGLE, **found)  # type: ignore[arg-type]


@pytest.mark.parametrize(("peak", "outcome"), [(1015, PASSED), (1021, FAILED), (None, UNSURE), (900, PASSED)])
def test_a_peak_of_memory_fails_beyond_its_limit(peak: int | None, outcome: str) -> None:
    # Given a device whose peak changes, and what is reserved, which does not count
    memory = [
        MemoryUse(device=device, what=what, a=1000, b=b)
        for device, what, b in (("cuda:0", "allocated", peak), ("cuda:0", "reserved", 9000))
    ]
    [found] = compared(memory=memory).judge("memory:2%")
    assert found.outcome == outcome
    if peak is not None:
        assert found.why == f"the peak on cuda:0: {peak / 1000 - 1:+.2%}"


@pytest.mark.parametrize(
    ("compilations", "outcome"), [((2, 2), PASSED), ((2, 3), FAILED), ((3, 0), PASSED), ((None, 4), UNSURE)]
)
@pytest.mark.parametrize("name", ["compilations", "recompilations"])
def test_more_compilations_fail(compilations: tuple[int | None, int | None], outcome: str, name: str) -> None:
    [found] = compared(compilations=compilations).judge(f"count:{name}")
    assert found.outcome == outcome
