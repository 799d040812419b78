"""``fluid.profiler`` on a program of MindSpore: the same calls, the names of MindSpore's operators."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from stepscope.read.paddle import fluid_profile
from stepscope.trace.losses import LossLedger

PROGRAM = """
import sys
import numpy as np
import mindspore as ms
from mindspore import nn
import stepscope.compat.fluid.profiler as profiler

ms.set_device("CPU")
net = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 2))
optimizer = nn.SGD(net.trainable_params(), 0.1)
forward = ms.value_and_grad(lambda x: net(x).mean(), None, optimizer.parameters)
x = ms.Tensor(np.ones((4, 8), np.float32))


def step():
    loss, gradients = forward(x)
    optimizer(gradients)
    float(loss)


step()
profiler.start_profiler("CPU")
for number in range(10):
    if number == 2:
        profiler.reset_profiler()
    step()
profiler.stop_profiler("calls", sys.argv[1])
"""


def test_reset_leaves_exactly_the_later_steps(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "profile")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "Place: CPU" in done.stdout
    assert "Sorted by number of calls" in done.stdout
    names = fluid_profile.load(tmp_path / "profile", LossLedger("profile")).events["name"].to_list()
    assert {name: names.count(name) for name in ("ReLU", "BiasAdd", "SGD")} == {"ReLU": 8, "BiasAdd": 16, "SGD": 32}
