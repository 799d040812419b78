"""``stepscope.profile`` records what torch does, and changes nothing of it."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stepscope
from stepscope.collect.session.recorded import RecordedWindow
from stepscope.errors import LifecycleError, UsageError
from stepscope.run import Run
from tests.frameworks.torch.programs import forked, manifest, names, recorded_spans, recorded_steps, runs
from tests.unit.collect.reading import read_journal


def train(steps: int, after: Callable[[], object] = lambda: None) -> nn.Module:
    """Train a seeded net with dropout and return it."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        after()
    return model


def multiply(times: int) -> None:
    factor = torch.ones(16, 16)
    for _ in range(times):
        factor.mm(factor)


def on_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {"output": tmp_path / "runs", "analyse": "later"}


def only_run(output: Path) -> Path:
    (run,) = runs(output)
    return run


def recorded(profile: stepscope.profile) -> Path:
    """Wait for the only window of a profile and return its run."""
    (window,) = profile.recorded
    assert window.wait(30)
    path: Path = window.path
    return path


def test_a_schedule_records_the_steps_it_names(options: dict[str, Any]) -> None:
    # When
    with stepscope.profile(schedule=stepscope.schedule(wait=1, warmup=1, active=3, repeat=1), **options) as profile:
        train(8, profile.step)
    # Then Kineto's own file and the journal agree on three steps
    run = recorded(profile)
    events = recorded_spans(run)
    assert recorded_steps(events) == [2, 3, 4]
    journal = read_journal(run / "rank0" / "capture" / "journal.ssj")
    steps = journal.frames["steps"].to_dicts()
    assert [(step["number"], step["source"]) for step in steps] == [(number, "declared") for number in (2, 3, 4)]
    marks = sorted((event for event in events if event["name"].startswith("ProfilerStep")), key=lambda e: e["ts"])
    for step, mark in zip(steps, marks, strict=True):
        assert step["dur"] / 1000 == pytest.approx(mark["dur"], abs=500)
    # and three steps' worth of operators are there: two layers each
    assert names(events, "cpu_op")["aten::addmm"] == 6
    assert names(events, "user_annotation")["Optimizer.step#Adam.step"] == 3


def test_the_manifest_says_who_where_how_and_what_is_missing(options: dict[str, Any]) -> None:
    with stepscope.profile(activities=["cpu", "cuda"], record_shapes=True, **options) as profile:
        profile.add_metadata("learning rate", 0.1)
        train(2, profile.step)
    found = manifest(recorded(profile))
    assert (found["status"], found["rank"], found["world_size"]) == ("complete", 0, 1)
    assert found["options"]["record_shapes"] is True
    assert found["door"] == "code"
    assert found["steps"] == {"source": "declared", "by": "step()", "recorded": 2}
    assert found["captures"] == ["capture/journal.ssj", "capture/recorder.ssr", "capture/steps.ssj"]
    assert found["collectors"]["torch"]["missing"].keys() == {"cuda"}
    assert found["cost"]["stop_ns"] > 0
    assert found["window"]["end_ns"] > found["window"]["start_ns"]
    assert "environ" not in json.dumps(found).lower()


def test_metadata_goes_into_every_window_from_then_on(options: dict[str, Any]) -> None:
    stepscope.add_metadata("batch", 32)
    stepscope.add_metadata_json("layers", "[1, 2]")
    with stepscope.profile(**options) as profile:
        profile.add_metadata("tensor", torch.ones(2))
    journal = read_journal(recorded(profile) / "rank0" / "capture" / "journal.ssj")
    found = dict(journal.frames["metadata"].select("key", "value").iter_rows())
    assert found["batch"] == "32"
    assert json.loads(found["layers"]) == [1, 2]
    assert "Tensor" in found["tensor"]


@pytest.mark.parametrize("text", ["{", "NaN", "", None, b"\xff"])
def test_metadata_that_is_no_json_is_refused(text: Any) -> None:
    with pytest.raises(UsageError, match="not JSON"):
        stepscope.add_metadata_json("bad", text)


def test_metadata_needs_a_text_for_a_key() -> None:
    with pytest.raises(UsageError, match="must be a text"):
        stepscope.add_metadata(3, 4)  # type: ignore[arg-type]


def test_every_window_is_a_run_of_its_own(options: dict[str, Any]) -> None:
    seen: list[RecordedWindow] = []
    schedule = stepscope.schedule(wait=1, warmup=1, active=2, repeat=2)
    with stepscope.profile(schedule=schedule, on_trace_ready=seen.append, **options) as profile:
        train(9, profile.step)
    assert [window.wait(30) for window in seen] == [True, True]
    assert len({window.path for window in seen}) == 2
    assert [recorded_steps(recorded_spans(window.path)) for window in seen] == [[2, 3], [6, 7]]
    assert seen[0].rank_path == seen[0].path / "rank0"
    assert seen[0].manifest["status"] == "complete"


def test_windows_that_follow_each_other_without_a_pause(options: dict[str, Any]) -> None:
    with stepscope.profile(schedule=stepscope.schedule(wait=0, warmup=0, active=2, repeat=3), **options) as profile:
        train(6, profile.step)
    assert [window.wait(30) for window in profile.recorded] == [True] * 3
    assert [recorded_steps(recorded_spans(window.path)) for window in profile.recorded] == [[0, 1], [2, 3], [4, 5]]


def test_a_schedule_of_torch_works(options: dict[str, Any]) -> None:
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with stepscope.profile(activities=activities, schedule=schedule, **options) as profile:
        train(4, profile.step)
    assert recorded_steps(recorded_spans(recorded(profile))) == [1]


def test_training_that_ends_in_the_middle_of_a_window_keeps_its_steps(options: dict[str, Any]) -> None:
    with stepscope.profile(schedule=stepscope.schedule(wait=0, warmup=1, active=9), **options) as profile:
        train(4, profile.step)
    run = recorded(profile)
    assert recorded_steps(recorded_spans(run))[:3] == [1, 2, 3]
    assert manifest(run)["steps"]["recorded"] == 3
    assert manifest(run)["losses"] == {"steps_not_recorded": 6}


@pytest.mark.parametrize(("trained", "missing"), [(2, 3), (4, 1), (5, 0)])
def test_the_steps_that_a_schedule_asked_for_in_vain_are_counted(
    options: dict[str, Any], trained: int, missing: int
) -> None:
    with stepscope.profile(schedule=stepscope.schedule(wait=0, warmup=0, active=5, repeat=1), **options) as profile:
        train(trained, profile.step)
    assert manifest(recorded(profile))["losses"] == ({"steps_not_recorded": missing} if missing else {})


@pytest.mark.parametrize("collector", ["native", "kineto"])
def test_a_schedule_without_end_leaves_no_run_without_steps(options: dict[str, Any], collector: str) -> None:
    schedule = stepscope.schedule(wait=0, warmup=0, active=2, repeat=0)
    with stepscope.profile(schedule=schedule, **{**options, "collector": collector}) as profile:
        train(4, profile.step)
    assert len(profile.recorded) == 2
    assert [manifest(run)["steps"]["recorded"] for run in runs(profile.recorded[0].path.parent)] == [2, 2]


@pytest.mark.parametrize("quiet", [False, True])
def test_a_profile_says_once_where_its_run_lies(
    options: dict[str, Any], capsys: pytest.CaptureFixture[str], *, quiet: bool
) -> None:
    schedule = stepscope.schedule(wait=0, warmup=0, active=1, repeat=2)
    with stepscope.profile(schedule=schedule, quiet=quiet, **options) as profile:
        train(2, profile.step)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == ("" if quiet else f"stepscope: recorded in {profile.recorded[0].path}\n")


def test_a_window_without_a_step_is_kept_if_it_is_the_only_one(options: dict[str, Any]) -> None:
    with stepscope.profile(schedule=stepscope.schedule(wait=0, warmup=0, active=2), **options) as profile:
        train(1, lambda: None)
    assert manifest(recorded(profile))["losses"] == {"steps_not_recorded": 2}


def test_training_that_ends_before_the_window_leaves_the_times_of_its_steps(options: dict[str, Any]) -> None:
    with stepscope.profile(schedule=stepscope.schedule(wait=1, warmup=3, active=1), **options) as profile:
        train(2, profile.step)
    assert profile.recorded == []
    (run,) = stepscope.runs(options["output"])
    assert run.manifest["steps"]["recorded"] == 0
    assert run.tables["run_steps"].collect()["number"].to_list() == [0, 1]
    # and torch is free for the next one
    with stepscope.profile(**options) as profile:
        multiply(3)
    assert names(recorded_spans(recorded(profile)), "cpu_op")["aten::mm"] == 3


def test_steps_that_nobody_declares_are_found_by_the_optimizer(options: dict[str, Any]) -> None:
    with stepscope.profile(**options) as profile:
        train(24)
    run = recorded(profile)
    steps = read_journal(run / "rank0" / "capture" / "journal.ssj").frames["steps"].to_dicts()
    assert [(step["number"], step["source"]) for step in steps] == [(number, "inferred") for number in range(24)]
    found = manifest(run)["steps"]
    assert (found["by"], found["optimizers"], found["recorded"]) == ("optimizer step hooks", ["Adam"], 24)
    # each ends in torch's own range of the optimizer's step, close to its end where nothing takes the core before that
    ranges = [event for event in recorded_spans(run) if event["name"].startswith("Optimizer.step")]
    begins = sorted(event["ts"] for event in ranges)
    ends = sorted(event["ts"] + event["dur"] for event in ranges)
    own = [(step["ts"] + step["dur"]) / 1000 for step in steps]
    late = sorted(end - mine for end, mine in zip(ends, own, strict=True))  # µs, and what the two clocks are apart
    assert all(begin < mine + late[0] for begin, mine in zip(begins, own, strict=True))
    assert late[2] - late[0] < 500


def test_declared_steps_are_not_mixed_with_found_ones(options: dict[str, Any]) -> None:
    with stepscope.profile(**options) as profile:
        train(4, profile.step)
    run = recorded(profile)
    steps = read_journal(run / "rank0" / "capture" / "journal.ssj").frames["steps"]
    assert set(steps["source"]) == {"declared"}
    assert steps.height == 4
    assert manifest(run)["steps"]["source"] == "declared"


def test_a_schedule_whose_steps_never_come_is_said(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with stepscope.profile(schedule=stepscope.schedule(wait=1, warmup=1, active=1), **options) as profile:
        train(5)
    assert profile.recorded == []
    (record,) = [record for record in caplog.records if record.name == "stepscope"]
    assert "Nothing was recorded" in record.getMessage()
    assert "step()" in record.getMessage()


@pytest.mark.parametrize("brackets", [True, False])
def test_the_decorator_records_every_call(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brackets: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    decorate = stepscope.profile(**options) if brackets else stepscope.profile

    @decorate
    def work(times: int) -> str:
        """Multiply."""
        multiply(times)
        return "done"

    assert (work.__name__, work.__doc__) == ("work", "Multiply.")
    assert [work(2), work(3)] == ["done", "done"]
    for thread in threading.enumerate():
        if thread.name == "stepscope-settle":
            thread.join()
    output = options["output"] if brackets else tmp_path / "stepscope-runs"
    assert [names(recorded_spans(run), "cpu_op")["aten::mm"] for run in runs(output)] == [2, 3]


def test_a_decorated_function_may_call_itself(options: dict[str, Any]) -> None:
    profile = stepscope.profile(**options)

    @profile
    def countdown(number: int) -> int:
        multiply(1)
        return countdown(number - 1) if number else 0

    assert countdown(3) == 0
    assert names(recorded_spans(recorded(profile)), "cpu_op")["aten::mm"] == 4


def test_a_stopped_profile_starts_again_in_a_new_run(options: dict[str, Any]) -> None:
    profile = stepscope.profile(**options)
    for _ in range(2):
        profile.start()
        profile.step()
        assert profile.step_number == 1
        profile.stop()
    assert len({window.path for window in profile.recorded}) == 2


ALL = dict.fromkeys(("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules"), True)


@pytest.mark.parametrize("switches", [{}, ALL], ids=["plain", "everything"])
def test_training_has_the_same_result_to_the_last_bit(options: dict[str, Any], switches: dict[str, bool]) -> None:
    expected = [parameter.clone() for parameter in train(6).parameters()]
    state = torch.get_rng_state()
    schedule = stepscope.schedule(wait=1, warmup=1, active=2, repeat=1)
    with stepscope.profile(schedule=schedule, **switches, **options) as profile:
        model = train(6, profile.step)
    for parameter, wanted in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter, wanted)
    assert torch.equal(torch.get_rng_state(), state)
    assert len(recorded_spans(recorded(profile))) > 0


def test_every_switch_leaves_its_mark(options: dict[str, Any]) -> None:
    with stepscope.profile(collector="kineto", **ALL, **options) as profile:
        train(2, profile.step)
    run = recorded(profile)
    events = recorded_spans(run)
    (addmm, *_) = [event for event in events if event["name"] == "aten::addmm"]
    assert addmm["args"]["Input Dims"][:2] == [[16], [4, 8]]
    assert names(events, "python_function")
    assert any(name.startswith("nn.Module: Linear") for name in names(events, "python_function"))
    text = (run / "rank0" / "capture" / "kineto_0.json").read_text()
    assert '"[memory]"' in text
    assert "Call stack" in text


#: torch records all threads, and may be stopped from any, from 2.11 on; before, the thread that starts.
sees_threads = pytest.mark.skipif(
    "profile_all_threads: bool" not in (torch._C._profiler._ExperimentalConfig.__init__.__doc__ or ""),
    reason=f"torch {torch.__version__} records the starting thread only",
)


@pytest.mark.parametrize("collector", [pytest.param("kineto", marks=sees_threads), "native"])
def test_training_on_another_thread_is_seen(options: dict[str, Any], collector: str) -> None:
    with stepscope.profile(collector=collector, **options) as profile:
        on_a_thread(lambda: multiply(5))
        multiply(2)
    run = recorded(profile)
    assert names(recorded_spans(run), "cpu_op")["aten::mm"] == 7
    assert len({event["tid"] for event in recorded_spans(run) if event["name"] == "aten::mm"}) == 2
    assert manifest(run)["collectors"]["torch"]["threads"] == "all"


@pytest.mark.parametrize("switches", [{"collector": "kineto"}, {"collector": "native"}, {"sample": 0.25}], ids=str)
def test_threads_that_step_at_the_same_time_have_steps_of_their_own(
    options: dict[str, Any], switches: dict[str, Any]
) -> None:
    # When four threads declare steps as fast as they can, and Python changes between them as often as it can
    interval = sys.getswitchinterval()
    with stepscope.profile(**switches, **options) as profile:
        profile.step()
        threads = [threading.Thread(target=lambda: [profile.step() for _ in range(1000)]) for _ in range(4)]
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
    # Then every call is one step, and none has the number of another
    steps = read_journal(recorded(profile) / "rank0" / "capture" / "journal.ssj").frames["steps"]
    assert sorted(steps["number"]) == list(range(4001))
    assert steps["dur"].min() >= 0


@pytest.mark.parametrize("collector", [pytest.param("kineto", marks=sees_threads), "native"])
def test_start_and_stop_may_be_on_different_threads(options: dict[str, Any], collector: str) -> None:
    profile = stepscope.profile(collector=collector, **options)
    on_a_thread(profile.start)
    multiply(3)
    profile.step()
    on_a_thread(profile.stop)
    run = recorded(profile)
    assert names(recorded_spans(run), "cpu_op")["aten::mm"] == 3
    assert recorded_steps(recorded_spans(run))[0] == 0


@pytest.mark.parametrize("collector", ["kineto", "native"])
def test_memory_is_recorded_on_one_thread_and_stopped_there(options: dict[str, Any], collector: str) -> None:
    # Given a recording of memory, which torch binds to the thread that starts it
    profile = stepscope.profile(profile_memory=True, collector=collector, **options)
    profile.start()
    failures: list[LifecycleError] = []

    def stop() -> None:
        try:
            profile.stop()
        except LifecycleError as error:
            failures.append(error)

    # When another thread stops it, then that thread is told
    on_a_thread(stop)
    assert "on that thread only" in str(failures[0])
    # and nothing is lost
    multiply(2)
    profile.stop()
    assert names(recorded_spans(recorded(profile)), "cpu_op")["aten::mm"] == 2


@pytest.mark.skipif(
    "trace_only: bool" not in (torch._C._profiler._ExperimentalConfig.__init__.__doc__ or ""),
    reason=f"torch {torch.__version__} never records again after a recording whose thread has ended",
)
def test_memory_recorded_by_a_thread_that_is_gone_is_said_to_be_lost(options: dict[str, Any]) -> None:
    profile = stepscope.profile(profile_memory=True, collector="kineto", **options)
    on_a_thread(profile.start)
    profile.step()
    profile.stop()
    found = manifest(recorded(profile))
    assert "another thread" in found["collectors"]["torch"]["failed"]
    assert found["steps"]["recorded"] == 1
    # and the next profile works
    with stepscope.profile(collector="kineto", **options) as following:
        multiply(1)
    assert names(recorded_spans(recorded(following)), "cpu_op")["aten::mm"] == 1


def test_operators_stay_where_the_thread_is_gone_whose_memory_is_recorded(options: dict[str, Any]) -> None:
    profile = stepscope.profile(profile_memory=True, collector="native", **options)
    on_a_thread(profile.start)
    multiply(2)
    profile.stop()
    assert names(recorded_spans(recorded(profile)), "cpu_op")["aten::mm"] == 2
    with stepscope.profile(profile_memory=True, collector="native", **options) as following:
        multiply(1)
    assert names(recorded_spans(recorded(following)), "cpu_op")["aten::mm"] == 1


@pytest.mark.parametrize("collector", ["kineto", "auto"])
def test_a_torch_profiler_that_records_already_keeps_its_events(options: dict[str, Any], collector: str) -> None:
    # Given torch's own profiler at work
    with torch.profiler.profile() as theirs:
        multiply(2)
        # When stepscope records inside of it
        with stepscope.profile(collector=collector, **options) as profile:
            multiply(3)
            profile.step()
        multiply(4)
    # Then that one has all; Kineto says why ours has no operators, and the rest of ours is there
    assert {event.key: event.count for event in theirs.key_averages()}["aten::mm"] == 9
    run = recorded(profile)
    found = manifest(run)
    if collector == "kineto":
        assert "another torch profiler" in found["collectors"]["torch"]["unavailable"]
        assert found["captures"] == ["capture/journal.ssj", "capture/steps.ssj"]
    else:
        assert names(recorded_spans(run), "cpu_op")["aten::mm"] == 3
    assert read_journal(run / "rank0" / "capture" / "journal.ssj").frames["steps"].height == 1


@pytest.mark.parametrize("collector", ["kineto", "auto"])
@pytest.mark.parametrize("memory", [False, True])
def test_a_torch_profiler_that_starts_later_gets_its_events_and_ours_are_kept(
    options: dict[str, Any], memory: bool, collector: str
) -> None:
    with stepscope.profile(profile_memory=memory, collector=collector, **options) as profile:
        multiply(2)
        profile.step()
        with torch.profiler.profile() as theirs:
            multiply(3)
        multiply(4)
    assert {event.key: event.count for event in theirs.key_averages()}["aten::mm"] == 3
    run = recorded(profile)
    if collector == "kineto":  # torch has room for one
        assert names(recorded_spans(run), "cpu_op")["aten::mm"] == 2
        assert "own torch profiler" in manifest(run)["collectors"]["torch"]["ended_early"]
    else:
        assert names(recorded_spans(run), "cpu_op")["aten::mm"] == 9


#: In a process of its own: Kineto that was prepared twice ends the process with a signal.
BOTH_PREPARED = """
import sys
import torch
import stepscope

first, warmup, active = map(int, sys.argv[2:])
theirs = torch.profiler.profile(
    activities=[torch.profiler.ProfilerActivity.CPU],
    schedule=torch.profiler.schedule(wait=0, warmup=warmup, active=active, repeat=1),
    on_trace_ready=lambda done: print(sum(event.count for event in done.key_averages() if event.key == "aten::mm")),
)
ours = stepscope.schedule(wait=1, warmup=4, active=2, repeat=1)
with stepscope.profile(output=sys.argv[1], analyse="later", quiet=True, collector="kineto", schedule=ours) as profile:
    for number in range(20):
        if number == first:
            theirs.start()
        torch.ones(4, 4).mm(torch.ones(4, 4))
        if first <= number < first + warmup + active:
            theirs.step()
        profile.step()
"""


@pytest.mark.parametrize(
    ("first", "warmup", "state"),
    [
        (0, 3, "failed"),
        (0, 12, "failed"),
        (2, 1, ""),
        (3, 8, "failed"),
        (5, 2, "ended_early"),
    ],
)
def test_a_torch_profiler_and_ours_are_never_prepared_at_once(
    tmp_path: Path, first: int, warmup: int, state: str
) -> None:
    # Given a program whose own profiler warms up before, while or after ours is prepared in step 1 to record step 5
    output = tmp_path / "runs"
    done = forked("-c", BOTH_PREPARED, output, first, warmup, 1)
    # Then it has its events, and ours records if torch has room when the window opens, or says why not
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    run = only_run(output)
    found = manifest(run)["collectors"]["torch"]
    assert [key for key in ("failed", "ended_early") if key in found] == [state] * bool(state)
    assert "torch profiler" in found.get(state, "torch profiler")
    if not state:
        assert names(recorded_spans(run), "cpu_op")["aten::mm"] == 2


@pytest.mark.parametrize("first", [0, 3])
def test_steps_after_a_torch_profiler_of_the_program_are_not_idle(options: dict[str, Any], first: int) -> None:
    # Given a program that runs its own profiler in one of the steps that Kineto records
    with stepscope.profile(collector="kineto", **options) as profile:
        for number in range(6):
            multiply(20)
            if number == first:
                with torch.profiler.profile():
                    multiply(20)
            profile.step()
    rank = Run(recorded(profile)).ranks[0]
    # Then the loss is counted with its time, and only whole steps are steps
    losses = {row["what"]: row["count"] for row in rank.tables["losses"].collect().to_dicts()}
    assert losses["recording_ended_early"] == 1
    assert losses["steps_not_recorded"] == 6 - first
    assert re.search(r"own torch profiler, at \d{4}-", rank.manifest["collectors"]["torch"]["ended_early"])
    assert rank.tables["steps"].collect()["number"].to_list() == list(range(first))
    # and without a whole step nothing is known of what a step computes
    split = rank.results["step_trace_time"]
    assert all(row["Computing"] > 0 if first else row["Computing"] is None for row in split.to_dicts()), split


@pytest.mark.skipif(not torch.profiler.itt.is_available(), reason="this torch has no ranges for VTune")
def test_ranges_for_another_tool_take_torchs_place_and_ours_are_kept(options: dict[str, Any]) -> None:
    # Given a program that turns on torch's ranges for another profiler while Kineto records
    with stepscope.profile(collector="kineto", **options) as profile:
        multiply(2)
        with torch.autograd.profiler.emit_itt():
            multiply(3)
            profile.step()
    run = recorded(profile)
    assert names(recorded_spans(run), "cpu_op")["aten::mm"] == 2
    assert "own torch profiler" in manifest(run)["collectors"]["torch"]["ended_early"]
    assert "failed" not in manifest(run)["collectors"]["torch"]


def test_double_start_and_a_second_profile_are_refused_before_anything_happens(options: dict[str, Any]) -> None:
    with stepscope.profile(**options) as profile:
        with pytest.raises(LifecycleError, match="already"):
            profile.start()
        with pytest.raises(LifecycleError, match="Another stepscope profile"):
            stepscope.profile(**options).start()
        multiply(2)
    assert names(recorded_spans(recorded(profile)), "cpu_op")["aten::mm"] == 2
    assert len(runs(options["output"])) == 1


def test_a_profile_that_the_program_has_dropped_makes_room_for_the_next(options: dict[str, Any]) -> None:
    # Given a cell of a notebook that is run again before it has stopped its profile
    for count in (2, 3):
        profile = stepscope.profile(**options)
        profile.start()
        multiply(count)
    profile.stop()
    # Then both are recorded, each with its own operators
    first, second = runs(options["output"])
    assert [names(recorded_spans(run), "cpu_op")["aten::mm"] for run in (first, second)] == [2, 3]
    assert (manifest(first)["status"], second) == ("complete", recorded(profile))
    assert "dropped" in manifest(first)["ended_by"]


def test_calls_at_the_wrong_moment(options: dict[str, Any]) -> None:
    profile = stepscope.profile(**options)
    with pytest.raises(LifecycleError, match=r"step\(\) was called before start\(\)"):
        profile.step()
    with pytest.raises(LifecycleError, match=r"stop\(\) was called before start\(\)"):
        profile.stop()
    profile.start()
    profile.stop()
    profile.stop()
    with pytest.raises(LifecycleError, match=r"step\(\) was called after stop\(\)"):
        profile.step()
    assert len(profile.recorded) == 1


def test_results_can_be_there_when_the_profile_has_stopped(options: dict[str, Any]) -> None:
    with stepscope.profile(**{**options, "analyse": "now"}) as profile:
        multiply(2)
    (found,) = profile.recorded
    assert (found.rank_path / "results" / "step_trace_time.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"activities": ["gpu"]}, "'activities' should be a list of cpu | cuda"),
        ({"analyse": "soon"}, "'analyse' should be now | background | later"),
        ({"host_sys": "cpu"}, "'host_sys' should be a list of cpu | mem"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        stepscope.profile(**arguments)


#: Records until a window's file is not yet there when ``stop()`` has returned, and says how long this took in seconds,
#: and for how much of it the thread waited for a core.
BIG = """
import sys, time
import torch, stepscope
torch.set_num_threads(1)
layers = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(20)])

def waited():
    return int(open("/proc/thread-self/schedstat").read().split()[1]) / 1e9

for number in range(5):
    profile = stepscope.profile(
        collector="kineto", record_shapes=True, output=f"{sys.argv[1]}/{number}", analyse="later"
    )
    profile.start()
    with torch.no_grad():
        for _ in range(600):
            layers(torch.ones(2, 8))
    begin, delay = time.perf_counter(), waited()
    profile.stop()
    stopped, delay = time.perf_counter() - begin, waited() - delay
    written = list(profile.recorded[0].path.rglob("kineto_0.json"))
    assert profile.recorded[0].wait()
    if not written:
        print(number, stopped, delay)
        break
"""


@pytest.mark.skipif(torch.version.cuda is not None, reason="the libraries of CUDA take more memory than the recording")
@pytest.mark.slow
def test_a_large_recording_is_written_by_a_child_while_training_goes_on(tmp_path: Path) -> None:
    done = forked("-c", BIG, tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    # part of the writing came after stop() had returned
    number, stopped, delay = done.stdout.split()
    run = only_run(tmp_path / "runs" / number)
    assert manifest(run)["collectors"]["torch"]["saved_by"] == "a forked child"
    assert names(recorded_spans(run), "cpu_op")["aten::addmm"] == 12_000
    assert 0.8 * (float(stopped) - float(delay)) < manifest(run)["cost"]["stop_ns"] / 1e9 < float(stopped)


def test_names_that_break_json_elsewhere_stay_text(options: dict[str, Any]) -> None:
    with stepscope.profile(**options) as profile, stepscope.span('quote " back\\slash \n \ud800'):
        multiply(1)
    run = recorded(profile)
    spans = read_journal(run / "rank0" / "capture" / "journal.ssj").spans
    (span,) = [span for span in spans if span["kind"] == "annotation"]
    assert span["name"].startswith('quote " back\\slash')
