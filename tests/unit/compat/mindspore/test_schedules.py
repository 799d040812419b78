"""The schedule and its transitions, against independent transcriptions of MindSpore's documents."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.collect.session.lifecycle import END, WindowOperation
from stepscope.collect.session.lifecycle import TRANSITIONS as SESSION
from stepscope.compat.mindspore import ProfilerAction, handler, profile, schedule
from stepscope.compat.mindspore.schedules import ACTIONS, TRANSITIONS
from tests.sizes import SIZE

NONE, WARM_UP, RECORD, SAVE = ProfilerAction


def documented(skip_first: int, wait: int, warmup: int, active: int, repeat: int) -> Iterator[ProfilerAction]:
    """The picture of the documents: skip_first, then cycles of wait, warmup and active."""
    yield from [NONE] * skip_first
    cycle = [NONE] * wait + [WARM_UP] * warmup + [RECORD] * (active - 1) + [SAVE]
    done = 0
    while not repeat or done < repeat:
        yield from cycle
        done += 1
    while True:
        yield NONE


@given(
    st.integers(0, 7), st.integers(0, 5), st.integers(0, 5), st.integers(1, 5), st.integers(0, 4), st.integers(0, 60)
)
def test_the_state_machine(skip_first: int, wait: int, warmup: int, active: int, repeat: int, steps: int) -> None:
    made = schedule(wait=wait, warmup=warmup, active=active, repeat=repeat, skip_first=skip_first)
    expected = documented(skip_first, wait, warmup, active, repeat)
    assert [made(step) for step in range(steps)] == [next(expected) for _ in range(steps)]


def test_the_measured_sequence() -> None:
    made = schedule(wait=1, warmup=1, active=2, repeat=2, skip_first=1)
    assert "".join("NWRS"[made(step).value] for step in range(12)) == "NNWRSNWRSNNN"


def test_the_example_of_the_documents() -> None:
    made = schedule(skip_first=10, wait=10, warmup=5, active=5, repeat=2)
    recorded = [step + 1 for step in range(100) if made(step) in (RECORD, SAVE)]
    assert recorded == [*range(26, 31), *range(46, 51)]


def test_arguments_are_keywords_and_two_are_needed() -> None:
    with pytest.raises(TypeError, match="positional"):
        schedule(1, 1)  # type: ignore[call-arg, misc]
    with pytest.raises(TypeError, match="wait"):
        schedule(active=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="skip_first_wait"):
        schedule(wait=0, active=1, skip_first_wait=1)  # type: ignore[call-arg]


def test_a_negative_step_is_refused() -> None:
    with pytest.raises(ValueError, match="Invalid parameter step, which must be not less than 0"):
        schedule(wait=0, active=1, warmup=1)(-1)


@pytest.mark.parametrize("name", ["wait", "warmup", "active", "repeat", "skip_first"])
@pytest.mark.parametrize("value", [-1, True, 1.0, "1", None])
def test_a_wrong_number_is_replaced(name: str, value: object, caplog: pytest.LogCaptureFixture) -> None:
    numbers = {"wait": 1, "warmup": 1, "active": 2, "repeat": 1, "skip_first": 1, name: value}
    made = schedule(**numbers)  # type: ignore[arg-type]
    default = 1 if name == "active" else 0
    kind = type(value).__name__
    assert caplog.messages[0] == f"Parameter '{name}' should be of type int, but got {kind}. reset to int {default}."
    assert made.to_dict() == {"wait": 1, "warmup": 1, "active": 2, "repeat": 1, "skip_first": 1, name: default}


def test_zero_active_steps_are_one() -> None:
    assert schedule(wait=0, warmup=1, active=0).active == 1


def test_no_warmup_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    made = schedule(wait=0, active=1)
    assert caplog.messages == ["Profiler won't be using warmup, this can skew profiler results"]
    assert repr(made) == "Schedule(wait=0, active=1, warmup=0, repeat=0, skip_first=0)"


STOPPED = "Incorrect schedule: Stop profiler while current state is "

#: MindSpore's table, as its documents' code has it: what it warns of, and what it calls.
MINDSPORE: dict[tuple[ProfilerAction, ProfilerAction | None], tuple[str, str]] = {
    (NONE, NONE): ("", ""),
    (NONE, WARM_UP): ("", "init"),
    (NONE, RECORD): ("", "init start"),
    (NONE, SAVE): ("", "init start"),
    (WARM_UP, NONE): ("Incorrect schedule: WARMUP followed by NONE", "start stop finalize clear"),
    (WARM_UP, WARM_UP): ("", ""),
    (WARM_UP, RECORD): ("", "start"),
    (WARM_UP, SAVE): ("", "start"),
    (RECORD, NONE): ("Incorrect schedule: RECORD followed by NONE", "stop finalize clear"),
    (RECORD, WARM_UP): ("Incorrect schedule: RECORD followed by WARMUP", "stop finalize clear"),
    (RECORD, RECORD): ("", ""),
    (RECORD, SAVE): ("", ""),
    (SAVE, NONE): ("", "stop finalize ready clear"),
    (SAVE, WARM_UP): ("", "stop finalize ready clear init"),
    (SAVE, RECORD): ("", "stop finalize ready clear init start"),
    (SAVE, SAVE): ("", "stop finalize ready clear init start"),
    (NONE, None): ("", ""),
    (WARM_UP, None): (f"{STOPPED}WARMUP which will result in empty parsed data.", "finalize clear delete_dir"),
    (RECORD, None): (
        f"{STOPPED}RECORD which may result in incomplete parsed data.",
        "stop finalize ready clear",
    ),
    (SAVE, None): (
        "Stop profiler while current state is RECORD_AND_SAVE, perhaps the scheduling cycle has not yet completed.",
        "stop finalize ready clear",
    ),
}

#: Ours by MindSpore's calls. A warm-up that is followed by nothing leaves nothing, where MindSpore leaves an empty
#: directory; after RECORD→WARM_UP the recording that follows is prepared, where MindSpore forgets it.
CALLS = {
    WindowOperation.PREPARE: "init",
    WindowOperation.START: "start",
    WindowOperation.SAVE: "stop finalize clear",
    WindowOperation.DISCARD: "finalize clear delete_dir",
}


@pytest.mark.parametrize("pair", MINDSPORE, ids=str)
def test_every_row_of_the_table_of_transitions(pair: tuple[ProfilerAction, ProfilerAction | None]) -> None:
    warning, calls = MINDSPORE[pair]
    before, following = pair
    ours = TRANSITIONS.get(pair)
    assert (ours.warning if ours else "") == warning
    assert (ours.ready if ours else False) is ("ready" in calls)
    session = " ".join(CALLS[one] for one in SESSION[ACTIONS[before], ACTIONS[following] if following else END])
    differs = {
        (WARM_UP, NONE): "finalize clear delete_dir",
        (RECORD, WARM_UP): "stop finalize clear init",
    }
    assert session == differs.get(pair, calls.replace(" ready", ""))


def test_no_row_is_missing() -> None:
    assert set(TRANSITIONS) <= set(MINDSPORE)
    assert len(MINDSPORE) == 4 * 5


@settings(max_examples=SIZE.examples(40))
@given(st.lists(st.sampled_from(list(ProfilerAction)), min_size=1, max_size=7), st.integers(0, 7))
def test_any_sequence_of_actions(actions: list[ProfilerAction], steps: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        _check_sequence(Path(directory), actions, steps)


def _check_sequence(directory: Path, actions: list[ProfilerAction], steps: int) -> None:
    """Run a schedule of any actions: what is handed over, and which runs there are, follow from MindSpore's table."""
    handler.chosen = (str(directory), None)
    ready: list[int] = []

    def program(step: int) -> ProfilerAction:
        return actions[step % len(actions)]

    prof = profile(schedule=program, on_trace_ready=lambda handed: ready.append(handed.step_num))
    for _ in range(steps):
        prof.step()
    prof.stop()
    assert all(recorded.wait(10) for recorded in prof.recorded)
    handler.chosen = (None, None)
    happened = [program(step) for step in range(steps + 1)]
    pairs = list(zip([NONE, *happened], [*happened, None], strict=True))
    handed = [step for step, pair in enumerate(pairs) if "ready" in MINDSPORE[pair][1]]
    assert ready == [min(step, steps) for step in handed]
    manifests = [json.loads(path.read_text()) for path in directory.glob("*/rank0/manifest.json")]
    runs = [found for found in manifests if found["collectors"]]  # the others have the times of the steps only
    kept = [
        pair
        for pair in pairs
        if WindowOperation.SAVE in SESSION[ACTIONS[pair[0]], ACTIONS[pair[1]] if pair[1] else END]
    ]
    assert len(runs) == len(kept)
