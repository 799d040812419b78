"""What the contract suite has to know of PyTorch. Its programs run in children that have loaded torch."""

from __future__ import annotations

from pathlib import Path

from tests.frameworks.contract.framework import Framework
from tests.frameworks.torch.programs import TRAINING, names, recorded_spans


def check(run: Path) -> None:
    """The operators of five steps are there, and no range of the optimizer lies in two steps."""
    events = recorded_spans(run)
    assert names(events, "cpu_op")["aten::addmm"] == 10
    marks = [(event["ts"], event["ts"] + event["dur"]) for event in events if event["name"].startswith("ProfilerStep")]
    for event in events:
        if event["name"].startswith("Optimizer"):
            assert sum(begin <= event["ts"] and event["ts"] + event["dur"] <= end for begin, end in marks) == 1


RECOMPILES = """
import torch

model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@torch.compile(backend="eager", dynamic=False)
def compute(x):
    return model(x).square().mean()

for number in range(10):
    optimizer.zero_grad()
    compute(torch.ones(16 if number < 6 else 12, 8)).backward()
    optimizer.step()
"""

TWO = """
import torch

def trained(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def update():
        optimizer.zero_grad()
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
    return update

first, second = trained(torch.nn.Linear(8, 8)), trained(torch.nn.Linear(8, 8))
"""

FRAMEWORK = Framework(
    name="torch",
    title="PyTorch",
    program=TRAINING
    + """
import time
stamps = []
# the loop begins
for number in range(12):
    step()
    stamps.append(time.perf_counter_ns())
print("trained", number + 1)
""",
    found={"by": "optimizer step hooks", "optimizers": ["SGD"]},
    updates=lambda run: names(recorded_spans(run), "user_annotation")["Optimizer.step#SGD.step"],
    recompiles=RECOMPILES,
    two=TWO,
    operators=("addmm", "aten::"),
    advice=("--steps all",),
    idle=("import torch\ntorch.ones(2)", ""),
    statistic="addmm",
    check=check,
)
