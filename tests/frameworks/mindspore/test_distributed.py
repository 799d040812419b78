"""Two processes of ``msrun`` that communicate, in both modes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.run import Run
from tests.golden.mindspore_oracle import record

SCRIPTS = Path(sys.executable).parent
_WORLD = {"group": "mccl_world_group", "group_size": 2, "group_ranks": "[0, 1]"}

#: Declares its steps; every step reduces one tensor.
EAGER = """
import sys, numpy as np, mindspore as ms
from mindspore import nn, ops
from mindspore.communication import init
ms.set_device("CPU")
ms.set_context(mode=ms.PYNATIVE_MODE)
init()
import stepscope
dense, reduce, x = nn.Dense(64, 64), ops.AllReduce(), ms.Tensor(np.ones((64, 64), np.float32))
reduce(dense(x)).asnumpy()
with stepscope.profile(output=sys.argv[1], record_shapes=True) as profile:
    for _ in range(3):
        reduce(dense(x)).asnumpy()
        profile.step()
"""

#: Data parallel training that knows nothing of stepscope: every step reduces the gradients of four parameters.
COMPILED = """
import numpy as np, mindspore as ms
from mindspore import nn
from mindspore.communication import init
ms.set_device("CPU")
ms.set_context(mode=ms.GRAPH_MODE)
init()
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
net = nn.SequentialCell(nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
train = nn.TrainOneStepCell(nn.WithLossCell(net, loss), nn.SGD(net.trainable_params(), 0.1))
x, y = ms.Tensor(np.random.rand(32, 64), ms.float32), ms.Tensor(np.arange(32) % 10, ms.int32)
for _ in range(9):
    train(x, y).asnumpy()
"""


def msrun(folder: Path, program: str, *command: str) -> Run:
    """Run a program in two processes and return what was recorded; ``{}`` in the command is the directory of runs."""
    (folder / "train.py").write_text(program)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--worker_num=2", "--local_worker_num=2", "--join=True", f"--master_port={port}"]
    words = [word.format(folder / "runs") for word in command]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(stepscope.__file__).parents[1]),
        "PATH": f"{SCRIPTS}{os.pathsep}{os.environ.get('PATH', '')}",  # msrun starts the first `python` there
    }
    done = subprocess.run(
        [str(SCRIPTS / "msrun"), *options, f"--log_dir={folder / 'log'}", *words],
        capture_output=True,
        timeout=300,
        cwd=folder,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    (directory,) = (folder / "runs").glob("train_*")
    run = stepscope.open(directory)
    assert [rank.rank for rank in run.ranks] == [0, 1]
    return run


@pytest.mark.slow
def test_collectives_between_operators_called_one_by_one(tmp_path: Path) -> None:
    for rank in msrun(tmp_path, EAGER, "train.py", "{}").ranks:
        told = record(rank.directory.capture / "mindspore")
        calls = [(start, end) for name, start, end in told.calls if "AllReduce" in name]
        assert len(calls) == 3
        document = rank.result("communication")
        assert isinstance(document, dict)
        entries = [entry for step in document.values() for entry in step["collective"].values()]
        elapsed = sum(entry["Communication Time Info"]["Elapse Time(ms)"] for entry in entries) / 2  # and the totals
        assert elapsed == pytest.approx(sum(end - start for start, end in calls) / 1e6)
        collectives = rank.tables["collectives"].select("operation", "dtype", "bytes_in").collect()
        assert collectives.rows() == [("allreduce", "Float32", 64 * 64 * 4)] * 3
        steps = rank.result("step_trace_time")
        assert isinstance(steps, pl.DataFrame)
        assert steps["Communication"].sum() == pytest.approx(elapsed * 1e3, rel=0.01)
        assert steps["Computing"].sum() > 0


@pytest.mark.slow
def test_collectives_of_a_compiled_graph(tmp_path: Path) -> None:
    command = (str(SCRIPTS / "stepscope"), "run", "-q", "--skip", "3", "--active", "4", "-o", "{}", "train.py")
    for rank in msrun(tmp_path, COMPILED, *command).ranks:
        collectives = rank.tables["collectives"].collect()
        assert collectives.select(*_WORLD).unique().to_dicts() == [_WORLD]
        assert set(collectives["operation"]) == {"allreduce"}
        sizes = sorted(size * 4 for size in (64 * 32, 32, 32 * 10, 10))
        assert sorted(collectives["bytes_in"].to_list()) == sorted(sizes * 4)
        steps = rank.result("step_trace_time")
        assert isinstance(steps, pl.DataFrame)
        assert steps["Step"].to_list() == [3, 4, 5, 6]
        walls = rank.tables["steps"].collect()["dur"].to_numpy() / 1e3
        parts = steps["Computing"] + steps["Communication(Not Overlapped)"] + steps["Free"]
        assert parts.to_list() == pytest.approx(walls.tolist(), abs=0.01)
        assert (steps["Communication"] > 0).all()
