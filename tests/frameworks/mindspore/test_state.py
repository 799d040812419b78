"""What the facts say of a MindSpore program's mode, models and optimizers."""

from __future__ import annotations

import json
from pathlib import Path

import stepscope
from tests.frameworks.torch.programs import forked

TRAINING = """
import numpy as np
import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn

ms.set_seed(1)
ms.set_device("CPU")
ms.set_context(mode=ms.PYNATIVE_MODE)
net = nn.SequentialCell(nn.Dense(16, 32), nn.ReLU(), nn.Dense(32, 4))
for parameter in net[0].get_parameters():
    parameter.requires_grad = False
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
columns = {"x": np.ones((96, 16), np.float32), "y": np.zeros(96, np.int32)}
data = ds.NumpySlicesDataset(columns, shuffle=False).batch(8)
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
ms.Model(net, loss, optimizer).train(1, data, dataset_sink_mode=False)
print(float(net[2].bias.asnumpy().sum()))
"""


def test_mode_models_and_optimizers(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    done = forked("-m", "stepscope", "run", "--steps", "4-5", "--output", tmp_path / "runs", script)
    assert done.returncode == 0, done.stderr
    rows = stepscope.open(tmp_path / "runs").tables["metadata"].collect().iter_rows()
    state = {key: json.loads(value) for key, value in rows}["mindspore.state"]
    assert (state["mode"], state["device"], state["sink"]) == ("pynative", "CPU", False)
    model = state["models"][0]
    assert (model["parameters"], model["trainable_parameters"]) == (4, 2)
    assert model["bytes_by_dtype"] == {"float32": 4 * (16 * 32 + 32 + 32 * 4 + 4)}
    assert [one["class"] for one in state["optimizers"]] == ["Momentum"]
    assert state["optimizers"][0]["parameters"] == 2
    assert forked(script).stdout == done.stdout
