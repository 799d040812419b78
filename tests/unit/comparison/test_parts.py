"""The parts of a step: no time belongs to two of them."""

from __future__ import annotations

import pytest

from stepscope.comparison.parts import step_parts
from tests.unit.analyse.build import Rank

MS = 1_000_000


def test_operators_that_make_a_batch_are_no_part_of_the_wait_for_it() -> None:
    # Given steps of 10 ms that wait 6 ms for a batch, of which stacking the samples takes 2 ms, and multiply for 3 ms
    rank = Rank()
    main = rank.thread()
    for number in range(5):
        begin = 10 * MS * number
        rank.step(number, begin, 10 * MS)
        rank.span(main, "data", begin, 6 * MS, step=number, phase="data")
        rank.span(main, "operator", begin + MS, 2 * MS, "aten::stack", step=number, phase="data")
        rank.span(main, "operator", begin + 6 * MS, 3 * MS, "aten::mm", step=number, phase="forward")
    found = step_parts(rank.tables())
    times = {part.key.name: part.level_ns / MS for part in found.parts}
    assert times == pytest.approx({"aten::stack": 2, "aten::mm": 3, "wait for data": 4, "outside operators": 1})
    assert found.phases["data"] == pytest.approx(6 * MS)
    assert sum(times.values()) * MS == pytest.approx(found.step_ns)


def test_each_call_counts_with_its_quickest_step_and_a_collective_with_the_usual_wait() -> None:
    # Given two products a step of 1 ms each, of which one is interrupted in each step, and a collective that waits
    rank = Rank()
    main = rank.thread()
    for number in range(4):
        begin = 10 * MS * number
        rank.step(number, begin, 10 * MS)
        first, second = (2, 1) if number % 2 else (1, 2)
        rank.span(main, "operator", begin, first * MS, "aten::mm", step=number, phase="forward")
        rank.span(main, "operator", begin + 3 * MS, second * MS, "aten::mm", step=number, phase="forward")
        rank.span(main, "collective", begin + 6 * MS, (number + 1) * MS // 2, "all_reduce", step=number)
    times = {part.key.name: part.level_ns / MS for part in step_parts(rank.tables()).parts}
    assert times["aten::mm"] == pytest.approx(2)
    assert times["all_reduce"] == pytest.approx(0.875)
