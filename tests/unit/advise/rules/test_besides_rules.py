"""Evaluations, checkpoints and logging are told by their part of the run and by how often they come."""

from __future__ import annotations

import pytest

from tests.unit.advise.rules.trainings import STEP, Training
from tests.unit.analyse.build import ORIGIN


@pytest.mark.parametrize(
    ("name", "every", "part", "causes"),
    [
        ("evaluation", 4, 0.8, ["frequent-evaluation"]),
        ("evaluation", 4, 0.3, []),
        ("evaluation", 30, 9.0, []),
        ("checkpoint", 1, 0.2, ["frequent-checkpoint"]),
        ("logging", 1, 0.08, ["frequent-logging"]),
    ],
)
def test_what_comes_often_and_takes_long_is_told(name: str, every: int, part: float, causes: list[str]) -> None:
    training = Training()
    training.run_steps(120)
    for number in range(0, 120, every):
        training.rank.add("run_events", name=name, ts=ORIGIN + number * STEP, dur=round(part * STEP))
    found = training.findings()
    assert [finding.cause for finding in found] == causes
    assert all(finding.gain_ns == pytest.approx(0.95 * part * STEP / every, rel=0.1) for finding in found)
