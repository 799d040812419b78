"""Numbers that Python reads one by one are known by the operators of the recorded steps."""

from __future__ import annotations

import pytest

from tests.unit.advise.rules.trainings import Training


def reading(times: int, between: int) -> Training:
    """Steps with a forward of 2 ms, and reads of 2 µs with other work of so many ns between them."""
    training = Training(steps=2)
    training.call("aten::mm", 2_000_000, [[64, 64], [64, 64]], "forward")
    for _ in range(times):
        training.call("aten::item", 2_000)
        training.call("aten::mm", between, [[64, 64], [64, 64]], "forward")
    return training


@pytest.mark.parametrize(
    ("times", "between", "causes"),
    [(80, 30_000, ["python-in-step"]), (30, 30_000, []), (40, 110_000, [])],
    ids=["in a loop", "a few", "each after work of its own"],
)
def test_a_loop_that_reads_numbers_one_by_one_is_told(times: int, between: int, causes: list[str]) -> None:
    assert reading(times, between).causes() == causes


def test_its_gain_is_the_time_from_read_to_read() -> None:
    [finding] = reading(80, 30_000).findings()
    assert finding.gain_ns == pytest.approx(0.95 * 80 * 32_020, rel=0.02)
    assert "80 times a step" in finding.title
