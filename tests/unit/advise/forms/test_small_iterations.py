"""A step that repeats small operators on tensors of the same shapes has a finding; few, large or others have none."""

from __future__ import annotations

import pytest

from tests.unit.advise.rules.trainings import Training


def iterating(count: int, dur: int = 10_000, layers: int = 0, names: tuple[str, ...] = ("aten::mul",)) -> Training:
    """Return a training whose forward repeats operators, besides so many layers, and whose backward follows them."""
    training = Training()
    for number in range(count):
        training.call(names[number % len(names)], dur, [(8, 16), (16,)], "forward", sequence=number)
    for _ in range(layers):
        training.call("aten::linear", 100_000, [(8, 16), (16, 16)], "forward")
    for number in range(count):
        training.call("MulBackward0", dur, [(8, 16)], "backward", sequence=number)
    return training


@pytest.mark.parametrize(
    ("training", "causes"),
    [
        (iterating(200), ["many-small-operators"]),
        (iterating(200, names=("aten::mul", "aten::add")), ["many-small-operators"]),
        (iterating(60), []),
        (iterating(100, dur=40_000), []),
        (iterating(200, names=("aten::mm",)), []),
        (iterating(200, layers=20), []),
        (iterating(200, names=tuple(f"aten::op{number}" for number in range(10))), []),
    ],
    ids=["one operator", "two", "few calls", "large ones", "products", "beside layers", "each a few times"],
)
def test_iterations_are_told_by_their_number_and_part_of_the_forward(training: Training, causes: list[str]) -> None:
    assert training.causes() == causes


def test_without_shapes_nothing_is_said_of_them() -> None:
    training = Training()
    for number in range(200):
        training.call("aten::mul", 10_000, phase="forward", sequence=number)
    assert training.causes() == []


def test_their_gain_is_part_of_them_and_of_their_backward() -> None:
    (finding,) = iterating(200).findings()
    computed = 2 * 200 * 10_000
    assert finding.gain_ns == pytest.approx(0.55 * computed, rel=0.01)
    assert (finding.gain_low_ns, finding.gain_high_ns) == pytest.approx((0.25 * computed, 0.8 * computed), rel=0.01)
    assert "200 small operators on tensors of the same shapes" in finding.title
