"""Every row of the table of situations: what is raised, what MindSpore 2.10 logs instead, and what is recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.compat.mindspore import (
    Profiler,
    ProfilerAction,
    _ExperimentalConfig,
    profile,
    schedule,
    tensorboard_trace_handler,
)
from stepscope.errors import StepscopeError

Make = Callable[..., Any]


def runs(directory: str = "data") -> list[Path]:
    return sorted(path.parent for path in Path(directory).glob("*/rank*/manifest.json"))


def a_schedule() -> schedule:
    return schedule(wait=0, warmup=1, active=2, repeat=1)


@dataclass(frozen=True)
class Row:
    """A call at the wrong moment: what comes before, the call, what is raised, what is logged instead."""

    make: Callable[[Make], Any]
    call: Callable[[Any], Any]
    raised: str
    logged: dict[str, str]
    only: str = ""


def stopped(prof: Any) -> Any:
    prof.stop()
    return prof


def started(prof: Any) -> Any:
    prof.start()
    return prof


ROWS: dict[str, Row] = {
    "start twice": Row(
        lambda make: started(make(start_profile=False)),
        lambda prof: prof.start(),
        r"start\(\) was called, but the profile has started already. Call stop\(\) first.",
        {
            "profile": "The profile has already started. Do not turn on again in the open state.",
            "Profiler": "The profiler has already started. Do not turn on again in the open state.",
        },
    ),
    "start where the constructor has": Row(
        lambda make: make(),
        lambda prof: prof.start(),
        r"made with start_profile=True.*Pass start_profile=False",
        {
            "profile": "The profile has already started. Do not turn on again in the open state.",
            "Profiler": "The profiler has already started. Do not turn on again in the open state.",
        },
    ),
    "start again where the constructor has": Row(
        lambda make: stopped(make()),
        lambda prof: prof.start(),
        r"made with start_profile=True.*Pass start_profile=False",
        {"profile": "", "Profiler": ""},
    ),
    "start after the data pipeline's collection": Row(
        lambda make: stopped(started(make(start_profile=False, data_process=True))),
        lambda prof: prof.start(),
        r"start\(\) was called after stop\(\), but collection of the data pipeline cannot start twice. Make a new",
        {"Profiler": ""},
        only="Profiler",
    ),
    "stop when not started": Row(
        lambda make: make(start_profile=False),
        lambda prof: prof.stop(),
        r"stop\(\) was called, but the profile has not started. Call start\(\) before stop\(\).",
        {
            "profile": "The profile has not started. Do not turn off again in the closed state.",
            "Profiler": "The profiler has not started. Do not turn off again in the closed state.",
        },
    ),
    "stop twice": Row(
        lambda make: stopped(make()),
        lambda prof: prof.stop(),
        "the profile has not started",
        {
            "profile": "The profile has not started. Do not turn off again in the closed state.",
            "Profiler": "The profiler has not started. Do not turn off again in the closed state.",
        },
    ),
    "step when not started": Row(
        lambda make: make(start_profile=False, schedule=a_schedule()),
        lambda prof: prof.step(),
        r"step\(\) was called, but the profile has not started, or has stopped. Call step\(\) between",
        {
            "profile": "profile is stopped, step takes no effect!",
            "Profiler": "Profiler is stopped, step takes no effect!",
        },
    ),
    "step without a schedule": Row(
        lambda make: make(),
        lambda prof: prof.step(),
        r"step\(\) was called, but the profile has no schedule. Pass schedule=schedule\(",
        {"Profiler": "With no schedule in the Profiler, step takes no effect!", "profile": ""},
    ),
}

CASES = [
    pytest.param(row, make, id=f"{name}: {make.__name__}")
    for name, row in ROWS.items()
    for make in (profile, Profiler)
    if row.only in ("", make.__name__)
]


@pytest.mark.parametrize(("row", "make"), CASES)
def test_what_the_documents_promise_is_raised(row: Row, make: Make) -> None:
    prof = row.make(make)
    with pytest.raises(RuntimeError, match=row.raised) as raised:
        row.call(prof)
    assert isinstance(raised.value, StepscopeError)
    assert raised.value.remedy


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize(("row", "make"), CASES)
def test_the_environment_turns_exceptions_into_mindspores_lines(
    row: Row, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    prof = row.make(make)
    caplog.clear()
    row.call(prof)
    expected = row.logged[make.__name__]
    assert caplog.messages == ([expected] if expected else [])


@pytest.mark.parametrize("make", [profile, Profiler])
def test_a_refused_call_leaves_the_recording_as_it_is(make: Make) -> None:
    prof = make()
    with pytest.raises(RuntimeError):
        prof.start()
    prof.stop()
    with pytest.raises(RuntimeError):
        prof.stop()
    assert [stepscope.open(rank).manifest["status"] for rank in runs()] == ["complete"]


@pytest.mark.parametrize("make", [profile, Profiler])
def test_start_after_stop_records_a_second_run(make: Make) -> None:
    prof = make(start_profile=False)
    for _ in range(2):
        prof.start()
        prof.stop()
    assert len(runs()) == 2
    assert [recorded.rank_path.name for recorded in prof.recorded] == ["rank0", "rank0"]


def test_profile_may_start_again_after_a_data_pipeline() -> None:
    prof = profile(start_profile=False, data_process=True)
    for _ in range(2):
        prof.start()
        prof.stop()
    assert len(runs()) == 2


def test_a_profiler_with_a_schedule_goes_on_until_a_step(caplog: pytest.LogCaptureFixture) -> None:
    profiler = Profiler(schedule=a_schedule())
    profiler.stop()
    assert caplog.messages[-1] == "The profiler has schedule. Please use step() to collect data."
    for _ in range(3):
        profiler.step()
    profiler.stop()
    assert len(runs()) == 1


def test_a_profiler_with_a_schedule_leaves_analysis_to_the_handler(caplog: pytest.LogCaptureFixture) -> None:
    profiler = Profiler(schedule=a_schedule())
    for _ in range(3):
        profiler.step()
    profiler.analyse()
    assert caplog.messages[-1] == "The profiler has schedule. Please use 'on_trace_ready' to analyse data."
    assert len(runs()) == 1
    assert not list(Path("data").rglob("results/*"))


def test_profiler_takes_only_schedules(caplog: pytest.LogCaptureFixture) -> None:
    profiler = Profiler(schedule=lambda step: ProfilerAction.NONE)
    assert "For Profiler, schedule value is Invalid, reset to Schedule(" in " ".join(caplog.messages)
    assert profiler.current_action is ProfilerAction.RECORD_AND_SAVE
    profiler.step()


def test_profile_takes_any_function_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    prof = profile(schedule=lambda step: ProfilerAction(min(step, 3)), start_profile=False)
    assert prof.current_action is ProfilerAction.NONE
    assert caplog.messages == []
    profile(schedule=3, start_profile=False)  # type: ignore[arg-type]
    assert caplog.messages == ["schedule is not Callable, set by default."]


def test_start_profile_that_is_no_bool_is_true(caplog: pytest.LogCaptureFixture) -> None:
    profile(start_profile="no").stop()  # type: ignore[arg-type]
    assert "the type of start_profile should be <class 'bool'>, but got <class 'str'>" in caplog.messages[0]
    assert len(runs()) == 1


@pytest.mark.filterwarnings("ignore:The parameter 'profile_communication'")
def test_communication_may_be_recorded_from_the_middle_of_training() -> None:
    profiler = Profiler(profile_communication=True, start_profile=False)
    profiler.start()
    profiler.stop()
    assert len(runs()) == 1


def test_profiling_mode_in_the_environment_is_nobodys_business(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROFILING_MODE", "dynamic")
    profile().stop()
    assert len(runs()) == 1


def test_analysing_nothing_says_so(caplog: pytest.LogCaptureFixture) -> None:
    Profiler(start_profile=False).analyse()
    assert caplog.messages[-1] == "stepscope: analyse() has nothing to analyse: nothing was recorded."


def test_analysing_while_recording_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    first = profile()
    first.analyse()
    second = Profiler()
    second.analyse()
    said = [message for message in caplog.messages if "nothing to analyse" in message]
    assert said == [
        "stepscope: analyse() has nothing to analyse: it is still recording; call stop() first.",
        "stepscope: analyse() has nothing to analyse: what it recorded lies in the window of another profile, "
        "which is still open.",
    ]


def test_two_profiles_at_once_share_what_they_have_in_common() -> None:
    first, second = profile(), profile()
    first.stop()
    second.stop()
    assert len(runs()) == 2
    assert [len(prof.recorded) for prof in (first, second)] == [1, 2]
    assert second.recorded[0].path == first.recorded[0].path


def test_the_second_profile_may_stop_first() -> None:
    told: list[Any] = []
    first = profile()
    second = profile(on_trace_ready=told.append)
    second.stop()
    assert second.recorded == []
    first.stop()
    assert [prof.recorded[0].path for prof in (first, second)] == [runs()[0].parent.absolute()] * 2
    assert told == [second]


def test_a_third_profile_follows_the_second(caplog: pytest.LogCaptureFixture) -> None:
    profiles = [profile() for _ in range(3)]
    for prof in profiles:
        prof.stop()
    assert [len(prof.recorded) for prof in profiles] == [1, 2, 3]
    assert sum("another profile is already recording" in message for message in caplog.messages) == 3


def test_a_profile_beside_stepscopes_own_records_nothing_and_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with stepscope.profile(output="own", analyse="later") as own:
        prof = profile()
        prof.stop()
    assert len(own.recorded) == 1
    assert "nothing is recorded: Another stepscope profile is running in this process." in " ".join(caplog.messages)


def test_a_deleted_profile_ends_before_the_next_begins() -> None:
    prof = profile()
    del prof
    second = profile()
    second.stop()
    assert [len(second.recorded), len(runs())] == [1, 2]
    notes = [stepscope.open(rank).manifest.get("ended_by") for rank in runs()]
    assert sorted(map(str, notes)) == ["None", "the end of the profile object"]


@pytest.mark.parametrize("refused", [False, True], ids=["rebound", "after a RuntimeError that the program caught"])
@pytest.mark.parametrize("make", [profile, Profiler])
def test_a_profile_whose_name_is_given_to_the_next_ends_before_it_begins(make: Make, refused: bool) -> None:
    prof = make()
    if refused:
        with pytest.raises(RuntimeError) as caught:
            prof.start()
        # As a notebook does, which shows them and keeps the traceback.
        assert all(entry.frame.f_locals for entry in caught.traceback)
    first, prof = prof, make()
    prof.stop()
    assert [len(first.recorded), len(prof.recorded), len(runs())] == [1, 1, 2]
    notes = [stepscope.open(rank).manifest.get("ended_by") for rank in runs()]
    assert sorted(map(str, notes)) == ["None", "another profile that takes its place"]


def test_an_exception_in_the_training_is_the_programs_own_and_in_the_manifest() -> None:
    with pytest.raises(KeyError, match="boom"), profile(schedule=a_schedule()) as prof:
        prof.step()
        raise KeyError("boom")
    manifest = stepscope.open(runs()[0]).manifest
    assert (manifest["status"], manifest["exception"]) == ("failed at step 1", "KeyError")


def test_a_handler_that_raises_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    def handler(prof: Any) -> None:
        raise ValueError("no room")

    profile(on_trace_ready=handler).stop()
    assert stepscope.open(runs()[0]).manifest["losses"] == {"handler_failed": 1}
    assert "on_trace_ready raised ValueError: no room; training goes on." in caplog.messages[-1]


@pytest.mark.parametrize("wait", [0, 1])
def test_a_handler_may_stop_the_profile(wait: int) -> None:
    told: list[int] = []

    def handler(prof: Any) -> None:
        told.append(prof.step_num)
        prof.stop()

    prof = profile(schedule=schedule(wait=wait, warmup=0, active=2), on_trace_ready=handler)
    for _ in range(2 + wait):
        prof.step()
    with pytest.raises(RuntimeError, match="has stopped"):
        prof.step()
    assert told == [2 + wait]
    first = stepscope.open(prof.recorded[0].rank_path)
    assert first.tables["steps"].collect().height == 2
    assert first.manifest["losses"] == {}
    with profile():
        pass
    assert stepscope.open(runs()[-1]).manifest["status"] == "complete"


def test_a_schedule_that_raises_ends_the_recording(caplog: pytest.LogCaptureFixture) -> None:
    def program(step: int) -> ProfilerAction:
        if step == 2:
            raise ValueError("no step 2")
        return ProfilerAction.RECORD

    prof = profile(schedule=program)
    for _ in range(4):
        prof.step()
    assert stepscope.open(runs()[0]).manifest["status"] == "failed at step 2"
    assert "ValueError: no step 2" in " ".join(caplog.messages)


def test_an_output_that_cannot_be_written_does_not_end_the_training(caplog: pytest.LogCaptureFixture) -> None:
    Path("file").write_text("")
    profiler = Profiler(output_path="file/below")
    profiler.analyse()
    assert "nothing is recorded: Cannot write to the output directory" in " ".join(caplog.messages)


def test_a_plain_profile_is_not_told_of_an_incorrect_schedule(caplog: pytest.LogCaptureFixture) -> None:
    with profile():
        pass
    assert caplog.messages == []


@pytest.mark.usefixtures("lenient")
def test_mindspore_tells_a_plain_profile_of_an_incorrect_schedule(caplog: pytest.LogCaptureFixture) -> None:
    with profile():
        pass
    assert caplog.messages == [
        "Incorrect schedule: Stop profiler while current state is RECORD which may result in incomplete parsed data."
    ]


def test_each_cycle_is_a_run_with_its_steps() -> None:
    handed = []
    made = schedule(skip_first=1, wait=1, warmup=1, active=2, repeat=2)
    with profile(schedule=made, on_trace_ready=lambda prof: handed.append(prof.step_num)) as prof:
        for _ in range(12):
            prof.step()
    assert handed == [5, 9]
    numbers = [stepscope.open(rank).tables["steps"].collect()["number"].to_list() for rank in runs()]
    assert numbers == [[3, 4], [7, 8]]


def test_the_handler_gets_everything_the_profile_has() -> None:
    handed: list[Any] = []
    prof = profile(schedule=a_schedule(), on_trace_ready=handed.append)
    for _ in range(3):
        prof.step()
    assert handed == [prof]
    assert callable(handed[0].analyse)


def test_switches_that_cannot_be_served_are_said_once_and_are_rows_of_losses(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        profile(experimental_config=_ExperimentalConfig(l2_cache=True)).stop()
    said = [message for message in caplog.messages if "l2_cache" in message]
    assert said == [
        "stepscope: l2_cache records nothing here: it needs an Ascend NPU, which stepscope does not record. "
        "Everything else is recorded."
    ]
    for rank in runs():
        losses = stepscope.open(rank).tables["losses"].collect()
        rows = losses.filter(what="switch_unavailable").select("source", "count", "severity").rows()
        assert rows == [("l2_cache", 1, "info")]


def test_where_runs_go(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    profile().stop()
    Profiler(output_path="given").stop()
    monkeypatch.setenv("MS_DIAGNOSTIC_DATA_PATH", "named")
    profile().stop()
    Profiler(output_path="given").stop()
    tensorboard_trace_handler("handled", worker_name="me")
    profile().stop()
    assert "Both on_trace_ready path" not in " ".join(caplog.messages)
    Profiler(output_path="given").stop()
    assert caplog.messages[-1] == (
        "Both on_trace_ready path and output_path are provided. "
        "The on_trace_ready path takes effect. Final path is handled"
    )
    assert [len(runs(name)) for name in ("data", "given", "named", "handled")] == [1, 2, 1, 2]
    assert runs("handled")[0].parent.name.startswith("me_")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"analyse_flag": 1}, "analyse_flag is not bool, set by default."),
        ({"async_mode": "no"}, "async_mode is not bool, set by default."),
        ({"worker_name": "w" * 226}, "Invalid parameter worker_name, reset it to default."),
        ({"dir_name": 3}, "Invalid parameter dir_name, reset it to default."),
    ],
)
def test_a_wrong_argument_of_the_handler(
    arguments: dict[str, Any], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(tensorboard_trace_handler(**arguments))
    assert caplog.messages == [text]
