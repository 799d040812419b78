"""Compilations of the whole run are kept, with the function and the reason, although the window is later."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.advise.rank_findings import rank_findings
from tests.frameworks.torch.programs import environment, python

TRAINING = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@torch.compile(backend="eager", dynamic=False)
def loss(batch, scale):
    return model(batch).square().mean() * scale

for step in range(14):
    loss(torch.ones(4 if step < 4 else 6, 8), 1.0 if step < 6 else 2.0).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_a_compilation_before_the_window_is_known(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    done = python("-m", "stepscope", "run", "--steps", "10-11", "--output", tmp_path / "runs", script)
    assert done.returncode == 0, done.stderr
    run = stepscope.open(tmp_path / "runs")
    rows = run.tables["compilations"].collect().filter(name="compile loss")
    line = TRAINING.splitlines().index('@torch.compile(backend="eager", dynamic=False)') + 1
    assert rows["function"].to_list() == [f"loss (train.py:{line})"] * 3
    first, size, scale = rows["why"].to_list()
    assert first is None
    assert "expected 4, actual 6" in size
    assert "scale" in scale
    # and they lie in the steps in which they happened, before the window
    steps = run.tables["run_steps"].collect()
    for row, number in zip(rows.iter_rows(named=True), (0, 4, 6), strict=True):
        end = row["ts"] + row["dur"]
        inside = steps.filter((steps["ts"] <= end) & (end <= steps["ts"] + steps["dur"].fill_null(0)))
        assert inside["number"].to_list() == [number] or number == 0  # the start of the first is not known


BACKWARD = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
compiled = torch.compile(model, dynamic=False)
for step in range(8):
    compiled(torch.randn(16 + step, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_the_backward_pass_that_is_compiled_as_it_runs_is_a_compilation(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BACKWARD)
    without = environment(TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
    done = python("-m", "stepscope", "run", "--steps", "4:6", "--output", tmp_path / "runs", script, env=without)
    assert done.returncode == 0, done.stderr
    (rank,) = stepscope.open(tmp_path / "runs").ranks
    made = rank.tables["compilations"].collect().with_columns(pl.col("name", "function").cast(pl.String))
    passes = [made.filter(pl.col("name").str.starts_with(name)) for name in ("compile backward", "compile inner")]
    backward, forward = ({row["why"]: row["function"] for row in rows.iter_rows(named=True)} for rows in passes)
    assert len(backward) > 3
    assert backward == {why: f"backward {forward[why]}" for why in backward}
    # Waiting for the compiler's processes is compiling: the same time has one finding.
    causes = [finding.cause for finding in rank_findings(rank)]
    assert causes[0] == "recompilation"
    assert "lock-wait" not in causes
