"""Evaluations are those that end before the training goes on; other events are as they were announced."""

from __future__ import annotations

import pytest

from stepscope.analyse.step.announced import announced
from tests.unit.analyse.build import ORIGIN, Rank

STEP = 10_000_000


@pytest.mark.parametrize(
    ("name", "every", "until", "told"),
    [
        ("evaluation", 1, STEP, 0),
        ("evaluation", 1, STEP // 2, 20),
        ("evaluation", 5, STEP, 4),
        ("checkpoint", 1, STEP, 20),
    ],
    ids=["to the end of each step", "in each step", "to the end of every fifth", "a checkpoint in each"],
)
def test_a_mode_that_lasts_to_the_end_of_each_step_is_no_evaluation(
    name: str, every: int, until: int, told: int
) -> None:
    rank = Rank()
    for number in range(20):
        begin = ORIGIN + number * STEP
        rank.add("run_steps", number=number, ts=begin, dur=STEP, recorded=number < 3)
        if number % every == 0:
            rank.add("run_events", name=name, ts=begin + 1_000, dur=until - 1_000)
    rank.add("run_events", name="logging", ts=ORIGIN, dur=1_000)
    found = announced(rank.tables(), name)
    assert len(found) == told
    assert found["ts"].is_sorted()
