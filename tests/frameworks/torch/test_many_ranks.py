"""The example of docs/many-ranks.md as a user runs it: four processes, one of them made slow, one screen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.torch.programs import environment, free_port, python, runs

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "train_ranks.py"
SLOW = 2
#: Keeps how long each sleep of a sample takes: no less than it says, and longer where the rank then waits for a core.
TIMED = """
import atexit, json, os, time

slept, sleep = [], time.sleep


def timed(seconds):
    begin = time.perf_counter()
    sleep(seconds)
    if seconds == SECONDS:
        slept.append(time.perf_counter() - begin)


def keep():
    if slept:
        with open(os.path.join(os.path.dirname(__file__), "slept.json"), "w") as file:
            json.dump(slept, file)


SECONDS = 0.006
time.sleep = timed
atexit.register(keep)
"""
#: Samples of a batch.
BATCH = 32


@pytest.fixture
def train(tmp_path: Path) -> Any:
    """Train as the page says, and return the findings and the screen."""

    def trained(*arguments: str) -> tuple[list[dict[str, Any]], str]:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--master-port", free_port()]
        command += ["-m", "stepscope", "run", "--later", "--output", str(tmp_path / "runs"), str(EXAMPLE), *arguments]
        (tmp_path / "sitecustomize.py").write_text(TIMED)
        path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
        changed = environment(PYTHONPATH=path)
        done = subprocess.run(command, env=changed, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        (run,) = runs(tmp_path / "runs")
        said = python("-m", "stepscope", "report", run, env=environment(COLUMNS="80"))
        assert said.returncode == 0, said.stderr
        return json.loads((run / "cluster" / "findings.json").read_text()), said.stdout

    return trained


def test_a_rank_that_waits_for_its_data_is_named_with_the_time_that_it_takes(train: Any, tmp_path: Path) -> None:
    findings, screen = train("--slow", str(SLOW), "--by", "data", "--amount", "6")
    assert [finding["cause"] for finding in findings] == ["data-wait-rank"]
    assert findings[0]["ranks"] == [SLOW]
    slept = json.loads((tmp_path / "slept.json").read_text())
    batches = [1e9 * sum(slept[first : first + BATCH]) for first in range(0, len(slept), BATCH)]
    assert 0.9 * min(batches) <= findings[0]["added_ns"] <= 1.1 * max(batches)
    words = " ".join(screen.split())
    assert findings[0]["title"] in words
    assert "4 ranks on 1 host" in words
    assert "4 ranks aligned" in words
    assert len(screen.splitlines()) <= 40
    row = next(line.split() for line in screen.splitlines() if line.split()[:1] == [str(SLOW)])
    # Another rank that waits for a core as long as this one for its batch may be the last once.
    last, met = (int(row[row.index("of") + by]) for by in (-1, 1))
    assert last > met / 2, "it arrives last in most"
