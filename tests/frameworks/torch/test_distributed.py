"""Two real processes under torchrun: one directory, two ranks, and their collectives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.cli.main import main
from tests.frameworks.torch.programs import (
    environment,
    free_port,
    manifest,
    recorded_spans,
    recorded_steps,
    runs,
    spawned_ranks,
    stepscope_run,
)

DDP = """
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(10):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    seen = torch.ones(100) * number
    dist.all_reduce(seen)
    dist.broadcast(seen, 0)
if dist.get_rank() == 0:
    print("trained", int(seen[0]))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distributed")
    (folder / "ddp.py").write_text(DDP)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    command += ["-m", "stepscope", "run", "--later", "--output", str(folder / "runs"), "--steps", "4:6"]
    done = subprocess.run(
        [*command, str(folder / "ddp.py")], env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained 18\n"
    assert done.stderr.count("stepscope report") == 1
    (found,) = runs(folder / "runs")
    return found


def test_both_ranks_are_in_one_run(run: Path) -> None:
    assert sorted(path.name for path in run.iterdir()) == ["rank0", "rank1"]
    manifests = [manifest(run, rank) for rank in (0, 1)]
    assert [found["rank"] for found in manifests] == [0, 1]
    assert {found["world_size"] for found in manifests} == {2}
    assert len({found["process"] for found in manifests}) == 2
    assert {found["collectors"]["torch"]["recorder"] for found in manifests} == {"native"}
    assert os.getpid() not in {found["process"] for found in manifests}


def test_check_says_of_the_job_what_its_ranks_recorded(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(run)]) == 0
    said = {line[:22].strip(): line[22:].strip() for line in capsys.readouterr().out.splitlines()}
    assert said["collector torch"] == "recorded operators, collectives"
    assert said["collector dataloader"] == "recorded nothing: there was no wait"
    assert said["collector compilations"] == "ran; it does not count what it records"


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_has_its_steps_and_collectives(run: Path, rank: int) -> None:
    assert recorded_steps(recorded_spans(run, rank)) == [4, 5, 6]
    # DDP reduces its one bucket each step; the program reduces and broadcasts once more. DDP goes on before gloo's
    # thread says that the last one has ended, so that the window may close meanwhile: it is a row all the same.
    operations = stepscope.open(run).ranks[rank].tables["collectives"].select("operation").collect()["operation"]
    assert Counter(operations.cast(pl.String)) == {"broadcast": 3, "all_reduce": 6}


@pytest.mark.parametrize("rank", [0, 1])
def test_collectives_have_sizes_type_and_group(run: Path, rank: int) -> None:
    collectives = stepscope.open(run).ranks[rank].tables["collectives"].collect()
    reduced = collectives.filter(pl.col("operation") == "all_reduce")
    # The model has 64·128 + 128 + 128·8 + 8 parameters of four bytes in one bucket; the program reduces 100 numbers.
    assert sorted(set(reduced["bytes_in"])) == [400, 4 * (64 * 128 + 128 + 128 * 8 + 8)]
    assert set(collectives["dtype"]) == {"float"}
    assert set(collectives["group_ranks"]) == {"[0, 1]"}
    assert set(collectives["group_size"]) == {2}
    assert set(collectives["transport"]) == {"gloo"}
    assert set(collectives["bytes_out"]) == set(collectives["bytes_in"])


@pytest.mark.parametrize("rank", [0, 1])
def test_communication_and_its_overlap_are_computed(run: Path, rank: int) -> None:
    opened = stepscope.open(run).ranks[rank]
    steps = opened.result("step_trace_time")
    assert isinstance(steps, pl.DataFrame)
    assert steps["Step"].to_list() == [4, 5, 6]
    assert (steps["Communication"] > 0).all()
    hidden = steps["Communication"] - steps["Communication(Not Overlapped)"] - steps["Overlapped"]
    assert hidden.abs().max() < 0.0015  # µs with three decimals each
    communication = opened.result("communication")
    assert isinstance(communication, dict)
    assert set(communication) == {"step4", "step5", "step6"}


def test_collectives_are_numbered_alike_on_all_ranks(run: Path) -> None:
    """Given gloo, which numbers nothing, then the n-th operation of the group is the same on both ranks."""
    columns = [pl.col("sequence"), pl.col("operation").cast(pl.String), pl.col("bytes_in")]
    first, second = (
        rank.tables["collectives"].select(columns).sort("sequence").collect().rows()
        for rank in stepscope.open(run).ranks
    )
    assert first == second
    assert [number for number, _, _ in first] == list(range(len(first)))
    assert len(first) >= 9  # of three steps: the gradients, all_reduce and broadcast


SPAWNED = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def train(rank, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = torch.nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        model(torch.randn(16, 64)).square().mean().backward()
        dist.all_reduce(model.weight.grad)
        optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(train, (sys.argv[1],), nprocs=2)
    print("trained")
"""


@pytest.mark.slow
def test_processes_that_the_program_spawns_are_its_ranks(tmp_path: Path) -> None:
    (tmp_path / "spawn.py").write_text(SPAWNED)
    done = stepscope_run(tmp_path / "runs", tmp_path / "spawn.py", free_port())
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    # Then both are in one directory, which the program's own process names
    run = spawned_ranks(tmp_path / "runs", done.stderr, "torch.distributed")
    assert [manifest(run, rank)["steps"]["recorded"] for rank in (0, 1)] == [5, 5]
