"""The findings of a rank."""

from __future__ import annotations

from tests.unit.advise.rules.trainings import STEP, Training
from tests.unit.analyse.build import ORIGIN


def test_a_finding_saves_no_more_than_its_step() -> None:
    # Given evaluations that last longer than the steps which they are in
    training = Training()
    training.run_steps(120)
    for number in range(0, 120, 2):
        training.rank.add("run_events", name="evaluation", ts=ORIGIN + number * STEP, dur=5 * STEP)
    [finding] = training.findings()
    assert finding.step_ns == STEP
    assert finding.gain_ns == finding.gain_high_ns == STEP
