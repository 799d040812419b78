"""Two real processes of Paddle's launcher, a second apart: one directory, two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.torch.programs import manifest, python, runs

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
