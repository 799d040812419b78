"""What the tests of all trainers ask of a recorded training."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import polars as pl

from stepscope.run import RankRun, Run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "integrations.md"
#: The program of each trainer in ``docs/integrations.md``.
PROGRAMS = dict(re.findall(r"^## (\w+)\n\n```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S))


def recorded_in(directory: Path) -> RankRun:
    """Return the only rank of the only run of a directory."""
    (run,) = directory.glob("*/rank0")
    return Run(run.parent).ranks[0]


def step_numbers(rank: RankRun) -> list[int]:
    """Return the numbers of the recorded steps."""
    numbers: list[int] = rank.tables["steps"].collect()["number"].to_list()
    return numbers


def times_of(rank: RankRun) -> Counter[str]:
    """Return how often the trainer evaluated, saved and logged, of the whole run."""
    names = rank.tables["run_events"].select(pl.col("name").cast(pl.String)).collect()["name"]
    return Counter(name for name in names if name in ("evaluation", "checkpoint", "logging"))


def check_program_of_the_page(name: str, directory: Path) -> None:
    """A program of ``docs/integrations.md`` works when it is pasted."""
    command = [sys.executable, "-c", PROGRAMS[name]]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "stepscope report --findings" in done.stdout + done.stderr
    assert len(list((directory / "stepscope-runs").glob("*/rank0"))) == 1
