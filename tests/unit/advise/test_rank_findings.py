"""The findings of a rank."""

from __future__ import annotations

from stepscope.advise.observed import Observed
from stepscope.analyse.step.summarise import summarise
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


def test_the_step_of_an_imported_capture_is_that_of_its_tables() -> None:
    # Given steps of the device in the table of steps, and others, of the host, in that of the run
    training = Training()
    training.run_steps(40, dur=2 * STEP)
    tables = training.rank.tables()
    assert Observed(tables, {"source": "import"}).step_ns == summarise(tables).steps.mean_ns
    assert Observed(tables, {}).step_ns == 2 * STEP
