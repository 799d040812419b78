"""Two real processes of Paddle's launcher, a second apart, or of Paddle's ``spawn``: one directory, two ranks."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import stepscope
from tests.frameworks.torch.programs import manifest, python, runs, script, spawned_ranks, stepscope_run

TRAINING = """
import os, time
import paddle

rank = int(os.environ["PADDLE_TRAINER_ID"])
time.sleep(rank)
net = paddle.nn.Linear(16, 4)
optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
for _ in range(12):
    net(paddle.ones([8, 16])).mean().backward()
    optimizer.step()
    optimizer.clear_grad()
"""

#: Paddle starts scripts only.
COMMAND = "import sys\nfrom stepscope.cli.main import main\nsys.exit(main())\n"


@pytest.mark.slow
def test_ranks_that_do_not_wait_for_each_other_share_a_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "command.py").write_text(COMMAND)
    launch = ["-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir", tmp_path / "logs"]
    run = ["run", "--later", "--output", tmp_path / "runs", tmp_path / "train.py"]
    done = python(*launch, tmp_path / "command.py", *run)
    assert done.returncode == 0, done.stderr
    (found,) = runs(tmp_path / "runs")
    assert sorted(path.name for path in found.iterdir()) == ["rank0", "rank1"]
    assert [manifest(found, rank)["rank"] for rank in (0, 1)] == [0, 1]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [found.name]


#: Starts its ranks itself.
SPAWNED = """
import paddle
import paddle.distributed as dist

def train():
    dist.init_parallel_env()
    net = paddle.DataParallel(paddle.nn.Linear(64, 8))
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    for _ in range(8):
        net(paddle.ones([16, 64])).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()

if __name__ == "__main__":
    dist.spawn(train, nprocs=2, backend="gloo")
    print("trained")
"""


@pytest.mark.slow
def test_processes_that_the_program_spawns_are_its_ranks(tmp_path: Path) -> None:
    output = tmp_path / "runs"
    done = stepscope_run(output, script(tmp_path, SPAWNED))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("trained\n")
    # Then both are in one directory, which the program's own process names
    run = spawned_ranks(output, done.stderr, "Paddle")
    for number, rank in enumerate(stepscope.open(run).ranks):
        found = manifest(run, number)
        # and the end of the program ends the window: of its five steps, three are there
        assert (found["steps"]["recorded"], found["losses"]) == (3, {"steps_not_recorded": 2})
        tables = {name: rank.tables[name].collect() for name in ("run_steps", "steps", "spans")}
        assert tables["run_steps"]["number"].to_list() == list(range(8))
        assert tables["steps"]["number"].to_list() == [5, 6, 7]
        # each with its update of both parameters
        updates = tables["spans"].filter(pl.col("name").cast(pl.String) == "sgd_ dygraph")
        counted = updates.group_by("step").len().sort("step")
        assert counted.rows() == [(5, 2), (6, 2), (7, 2)]
