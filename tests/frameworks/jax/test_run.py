"""``stepscope run``, the environment and other interfaces on programs that train with JAX."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.collect.jax.jax_steps import BY_RUNS
from stepscope.read.paddle import fluid_profile
from stepscope.trace.losses import LossLedger
from tests.frameworks.jax.framework import TWO
from tests.frameworks.jax.programs import ANNOTATED, LOOP, TRAINING, capture, runs_of
from tests.frameworks.torch.programs import environment, manifest, python, runs, script, stepscope_run
from tests.unit.collect.reading import Read, read_journal

#: Runs that may still be going on when a window opens: of the step before, which was only asked for.
IN_FLIGHT = 1


def journal(run: Path, rank: int = 0) -> Read:
    return read_journal(run / f"rank{rank}" / "capture" / "journal.ssj")


def steps(run: Path, rank: int = 0) -> list[int]:
    return list(journal(run, rank).frames["steps"]["number"])


def asked(output: Path, variable: str = "STEPSCOPE_OPTIONS", **switches: object) -> dict[str, str]:
    options = {"start": True, "output_path": str(output), "analyse": "later", **switches}
    return environment(**{variable: json.dumps(options)})


def test_an_annotated_loop(tmp_path: Path, output: Path) -> None:
    done = stepscope_run(output, script(tmp_path, ANNOTATED))
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert steps(run) == [5, 6, 7, 8, 9]
    assert manifest(run)["steps"] == {
        "source": "declared",
        "by": "StepTraceAnnotation",
        "optimizers": [],
        "rule": "each step of the framework's own training loop is a training step",
        "recorded": 5,
    }
    assert 0 <= runs_of(run, "jit_update") - 2 * 5 <= 2 * IN_FLIGHT
    assert set(stepscope.open(run).ranks[0].tables["steps"].collect()["source"].to_list()) == {"declared"}


#: Jits the gradient, and updates outside: that its runs are steps is known at the eighth.
GRADIENTS = """
import jax
import jax.numpy as jnp

gradient = jax.jit(jax.value_and_grad(lambda weights, x: jnp.mean((x @ weights) ** 2)))
weights, x = jnp.ones((32, 8)), jnp.ones((16, 32))
for number in range(30):
    loss, change = gradient(weights, x)
    weights = weights - 0.01 * change
    float(loss)
"""


def test_steps_that_ended_before_they_were_known_are_counted(tmp_path: Path, output: Path) -> None:
    done = stepscope_run(output, script(tmp_path, GRADIENTS))
    assert done.returncode == 0, done.stderr
    rank = stepscope.open(runs(output)[0]).ranks[0]
    assert manifest(runs(output)[0])["steps"]["by"] == BY_RUNS
    assert rank.tables["run_steps"].collect()["number"].to_list() == list(range(30))
    assert rank.tables["steps"].collect()["number"].to_list() == list(range(9, 14))


@pytest.mark.parametrize("variable", ["STEPSCOPE_OPTIONS", "MS_PROFILER_OPTIONS"])
def test_the_environment_records_the_whole_program(tmp_path: Path, output: Path, variable: str) -> None:
    path = script(tmp_path, LOOP)
    plain = python(path, "6")
    done = python(path, "6", env=asked(output, variable, memory=True))
    (run,) = runs(output)
    assert (done.returncode, done.stdout) == (0, plain.stdout)
    assert done.stderr == f"stepscope: recorded in {run}\n"
    assert steps(run) == [0, 1, 2, 3, 4, 5]
    assert runs_of(run, "jit_update") == 6
    assert (capture(run).parent / "memory.pb.gz").exists()
    # and the program could still configure JAX when the recording began
    assert "no backend" in manifest(run)["collectors"]["jax"]["note"]
    compiled = [span["name"] for span in journal(run).spans if span["kind"] == "compile"]
    assert any("update" in name for name in compiled)


def test_the_environment_records_some_steps(tmp_path: Path, output: Path) -> None:
    done = python(script(tmp_path, LOOP), env=asked(output, steps="3:5"))
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert steps(run) == [3, 4, 5]


# Faults


def test_a_terminated_program_keeps_its_window(tmp_path: Path, output: Path) -> None:
    text = LOOP.replace("    stamps", "    if number == 8: os.kill(os.getpid(), signal.SIGTERM)\n    stamps")
    done = stepscope_run(output, script(tmp_path, text))
    assert done.returncode == -signal.SIGTERM
    (run,) = runs(output)
    assert "SIGTERM" in manifest(run)["status"]
    assert 0 <= runs_of(run, "jit_update") - 4 <= IN_FLIGHT


# Several processes, and the other interfaces

RANKS = (
    "import sys, jax\njax.distributed.initialize(f'127.0.0.1:{sys.argv[2]}', 2, int(sys.argv[3]))\n"
    + LOOP
    + "assert jax.process_index() == int(sys.argv[3])\n"
)


def test_processes_of_one_job_are_its_ranks(tmp_path: Path, output: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    path = script(tmp_path, RANKS)
    command = [sys.executable, "-m", "stepscope", "run", "--later", "--output", str(output), str(path), "12", port]
    started = [
        subprocess.Popen([*command, str(rank)], env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for rank in (0, 1)
    ]
    said = [process.communicate(timeout=300)[1].decode() for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    (run,) = runs(output)
    assert sorted(path.name for path in run.iterdir()) == ["rank0", "rank1"]
    assert [manifest(run, rank)["rank_found_by"] for rank in (0, 1)] == ["jax.distributed"] * 2
    assert [steps(run, rank) for rank in (0, 1)] == [[5, 6, 7, 8, 9]] * 2


FLUID = (
    TRAINING
    + """
import stepscope.compat.fluid.profiler as profiler

weights = update(weights, x)[1]
profiler.start_profiler("CPU")
for number in range(10):
    if number == 2:
        profiler.reset_profiler()
    value, weights = update(weights, x)
    value.block_until_ready()
profiler.stop_profiler("total", sys.argv[1])
"""
)


def test_the_fluid_profiler(tmp_path: Path) -> None:
    done = python("-c", FLUID, tmp_path / "profile")
    assert done.returncode == 0, done.stderr
    assert "Place: CPU" in done.stdout
    names = fluid_profile.load(tmp_path / "profile", LossLedger("profile")).events["name"].to_list()
    products = [name for name in names if re.fullmatch(r"(ynn_fusion|dot)[.\d]*", name)]
    assert len(products) > 0
    assert len(products) % 8 == 0


DYNAMIC = (
    TRAINING
    + """
import stepscope

folder = sys.argv[1]
os.makedirs(folder)
json.dump({"start_step": 3, "stop_step": 5}, open(folder + "/profiler_config.json", "w"))
monitor = stepscope.dynamic(folder, output=sys.argv[2])
for number in range(8):
    value, weights = update(weights, x)
    monitor.step()
"""
)


def test_the_dynamic_profiler(tmp_path: Path, output: Path) -> None:
    done = python("-c", DYNAMIC, tmp_path / "profiling", output)
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 30
    while not (found := list(output.rglob("manifest.json"))) and time.monotonic() < deadline:
        time.sleep(0.1)
    rank = found[0].parent
    assert list(read_journal(rank / "capture" / "journal.ssj").frames["steps"]["number"]) == [3, 4, 5]
    assert runs_of(rank.parent, "jit_update") >= 3


@pytest.mark.parametrize(
    ("iterations", "steps", "whole", "recorded"),
    [(3, "2-5", [], 4), pytest.param(9, "2-40", [1, 2, 3, 4, 5, 6, 7], 7, marks=pytest.mark.slow)],
    ids=["no step is whole", "seven are"],
)
def test_parts_of_steps_are_not_among_the_steps_of_the_run(
    tmp_path: Path, output: Path, iterations: int, steps: str, whole: list[int], recorded: int
) -> None:
    # Given a program that ends the steps, but shows only after the window that it updates what it gets
    loop = f"for _ in range({iterations}):\n    for _ in range(5): first()\n    second()\n"
    done = stepscope_run(output, "--steps", steps, script(tmp_path, f"{TWO}\n{loop}"))
    assert done.returncode == 0, done.stderr
    # Then the steps of the run are the iterations, and recorded are those that lie whole in the window
    (run,) = runs(output)
    rank = stepscope.open(run).ranks[0]
    every, found = rank.tables["run_steps"].collect(), rank.tables["steps"].collect()
    assert every["number"].to_list() == list(range(iterations))
    assert every.filter("recorded")["number"].to_list() == whole
    assert found["number"].to_list()[: len(whole)] == whole
    assert found.height == recorded
    assert set(manifest(run)["losses"]) == {"steps_recounted"}
    # And no result takes a part of a step for a step
    rows = rank.results["step_times"]
    assert isinstance(rows, pl.DataFrame)
    assert rows["Step"].to_list() == list(range(iterations))


#: Its program calls Python back, which runs hundreds of programs of its own on a thread of XLA's.
CALLING_BACK = """
import jax, jax.numpy as jnp, numpy as np

def mask(scores):
    out = np.zeros(scores.shape, np.float32)
    for row in range(len(scores)):
        out[row, np.asarray(scores[row]).argsort()[-4:]] = 1
    return out

def loss(weights, x):
    hidden = x @ weights["in"] + weights["bias"]
    shape = jax.ShapeDtypeStruct(hidden.shape, jnp.float32)
    hidden = hidden * jax.pure_callback(mask, shape, jax.lax.stop_gradient(hidden))
    return ((hidden @ weights["out"] - x) ** 2).mean()

@jax.jit
def update(weights, x):
    value, gradients = jax.value_and_grad(loss)(weights, x)
    return jax.tree.map(lambda a, b: a - 0.05 * b, weights, gradients), value

rng = np.random.default_rng(0)
sizes = {"in": (512, 256), "bias": 256, "out": (256, 512)}
weights = {name: jnp.asarray(rng.normal(size=size) / 20, jnp.float32) for name, size in sizes.items()}
data = rng.normal(size=(8192, 512)).astype(np.float32)
for number in range(30):
    weights, value = update(weights, data[256 * number :][:256])
    value.block_until_ready()
"""


def test_what_is_called_back_ends_no_step_of_its_own(tmp_path: Path, output: Path) -> None:
    done = stepscope_run(output, script(tmp_path, CALLING_BACK))
    assert done.returncode == 0, done.stderr
    rank = stepscope.open(runs(output)[0]).ranks[0]
    recorded, spans = (rank.tables[name].collect() for name in ("steps", "spans"))
    # Then each step lasts as long as its run of the program, and all work lies in the steps
    calls = spans.filter(pl.col("name").cast(pl.String).str.contains("callback")).drop_nulls("step")
    longest = calls.group_by("step").agg(pl.col("dur").max()).sort("step")
    assert longest["step"].to_list() == recorded["number"].to_list()
    assert (recorded["dur"] >= longest["dur"]).all()
    assert rank.tables["losses"].collect().filter(what="spans_outside_steps").is_empty()
