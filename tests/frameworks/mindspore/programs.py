"""Programs that train with MindSpore, and what a recording of one holds, without stepscope's reader of it."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

#: Modules and attributes of MindSpore that a recording replaces while it lasts.
HOOKED = (
    ("mindspore.nn.optim.optimizer", "Optimizer.__call__"),
    ("mindspore.experimental.optim.optimizer", "Optimizer.__call__"),
    ("mindspore.graph.api", "_CellGraphExecutor.__call__"),
    ("mindspore.graph.api", "_CellGraphExecutor.compile"),
    ("mindspore.graph.api", "_JitExecutor.compile"),
    ("mindspore.graph.api", "_JitExecutor.__call__"),
    ("mindspore.graph._utils.pijit_context", "PIJitCaptureContext.__enter__"),
    ("mindspore.graph._utils.pijit_context", "PIJitCaptureContext.__exit__"),
    ("mindspore.train.model", "Model._train"),
    ("mindspore.train.model", "_CallbackManager.on_train_step_end"),
    ("mindspore.train.model", "_framework_profiler_step_start"),
    ("mindspore.train.model", "_framework_profiler_step_end"),
    ("mindspore.dataset.engine.iterators", "Iterator.__next__"),
    ("mindspore.profiler.profiler_interface", "ProfilerInterface.init"),
)

#: A net, its loss, an optimizer and twelve batches; the first argument is the mode.
TRAINING = """
import sys, time
import numpy as np
import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, ops

ms.set_seed(1)
np.random.seed(1)
ms.set_device("CPU")
ms.set_context(mode=ms.GRAPH_MODE if sys.argv[1] == "graph" else ms.PYNATIVE_MODE)
net = nn.SequentialCell(nn.Dense(16, 32), nn.ReLU(), nn.Dense(32, 4))
loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
columns = {"x": np.random.rand(96, 16).astype(np.float32), "y": np.random.randint(0, 4, 96).astype(np.int32)}
data = ds.NumpySlicesDataset(columns, shuffle=False).batch(8)
stamps = []


def forward(x, y):
    return loss_fn(net(x), y)


def train(step):
    # the loop begins
    for x, y in data.create_tuple_iterator(num_epochs=1):
        loss = step(x, y)
        stamps.append(time.perf_counter_ns())
    print("loss", float(loss.asnumpy()))


"""

#: Ways to make a step of it.
STEPS = {
    "cell": "train(nn.TrainOneStepCell(nn.WithLossCell(net, loss_fn), optimizer))\n",
    "functions": """
gradient = ms.value_and_grad(forward, None, optimizer.parameters)
def step(x, y):
    loss, gradients = gradient(x, y)
    optimizer(gradients)
    return loss
train(step)
""",
    "jit": """
gradient = ms.value_and_grad(forward, None, optimizer.parameters)
@ms.jit(capture_mode=sys.argv[2] if len(sys.argv) > 2 else "ast")
def step(x, y):
    loss, gradients = gradient(x, y)
    optimizer(gradients)
    return loss
train(step)
""",
    "method": """
class Trainer:
    def __init__(self):
        self.optimizer = optimizer
        self.gradient = ms.value_and_grad(forward, None, optimizer.parameters)

    @ms.jit
    def step(self, x, y):
        loss, gradients = self.gradient(x, y)
        return ops.depend(loss, self.optimizer(gradients))

train(Trainer().step)
""",
    "model": """
model = ms.Model(net, loss_fn, optimizer)
model.train(1, data, dataset_sink_mode=sys.argv[2] == "sink")
print("trained")
""",
}


class Kernel(NamedTuple):
    """One run of an operator: start in ns of the Epoch, duration in ns."""

    name: str
    start: int
    duration: float


def capture(run: Path, rank: int = 0) -> Path:
    """Return the directory that MindSpore's files of a rank are in."""
    return run / f"rank{rank}" / "capture" / "mindspore"


def facts(run: Path) -> dict[str, Any]:
    """Return what ``stepscope.json`` says."""
    found: dict[str, Any] = json.loads((capture(run) / "stepscope.json").read_text())
    return found


def kernels(run: Path) -> list[Kernel]:
    """Return the operators of a run, in order of time."""
    found = []
    for line in (capture(run) / "cpu_op_execute_timestamp_0.txt").read_text().splitlines():
        name, _, runs = line.split(";", 2)
        found += [(name, *run.split(",")) for run in runs.split()]
    return sorted((Kernel(name, int(start), float(ms) * 1e6) for name, start, ms, _ in found), key=lambda k: k.start)


def counts(run: Path) -> Counter[str]:
    """Count the runs of each operator, by the last part of its name without its number."""
    return Counter(re.sub(r"-op\d+$", "", kernel.name.rpartition("/")[2]) for kernel in kernels(run))


def totals(run: Path) -> dict[str, tuple[int, float]]:
    """Return how often MindSpore says that each operator ran, and how long in all, in ms."""
    lines = (capture(run) / "cpu_op_detail_info_0.csv").read_text().splitlines()
    heading = lines[0].split(",")
    rows = [dict(zip(heading, line.split(","), strict=True)) for line in lines[1:]]
    return {row["full_op_name"]: (int(row["op_occurrences"]), float(row["op_total_time(ms)"])) for row in rows}


def host_events(run: Path) -> list[tuple[str, int, int]]:
    """Return name, start and end of the host pipeline's events; times in ns of the Epoch."""
    (path,) = capture(run).glob("rank_*/RuntimeProfilerDetail*.csv")
    pattern = re.compile(r"(?:module|stage):([^,]*), event:([^,]*), op:.*, start_time:(\d+), end_time:(\d+)")
    found = [match for line in path.read_text().splitlines() if (match := pattern.match(line))]
    return [(f"{m[1]}::{m[2]}", int(m[3]), int(m[4])) for m in found if int(m[4]) >= int(m[3])]


def memory_times(run: Path) -> list[int]:
    """Return the times of a run's memory records, in ns of the Epoch."""
    lines = (capture(run) / "cpu_ms_memory_record_0.txt").read_text().splitlines()
    assert lines[0].startswith("Timestamp(ns)")
    return [int(line.split(",")[0]) for line in lines[1:]]
