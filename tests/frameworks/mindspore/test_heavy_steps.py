"""Steps of a compiled loop that reads nothing: each ends when it is computed; the first one compiles."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import stepscope
from tests.frameworks.torch.programs import runs, script, stepscope_run

pytestmark = pytest.mark.slow

#: Products longer than their dispatch. The program waits before step 2 and behind the last; it times between.
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
json.dump(time.perf_counter() - begin, open("time.json", "w"))
"""


def test_a_step_ends_when_it_is_computed(tmp_path: Path, output: Path) -> None:
    # Given: a recording of exactly the steps that the program times
    done = stepscope_run(output, "--steps", "2:13", script(tmp_path, PROGRAM), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    tables = stepscope.open(run).tables
    steps, named = tables["steps"].collect(), pl.col("name").cast(pl.String)
    assert steps["number"].to_list() == list(range(2, 14))
    # Then every operator lies in a step, from its start to its end
    bounds = steps.select(step="number", begin="ts", finish=pl.col("ts") + pl.col("dur"))
    operators = tables["spans"].filter(kind="operator").collect().join(bounds, on="step", how="left")
    inside = (pl.col("begin") <= pl.col("ts")) & (pl.col("ts") + pl.col("dur") <= pl.col("finish"))
    assert operators.select(inside.fill_null(value=False).all()).item()
    # and in each step its products: forward, to each weight, and to the input of each layer but the first
    products = operators.filter(named.str.contains("MatMul")).group_by("step").agg(pl.len(), pl.col("dur").sum())
    each = steps.join(products, left_on="number", right_on="step", suffix="_of_products")
    assert each["len"].to_list() == [4 + 4 + 3] * 12
    assert (each["dur_of_products"] > 0.5 * each["dur"]).all()
    # and they take, together, what the program's own clock says of its loop
    assert float(steps["dur"].sum()) / 1e9 == pytest.approx(json.loads((tmp_path / "time.json").read_text()), rel=0.1)


#: The same products in a model that is trained, without a callback that could wait for a step.
MODEL = """
import sys
import numpy as np
import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn

ms.set_device("CPU")
ms.set_context(mode=getattr(ms, sys.argv[1]))
net = nn.SequentialCell(*[nn.Dense(768, 768) for _ in range(4)])
rows = np.ones((512 * 12, 768), np.float32)
data = ds.NumpySlicesDataset({"x": rows, "y": rows}, shuffle=False).batch(512)
model = ms.Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 1e-4))
model.train(1, data, dataset_sink_mode=sys.argv[2] == "sink")
"""


@pytest.mark.parametrize("mode", ["GRAPH_MODE", "PYNATIVE_MODE"])
@pytest.mark.parametrize("sink", ["sink", "no sink"])
def test_a_step_of_a_model_ends_when_it_is_computed(tmp_path: Path, output: Path, mode: str, sink: str) -> None:
    done = stepscope_run(output, "--steps", "4:8", script(tmp_path, MODEL), mode, sink, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    tables = stepscope.open(run).tables
    steps = tables["steps"].collect()
    operators = tables["spans"].filter(kind="operator").collect()
    products = operators.filter(pl.col("name").cast(pl.String).str.contains("MatMul")).group_by("step")
    last = (pl.col("ts") + pl.col("dur")).max().alias("last_end")
    products = products.agg(pl.len(), last, pl.col("dur").sum().alias("computing"))
    each = steps.join(products, left_on="number", right_on="step").sort("number")
    # Then each step has its products, and lasts for them: forward, to each weight, and to the input of all but one
    assert each["number"].to_list() == [4, 5, 6, 7, 8]
    assert each["len"].to_list() == [4 + 4 + 3] * 5
    assert (each["last_end"] <= each["ts"] + each["dur"]).all()
    assert (each["computing"] / each["dur"]).max() > 0.5  # of the step that waits least for a core


def test_the_first_step_compiles(tmp_path: Path, output: Path) -> None:
    done = stepscope_run(output, "--steps", "0:3", script(tmp_path, PROGRAM), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    spans = stepscope.open(run).tables["spans"].filter(step=0).collect()
    taken = dict(spans.group_by(pl.col("kind").cast(pl.String)).agg(pl.col("dur").sum() / 1e3).iter_rows())
    parts = stepscope.open(run).ranks[0].result("step_trace_time")
    assert isinstance(parts, pl.DataFrame)
    first = parts.row(0, named=True)
    assert taken["compile"] > taken.get("garbage", 0.0) + first["Idle"]
