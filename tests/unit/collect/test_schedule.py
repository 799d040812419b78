"""The schedule agrees with torch's for every step, and refuses what has no meaning."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import stepscope
from stepscope.collect.schedule import Action, action_of, unchanged_until
from stepscope.errors import UsageError

counts = st.integers(0, 6)


@given(wait=counts, warmup=st.integers(1, 5), active=st.integers(1, 6), repeat=counts, skip_first=counts)
def test_every_step_has_the_action_that_torch_gives_it(
    wait: int, warmup: int, active: int, repeat: int, skip_first: int
) -> None:
    arguments = {"wait": wait, "warmup": warmup, "active": active, "repeat": repeat, "skip_first": skip_first}
    ours, theirs = stepscope.schedule(**arguments), torch.profiler.schedule(**arguments)
    for step in range(60):
        assert ours(step).name == theirs(step).name
        assert action_of(theirs, step) is ours(step)


@given(wait=counts, warmup=counts, active=st.integers(1, 6), repeat=counts, skip_first=counts)
def test_a_recorded_step_says_up_to_which_nothing_changes(
    wait: int, warmup: int, active: int, repeat: int, skip_first: int
) -> None:
    schedule = stepscope.schedule(wait=wait, warmup=warmup, active=active, repeat=repeat, skip_first=skip_first)
    for step in range(60):
        until = unchanged_until(schedule, step)
        assert until > step
        assert all(schedule(between) is schedule(step) for between in range(step, min(until, 100)))
    # A function that is not ours may change its mind in every step
    assert unchanged_until(lambda step: schedule(step), 7) == 8


def test_warmup_may_be_left_out() -> None:
    schedule = stepscope.schedule(wait=1, warmup=0, active=2, repeat=1)
    assert [schedule(step) for step in range(4)] == [
        Action.NONE,
        Action.RECORD,
        Action.RECORD_AND_SAVE,
        Action.NONE,
    ]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"wait": 0, "warmup": 0, "active": 0}, "active must be at least 1"),
        ({"wait": -1, "warmup": 0, "active": 1}, "wait is negative"),
        ({"wait": 0, "warmup": 0, "active": 1, "repeat": -2}, "repeat is negative"),
    ],
)
def test_a_schedule_that_records_nothing_is_refused(arguments: dict[str, int], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        stepscope.schedule(**arguments)


def test_a_function_that_returns_no_action_is_refused() -> None:
    with pytest.raises(UsageError, match="returned 3 for step 7"):
        action_of(lambda _step: 3, 7)
