"""Real trainings against each other, through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(0)
sleep, extra, workers, steps = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])

class Items(Dataset):
    def __len__(self): return 8 * steps
    def __getitem__(self, index):
        time.sleep(sleep)
        return torch.randn(64)

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(Items(), batch_size=8, num_workers=workers):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    for _ in range(extra): torch.exp(batch)
    optimizer.step()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


def stepscope(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_STATE_HOME": str(directory / "state")}
    command = [sys.executable, "-m", "stepscope", *words]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def compared(directory: Path, *words: str) -> tuple[int, dict[str, Any]]:
    done = stepscope(directory, "compare", *words, "--json", "-")
    assert done.returncode in (0, 3, 6), done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_two_runs_of_a_training(directory: Path) -> None:
    for name, words in (("a", "0.002 0 0 60"), ("b", "0.002 40 0 60")):
        done = stepscope(directory, "run", "-q", "-o", name, "--analyse", "later", "train.py", *words.split())
        assert done.returncode == 0, done.stderr
    code, found = compared(directory, "a", "b", "--fail-on", "count:aten::exp,count:aten::addmm")
    assert code == 3
    assert [gate["outcome"] for gate in found["gates"]] == ["failed", "passed"]
    assert found["verdict"] == "one run a side"
    assert [(row["name"], row["a"], row["b"]) for row in found["counts"]] == [("aten::exp", 0, 40)]
    assert [row["name"] for row in found["only_b"]] == ["aten::exp"]
    assert found["only_a"] == []
    assert {row["name"] for row in found["operators"]} >= {"aten::addmm", "aten::mm", "wait for data"}
    (taken,) = [row for row in found["memory"] if row["what"] == "taken"]
    assert taken["b"] - taken["a"] == 40 * 8 * 64 * 4
    assert found["a"]["environment"]["framework"] == "torch"


@pytest.mark.slow
def test_two_live_trainings_with_workers(directory: Path) -> None:
    commands = [f"{sys.executable} train.py {sleep} 0 2 1000000" for sleep in ("0.004", "0.002")]
    words = ["--turns", commands[0], "--against", commands[1], "--pairs", "3", "--seconds", "1"]
    code, found = compared(directory, *words, "--fail-on", "slower:20%")
    assert code == 3
    assert (found["design"], found["verdict"]) == ("turns", "slower")
    assert found["level"]["runs"] == [3, 3]
    assert {row["name"] for row in found["operators"]} >= {"aten::addmm", "wait for data"}, "two recordings explain it"


@pytest.mark.slow
def test_a_program_without_steps_is_named(directory: Path) -> None:
    (directory / "idle.py").write_text("import torch\nprint('nothing to train')\n")
    command = f"{sys.executable} idle.py"
    done = stepscope(directory, "compare", "--turns", command)
    assert done.returncode == 2
    assert "ended with exit code 0 before its first steps (nothing to train)" in done.stderr
