"""All steps of real trainings: with an evaluation and a checkpoint inside, and with a burner on the same core."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import stepscope
from tests.frameworks.torch.programs import forked

TRAINING = """
import os, sys, time, torch
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(*[layer for _ in range(6) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())])
optimizer = torch.optim.Adam(model.parameters())
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(4096, 64)), batch_size=8)
batches = iter(loader)
for step in range(int(sys.argv[1])):
    (batch,) = next(batches)
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    if step == 60:
        model.eval()
        with torch.no_grad():
            end = time.perf_counter() + 0.3
            while time.perf_counter() < end:
                model(batch)
        model.train()
    if step == 80:
        torch.save({"state": model.state_dict(), "ballast": torch.zeros(30_000_000)}, sys.argv[2])
print("trained")
"""


def recorded(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(TRAINING)
    target = (script, *arguments, folder / "checkpoint.pt")
    done = forked("-m", "stepscope", "run", "--output", folder / "runs", "--skip", "20", *target)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    return done


#: A frozen part is put into evaluation mode in each forward pass; the whole network evaluates once.
FROZEN = """
import torch
torch.set_num_threads(1)
frozen, head = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout()), torch.nn.Linear(64, 8)
frozen.requires_grad_(False)
model = torch.nn.Sequential(frozen, head)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
for step in range(40):
    frozen.eval()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 30:
        model.eval()
        with torch.no_grad():
            for _ in range(100):
                model(torch.randn(8, 64))
        model.train()
"""


def test_a_frozen_part_in_evaluation_mode_is_no_evaluation(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FROZEN)
    done = forked("-m", "stepscope", "run", "--output", tmp_path / "runs", script)
    assert done.returncode == 0, done.stderr
    events = stepscope.open(tmp_path / "runs").tables["run_events"].collect()
    assert events["name"].cast(pl.String).to_list().count("evaluation") == 1


#: An average of the weights is a copy in evaluation mode, made anew behind each step.
AVERAGED = """
import copy, torch
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for batch in torch.utils.data.DataLoader(torch.randn(640, 64), batch_size=16):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        average = copy.deepcopy(model).eval()
"""


def test_a_copy_in_evaluation_mode_is_no_evaluation(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(AVERAGED)
    done = forked("-m", "stepscope", "run", "--output", tmp_path / "runs", script)
    assert done.returncode == 0, done.stderr
    run = stepscope.open(tmp_path / "runs")
    events = run.tables["run_events"].collect()
    assert events["name"].cast(pl.String).to_list().count("evaluation") <= 3  # from then on it is known
    assert {phase.name: phase.total_ns for phase in run.summary.phases}["evaluation"] == 0
    assert run.tables["run_steps"].collect()["data_wait"][5:].null_count() == 0


def test_an_evaluation_and_a_checkpoint_are_named(tmp_path: Path) -> None:
    said = " ".join(recorded(tmp_path, 120).stderr.split())
    run = stepscope.open(tmp_path / "runs")
    # Then every step is there, with what it contained
    rows = run.results["step_times"]
    assert isinstance(rows, pl.DataFrame)
    assert rows["Step"].to_list() == list(range(120))
    assert rows.filter("Recorded")["Step"].to_list() == [20, 21, 22, 23, 24]
    assert "evaluation" in rows["Contains"][61]
    assert "checkpoint" in rows["Contains"][81]
    events = dict(run.tables["run_events"].select("name", "dur").collect().group_by("name").max().iter_rows())
    assert events["evaluation"] >= 0.3e9
    # and its figures agree: the wait for data is part of the step, and what is not on a core waited
    known = rows[1:]
    assert known["Data Wait(us)"].null_count() == 0
    assert (known["Data Wait(us)"] < known["Duration(us)"]).all()
    assert known["Run Queue Delay(us)"].null_count() == 0
    # and the summary says so
    assert "120 steps" in said
    assert "step 61 took" in said
    assert run.summary.run.longest
    causes = {step.number: [name for name, _ in step.causes] for step in run.summary.run.longest}
    assert "evaluation" in causes[61]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the burner needs a core that the training can leave")
@pytest.mark.slow
def test_a_burner_on_the_same_core_is_told(tmp_path: Path) -> None:
    burn = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"
    burners = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(2)]
    try:
        said = " ".join(recorded(tmp_path, 60).stderr.split())
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    run = stepscope.open(tmp_path / "runs").summary.run
    assert run.delay_share is not None
    assert run.delay_share > 0.3
    assert run.disturbed >= 1
    assert run.other_cpu is not None
    assert run.other_cpu > 0.3
    assert "disturbed the training thread waited for a core" in said
    assert "other processes used" in said


#: A thread of the program's own waits for the batches; the training takes them from a queue.
READS_AHEAD = """
import queue, threading, time, torch
torch.set_num_threads(1)
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((64,), float(index))
batches = queue.Queue()
def read():
    for batch in torch.utils.data.DataLoader(Slow(), batch_size=8):
        batches.put(batch)
threading.Thread(target=read, daemon=True).start()
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    model(batches.get()).square().mean().backward()
    optimizer.step()
print("trained")
"""


def test_a_thread_that_reads_ahead_waits_beside_the_steps(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(READS_AHEAD)
    done = forked("-m", "stepscope", "run", "--output", tmp_path / "runs", script)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    (run,) = (path for path in (tmp_path / "runs").iterdir() if path.name.startswith("train"))
    steps = stepscope.open(run).ranks[0].tables["run_steps"].collect()
    assert len(steps) == 40
    assert steps["data_wait"].null_count() == 40


#: A handler of the module `logging` sends what it is given; it takes its time.
LOGGING = """
import logging, time, torch
torch.set_num_threads(1)


class Sends(logging.Handler):
    def emit(self, record):
        time.sleep(0.4)


log = logging.getLogger("training")
log.addHandler(Sends())
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    for _ in range(8):
        model(torch.randn(512, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 40:
        log.warning("step %d", step)
"""


#: Trains as the script beside it does, on a thread of its own.
ON_A_THREAD = """
import pathlib, runpy, threading

thread = threading.Thread(target=runpy.run_path, args=[str(pathlib.Path(__file__).with_name("train.py"))])
thread.start()
thread.join()
"""


@pytest.mark.parametrize("own_thread", [False, True])
def test_a_long_step_without_a_known_event_is_told_with_the_line_of_the_program(
    own_thread: bool, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    (tmp_path / "main.py").write_text(ON_A_THREAD)
    script.write_text(LOGGING)
    started = tmp_path / "main.py" if own_thread else script
    done = forked("-m", "stepscope", "run", "--output", tmp_path / "runs", started)
    assert done.returncode == 0, done.stderr
    said = r"step 41 took ([\d.]+) ms: Sends\.emit \(train\.py:8\) (\d{3}) ms"
    found = re.search(said, " ".join(done.stderr.split()))
    assert found is not None, done.stderr
    took, line = map(float, found.groups())
    assert 0.4 * took <= line <= took
