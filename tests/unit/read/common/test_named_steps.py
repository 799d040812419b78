"""Ranges whose names say that they are steps."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from stepscope.read.common.named_steps import named_steps


def found(*ranges: tuple[str, int, int] | tuple[str, int, int, int]) -> list[tuple[str, int]]:
    """Return name and number of the steps among ranges: name, start, end, and track."""
    rows = [(*one, 0)[:4] for one in ranges]
    names = pl.Series([row[0] for row in rows], dtype=pl.Categorical())
    ts, end, track = (np.array([row[place] for row in rows], np.int64) for place in (1, 2, 3))
    steps = named_steps(names, track, ts, end - ts)
    return [(rows[row][0], number) for row, number in zip(steps.rows.tolist(), steps.numbers.tolist(), strict=True)]


@pytest.mark.parametrize(
    "name",
    ["step_{}", "Step {}", "iteration{}", "Iteration #{}", "iter={}", "train_step {}", "ProfilerStep#{}", "batch:{}"],
)
def test_numbers_are_those_of_the_names(name: str) -> None:
    steps = [name.format(7), name.format(8)]
    assert found((steps[1], 10, 19), (steps[0], 0, 9), ("forward", 1, 5)) == [(steps[0], 7), (steps[1], 8)]


def test_a_word_without_a_number_is_a_step_if_it_repeats() -> None:
    assert found(("iteration", 0, 5), ("iteration", 5, 9)) == [("iteration", 0), ("iteration", 1)]
    assert found(("iteration", 0, 5), ("forward", 5, 9)) == []


def test_numbered_ranges_come_before_words_and_longer_before_shorter() -> None:
    assert found(("step 1", 0, 9), ("step", 1, 2), ("step", 3, 4)) == [("step 1", 1)]
    inner = [("step", 1, 2), ("step", 11, 12)]
    assert found(*inner, ("iteration", 0, 9), ("iteration", 10, 19)) == [("iteration", 0), ("iteration", 1)]


def test_ranges_that_overlap_are_no_steps() -> None:
    assert found(("step 1", 0, 9), ("step 2", 5, 12)) == []


def test_each_thread_has_its_own() -> None:
    assert found(("step 1", 0, 9, 0), ("step 1", 0, 8, 1), ("step 2", 9, 12, 0)) == [("step 1", 1), ("step 2", 2)]


def test_numbers_have_as_many_digits_as_they_have() -> None:
    assert found(("step 2000000000", 0, 9)) == [("step 2000000000", 2_000_000_000)]
    assert found(("step 1764111111111111111", 0, 9)) == [("step 1764111111111111111", 1_764_111_111_111_111_111)]
    assert found() == []
