"""What the contract suite has to know of Paddle."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from stepscope.read import read_files
from tests.frameworks.contract.framework import Framework
from tests.frameworks.paddle.programs import DATA, EAGER, EAGER_LOOP, OPTIMIZATION, capture, counts, memory_times
from tests.unit.collect.reading import read_journal


def check(run: Path) -> None:
    """All layers, waits and memory of five steps are there; in the tables all lies on one time line."""
    assert counts(run)["matmul dygraph"] == 5 * 2
    assert counts(run, OPTIMIZATION) == {"Optimization Step": 5}
    assert counts(run, DATA) == {}
    journal = run / "rank0" / "capture" / "journal.ssj"
    assert len([span for span in read_journal(journal).spans if span["kind"] == "data"]) == 5
    assert memory_times(run)
    tables = read_files([journal, capture(run)])
    operators = tables["spans"].filter(pl.col("kind") == "operator")
    inside = operators.filter(pl.col("step").is_not_null())
    assert inside.height == operators.height
    per_step = inside.group_by("step").len()["len"].to_list()
    assert len(set(per_step)) == 1
    phases = set(inside["phase"].cast(pl.String).to_list())
    assert phases >= {"forward", "backward", "optimizer"}
    assert operators["track"].n_unique() == 1
    modules = set(tables["operators"]["module"].cast(pl.String).to_list())
    assert "Sequential/Linear" in modules
    assert tables["losses"].filter(pl.col("severity") != "info").height == 0


RECOMPILES = """
import paddle

net = paddle.nn.Linear(16, 4)
optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())

def compute(x):
    return net(x).mean()

compute = paddle.jit.to_static(compute, full_graph=True)
for number in range(10):
    compute(paddle.ones([16 if number < 6 else 12, 16])).backward()
    optimizer.step()
    optimizer.clear_grad()
"""

TWO = """
import paddle

def trained(model):
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    def update():
        model(paddle.ones([4, 8])).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()
    return update

first, second = trained(paddle.nn.Linear(8, 8)), trained(paddle.nn.Linear(8, 8))
"""

FRAMEWORK = Framework(
    name="paddle",
    title="Paddle",
    program=EAGER + EAGER_LOOP,
    found={"by": "calls of optimizers", "optimizers": ["Momentum"]},
    updates=lambda run: counts(run)["momentum_ dygraph"] // 4,
    recompiles=RECOMPILES,
    two=TWO,
    operators=("momentum_", "matmul", "_grad", "add", "mean"),
    advice=("no optimizer stepped", "use `python -m paddle.distributed.launch … $(which stepscope) run` for them"),
    arguments=("2",),
    alone=("0",),
    options=("--memory",),
    summary=("2 workers",),
    statistic="momentum_",
    check=check,
)
