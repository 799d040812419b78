"""A model that runs again for each derivative of one output; models that run again on other data or other weights."""

from __future__ import annotations

import pytest

from tests.unit.advise.rules.trainings import Training

DATA, WEIGHT, HIDDEN = [2500, 2], [64, 2], [2500, 64]


def passes(*between: tuple[str, list[list[int]]], sums: bool = False, many: int = 3, known: bool = True) -> Training:
    """Steps that run a layer so many times, with gradients of its input after each, and then the backward."""
    training = Training()
    for number in range(many):
        training.call("aten::linear", 500_000, [DATA, WEIGHT, [64]] if known else [], "forward", sequence=2 * number)
        training.call("aten::tanh", 500_000, [HIDDEN], "forward", sequence=2 * number + 1)
        training.call("autograd::engine::evaluate_function: X", 200_000, phase="backward", sequence=2 * number)
        if sums:
            training.call("torch::autograd::AccumulateGrad", 1000, [WEIGHT], "backward", inside=True)
        for name, shapes in between:
            training.call(name, 10_000, shapes, "other")
    training.call("autograd::engine::evaluate_function: Y", 900_000, phase="backward", sequence=1)
    training.call("torch::autograd::AccumulateGrad", 1000, [WEIGHT], "backward", inside=True)
    return training


def test_passes_for_each_derivative_save_all_but_one() -> None:
    [finding] = passes(("aten::mul", [[2500, 1], [2500, 1]])).findings()
    assert finding.cause == "costly-form"
    assert "the model runs 3 times on data of one size" in finding.title
    assert finding.gain_ns == pytest.approx(2 / 3 * (3 * 1_200_000 + 900_000), rel=0.01)


@pytest.mark.parametrize(
    "training",
    [
        passes(("aten::sub", [DATA, DATA])),  # a sampler moves its data along the gradients
        passes(("aten::sub", [WEIGHT, WEIGHT])),  # an inner loop has other weights in each pass
        passes(sums=True),  # gradients of parts of a batch are summed up
        passes(many=1),
        passes(known=False),
    ],
    ids=["data", "weights", "parts", "one", "without shapes"],
)
def test_passes_on_other_data_or_weights_are_needed(training: Training) -> None:
    assert "costly-form" not in training.causes()
