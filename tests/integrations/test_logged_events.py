"""What a program logs inside its steps has the name ``logging``, with its step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from tests.integrations.recorded import recorded_in

#: It logs in steps 12 and 20. A histogram of a million values takes longer than what is not kept.
PROGRAM = """
import torch
from torch.utils.tensorboard import SummaryWriter

writer = SummaryWriter("logs")
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
values = torch.randn(1_000_000)
for step in range(24):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    if step in (12, 20):
        writer.add_histogram("values", values, step)
    optimizer.step()
writer.close()
"""


@pytest.mark.slow
def test_a_program_that_logs_to_tensorboard(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-m", "stepscope", "run", "--output", "runs", "train.py"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = recorded_in(tmp_path / "runs").results["step_times"]
    assert isinstance(rows, pl.DataFrame)
    assert rows.filter(pl.col("Contains").str.contains("logging"))["Step"].to_list() == [12, 20]
