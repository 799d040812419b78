"""A torch program is recorded by a variable alone: its launch and its output stay as they are."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stepscope
from tests.clocks import wait_until
from tests.frameworks.torch.programs import (
    LOOP,
    TRAINING,
    environment,
    manifest,
    names,
    python,
    recorded_spans,
    runs,
)
from tests.unit.collect.reading import read_journal


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(LOOP)
    return path


def asked(output: Path, variable: str = "STEPSCOPE_OPTIONS", **switches: Any) -> dict[str, str]:
    """Return an environment that asks for a recording."""
    options = {"start": True, "output_path": str(output), "analyse": "later", **switches}
    return environment(**{variable: json.dumps(options)})


def steps(run: Path, rank: int = 0) -> list[int]:
    return list(read_journal(run / f"rank{rank}" / "capture" / "journal.ssj").frames["steps"]["number"])


@pytest.mark.parametrize("variable", ["STEPSCOPE_OPTIONS", pytest.param("MS_PROFILER_OPTIONS", marks=pytest.mark.slow)])
def test_the_whole_program_and_its_steps(tmp_path: Path, script: Path, variable: str) -> None:
    # When
    done = python(script, "6", env=asked(tmp_path / "runs", variable, analyse="now", memory=True))
    # Then the script had its arguments and its output; all steps are there, and the results
    assert (done.returncode, done.stdout) == (0, "trained 6\n")
    (run,) = runs(tmp_path / "runs")
    # and the summary that `stepscope run` prints
    assert done.stderr.endswith(f"\nstepscope: recorded in {run}\n")
    assert " results " in done.stderr
    assert "A step takes" in done.stderr or "computing" in done.stderr
    assert steps(run) == [0, 1, 2, 3, 4, 5]
    assert names(recorded_spans(run), "cpu_op")["aten::addmm"] == 12
    found = manifest(run)
    assert (found["status"], found["ended_by"], found["losses"]) == ("complete", "the end of the program", {})
    assert found["options"]["profile_memory"]
    assert found["door"] == variable
    assert found["schedule"] == "the whole program"
    lines = (run / "rank0" / "results" / "step_trace_time.csv").read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == ["Step", "0", "1", "2", "3", "4", "5"]


@pytest.mark.slow
def test_some_steps(tmp_path: Path, script: Path) -> None:
    done = python(script, "12", env=asked(tmp_path / "runs", steps="3:5"))
    assert done.stdout == "trained 12\n"
    (run,) = runs(tmp_path / "runs")
    assert steps(run) == [3, 4, 5]


@pytest.mark.slow
def test_a_quiet_recording_says_nothing(tmp_path: Path, script: Path) -> None:
    done = python(script, "3", env=asked(tmp_path / "runs", analyse="now", quiet=True))
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained 3\n", "")
    (run,) = runs(tmp_path / "runs")
    assert (run / "rank0" / "results" / "step_trace_time.csv").exists()


def test_a_program_without_steps_is_one(tmp_path: Path, script: Path) -> None:
    script.write_text("import torch\nprint(float((torch.ones(4) + 1).sum()))\n")
    done = python(script, env=asked(tmp_path / "runs"))
    assert done.stdout == "8.0\n"
    (run,) = runs(tmp_path / "runs")
    assert steps(run) == [0]


@pytest.mark.slow
def test_the_default_directories(tmp_path: Path, script: Path) -> None:
    for variable, folder in (("STEPSCOPE_OPTIONS", "stepscope-runs"), ("MS_PROFILER_OPTIONS", "data")):
        options = environment(**{variable: '{"start": true, "analyse": "later"}'})
        python(script, "2", env=options, cwd=tmp_path)
        assert len(runs(tmp_path / folder)) == 1


@pytest.mark.slow
def test_a_program_that_fails_does_so_as_before(tmp_path: Path, script: Path) -> None:
    script.write_text(LOOP.replace("    step()", "    step()\n    if number == 3: raise ValueError('diverged')"))
    plain = python(script, "6")
    done = python(script, "6", env=asked(tmp_path / "runs"))
    (run,) = runs(tmp_path / "runs")
    assert done.returncode == plain.returncode == 1
    assert done.stderr.replace(f"stepscope: recorded in {run}\n", "") == plain.stderr
    found = manifest(run)
    assert (found["status"], found["exception"]) == ("failed at step 4", "ValueError")
    assert steps(run) == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_program_that_is_killed_leaves_a_readable_run(tmp_path: Path, script: Path) -> None:
    script.write_text(
        LOOP.replace("    step()", "    step()\n    if number == 3: os.kill(os.getpid(), signal.SIGKILL)")
    )
    done = python(script, "6", env=asked(tmp_path / "runs"))
    assert done.returncode == -signal.SIGKILL
    (run,) = runs(tmp_path / "runs")
    assert manifest(run)["status"] == "recording"
    assert steps(run)[:1] in ([], [0])


@pytest.mark.slow
def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path, script: Path) -> None:
    (tmp_path / "file").write_text("")
    done = python(script, "3", env=asked(tmp_path / "file" / "runs"))
    assert (done.returncode, done.stdout) == (0, "trained 3\n")
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") <= 2
    assert "stepscope:" in done.stderr


@pytest.mark.slow
def test_the_programs_own_profile_counts(tmp_path: Path, script: Path) -> None:
    text = f"import stepscope\nwith stepscope.profile(output={str(tmp_path / 'own')!r}, analyse='later'):\n"
    script.write_text(TRAINING + text + "    for _ in range(3): step()\nprint('trained')\n")
    done = python(script, env=asked(tmp_path / "runs"))
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert len(runs(tmp_path / "own")) == 1
    assert "Traceback" not in done.stderr


WORKERS = """
import torch
from torch.utils.data import DataLoader

class Data(torch.utils.data.Dataset):
    def __len__(self): return 16
    def __getitem__(self, index): return torch.ones(8) * index

if __name__ == "__main__":
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for batch in DataLoader(Data(), 4, num_workers=2, multiprocessing_context=CONTEXT):
        optimizer.zero_grad(); model(batch).sum().backward(); optimizer.step()
    print("trained")
"""


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_workers_record_nothing(tmp_path: Path, script: Path, context: str) -> None:
    script.write_text(WORKERS.replace("CONTEXT", repr(context)))
    done = python(script, env=asked(tmp_path / "runs"))
    assert (done.returncode, done.stdout) == (0, "trained\n")
    (run,) = runs(tmp_path / "runs")
    assert sorted(path.name for path in run.iterdir()) == ["rank0"]
    assert steps(run) == [0, 1, 2, 3]
    assert done.stderr.count("stepscope:") == 1
    # but the batches that each of them makes are timed
    made = stepscope.open(run).tables["batches"].collect()
    assert (len(made), made["process"].n_unique(), set(made["samples"])) == (4, 2, {4})


@pytest.mark.slow
def test_the_workers_of_torchrun_are_its_ranks(tmp_path: Path, script: Path) -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = python(*launch, script, "4", env=asked(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path / "runs")
    assert sorted(path.name for path in run.iterdir()) == ["rank0", "rank1"]
    assert [steps(run, rank) for rank in (0, 1)] == [[0, 1, 2, 3]] * 2
    assert done.stderr.count("stepscope: recorded in") == 1


SPAWNED = (
    TRAINING
    + """
import torch.multiprocessing as mp

def train(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    for _ in range(8):
        step()

if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
    print("trained")
"""
)


@pytest.mark.slow
def test_children_that_train_are_recorded_once_they_do(tmp_path: Path, script: Path) -> None:
    script.write_text(SPAWNED)
    done = python(script, env=asked(tmp_path / "runs"))
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    found = {
        (len(list(run.glob("rank*"))), *(len(steps(run, rank)) for rank in range(2)))
        for run in runs(tmp_path / "runs")
        if (run / "rank1").exists()
    }
    # from its second step on, each as a rank of one run
    assert found == {(2, 7, 7)}
    assert all(run.name.startswith(f"{script.stem}_") for run in runs(tmp_path / "runs"))


@pytest.mark.slow
def test_sigterm_closes_the_recording(tmp_path: Path, script: Path) -> None:
    script.write_text(TRAINING + "import time\nprint('begun', flush=True)\nwhile True:\n    step(); time.sleep(0.01)\n")
    with subprocess.Popen([sys.executable, script], env=asked(tmp_path / "runs"), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        wait_until(lambda: list(tmp_path.glob("runs/*/rank0/capture/journal.ssj")))
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
    (run,) = runs(tmp_path / "runs")
    assert "SIGTERM" in manifest(run)["status"]
