"""The plugin of pytest, in sessions of its own, on a real training."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

TRAINING = """
import time
import pytest
import torch

def train(steps, sleep=0.0):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        time.sleep(sleep)
        optimizer.step()
"""
LIMITS = """
@pytest.mark.max_step_time("10 s")
def test_quick(): train(12)

@pytest.mark.max_step_time("5 ms")
def test_slow(): train(12, 0.02)

@pytest.mark.max_step_time("5 ms")
def test_no_steps(): pass

@pytest.mark.max_step_time("5 parsecs")
def test_no_time(): train(2)
"""
BLOCK = """
def test_block(stepscope):
    with stepscope.profile() as block:
        train(6)
    assert len(block.run.tables["steps"].collect()) >= 5
    assert isinstance(block.findings, list)
    assert "aten::addmm" in set(block.run.result("op_statistic")["OP Type"])
"""
COMPARED = """
import os
@pytest.mark.stepscope(against="main", fail_on="slower:20%", pairs=(3,), seconds=0.2)
def test_compared(): train(1_000_000, SLEEP)
"""


def session(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    plugin = "stepscope.integrations.pytest_plugin"  # an install names it; a checkout on the path does not
    installed = any(entry.value == plugin for entry in entry_points(group="pytest11"))
    command = [sys.executable, "-m", "pytest", *([] if installed else ["-p", plugin]), "-p", "no:cacheprovider"]
    environment = {**os.environ, "XDG_STATE_HOME": str(directory / "state")}
    words = [*command, "--strict-markers", "-rA", *arguments]
    return subprocess.run(words, cwd=directory, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_limits_on_the_time_of_a_step(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TRAINING + LIMITS + BLOCK)
    done = session(tmp_path, "--junitxml=report.xml")
    assert "PASSED test_it.py::test_quick" in done.stdout
    assert "FAILED test_it.py::test_slow" in done.stdout
    assert "(median of 6), more than 5.00 ms" in done.stdout
    assert "took no training step" in done.stdout
    assert "is not a time" in done.stdout
    assert 'name="step_ns"' in (tmp_path / "report.xml").read_text()
    assert "PASSED test_it.py::test_block" in done.stdout, done.stdout


@pytest.mark.slow
def test_a_test_is_compared_with_another_revision(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    def write(sleep: float) -> None:
        (tmp_path / "test_it.py").write_text(TRAINING + COMPARED.replace("SLEEP", str(sleep)))

    write(0.001)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-qm", "first")
    write(0.003)
    done = session(tmp_path)
    assert "FAILED test_it.py::test_compared" in done.stdout, done.stdout
    assert "Slower: +" in done.stdout
    assert "slower:20% failed" in done.stdout
