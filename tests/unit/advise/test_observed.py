"""The sampled time of the training thread: looks say where it goes, CPU time and steps how much it is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stepscope.advise.observed import Observed
from tests.unit.advise.rules.trainings import STEP, Training
from tests.unit.analyse.build import ORIGIN

#: Steps of the run, each with one look.
STEPS = 40


def times(looks: Sequence[tuple[str, str]], *, cpu: float, covered: float = 1.0) -> dict[tuple[str, str], float]:
    """Return the time of each function and state, as part of the step.

    Args:
        looks: Function and state of each step's look.
        cpu: Part of each look's time in which the thread had a core.
        covered: Part of each step that its look stands for.
    """
    training = Training()
    training.run_steps(STEPS)
    for number, (function, state) in enumerate(looks):
        training.rank.add("stacks", id=number, frames=[{"file": "/home/me/train.py", "line": 7, "function": function}])
        dur = round(covered * STEP)
        look = {"ts": ORIGIN + number * STEP, "dur": dur, "cpu": round(cpu * dur), "state": state, "stack": number}
        training.rank.add("samples", count=1, process=100, thread=100, name="MainThread", worker=None, **look)
    rows = Observed(training.rank.tables()).looks.select("function", "state", "time").rows()
    found: dict[tuple[str, str], float] = {}
    for function, state, time in rows:
        found[function, state] = found.get((function, state), 0.0) + time / STEP
    return found


def test_steps_shorter_than_the_distance_of_looks_are_split_by_what_looks_see() -> None:
    # Given steps of which 70 % are Python: before each look the thread had a core for so long, wherever it is seen
    found = times([*[("augment", "python")] * 28, *[("fetch", "lock")] * 12], cpu=0.7)
    assert found == pytest.approx({("augment", "python"): 0.7, ("fetch", "lock"): 0.3})


def test_cpu_time_is_no_more_than_looks_at_a_core_stand_for() -> None:
    found = times([*[("augment", "python")] * 8, *[("fetch", "lock")] * 32], cpu=0.7)
    assert found == pytest.approx({("augment", "python"): 0.2, ("fetch", "lock"): 0.8})


def test_a_thread_that_waits_for_a_core_where_it_wakes_others_works_elsewhere() -> None:
    found = times([*[("augment", "python")] * 30, *[("train", "core")] * 10], cpu=0.75)
    assert found == pytest.approx({("augment", "python"): 0.75})
    few = times([*[("augment", "python")] * 10, *[("train", "core")] * 30], cpu=0.25)
    assert few == pytest.approx({("augment", "python"): 0.0625, ("train", "python"): 0.1875})


@pytest.mark.parametrize(("covered", "whole"), [(0.8, 1.0), (0.5, 0.75)])
def test_looks_stand_for_the_steps_of_the_run(covered: float, whole: float) -> None:
    found = times([("augment", "python"), ("fetch", "lock")] * 20, cpu=1.0, covered=covered)
    assert sum(found.values()) == pytest.approx(whole)
    assert found["augment", "python"] == pytest.approx(whole / 2)
