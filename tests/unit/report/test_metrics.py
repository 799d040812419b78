"""Figures of the steps as metrics: what is unknown is left out, and where ``--metrics`` writes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.report.metrics import flat, metrics_of, step_figures
from stepscope.run import Run
from stepscope.trace import tables

DATA = Path(__file__).parents[2] / "data" / "kineto"


def test_without_steps_and_memory_no_figure_is_made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["import", str(DATA / "alexnet_simple_add.json.gz"), "--quiet"]) == 0
    run = Run(next((tmp_path / "stepscope-runs").iterdir()))
    found = run.findings
    assert flat(metrics_of(run.ranks[0].summary, found)) == {"stepscope/steps": 0, "stepscope/findings": len(found)}


def test_the_figures_of_a_step_are_those_of_its_rows() -> None:
    ts = [100, 200, 300]
    spans = {
        "track": [0, 0], "ts": [110, 210], "dur": [40, 10], "name": ["mm", "mm"], "kind": ["operator"] * 2,
        "id": [0, 1], "step": [0, 1], "depth": [0, 0],
    }  # fmt: skip
    made = tables.complete(
        {
            "spans": pl.DataFrame(spans),
            "tracks": pl.DataFrame(
                {"id": [0], "kind": "thread", "rank": 0, "host": "", "device": "cpu", "name": "main", "order": 0}
            ),
            "steps": pl.DataFrame({"number": [5, 6, 7], "ts": ts, "dur": 100, "source": "declared"}),
            "run_steps": pl.DataFrame(
                {"number": [5, 6], "ts": ts[:2], "dur": 100, "data_wait": [30, None], "recorded": True}
            ),
            "allocations": pl.DataFrame(
                {
                    "ts": [205, 210, 220, 250], "device": "cuda:0", "bytes": [8, 8, -8, 8],
                    "allocated": [8, 16, 8, None],
                }
            ),
        }
    )  # fmt: skip
    found = dict(step_figures(tables.lazy(made)))
    assert [one["stepscope/step/seconds"] for one in found.values()] == [1e-7] * 3
    assert [one["stepscope/step/part_seconds/computing"] for one in found.values()] == [4e-8, 1e-8, 0]
    for one in found.values():
        assert sum(time for name, time in one.items() if "/part_seconds/" in name) == pytest.approx(1e-7)
    # What is unknown of a step is left out; what was allocated before it began counts for it
    waits = {number: one.get("stepscope/step/data_wait_seconds") for number, one in found.items()}
    assert waits == {5: 3e-8, 6: None, 7: None}
    peaks = {number: one.get("stepscope/step/memory_peak_bytes/cuda:0") for number, one in found.items()}
    assert peaks == {5: None, 6: 16, 7: 8}


def test_without_steps_there_are_no_figures_of_steps() -> None:
    assert list(step_figures(stepscope.open(DATA / "alexnet_simple_add.json.gz").tables)) == []


def test_a_file_of_another_kind_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.txt"
    assert main(["report", str(DATA / "cuda_event_sync.json.gz"), "--quiet", "--metrics", str(path)]) == 2
    assert ".prom" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.slow
def test_run_writes_the_file_where_it_was_started(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import os, torch\n"
        "layer = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(layer.parameters(), 0.1)\n"
        "for _ in range(8):\n"
        "    layer(torch.ones(2, 4)).sum().backward()\n"
        "    optimizer.step()\n"
        "os.mkdir('elsewhere')\n"
        "os.chdir('elsewhere')\n"
    )
    command = [sys.executable, "-m", "stepscope", "run", "--quiet", "--metrics", "train.prom", str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "stepscope_step_seconds{" in (tmp_path / "train.prom").read_text()
