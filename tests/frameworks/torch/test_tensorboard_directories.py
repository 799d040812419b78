"""Directories that ``torch.profiler.tensorboard_trace_handler`` writes: every rank and window becomes one run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.cli.main import main
from tests.sizes import first_quick

TRAINING = """
import sys
import torch
from torch import distributed
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

rank, world, folder, output = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
model = torch.nn.Linear(16, 16)
if world > 1:
    distributed.init_process_group("gloo", init_method=f"file://{folder}", rank=rank, world_size=world)
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
windows = schedule(wait=1, warmup=1, active=2, repeat=3)
handler = tensorboard_trace_handler(output, use_gzip=rank > 0)
with profile(activities=[ProfilerActivity.CPU], schedule=windows, on_trace_ready=handler) as profiler:
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).sum().backward()
        optimizer.step()
        profiler.step()
"""


@pytest.mark.parametrize("world", first_quick([2, 1]))
def test_every_window_of_every_rank(world: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINING)
    log = tmp_path / "log"
    arguments = [str(world), str(tmp_path / "store"), str(log)]
    running = [
        subprocess.Popen([sys.executable, "train.py", str(rank), *arguments], cwd=tmp_path) for rank in range(world)
    ]
    assert [process.wait(timeout=300) for process in running] == [0] * world
    files = sorted(log.iterdir())
    assert len(files) == 3 * world

    assert main(["import", "log", "--quiet"]) == 0
    (run,) = stepscope.runs()
    assert run.path.name.startswith("log_")
    assert [rank.rank for rank in run.ranks] == list(range(world))
    for rank in run.ranks:
        steps = rank.tables["steps"].collect()
        assert steps["number"].to_list() == [2, 3, 6, 7, 10, 11]
        assert (steps["ts"].diff().drop_nulls() > 0).all()
        spans = rank.tables["spans"].filter(pl.col("kind") == "operator").collect()
        alone = [stepscope.open(capture.root).tables["spans"].collect() for capture in rank.captures]
        assert spans.height == sum(frame.filter(pl.col("kind") == "operator").height for frame in alone)
        assert rank.tables["losses"].collect().filter(pl.col("severity") != "info").is_empty()
        assert rank.manifest["world_size"] == world
