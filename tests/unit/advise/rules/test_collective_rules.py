"""Collectives are told by their number and sizes."""

from __future__ import annotations

import pytest

from tests.unit.advise.rules.trainings import STEP, STEPS, Training


def exchanging(sizes: list[int], dur: int = 200_000) -> Training:
    training = Training()
    for step in range(STEPS):
        for number, size in enumerate(sizes):
            at = step * STEP + number * (dur + 1000)
            span = training.rank.span(0, "collective", at, dur, "all_reduce", step=step, phase="communication")
            training.rank.add("collectives", span=span, operation="allreduce", group="0", bytes_in=size)
    return training


@pytest.mark.parametrize(
    ("sizes", "causes"),
    [
        ([4096] * 30, ["small-collectives"]),
        ([4096] * 4, []),
        ([20 << 20, 10 << 20] * 4, ["unneeded-collectives"]),
        ([20 << 20, 10 << 20], []),
    ],
)
def test_collectives_are_told_by_number_and_size(sizes: list[int], causes: list[str]) -> None:
    assert exchanging(sizes).causes() == causes
