"""Steps of a compiled loop that reads nothing: each ends when it is computed; the first one compiles."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import stepscope
from tests.frameworks.torch.programs import runs, script, stepscope_run

pytestmark = pytest.mark.slow

#: Products that take long beside their dispatch. The program waits for its last loss only; it times all steps but two.
PROGRAM = """
import json, time
import numpy as np
import mindspore as ms
from mindspore import nn, ops

ms.set_seed(1)
ms.set_device("CPU")
ms.set_context(mode=ms.GRAPH_MODE)
net = nn.SequentialCell(*[nn.Dense(1024, 1024) for _ in range(4)])
optimizer = nn.SGD(net.trainable_params(), 1e-3)

def forward(x):
    return ops.square(net(x)).mean()

gradient = ms.value_and_grad(forward, None, optimizer.parameters)

@ms.jit
def step(x):
    loss, gradients = gradient(x)
    return ops.depend(loss, optimizer(gradients))

x = ms.Tensor(np.ones((1024, 1024), np.float32))
for number in range(14):
    if number == 2:
        loss.asnumpy()
        begin = time.perf_counter()
    loss = step(x)
loss.asnumpy()
json.dump((time.perf_counter() - begin) / 12, open("time.json", "w"))
"""


def test_a_step_ends_when_it_is_computed(tmp_path: Path, output: Path) -> None:
    done = stepscope_run(output, "--steps", "5:10", script(tmp_path, PROGRAM), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    tables = stepscope.open(run).tables
    # What a step computes lies in it: forward, to each weight, and to the input of each layer but the first
    steps, named = tables["steps"].collect(), pl.col("name").cast(pl.String)
    spans = tables["spans"].filter(named.str.contains("MatMul"), kind="operator").collect()
    each = spans.group_by("step").agg(pl.len(), pl.col("dur").sum()).sort("step")
    assert each["step"].to_list() == steps["number"].to_list() == [5, 6, 7, 8, 9, 10]
    assert set(each["len"]) == {4 + 4 + 3}
    assert (each["dur"] > 0.5 * steps["dur"]).all()
    # and steps take what the program's own clock says of the loop, as far as those of a shared machine are alike
    mean = float(steps["dur"].mean())  # type: ignore[arg-type]
    assert mean / 1e9 == pytest.approx(json.loads((tmp_path / "time.json").read_text()), rel=0.4)


def test_the_first_step_compiles(tmp_path: Path, output: Path) -> None:
    done = stepscope_run(output, "--steps", "0:3", script(tmp_path, PROGRAM), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    spans = stepscope.open(run).tables["spans"].filter(step=0).collect()
    taken = dict(spans.group_by(pl.col("kind").cast(pl.String)).agg(pl.col("dur").sum() / 1e3).iter_rows())
    first = stepscope.open(run).ranks[0].result("step_trace_time").row(0, named=True)
    assert taken["compile"] > taken.get("garbage", 0.0) + first["Idle"]
