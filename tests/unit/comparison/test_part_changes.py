"""Parts are compared with the common factor of the machine: one that is slower makes no operator slower."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from stepscope.comparison.part_changes import change_of_parts
from stepscope.comparison.parts import PartKey, StepPartLevel, StepParts

NAMES = [f"aten::op{number}" for number in range(20)]


def step(times: list[float], **facts: float) -> StepParts:
    parts = tuple(
        StepPartLevel(PartKey("host", "forward", "", name, "[[8]]"), time, 0.002 * time, 2.0, False)
        for name, time in zip(NAMES, times, strict=False)
    )
    return StepParts(parts, {"forward": sum(times)}, 5, sum(times), False, **facts)


def test_a_machine_slower_as_a_whole_is_no_change_of_a_part() -> None:
    times = [float(1000 * (number + 1)) for number in range(20)]
    found = change_of_parts([step(times)], [step([1.4 * time for time in times])])
    assert found.common == pytest.approx(0.4)
    assert found.sure == []
    assert found.change_ns == 0


def test_programs_without_a_part_in_common_tell_nothing_of_the_machine() -> None:
    a, b = step([1000.0, 9000.0]), step([1000.0, 9000.0])
    other = [
        dataclasses.replace(part, key=dataclasses.replace(part.key, name=f"my::{n}")) for n, part in enumerate(b.parts)
    ]
    found = change_of_parts([a], [dataclasses.replace(b, parts=tuple(other))])
    assert (found.common, found.sure) == (None, [])


def test_work_that_is_called_less_often_is_no_faster_machine() -> None:
    a, rare = step([10_000.0] * 20), step([1_000.0] * 15 + [10_000.0] * 5)
    parts = tuple(dataclasses.replace(part, calls=1.0 if n < 15 else 2.0) for n, part in enumerate(rare.parts))
    found = change_of_parts([a], [dataclasses.replace(rare, parts=parts)])
    assert found.common == 0
    assert {part.name for part in found.sure} == set(NAMES[:15])
    assert found.change_ns == pytest.approx(-15 * 9_000)


def test_a_phase_that_one_side_does_not_know_is_not_zero() -> None:
    found = change_of_parts([step([1000.0])], [dataclasses.replace(step([1000.0]), phases={"backward": 5.0})])
    assert [(one.name, one.a_ns, one.b_ns) for one in found.phases] == [
        ("forward", 1000.0, None),
        ("backward", None, 5.0),
    ]


def test_one_operator_slower_is_told_on_a_slower_machine() -> None:
    times = [10_000.0] * 20
    slower = [1.2 * time for time in times]
    slower[3] += 1.2 * 10_000  # 5 % of the step
    found = change_of_parts([step(times)], [step(slower)])
    assert [part.name for part in found.sure] == ["aten::op3"]
    assert found.change_ns == pytest.approx(10_000)
    assert found.common == pytest.approx(0.2)


def test_false_alarms_are_rare_and_five_percent_of_a_step_are_found() -> None:
    random = np.random.default_rng(5)
    times = np.linspace(4_000, 30_000, 20)
    false = found = 0
    for _ in range(200):
        a, b = (times * np.exp(random.normal(0, 0.025, 20) + random.normal(0, 0.1)) for _ in "ab")
        false += bool(change_of_parts([step(list(a))], [step(list(b))]).sure)
        place = int(random.integers(0, 20))
        b[place] += 0.05 * b.sum()
        sure = change_of_parts([step(list(a))], [step(list(b))]).sure
        found += any(part.name == NAMES[place] and part.change_ns > 0 for part in sure)
    assert false <= 2
    assert found >= 180


def test_page_faults_and_waits_for_a_core_excuse_as_much_as_they_take() -> None:
    times = [100_000.0] * 20
    slower = [*times[:19], 200_000.0]
    assert change_of_parts([step(times)], [step(slower)]).sure
    for excuse in ({"faults": 100.0}, {"delay_ns": 150_000.0}):
        assert not change_of_parts([step(times, faults=0.0)], [step(slower, **{"faults": 0.0, **excuse})]).sure


def test_what_only_one_side_has_is_told_with_its_calls() -> None:
    times = [10_000.0] * 19
    found = change_of_parts([step(times)], [step([*times, 9_000.0])])
    (part,) = found.sure
    assert (part.name, part.matched, part.calls_a, part.calls_b) == ("aten::op19", "only B", 0, 2)
    assert part.errors is None


def test_several_runs_a_side_are_taken_together_and_an_empty_one_says_nothing() -> None:
    times = [10_000.0] * 20
    empty = dataclasses.replace(step([]), phases={})
    found = change_of_parts([step(times), step([1.1 * time for time in times]), empty], [step(times)])
    assert found.common == pytest.approx(1 / 1.05 - 1, abs=1e-3)
    assert all(part.calls_a == part.calls_b == 2 for part in found.parts)
