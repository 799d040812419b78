"""What the facts say of a JAX program's switches and of what it jits; a program that jits in its loop has steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stepscope
from tests.frameworks.torch.programs import forked

TRAINING = """
import jax, jax.numpy as jnp
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_default_matmul_precision", "bfloat16")
w, x = jnp.ones((64, 64)) * 0.01, jnp.ones((64, 64))

def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2)

def batches():
    while True:
        yield 0.1

for _, rate in zip(range(20), batches()):
    step = jax.jit(lambda w, x: w - 0.1 * jax.grad(loss)(w, x), donate_argnums=(0,))
    w = step(w, x)
print(float(w.sum()))
"""


def test_a_program_that_jits_in_its_loop(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    done = forked("-m", "stepscope", "run", "--steps", "8-11", "--output", tmp_path / "runs", script)
    assert done.returncode == 0, done.stderr
    run = stepscope.open(tmp_path / "runs")
    facts = {key: json.loads(value) for key, value in run.tables["metadata"].collect().iter_rows()}
    # Every iteration is a step, although each compiles a function of its own
    assert run.tables["run_steps"].collect()["number"].to_list() == list(range(20))
    assert run.tables["steps"].collect()["number"].to_list() == [8, 9, 10, 11]
    # The switches
    state, used = facts["jax.state"], facts["jax.used"]
    assert (state["enable_x64"], state["debug_nans"], state["matmul_precision"]) == (True, False, "bfloat16")
    assert list(state["backends"]) == ["cpu"]
    assert set(state["caches"]) == {"programs", "programs_with_options"}
    # and what was jitted in the window: one function a step, where it stands, and how
    line = TRAINING.splitlines().index(next(row for row in TRAINING.splitlines() if "jax.jit" in row)) + 1
    place = {"function": "<lambda>", "file": str(script), "line": line}
    assert used["jit"] == [{**place, "calls": 4, "donate_argnums": [0]}]
    # and the generator that the loop goes through
    line = TRAINING.splitlines().index("def batches():") + 1
    assert used["generators"] == [{"function": "batches", "file": str(script), "line": line}]
    # The compilations of the whole run are kept, with the reason
    compiled = run.tables["compilations"].collect()
    ours = compiled.filter((compiled["function"] == "<lambda>") & compiled["name"].str.starts_with("compile"))
    assert ours.height == 20
    assert (ours["dur"] >= 100_000).all()
    assert ours["arguments"].to_list() == ["float64[64,64], float64[64,64]"] * 20
    assert ours["why"].null_count() == 1
    assert "another object of the function" in ours["why"][-1]
    assert "jax_state" not in [name for name, said in run.manifest["collectors"].items() if "failed" in said]


NO_STEPS = """
import jax, jax.numpy as jnp
for size in range(4, 12):
    jax.jit(jnp.tanh)(jnp.ones(size)).block_until_ready()
print("done")
"""


def test_a_program_without_steps_is_told_what_it_compiled(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(NO_STEPS)
    done = forked("-m", "stepscope", "run", "--output", tmp_path / "runs", script)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "no training step was found. The program compiled again and again: " in done.stderr
    assert "8 times" in done.stderr


FACTORY = """
import jax, jax.numpy as jnp

def make(rate):
    return jax.jit(lambda w: w - rate * jnp.tanh(w))

first, second = make(0.1), make(0.2)
a, b = jnp.ones(8), jnp.ones(8)
for _ in range(20):
    a = first(a)
    b = second(b)
print(float(a.sum() + b.sum()))
"""


STATIC = """
from functools import partial
import jax, jax.numpy as jnp

@partial(jax.jit, static_argnums=1, static_argnames="rate")
def update(w, power, rate):
    return w - rate * w**power

w = jnp.ones(4)
for step in range(12):
    w = update(w, 2, rate=0.5 - step / 100)
"""


def test_a_static_argument_that_changes_is_why_it_is_compiled_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(STATIC)
    done = forked("-m", "stepscope", "run", "--output", tmp_path / "runs", script)
    assert done.returncode == 0, done.stderr
    compiled = stepscope.open(tmp_path / "runs").tables["compilations"].collect()
    why = compiled.filter((compiled["function"] == "update") & compiled["name"].str.starts_with("compile"))["why"]
    assert why[-1] == "argument 2: rate=0.39, before rate=0.4"


@pytest.mark.slow
def test_two_functions_of_one_factory_are_two(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FACTORY)
    done = forked("-m", "stepscope", "run", "--steps", "8-9", "--output", tmp_path / "runs", script)
    assert done.returncode == 0, done.stderr
    steps = stepscope.open(tmp_path / "runs").tables["run_steps"].collect()
    assert set(steps["number"]) == set(range(20))
