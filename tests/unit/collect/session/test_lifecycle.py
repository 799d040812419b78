"""The table of transitions is complete, and no path through it loses a recording or opens a second window."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import profile as torch_profile

from stepscope.collect.schedule import Action
from stepscope.collect.session.lifecycle import END, TRANSITIONS, WindowOperation


def test_the_table_answers_for_the_pairs_that_torch_answers_for() -> None:
    # torch keeps DEVICE_STOPPED to itself, and does nothing at the end of a schedule that rests
    theirs = {tuple(action.name if action else None for action in pair) for pair in torch_profile().action_map}
    ours = {(before.name, after.name if after else None) for before, after in TRANSITIONS}
    assert ours == {pair for pair in theirs if "DEVICE_STOPPED" not in pair} | {("NONE", None)}


@given(st.lists(st.sampled_from(list(Action)), max_size=12))
def test_every_path_opens_and_closes_windows_in_order(actions: Sequence[Action]) -> None:
    before, state, recorded = Action.NONE, "closed", False
    for after in [*actions, END]:
        for operation in TRANSITIONS[before, after]:
            expected = {
                WindowOperation.PREPARE: ("closed", "prepared"),
                WindowOperation.START: ("prepared", "open"),
                WindowOperation.SAVE: ("open", "closed"),
                WindowOperation.DISCARD: ("prepared", "closed"),
            }
            needed, follows = expected[operation]
            assert state == needed
            state = follows
        recorded = after in (Action.RECORD, Action.RECORD_AND_SAVE)
        assert (state == "open") == recorded
        before = after or Action.NONE
    assert state == "closed"
