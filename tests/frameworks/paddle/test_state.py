"""What the facts say of a Paddle program's mode, models and optimizers."""

from __future__ import annotations

import json
from pathlib import Path

import stepscope
from tests.frameworks.torch.programs import forked

TRAINING = """
import paddle

paddle.seed(1)
net = paddle.nn.Sequential(paddle.nn.Linear(8, 16), paddle.nn.Dropout(0.5), paddle.nn.Linear(16, 2))
words = paddle.nn.Embedding(10, 8, sparse=True)
for parameter in net[0].parameters():
    parameter.stop_gradient = True
net[1].eval()

def watch(layer, inputs, result):
    pass

net[2].register_forward_post_hook(watch)
optimizer = paddle.optimizer.Adam(parameters=net[2].parameters())
for _ in range(12):
    loss = net(words(paddle.arange(4))).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
print(float(loss))
"""


def test_mode_models_and_optimizers(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    done = forked("-m", "stepscope", "run", "--steps", "4-5", "--output", tmp_path / "runs", script)
    assert done.returncode == 0, done.stderr
    rows = stepscope.open(tmp_path / "runs").tables["metadata"].collect().iter_rows()
    state = {key: json.loads(value) for key, value in rows}["paddle.state"]
    assert (state["dynamic_mode"], state["grad"], state["device"], state["amp_level"]) == (True, True, "cpu", "O0")
    models = {one["class"]: one for one in state["models"]}
    net = models["Sequential"]
    assert (net["parameters"], net["trainable_parameters"], net["training"]) == (4, 2, True)
    assert net["elements_by_dtype"] == {"float32": 8 * 16 + 16 + 16 * 2 + 2}
    assert net["eval_modules"] == ["Sequential.1"]
    line = TRAINING.splitlines().index("def watch(layer, inputs, result):") + 1
    place = {"function": "watch", "file": str(script), "line": line}
    assert net["hooks"] == [{"on": "module", "kind": "forward", **place, "first": "Sequential.2"}]
    assert models["Embedding"]["sparse_embeddings"] == ["Embedding"]
    assert (state["optimizers"][0]["class"], state["optimizers"][0]["parameters"]) == ("Adam", 2)
    assert forked(script).stdout == done.stdout
