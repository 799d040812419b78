"""What a loop of the program's own does besides training, outside of the recorded steps: it has a name in its steps."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import stepscope
from tests.frameworks.torch.programs import manifest, runs, script, stepscope_run

#: After every tenth step it evaluates what it trains, for 20 ms or more; it saves in each way of orbax.
TRAINING = """
import os, threading, time
import jax
import jax.numpy as jnp
import orbax.checkpoint
from orbax.checkpoint.experimental import v1

@jax.jit
def update(weights, x):
    def loss(weights):
        return jnp.square(jnp.tanh(x @ weights["in"]) @ weights["out"]).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda matrix, gradient: matrix - 0.1 * gradient, weights, gradients), value

@jax.jit
def predict(weights, x):
    return jnp.square(jnp.tanh(x @ weights["in"]) @ weights["out"]).mean()

def evaluate(weights):
    values = []
    for batch in held_out:
        values.append(float(predict(weights, batch)))
        time.sleep(0.01)
    return sum(values)

weights = {"in": jnp.full((32, 256), 0.01), "out": jnp.full((256, 8), 0.01)}
x, held_out = jnp.ones((8, 32)), [jnp.full((16, 32), 0.1 * number) for number in range(3)]
at_once, later = orbax.checkpoint.PyTreeCheckpointer(), orbax.checkpoint.StandardCheckpointer()
waiter = threading.Thread(target=later.wait_until_finished)
for step in range(60):
    weights, value = update(weights, x)
    value.block_until_ready()
    if step % 10 == 9:
        evaluate(weights)
    if step == 22:
        at_once.save(os.path.abspath("first"), weights)
    if step == 32:
        later.save(os.path.abspath("second"), weights)
        later.wait_until_finished()
    if step == 42:
        v1.save_pytree(os.path.abspath("third"), weights)
    if step == 52:  # the training goes on while another thread waits
        later.save(os.path.abspath("fourth"), weights)
        waiter.start()
waiter.join()
print("trained", *filter(os.path.isdir, ("first", "second", "third", "fourth")))
"""


@pytest.mark.slow
def test_evaluations_and_checkpoints_in_a_loop_are_named(tmp_path: Path) -> None:
    path = script(tmp_path, TRAINING)
    done = stepscope_run(tmp_path / "runs", "--skip", "10", path, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained first second third fourth\n"), done.stderr
    (run,) = runs(tmp_path / "runs")
    assert manifest(run)["losses"] == {}
    rank = stepscope.open(run).ranks[0]
    rows = rank.results["step_times"]
    assert isinstance(rows, pl.DataFrame)
    assert rows["Step"].to_list() == list(range(60))
    # Then evaluations are named from the second one on, in the step that follows, with the function that evaluates
    contains = pl.col("Contains").str.split(", ").list
    assert rows.filter(contains.contains("evaluation run"))["Step"].to_list() == [20, 30, 40, 50]
    facts = dict(rank.tables["metadata"].collect().iter_rows())
    assert json.loads(facts["evaluations"]) == [[str(path), "evaluate"]]
    # and so is everything that saves
    assert rows.filter(contains.contains("checkpoint"))["Step"].to_list() == [23, 33, 43, 53]
    steps, events = (rank.tables[name].collect().sort("ts") for name in ("run_steps", "run_events"))
    events = events.with_columns(pl.col("name").cast(pl.String)).join_asof(steps.select("ts", "number"), on="ts")
    evaluations, saves = (events.filter(pl.col("name") == name) for name in ("evaluation run", "checkpoint"))
    assert evaluations["number"].to_list() == [20, 30, 40, 50]
    assert min(evaluations["dur"].to_list()) >= 20_000_000
    # and waiting for it, where the training does that
    assert saves["number"].to_list() == [23, 33, 33, 43, 53]
