"""Forked children are inert; threads that end, hang or step are no trouble."""

from __future__ import annotations

import threading
from pathlib import Path

import torch

import stepscope
from tests.frameworks.torch.programs import (
    TRAINING,
    forked,
    forked_run,
    manifest,
    names,
    recorded_spans,
    recorded_steps,
    runs,
    script,
)
from tests.unit.collect.reading import read_journal

#: Steps without gradients: torch itself hangs at the end of a child that was forked after a backward pass.
FORWARD = """
import os, sys
import torch

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step():
    with torch.no_grad():
        model(torch.randn(4, 8))
    optimizer.step()
"""

FORKING = (
    FORWARD
    + """
import stepscope
handled = []
with stepscope.profile(output=sys.argv[1], analyse="later", on_trace_ready=handled.append) as profile:
    step(); profile.step()
    child = os.fork()
    for _ in range(50):
        with stepscope.span("child" if child == 0 else "parent"):
            step()
        profile.step()
# The child leaves the window like its parent, and goes through the interpreter's whole end
profile.stop()
assert len(handled) == (1 if child else 0), handled
os.write(1, b"parent\\n" if child else b"child\\n")  # at once: both may write in the same moment
if not child:
    sys.exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
"""
)


def test_a_forked_child_writes_nothing_and_does_not_stop_the_parent(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(FORKING)
    done = forked(path, tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["child", "parent"]
    (run,) = runs(tmp_path / "runs")
    assert [folder.name for folder in run.iterdir()] == ["rank0"]
    assert recorded_steps(recorded_spans(run))[:51] == list(range(51))
    journal = read_journal(run / "rank0" / "capture" / "journal.ssj")
    assert {span["name"] for span in journal.spans if span["kind"] == "annotation"} == {"parent"}
    assert journal.frames["steps"].height == 51
    assert not journal.lost


def test_a_child_forked_in_a_program_under_run_ends_without_a_report(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        FORWARD + "for number in range(12):\n"
        "    step()\n"
        "    if number == 6 and os.fork() == 0:\n"
        "        step(); sys.exit(0)\n"
        "os.wait()\nprint('trained')\n"
    )
    done = forked_run(tmp_path / "runs", path)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.count("stepscope report") == 1
    (run,) = runs(tmp_path / "runs")
    assert recorded_steps(recorded_spans(run)) == [5, 6, 7, 8, 9]


def test_the_recording_of_a_forked_child_does_not_grow(tmp_path: Path) -> None:
    # Given a child forked while torch records, which works on for long (a DataLoader's worker)
    code = (
        TRAINING + "import stepscope\nfrom stepscope.collect.journal.saving import own_memory\n"
        "with stepscope.profile(output=sys.argv[1], analyse='later') as profile:\n"
        "    step()\n"
        "    if os.fork() == 0:\n"
        "        for _ in range(50): step()\n"
        "        before = own_memory()\n"
        "        for _ in range(600): step()\n"
        "        print(own_memory() - before, flush=True)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
    )
    done = forked("-c", code, tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    # 600 steps are 60,000 events of 250 bytes
    assert int(done.stdout) < 3 << 20


def test_a_forked_child_may_profile_itself(tmp_path: Path) -> None:
    # Given a child of a recording process that uses torch's own profiler
    code = (
        FORWARD + "import stepscope\n"
        "with stepscope.profile(output=sys.argv[1], analyse='later') as profile:\n"
        "    step()\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        with torch.profiler.profile() as theirs: step(); step()\n"
        "        print([event.count for event in theirs.key_averages() if event.key == 'aten::linear'], flush=True)\n"
        "        os._exit(0)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "    step()\n"
    )
    done = forked("-c", code, tmp_path / "runs")
    assert (done.returncode, done.stdout) == (0, "[2]\n"), done.stderr
    (run,) = runs(tmp_path / "runs")
    assert names(recorded_spans(run), "cpu_op")["aten::linear"] == 2


def test_a_thread_that_outlives_the_window_is_no_trouble(tmp_path: Path) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            with stepscope.span("worker"):
                torch.ones(4).add(1)

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(3):
        with stepscope.profile(output=tmp_path, analyse="later") as profile:
            torch.ones(8, 8).mm(torch.ones(8, 8))
            profile.step()
        assert profile.recorded[0].wait(30)
    stop.set()
    thread.join()
    for run in runs(tmp_path):
        assert manifest(run)["status"] == "complete"
        assert names(recorded_spans(run), "cpu_op")["aten::mm"] == 1


THREADS = (
    TRAINING
    + """
import threading
def train():
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(40):
        optimizer.zero_grad()
        model(torch.randn(256, 8)).square().mean().backward()
        optimizer.step()
threads = [threading.Thread(target=train) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print("trained")
"""
)


def test_threads_that_train_are_no_profile_of_the_programs(tmp_path: Path) -> None:
    # Given threads whose steps ask for the window at the same moment
    path = script(tmp_path, THREADS)
    for number in range(3):
        done = forked_run(tmp_path / str(number), path)
        assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
        assert "profiles itself" not in done.stderr


def test_threads_with_short_steps_are_recorded(tmp_path: Path) -> None:
    # Given threads that end many steps while one of them opens the window
    short = THREADS.replace("torch.randn(256, 8)", "torch.ones(1, 8)").replace("range(3)", "range(6)")
    path = script(tmp_path, short.replace("range(40)", "range(400)"))
    done = forked_run(tmp_path / "runs", path)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    (run,) = runs(tmp_path / "runs")
    assert manifest(run)["steps"]["recorded"] > 0, done.stderr


def test_many_threads_may_step(tmp_path: Path) -> None:
    with stepscope.profile(output=tmp_path, analyse="later") as profile:
        threads = [threading.Thread(target=lambda: [profile.step() for _ in range(50)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert profile.recorded[0].wait(30)
    (run,) = runs(tmp_path)
    steps = read_journal(run / "rank0" / "capture" / "journal.ssj").frames["steps"]
    assert sorted(steps["number"].to_list()) == list(range(200))
    assert steps["dur"].min() >= 0
