"""Two real processes of ``jax.distributed``, a second apart, each behind a shell: one directory, two ranks."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.frameworks.torch.programs import environment, manifest, runs

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
