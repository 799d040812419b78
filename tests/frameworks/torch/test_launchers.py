"""Two real ranks under each launcher that this machine has: one run, the same steps, one summary."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.run import Run

pytestmark = pytest.mark.slow

#: The ranks meet at a file; the names of the launcher's variables for rank and world size are arguments.
PROGRAM = """
import os, sys
import torch

torch.set_num_threads(1)
rank, world_size = (int(os.environ[name]) for name in sys.argv[2:])
torch.distributed.init_process_group("gloo", "file://" + sys.argv[1], rank=rank, world_size=world_size)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
torch.distributed.destroy_process_group()
"""

#: Of each launcher: its arguments, and its variables for rank and world size.
LAUNCHERS = {
    "mpirun": ("--oversubscribe -n 2", "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE"),  # Open MPI
    "mpiexec.hydra": ("-n 2", "PMI_RANK PMI_SIZE"),  # MPICH
    "srun": ("-n 2 --overcommit", "SLURM_PROCID SLURM_NTASKS"),  # where a cluster answers
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher(launcher: str, tmp_path: Path) -> None:
    if not shutil.which(launcher) or (launcher == "srun" and subprocess.run(["sinfo"], check=False).returncode):
        pytest.skip(f"this machine has no {launcher}, or no cluster that it can ask")
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    options, variables = (text.split() for text in LAUNCHERS[launcher])
    ours = (sys.executable, "-m", "stepscope", "run", "--output", "runs", "train.py", str(tmp_path / "meeting"))
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [launcher, *options, *ours, *variables]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "runs").iterdir()
    assert "2 ranks on 1 host" in done.stderr
    assert done.stderr.count(f"results      {Path('runs', path.name)}") == 1
    steps = [rank.tables["steps"].collect()["number"].to_list() for rank in Run(path).ranks]
    assert len(steps) == 2
    assert steps[0] == steps[1] != []
