"""Activities are accepted in every spelling that users have."""

from __future__ import annotations

import json

import pytest
from torch.profiler import ProfilerActivity

from stepscope.collect.options import Activity, Options, check_rate, parse_activities
from stepscope.errors import UsageError


@pytest.mark.parametrize(
    "given",
    [
        [Activity.CPU, Activity.CUDA],
        ["cpu", "CUDA"],
        [ProfilerActivity.CPU, ProfilerActivity.CUDA],
        ["cpu", Activity.CUDA, ProfilerActivity.CPU],
    ],
)
def test_spellings_of_activities(given: list[object]) -> None:
    assert parse_activities(given) == (Activity.CPU, Activity.CUDA)


def test_private_use_is_one_activity() -> None:
    assert parse_activities([ProfilerActivity.PrivateUse1]) == (Activity.PRIVATE_USE,)


def test_every_activity_of_torch_is_known() -> None:
    members = list(ProfilerActivity.__members__.values())
    assert len(parse_activities(members)) == len(members)


def test_an_unknown_activity_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="Unknown activity 'gpu'"):
        parse_activities(["gpu"])


def test_options_are_plain_values_in_the_manifest() -> None:
    options = Options(activities=(Activity.CPU,), record_shapes=True)
    assert json.loads(json.dumps(options.describe()))["activities"] == ["cpu"]


def test_counters_may_be_left_out() -> None:
    assert [check_rate(hertz) for hertz in (0, 2, 0.5, 1000)] == [0, 2, 0.5, 1000]


@pytest.mark.parametrize("hertz", [-1, 1001, float("nan"), "10", None, True])
def test_a_rate_that_cannot_be_is_refused(hertz: object) -> None:
    with pytest.raises(UsageError, match="0 to 1000 times a second"):
        check_rate(hertz)
