"""At the end of a job its first rank prints the job's summary; it waits for the others, and says who is missing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import stepscope
from stepscope.advise.job_findings import job_findings
from tests.frameworks.torch.programs import environment, free_port, manifest, recorded_spans, recorded_steps, runs

pytestmark = pytest.mark.slow

#: Rank 1 is slower than rank 0; the argument says what else happens to it: it hangs in the recorded steps, or is killed
#: behind them.
PROGRAM = """
import os, signal, sys, time
import torch
import torch.distributed as dist

rank, what = int(os.environ["RANK"]), sys.argv[1]
if what != "alone":
    dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(14):
    if number == 12 and (rank, what) == (1, "killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 8 and (rank, what) == (1, "hangs"):
        print("hangs", flush=True)
        time.sleep(600)
    time.sleep(0.002 + 0.01 * rank)
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    if what != "alone" and number < 12:
        dist.all_reduce(model.weight.grad)
    optimizer.step()
print("trained", rank)
"""


@contextmanager
def started(folder: Path, what: str, ranks: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Start ranks of a job of two, as a launcher would that does not end all when one does."""
    (folder / "train.py").write_text(PROGRAM)
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "stepscope", "run", "--output", str(folder / "runs"), str(folder / "train.py")]
    processes = [
        subprocess.Popen(
            [*command, what],
            env=environment(**job, RANK=str(rank), LOCAL_RANK=str(rank)),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_the_first_rank_speaks_for_all(tmp_path: Path) -> None:
    with started(tmp_path, "healthy", 2) as (first, second):
        said, told = first.communicate(timeout=300)
        assert second.communicate(timeout=300) == ("trained 1\n", "")
    assert (first.returncode, second.returncode, said) == (0, 0, "trained 0\n"), told
    (run,) = runs(tmp_path / "runs")
    # All ranks opened the window at the same step, though they differ in speed
    assert [recorded_steps(recorded_spans(run, rank)) for rank in (0, 1)] == [[5, 6, 7, 8, 9]] * 2
    assert [manifest(run, rank)["collectors"]["torch"]["recorder"] for rank in (0, 1)] == ["native"] * 2
    assert all((run / f"rank{rank}" / "summary.json").exists() for rank in (0, 1))
    assert told.count(" results ") == 1
    assert "missing" not in told
    assert "stepscope:" not in told


def test_a_killed_rank_does_not_hold_the_summary_up(tmp_path: Path) -> None:
    with started(tmp_path, "killed", 2) as (first, second):
        _, told = first.communicate(timeout=300)
        second.communicate(timeout=300)
    assert (first.returncode, second.returncode) == (0, -signal.SIGKILL), told
    (run,) = runs(tmp_path / "runs")
    # Then its recording is read by the first rank, which does not wait
    assert (run / "rank1" / "summary.json").exists()
    assert "After" not in told


def test_a_rank_that_hangs_is_named_though_all_are_killed(tmp_path: Path) -> None:
    with started(tmp_path, "hangs", 2) as (first, second):
        assert second.stdout is not None
        assert second.stdout.readline() == "hangs\n"
        time.sleep(5)
        assert first.poll() is None, "it waits"
    (run,) = runs(tmp_path / "runs")
    found, *_ = job_findings(stepscope.job(run))
    assert (found.cause, found.ranks) == ("hung-collective", (1,))
    assert found.title.endswith("of group default_pg: 1 rank waits for it.")


def test_a_rank_of_which_nothing_is_there_is_named(tmp_path: Path) -> None:
    with started(tmp_path, "alone", 1) as (first,):
        _, told = first.communicate(timeout=300)
    assert first.returncode == 0, told
    (run,) = runs(tmp_path / "runs")
    assert "1 of 2 ranks is missing: 1" in " ".join(told.split())
    assert "stepscope: After 10 s, the results of rank 1 are not there." in told
    assert f"copy their folders to {run}." in told
    assert told.endswith(f"stepscope: To show the job again: stepscope report {run}\n")


def test_ctrl_c_ends_the_wait(tmp_path: Path) -> None:
    with started(tmp_path, "alone", 1) as (first,):
        assert first.stdout is not None
        assert first.stdout.readline() == "trained 0\n"
        while not any((tmp_path / "runs").glob("*/rank0/summary.json")):
            assert first.poll() is None
        first.send_signal(signal.SIGINT)
        _, told = first.communicate(timeout=300)
    (run,) = runs(tmp_path / "runs")
    assert first.returncode == -signal.SIGINT
    assert told.endswith(f"stepscope: Recorded. Next: stepscope report {run}\n")
    assert "Traceback" not in told
