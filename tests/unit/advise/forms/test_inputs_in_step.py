"""A batch that is put together from a tensor for each sample is told; what the step joins otherwise is not."""

from __future__ import annotations

import pytest

from tests.unit.advise.rules.trainings import Training


def stacking(rows: int, dur: int = 2_000_000, phase: str = "other", name: str = "aten::stack") -> Training:
    """Return a training that joins so many rows before the first layer of its model."""
    training = Training()
    training.call(name, dur, [*[[8]] * rows, []], phase)
    training.call("aten::stack", 500_000)  # numbers, whose sizes are not recorded
    training.call("aten::linear", 1_000_000, [[256, 8], [64, 8]], phase="other")  # without gradients: another network
    training.call("aten::linear", 3_000_000, [[256, 8], [64, 8]], "forward", sequence=1)
    training.call("autograd::engine::evaluate_function: AddmmBackward0", 3_000_000, phase="backward", sequence=1)
    return training


@pytest.mark.parametrize(
    ("training", "told"),
    [
        (stacking(256), True),
        (stacking(256, name="aten::cat"), True),
        (stacking(8), False),
        (stacking(256, dur=300_000), False),
        (stacking(256, phase="data"), False),
        (stacking(256, name="aten::add"), False),
    ],
    ids=["stacked", "joined", "few", "a short time", "in a loader", "another operator"],
)
def test_a_batch_of_single_samples_is_told(training: Training, told: bool) -> None:
    assert [finding.cause for finding in training.findings()] == ["inputs-in-step"] * told


def test_its_gain_holds_what_puts_numbers_together_and_its_title_the_number_of_samples() -> None:
    [finding] = stacking(256).findings()
    assert finding.gain_ns == pytest.approx(0.85 * 2_500_000, rel=0.01)
    assert "from 256 tensors" in finding.title
