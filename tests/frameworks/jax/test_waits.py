"""Waits for batches of Grain's ``DataLoader`` in programs that train with JAX."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import stepscope
from tests.frameworks.torch.programs import runs, script, stepscope_run

#: Prints how long each of its steps waited for its batch, in ms, and how long it took.
GRAIN = """
import time
import absl.flags, grain, jax, numpy as np
from jax import numpy as jnp

class Images:
    def __len__(self):
        return 512
    def __getitem__(self, index):
        return np.full(64, index, np.float32)

class Augment(grain.transforms.Map):
    def map(self, image):
        for _ in range(20):
            image = np.roll(image, 1)
        return image

@jax.jit
def train_step(weights, batch):
    def loss(weights):
        return ((jnp.tanh(batch @ weights) - batch) ** 2).mean()
    return weights - 0.1 * jax.grad(loss)(weights)

if __name__ == "__main__":
    absl.flags.FLAGS.mark_as_parsed()  # as absl.app.run does; Grain's workers ask for flags
    order = grain.samplers.IndexSampler(512, shard_options=grain.sharding.NoSharding(), shuffle=True, seed=0)
    batches = grain.transforms.Batch(64, drop_remainder=True)
    loader = grain.DataLoader(
        data_source=Images(), sampler=order, operations=[Augment(), batches], worker_count=WORKERS
    )
    weights, iterator = jnp.zeros((64, 64)), iter(loader)
    for number in range(40):
        begin = time.perf_counter()
        batch = next(iterator)
        waited = time.perf_counter() - begin
        weights = train_step(weights, batch).block_until_ready()
        print(number, 1e3 * waited, flush=True)
"""


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_waits_for_batches_of_grain_are_data(workers: int, tmp_path: Path, output: Path) -> None:
    done = stepscope_run(output, script(tmp_path, GRAIN.replace("WORKERS", str(workers))))
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    rank = stepscope.open(run).ranks[0]
    own = {int(line.split()[0]): float(line.split()[1]) for line in done.stdout.splitlines() if len(line.split()) == 2}
    spans = rank.tables["spans"].filter(pl.col("kind").cast(pl.String) == "data").collect()
    assert set(spans["name"].cast(pl.String)) == {"DataLoader 0 (Images).__next__"}
    waits = rank.tables["run_steps"].collect().select("number", "data_wait").drop_nulls()
    assert len(waits) > 20
    assert waits["data_wait"].sum() / 1e6 == pytest.approx(sum(own[number] for number in waits["number"]), rel=0.1)
    facts = dict(rank.tables["metadata"].collect().iter_rows())
    assert json.loads(facts["grain.0"]).items() >= {"dataset": "Images", "workers": workers, "batch_size": 64}.items()
    found = {finding.cause: finding for finding in stepscope.open(run).findings}
    if not workers:
        assert "grain.DataLoader(…, worker_count=" in found["data-loader-slow"].remedy
