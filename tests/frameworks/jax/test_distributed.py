"""Two real processes of ``jax.distributed``, a second apart behind shells, or spawned: one directory, two ranks."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

import stepscope
from tests.frameworks.torch.programs import (
    environment,
    free_port,
    manifest,
    runs,
    script,
    spawned_ranks,
    stepscope_run,
)

TRAINING = """
import sys
import jax

jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", num_processes=2, process_id=int(sys.argv[2]))
weights = jax.numpy.ones((64, 64))
update = jax.jit(lambda weights: weights - 0.1 * jax.grad(lambda w: (w @ w).mean())(weights))
for _ in range(12):
    weights = update(weights)
print("trained", weights.shape)
"""


@pytest.mark.parametrize("steps", [pytest.param("4:6", marks=pytest.mark.slow), "0:2"], ids=["after", "before"])
def test_ranks_share_a_run_whether_the_window_opens_after_or_before_they_meet(tmp_path: Path, steps: str) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    run = [sys.executable, "-m", "stepscope", "run", "--later", "--output", str(tmp_path / "runs"), "--steps", steps]
    processes = []
    for rank in "01":
        command = ["/bin/sh", "-c", '"$@"; exit $?', "wrapper", *run, str(tmp_path / "train.py"), port, rank]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        processes.append(subprocess.Popen(command, env=environment(JAX_PLATFORMS="cpu"), text=True, **pipes))
        time.sleep(1)
    said = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    (found,) = runs(tmp_path / "runs")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [found.name]
    assert sorted(path.name for path in found.iterdir()) == ["rank0", "rank1"]
    assert [manifest(found, rank)["rank"] for rank in (0, 1)] == [0, 1]
    assert all(manifest(found, rank)["captures"] for rank in (0, 1))
    assert sum("stepscope report" in error for _, error in said) == 1


#: Starts its ranks itself.
SPAWNED = """
import multiprocessing, sys
import jax

def train(rank, port):
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
    weights = jax.numpy.ones((64, 64)) * 0.01
    update = jax.jit(lambda weights: weights - 0.1 * jax.grad(lambda w: (w @ w).mean())(weights))
    for _ in range(8):
        weights = update(weights).block_until_ready()

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=train, args=(rank, sys.argv[1])) for rank in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print("trained", *[worker.exitcode for worker in workers])
"""


@pytest.mark.slow
def test_processes_that_the_program_spawns_are_its_ranks(tmp_path: Path) -> None:
    output = tmp_path / "runs"
    changed = environment(JAX_PLATFORMS="cpu", XLA_FLAGS="")
    done = stepscope_run(output, script(tmp_path, SPAWNED), free_port(), env=changed)
    assert (done.returncode, done.stdout) == (0, "trained 0 0\n"), done.stderr
    # Then both are in one directory, which the program's own process names
    run = spawned_ranks(output, done.stderr, "jax.distributed")
    for number, rank in enumerate(stepscope.open(run).ranks):
        found = manifest(run, number)
        # and the end of the program ends the window: of its five steps, three are there
        assert (found["steps"]["recorded"], found["losses"]) == (3, {"steps_not_recorded": 2})
        tables = {name: rank.tables[name].collect() for name in ("run_steps", "steps", "spans")}
        assert tables["run_steps"]["number"].to_list() == list(range(8))
        assert tables["steps"]["number"].to_list() == [5, 6, 7]
        # each with all of its work
        work = tables["spans"].filter(pl.col("kind") == "operator", pl.col("step").is_not_null())
        counted = work.group_by("step").len().sort("step")
        assert counted["step"].to_list() == [5, 6, 7]
        assert counted["len"].n_unique() == 1
