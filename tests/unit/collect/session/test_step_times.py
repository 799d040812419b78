"""The times of all steps, with the kernel's figures, whatever the program does to its threads and files."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepscope
from stepscope.collect.options import Options
from stepscope.collect.schedule import Schedule, always
from stepscope.collect.session import step_times
from stepscope.collect.session.session import Session
from stepscope.collect.session.window import Settings
from stepscope.read import read_files
from tests.clocks import wait_until
from tests.unit.collect.reading import read_journal

NEVER = Schedule(wait=1 << 40, warmup=1, active=1)


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    begun: list[Session] = []

    def begin(schedule: Any = NEVER) -> Session:
        settings = Settings(Options(counters_hz=0), tmp_path, "train", "a schedule", dict)
        session = Session(settings, schedule, source="declared", on_saved=lambda window: None)
        session.begin()
        begun.append(session)
        return session

    yield begin
    for session in begun:
        session.end()


def found(output: Path) -> pl.DataFrame:
    (path,) = output.glob("*/rank0/capture/steps.ssj")
    frames = read_files([path])
    assert set(frames["losses"]["what"].to_list()) <= {"run_end_unknown"}  # of a killed program
    return frames["run_steps"]


def test_steps_outside_every_window_are_timed(sessions: Callable[..., Session], tmp_path: Path) -> None:
    session = sessions()
    begun = time.time_ns()
    for _ in range(5):
        time.sleep(0.01)
        session.boundary()
    with mmap.mmap(-1, 4 << 20) as pages:
        pages.madvise(mmap.MADV_NOHUGEPAGE)
        pages.write(bytes(len(pages)))  # 1,024 page faults
        session.boundary()
    took = time.time_ns() - begun
    session.end()
    steps = found(tmp_path)
    assert steps["number"].to_list() == [0, 1, 2, 3, 4, 5]
    assert not steps["recorded"].any()
    assert 50e6 < steps["dur"].sum() < took + 1e9
    assert begun - 1e9 < steps["ts"][0] < begun + 1e9
    # a step that sleeps gives up its core, and takes no CPU time
    assert (steps["voluntary_switches"][:5] >= 1).all()
    assert (steps["cpu"][:5] < 5e6).all()
    # (what takes the core between two readings at the end of a step counts in the next one)
    assert (steps["cpu"] + steps["delay"] <= steps["dur"] + 1e5).sum() >= 4
    assert steps["minor_faults"][5] > 1000
    assert steps["data_wait"].null_count() == 6
    # and the run says that nothing was recorded
    (run,) = stepscope.runs(tmp_path)
    assert (run.manifest["status"], run.manifest["steps"]["recorded"], run.manifest["collectors"]) == (
        "complete",
        0,
        {},
    )
    assert (run.summary.steps.count, run.summary.run.count, run.summary.run.recorded) == (0, 6, 0)


def test_recorded_steps_are_marked_in_every_window(sessions: Callable[..., Session], tmp_path: Path) -> None:
    session = sessions(Schedule(wait=2, warmup=1, active=2, repeat=2))
    for _ in range(14):
        session.boundary()
    session.end()
    runs = stepscope.runs(tmp_path)
    # Then each of the two runs has all steps, and knows its own
    for run, recorded in zip(runs, ([3, 4], [8, 9]), strict=True):
        steps = run.tables["run_steps"].collect()
        assert steps["number"].to_list() == list(range(14))
        assert steps.filter("recorded")["number"].to_list() == recorded


def test_a_step_on_another_thread_has_no_figures_of_the_first(sessions: Callable[..., Session], tmp_path: Path) -> None:
    session = sessions()
    for number in range(4):
        if number == 2:
            thread = threading.Thread(target=session.boundary)
            thread.start()
            thread.join()
        else:
            session.boundary()
    session.end()
    steps = found(tmp_path)
    assert steps["dur"].null_count() == 0
    assert steps["cpu"].is_null().to_list() == [False, False, True, True]
    assert steps["delay"].is_null().to_list() == [False, False, True, True]


@pytest.mark.parametrize("attempt", range(5))
def test_one_thread_writes_and_one_samples_if_several_end_the_first_step(attempt: int, tmp_path: Path) -> None:
    # Given times that begin with the first step, which four threads end at the same moment
    settings = Settings(Options(counters_hz=0), tmp_path, "train", "a schedule", dict)
    times, together = step_times.StepTimes(settings, lasts=True), threading.Barrier(4)
    times.install()
    before = own_threads()

    def train() -> None:
        together.wait()
        times.end_step()

    threads = [threading.Thread(target=train) for _ in range(4)]
    with closing(times):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(lambda: "stepscope-steps" in dict(set(own_threads()) - set(before)).values())
        begun = [name for _, name in set(own_threads()) - set(before)]
    assert times.count == 4, attempt
    assert sorted(begun) in (["stepscope-stack", "stepscope-steps"], ["stepscope-steps"])


def own_threads() -> list[tuple[str, str]]:
    """Return the number and the name of stepscope's threads in this process."""
    named = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            named.append((task.name, (task / "comm").read_text().strip()))
    return [(number, name) for number, name in named if name.startswith("stepscope-st")]


def test_a_step_that_a_signal_handler_ends_inside_of_another_costs_no_times(
    sessions: Callable[..., Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a handler that ends a step just when the program's own end of a step has read the clocks
    session = sessions()
    read = session.times.read

    def interrupted() -> Any:
        found = read()
        monkeypatch.setattr(session.times, "read", read)
        session.boundary()
        return found

    session.boundary()
    monkeypatch.setattr(session.times, "read", interrupted)
    for _ in range(3):
        session.boundary()
    session.end()
    # Then all steps are timed, each with a number of its own, and only the figures of the interrupted one are unknown
    steps = found(tmp_path)
    assert steps["number"].to_list() == [0, 1, 2, 3, 4]
    assert (steps["dur"] >= 0).all()
    assert steps["cpu"].null_count() == 1


def test_without_the_scheduler_s_file_the_delay_is_unknown(
    sessions: Callable[..., Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_times.threading, "get_native_id", lambda: 0)  # /proc has no such thread
    session = sessions()
    session.boundary()
    session.boundary()
    session.end()
    assert found(tmp_path)["delay"].null_count() == 2
    assert found(tmp_path)["cpu"].null_count() == 0


def test_a_program_that_closes_all_files_goes_on(sessions: Callable[..., Session], tmp_path: Path) -> None:
    session = sessions()
    session.boundary()
    (number,) = (int(link.name) for link in Path("/proc/self/fd").iterdir() if link.resolve().name == "schedstat")
    os.close(number)
    with (tmp_path / "theirs").open("w") as file:
        assert file.fileno() == number
        session.boundary()
        session.end()
        assert os.fstat(number)  # their file is open still
    assert found(tmp_path)["delay"].is_null().to_list() == [False, True]


def test_a_forked_child_writes_nothing(sessions: Callable[..., Session], tmp_path: Path) -> None:
    session = sessions()
    session.boundary()
    child = os.fork()
    if not child:
        session.boundary()
        session.end()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    session.boundary()
    session.end()
    assert found(tmp_path)["number"].to_list() == [0, 1]


def _steps_written(output: Path) -> int:
    found = [read_files([path]) for path in output.glob("*/rank0/capture/steps.ssj") if path.stat().st_size]
    return sum(frames["run_steps"].height for frames in found if "run_steps" in frames)


def test_a_killed_program_leaves_its_steps(tmp_path: Path) -> None:
    program = f"""
import time, stepscope
prof = stepscope.profile(schedule=stepscope.schedule(wait=1000, warmup=1, active=1), output={str(tmp_path)!r})
prof.start()
for step in range(30):
    time.sleep(0.01)
    prof.step()
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        # Given a program that has been running for longer than its steps wait to be written
        wait_until(lambda: _steps_written(tmp_path) == 30)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    assert found(tmp_path)["number"].to_list() == list(range(30))
    (run,) = stepscope.runs(tmp_path)
    assert run.manifest["status"] == "recording"
    assert run.summary.run.count == 30


def test_nothing_stays_without_a_step(sessions: Callable[..., Session], tmp_path: Path) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    for schedule in (NEVER, Schedule(wait=0, warmup=2, active=1)):
        sessions(schedule).end()
    assert list(tmp_path.iterdir()) == []
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_many_steps_are_few_bytes(sessions: Callable[..., Session], tmp_path: Path) -> None:
    session, count = sessions(), 20_000
    for step in range(count):
        sum(range(step % 97))
        session.boundary()
    session.end()
    (path,) = tmp_path.glob("*/rank0/capture/steps.ssj")
    assert found(tmp_path).height == count
    assert path.stat().st_size < 25 * count


def test_steps_that_a_window_finds_at_its_end_have_figures(sessions: Callable[..., Session], tmp_path: Path) -> None:
    del sessions
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with stepscope.profile(output=tmp_path, analyse="later"):
        for _ in range(4):
            weight.sum().backward()
            optimizer.step()
    steps = stepscope.open(tmp_path).tables["run_steps"].collect()
    assert steps["number"].to_list() == [0, 1, 2, 3]
    assert steps["recorded"].all()
    assert steps["cpu"].null_count() == 0


def test_a_window_without_a_schedule_has_its_steps_too(sessions: Callable[..., Session], tmp_path: Path) -> None:
    session = sessions(always)
    session.boundary()
    session.boundary()
    session.end()
    steps = found(tmp_path)
    journal = read_journal(next(tmp_path.glob("*/rank0/capture/journal.ssj"))).frames["steps"]
    assert steps["number"].to_list() == journal["number"].to_list() == [0, 1]
