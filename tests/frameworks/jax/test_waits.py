"""Waits for batches of Grain's ``DataLoader`` and datasets in programs that train with JAX."""

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
    loader = LOADER
    weights, iterator = jnp.zeros((64, 64)), iter(loader)
    for number in range(40):
        begin = time.perf_counter()
        batch = next(iterator)
        waited = time.perf_counter() - begin
        weights = train_step(weights, batch).block_until_ready()
        print(number, 1e3 * waited, flush=True)
"""


LOADER = """grain.DataLoader(
        data_source=Images(), operations=[Augment(), grain.transforms.Batch(64, drop_remainder=True)],
        sampler=grain.samplers.IndexSampler(512, shard_options=grain.sharding.NoSharding(), shuffle=True, seed=0),
        worker_count=WORKERS)"""
DATASET = """grain.MapDataset.source(Images()).shuffle(seed=0).map(Augment()).batch(64).repeat().to_iter_dataset(
        grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))"""
PROCESSES = f"{DATASET}.mp_prefetch(grain.MultiprocessingOptions(num_workers=WORKERS))"


@pytest.mark.parametrize(
    ("workers", "loader", "kind"),
    [
        (0, LOADER, "DataLoader"),
        (0, DATASET, "Dataset"),
        pytest.param(1, LOADER, "DataLoader", marks=pytest.mark.slow),
        pytest.param(2, PROCESSES, "Dataset", marks=pytest.mark.slow),
    ],
)
def test_waits_for_batches_of_grain_are_data(
    workers: int, loader: str, kind: str, tmp_path: Path, output: Path
) -> None:
    done = stepscope_run(output, script(tmp_path, GRAIN.replace("LOADER", loader).replace("WORKERS", str(workers))))
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    rank = stepscope.open(run).ranks[0]
    own = {int(line.split()[0]): float(line.split()[1]) for line in done.stdout.splitlines() if len(line.split()) == 2}
    spans = rank.tables["spans"].filter(pl.col("kind").cast(pl.String) == "data").collect()
    assert spans["track"].n_unique() == 1  # not on the threads with which Grain reads ahead
    assert set(spans["name"].cast(pl.String)) == {f"{kind} 0 (Images).__next__"}
    waits = rank.tables["run_steps"].collect().select("number", "data_wait").drop_nulls()
    assert len(waits) > 20
    assert waits["data_wait"].sum() / 1e6 == pytest.approx(sum(own[number] for number in waits["number"]), rel=0.1)
    facts = dict(rank.tables["metadata"].collect().iter_rows())
    settings = json.loads(facts["grain.0" if kind == "DataLoader" else "grain_dataset.0"])
    assert settings.items() >= {"dataset": "Images", "workers": workers, "batch_size": 64}.items()
    found = {finding.cause: finding for finding in stepscope.open(run).findings}
    if not workers:
        says = "grain.DataLoader(…, worker_count=" if kind == "DataLoader" else "mp_prefetch(grain.Multiprocess"
        assert says in found["data-loader-slow"].remedy
