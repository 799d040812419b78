"""What the contract suite has to know of MindSpore."""

from __future__ import annotations

from pathlib import Path

from tests.frameworks.contract.framework import Framework
from tests.frameworks.mindspore.programs import STEPS, TRAINING, counts, host_events
from tests.unit.collect.reading import read_journal


def check(run: Path) -> None:
    """The host pipeline and the waits of five steps are there."""
    assert host_events(run)
    journal = read_journal(run / "rank0" / "capture" / "journal.ssj")
    assert len([span for span in journal.spans if span["kind"] == "data"]) == 5


RECOMPILES = """
import numpy as np
import mindspore as ms
from mindspore import nn

ms.set_device("CPU")
net = nn.Dense(16, 4)
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)

def forward(x):
    return net(x).mean()

gradient = ms.value_and_grad(forward, None, optimizer.parameters)

@ms.jit
def compute(x):
    loss, gradients = gradient(x)
    optimizer(gradients)
    return loss

for number in range(10):
    compute(ms.Tensor(np.ones((16 if number < 6 else 12, 16), np.float32)))
"""

TWO = """
import mindspore as ms
from mindspore import nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE)

def trained(model):
    optimizer = nn.Momentum(model.trainable_params(), 0.1, 0.9)
    loss = lambda: model(ops.ones((4, 8), ms.float32)).square().mean()
    gradient = ms.value_and_grad(loss, None, optimizer.parameters)
    return lambda: optimizer(gradient()[1])

first, second = trained(nn.Dense(8, 8)), trained(nn.Dense(8, 8))
"""

FRAMEWORK = Framework(
    name="mindspore",
    title="MindSpore",
    program=TRAINING + STEPS["cell"],
    found={"by": "runs of graphs with an optimizer", "optimizers": ["Momentum"]},
    updates=lambda run: counts(run)["ApplyMomentum"] // 4,
    recompiles=RECOMPILES,
    two=TWO,
    operators=("MatMul", "BiasAdd", "ApplyMomentum", "ReluGrad", "SparseSoftmax"),
    advice=("msrun … python -m stepscope",),
    arguments=("graph", "no"),
    shown=TRAINING + STEPS["model"],
    statistic="ApplyMomentum",
    check=check,
)
