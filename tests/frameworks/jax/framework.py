"""What the contract suite has to know of JAX."""

from __future__ import annotations

from pathlib import Path

import polars as pl

import stepscope
from tests.frameworks.contract.framework import Framework
from tests.frameworks.jax.programs import LOOP, runs_of


def check(run: Path) -> None:
    """In the tables all lies on one time line: operators in steps, with scopes and phases."""
    spans = stepscope.open(run).ranks[0].tables
    operators = spans["spans"].filter(pl.col("kind") == "operator").collect()
    inside = operators.filter(pl.col("step").is_not_null())
    per_step = inside.group_by("step").len().sort("step")
    assert per_step["step"].to_list() == [5, 6, 7, 8, 9]
    phases = set(operators["phase"].cast(pl.String).drop_nulls().to_list())
    assert phases >= {"forward", "backward"}
    modules = set(spans["operators"].collect()["module"].cast(pl.String).drop_nulls().to_list())
    assert {"layer0", "layer1"} <= {module.rpartition("/")[2] for module in modules}


RECOMPILES = """
import jax

@jax.jit
def compute(weights, x):
    return weights - 0.1 * jax.grad(lambda weights: (x @ weights).mean())(weights)

weights = jax.numpy.ones((8, 8))
for number in range(10):
    weights = compute(weights, jax.numpy.ones((16 if number < 6 else 12, 8)))
"""

TWO = """
import jax

class Trained:
    def __init__(self, rate):
        self.weights = jax.numpy.ones((8, 8))
        self.update = jax.jit(lambda weights: weights - rate * jax.grad(lambda w: (w ** 2).mean())(weights))

    def __call__(self):
        self.weights = self.update(self.weights).block_until_ready()

first, second = Trained(0.1), Trained(0.2)
"""

FRAMEWORK = Framework(
    name="jax",
    title="JAX",
    program=LOOP,
    found={"optimizers": ["update"]},
    updates=lambda run: runs_of(run, "jit_update"),
    recompiles=RECOMPILES,
    two=TWO,
    operators=(" forward", " backward"),
    advice=("no training step was found",),
    idle=("import jax.numpy as jnp\nprint(float(jnp.ones(3).sum()))\n", "3.0\n"),
    shown=(Path(__file__).parents[3] / "examples" / "train_jax.py").read_text(),
    check=check,
    in_flight=1,  # the step before the window was only asked for
)
