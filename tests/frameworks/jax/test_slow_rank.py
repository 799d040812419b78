"""Two processes of ``jax.distributed`` that train one model; one of them sleeps in every step, or none does."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import stepscope
from stepscope.advise.finding import Finding
from stepscope.advise.job_findings import job_findings
from tests.frameworks.torch.programs import environment, runs

pytestmark = pytest.mark.slow

SLOW, LATE_MS = 1, 40

TRAINING = """
import json, os, sys, time
import jax
import numpy as np

jax.config.update("jax_cpu_collectives_implementation", "gloo")
rank, late = int(sys.argv[2]), float(sys.argv[3]) / 1e3
jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", num_processes=2, process_id=rank)
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
rows, everywhere = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("data",), ()))
weights = jax.device_put(jax.numpy.ones((64, 64)), everywhere)
update = jax.jit(lambda w, x: w - 0.1 * jax.grad(lambda w: jax.numpy.square(x @ w).mean())(w))
slept = []
for _ in range(16):
    began = time.perf_counter()
    time.sleep(late if rank == 1 else 0)
    slept.append(time.perf_counter() - began)
    x = jax.make_array_from_process_local_data(rows, np.ones((32, 64), np.float32))
    weights = update(weights, x).block_until_ready()
if rank == 1:
    with open(os.path.join(os.path.dirname(__file__), "slept.json"), "w") as file:
        json.dump(slept, file)
"""


def findings(folder: Path, late: int) -> list[Finding]:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(TRAINING)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    run = [sys.executable, "-m", "stepscope", "run", "--later", "--output", str(folder / "runs"), "--steps", "5:12"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [
        subprocess.Popen(
            [*run, str(folder / "train.py"), port, rank, str(late)], env=environment(JAX_PLATFORMS="cpu"), **pipes
        )
        for rank in "01"
    ]
    said = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    (found,) = runs(folder / "runs")
    return job_findings(stepscope.job(found))


def test_the_rank_that_sleeps_is_named(tmp_path: Path) -> None:
    first, *_ = findings(tmp_path, LATE_MS)
    assert (first.cause, first.ranks) == ("host-bound-rank", (SLOW,))
    slept = json.loads((tmp_path / "slept.json").read_text())
    assert first.added_ns is not None
    assert 0.9e9 * min(slept) <= first.added_ns <= 1.1e9 * max(slept)
    assert ", in <module> (train.py:" in first.title


def test_equal_ranks_are_not_blamed(tmp_path: Path) -> None:
    # (another process may take the core from one rank for most of a job, and not of one job after the other)
    assert any(findings(tmp_path / str(job), 0) == [] for job in range(3))
