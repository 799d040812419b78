"""Collectives of DDP, FSDP2, tensor parallel and DTensor: natively, and by Kineto in the same four processes."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.run import RankRun
from tests.frameworks.torch.programs import environment, free_port, manifest, runs

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import stepscope

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


def block():
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))


tensor_parallel = parallelize_module(block(), mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
sharded = nn.Sequential(block(), block())
for part in sharded:
    fully_shard(part, mesh=mesh["dp"])
fully_shard(sharded, mesh=mesh["dp"])
models = [tensor_parallel, sharded, nn.parallel.DistributedDataParallel(block())]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]


def step():
    given = torch.randn(4, 32, requires_grad=True)
    for model, optimizer in zip(models, optimizers):
        optimizer.zero_grad()
        model(given).sum().backward()
        optimizer.step()
    distribute_tensor(torch.ones(8, 8), mesh["dp"], [Shard(0)]).redistribute(mesh["dp"], [Replicate()]).to_local()
    sent = torch.full((5,), rank, dtype=torch.float64)
    later = dist.isend(sent, (rank + 1) % world)
    dist.recv(torch.empty_like(sent), (rank - 1) % world)
    later.wait()


for _ in range(2):
    step()  # DDP agrees about its buckets in its second step
for collector, shapes in (("auto", True), ("kineto", True), ("auto", False)):
    output, schedule = f"{sys.argv[1]}/{collector}-{shapes}", stepscope.schedule(wait=0, warmup=1, active=2)
    with stepscope.profile(
        output=output, collector=collector, schedule=schedule, record_shapes=shapes, analyse="later"
    ) as profile:
        for _ in range(4):
            step()
            profile.step()
dist.barrier()
dist.destroy_process_group()
"""

#: Parameters of a block, in bytes; a rank of two holds half of it.
BLOCK = 4 * (32 * 64 + 64 + 64 * 32 + 32)
#: A step's collectives: dimension of the mesh, operation, bytes in, bytes out; how many. FSDP2 gathers each of the two
#: blocks for the forward and again for the backward pass. Tensor parallel reduces the output, and the gradient of the
#: input: four rows of 32 numbers. Of DTensor's scatter only the first rank puts something in.
STEP = {
    ("tp", "all_reduce", 512, 512): 2,
    ("dp", "all_gather", BLOCK // 2, BLOCK): 4,
    ("dp", "reduce_scatter", BLOCK, BLOCK // 2): 2,
    ("dp", "all_gather", 128, 256): 1,
    ("world", "all_reduce", BLOCK, BLOCK): 1,
    ("world", "send", 40, 0): 1,
    ("world", "recv", 0, 40): 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parallel")
    (path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--master-port", free_port()]
    done = subprocess.run(
        [*command, str(path / "program.py"), str(path)],
        env=environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return path


def opened(folder: Path, which: str) -> stepscope.Run:
    (run,) = runs(folder / which)
    return stepscope.open(run)


def table(rank: RankRun) -> pl.DataFrame:
    spans = rank.tables["spans"].select("id", "name", "ts", "dur", "step")
    return (
        rank.tables["collectives"]
        .join(spans, left_on="span", right_on="id")
        .with_columns(pl.col(pl.Categorical).cast(pl.String))
        .sort("ts")
        .collect()
    )


@pytest.mark.parametrize("which", ["auto-True", "auto-False"])
@pytest.mark.parametrize("rank", range(4))
def test_every_collective_of_the_step_is_there_with_its_group_and_bytes(folder: Path, rank: int, which: str) -> None:
    (run,) = runs(folder / which)
    assert manifest(run, rank)["collectors"]["torch"]["recorder"] == "native"
    found = table(opened(folder, which).ranks[rank])
    row, column = divmod(rank, 2)
    groups = {
        "world": "[0, 1, 2, 3]",
        "dp": f"[{column}, {column + 2}]",
        "tp": f"[{2 * row}, {2 * row + 1}]",
    }
    expected = Counter({(groups[name], *said): 2 * count for (name, *said), count in STEP.items()})
    expected[groups["dp"], "scatter", 0 if row else 256, 128] = 2
    said = found.select("group_ranks", "operation", "bytes_in", "bytes_out")
    assert Counter(said.rows()) == expected
    assert set(found["transport"]) == {"gloo"}
    pairs = found.filter(pl.col("source").is_not_null()).select("operation", "source", "destination", "dtype")
    assert set(pairs.rows()) == {
        ("send", rank, (rank + 1) % 4, "double"),
        ("recv", (rank - 1) % 4, rank, "double"),
    }


@pytest.mark.parametrize("rank", range(4))
def test_the_backend_did_what_kineto_says(folder: Path, rank: int) -> None:
    """Given both recorders in one program, then the ranges of gloo, in order, and their sizes are the same."""
    native, kineto = (table(opened(folder, which).ranks[rank]) for which in ("auto-True", "kineto-True"))
    assert Counter(native["name"]) == Counter(kineto["name"])
    ranges = [frame.filter(~pl.col("name").str.contains("send|recv")) for frame in (native, kineto)]
    assert len({tuple(frame["name"]) for frame in ranges}) == 1


def test_numbers_of_collectives_are_those_of_all_ranks_of_their_group(folder: Path) -> None:
    """Given a group, then its n-th collective is the same on all ranks; where all wait for all, they overlap."""
    seen: dict[tuple[str, int], list[tuple[str, int, int]]] = {}
    for rank in opened(folder, "auto-True").ranks:
        rows = table(rank).filter(pl.col("sequence").is_not_null())
        for ranks, number, operation, ts, dur in rows.select(
            "group_ranks", "sequence", "operation", "ts", "dur"
        ).iter_rows():
            seen.setdefault((ranks, number), []).append((operation, ts, ts + dur))
    assert seen
    for (ranks, _), found in seen.items():
        assert len(found) == len(ranks.split(","))
        assert len({operation for operation, _, _ in found}) == 1
        if found[0][0] != "scatter":
            assert max(ts for _, ts, _ in found) < min(end for _, _, end in found)
