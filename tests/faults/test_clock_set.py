"""The system clock is set while a window is open: work stays in its steps, or the steps are left out."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from stepscope.run import Run
from tests.frameworks.torch.programs import environment

#: A program whose steps only multiply; the system clock of its process is set in the middle.
PROGRAM = """
import ctypes, sys, time
import torch
import stepscope

output, collector, ns = sys.argv[1:]
matrix = torch.ones(200, 200)

def step():
    end = time.perf_counter() + 0.03
    while time.perf_counter() < end:
        matrix.mm(matrix)

step()
with stepscope.profile(output=output, collector=collector, analyse="later", quiet=True) as profile:
    for number in range(8):
        if number == 4:
            ctypes.CDLL(None).shift(ctypes.c_longlong(int(ns)))
        step()
        profile.step()
profile.recorded[0].wait()
"""

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that a process preloads, and whose function ``shift`` sets the process's system clock."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler and LD_PRELOAD")
    library = tmp_path_factory.mktemp("clock") / "set_clock.so"
    source = Path(__file__).with_name("set_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.parametrize(
    ("collector", "ns"),
    [
        ("kineto", 3600 * SECOND),
        ("native", -3600 * SECOND),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (
                ("kineto", -3600 * SECOND),
                ("kineto", SECOND // 10),
                ("kineto", -SECOND // 10),
                ("native", 3600 * SECOND),
                ("native", SECOND // 10),
            )
        ),
    ],
)
def test_work_stays_in_its_steps_when_the_clock_is_set(tmp_path: Path, clock: Path, collector: str, ns: int) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "runs"), collector, str(ns)]
    variables = environment(LD_PRELOAD=str(clock))
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    rank = Run(next((tmp_path / "runs").iterdir())).ranks[0]
    losses = rank.tables["losses"].collect()["what"].to_list()
    steps = rank.tables["steps"].collect()
    assert "clock_set" in losses
    if collector == "kineto" and ns < -SECOND:  # Kineto's times run backward, and its durations are lost
        assert "clock_not_aligned" in losses
        assert steps.height == 0
        return
    # Then every step is full of its own multiplications
    assert steps["number"].to_list() == list(range(8))
    assert (steps["ts"].diff().drop_nulls() > 0).all()
    work = rank.tables["spans"].filter(pl.col("name").cast(pl.String) == "aten::mm").collect()
    inside = work.join(steps, left_on="step", right_on="number").group_by("step").agg(pl.col("dur").sum(), pl.len())
    wall = steps.join(inside, left_on="number", right_on="step", how="left")
    assert (wall["dur_right"] > 0.5 * wall["dur"]).all(), wall
    assert (wall["dur_right"] <= 1.01 * wall["dur"]).all(), wall
