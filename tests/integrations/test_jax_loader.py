"""A JAX program that takes its batches from PyTorch's loader: its waits are spans, and the finding names who waits."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepscope
from tests.frameworks.torch.programs import python

pytestmark = pytest.mark.slow

TRAINING = """
import time
import jax, jax.numpy as jnp
import numpy as np
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        time.sleep(0.005)
        return np.full(8, index, np.float32)

def loss(w, x):
    return jnp.square(x @ w).mean()

step = jax.jit(lambda w, x: w - 1e-9 * jax.grad(loss)(w, x))
w = jnp.ones(8)
for number, x in enumerate(DataLoader(Slow(), batch_size=4, collate_fn=np.stack)):
    w = step(w, x)
    if number == 40:
        break
print(w.block_until_ready().shape)
"""


def test_waits_for_pytorchs_loader_are_those_of_the_jax_steps(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    done = python("-m", "stepscope", "run", "--steps", "10-19", "--output", tmp_path / "runs", script)
    assert done.returncode == 0, done.stderr
    run = stepscope.open(tmp_path / "runs")
    steps = run.tables["run_steps"].collect()
    assert len(steps) >= 38
    # A batch waits for 20 ms: in every step of the run, in the spans of the recorded ones, and in the batches
    assert (steps["data_wait"][5:] >= 20_000_000).all()
    spans = run.tables["spans"].collect()
    waits = spans.filter(spans["kind"].cast(str) == "data")
    assert len(waits) >= 9
    assert (waits["dur"] >= 20_000_000).all()
    [made] = run.result("batch_production").rows(named=True)
    assert (made["Dataset"], made["Bottleneck"]) == ("Slow", "Samples Waiting")
    [finding] = [one for one in run.findings if one.cause == "data-loader-slow"]
    assert "__getitem__" in finding.title
