"""Four torchrun processes with gloo, one of them slowed by an amount that the program times itself."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import stepscope
from stepscope.advise.finding import Finding
from stepscope.advise.job_findings import job_findings
from tests.frameworks.torch.programs import environment, free_port, runs

pytestmark = pytest.mark.slow

SLOW = 2
#: The rank beside other processes must be named if it waits this many times as long for a core as any other.
STANDS_OUT = 5


PROGRAM = """
import json, os, subprocess, sys, time
import torch
import torch.distributed as dist
from torch import nn

import stepscope

SLOW, STEPS = 2, 10
folder, kind = sys.argv[1:]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
busy = 0.0
late = {"operator": 0.0, "loader": 0.0}
spent = {"operator": [], "loader": [], "delay": []}


def timed(name):
    def decorate(function):
        def inner(*arguments):
            begin = time.perf_counter()
            result = function(*arguments)
            time.sleep(late[name])
            spent[name].append(time.perf_counter() - begin)
            return result

        return inner

    return decorate


@timed("operator")
def work():
    # Ranks that share a core compute one after the other.
    place = [0, 1, 0, 2][rank]
    time.sleep(0.006 * place)
    end = time.thread_time() + busy
    while time.thread_time() < end:
        pass
    time.sleep(0.006 * (2 - place))


@timed("loader")
def read():
    time.sleep(0.005)
    return torch.randn(64)


@torch.library.custom_op("toy::attend", mutates_args=())
def attend(x: torch.Tensor) -> torch.Tensor:
    work()
    return x.clone()


attend.register_fake(torch.empty_like)
attend.register_autograd(lambda context, gradient: gradient)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        return self.second(torch.relu(torch.ops.toy.attend(self.first(x))))


class Samples(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield read()


torch.manual_seed(0)
model = Block()
if kind == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
else:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(model, nn.Linear(64, 64))
    for part in model:
        fully_shard(part)
    fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = iter(torch.utils.data.DataLoader(Samples(), batch_size=1))


def delay():
    return int(open("/proc/thread-self/schedstat").read().split()[1])  # ns on the run queue


def step():
    begin = delay()
    optimizer.zero_grad()
    model(next(batches)).sum().backward()
    optimizer.step()
    spent["delay"].append(delay() - begin)


for _ in range(3):
    step()
cores = sorted(os.sched_getaffinity(0))
for name in ("healthy", "operator", "loader", *(["process"] if kind == "ddp" and len(cores) > 1 else [])):
    here, beside = rank == SLOW, []
    late.update({one: 0.04 if here and one == name else 0.0 for one in late})
    if name == "process":
        busy = 0.004
        os.sched_setaffinity(0, {cores[-1] if here else cores[0]})
    if here and name == "process":
        command = [sys.executable, "-S", "-c", "while True: pass"]
        beside = [subprocess.Popen(command) for _ in range(5)]  # on the core of this rank
    step()
    for values in spent.values():
        values.clear()
    schedule = stepscope.schedule(wait=0, warmup=1, active=STEPS)
    with stepscope.profile(output=f"{folder}/{name}", schedule=schedule, analyse="later") as profile:
        for _ in range(STEPS + 2):
            step()
            profile.step()
    for one in beside:
        one.kill()
        one.wait()
    with open(f"{folder}/{name}-{rank}.json", "w") as file:
        json.dump(spent, file)
    dist.barrier()
dist.destroy_process_group()
"""


def recorded(folder: Path, kind: str) -> Path:
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--master-port", free_port()]
    done = subprocess.run(
        [*command, str(folder / "program.py"), str(folder), kind],
        env=environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp(request.param), request.param)


def findings(folder: Path, name: str) -> list[Finding]:
    (run,) = runs(folder / name)
    return job_findings(stepscope.job(run))


def agrees(added: float | None, folder: Path, name: str) -> bool:
    """Return whether ``added`` is, to 10 %, what the program timed inside: the slow rank above the others in a step.

    Ranks that share cores wait for them, each in other steps for another time. In the quietest step of each rank that
    counts least; in the middle half of the steps it is in the times of the program as it is in those recorded. Without
    such waits both are one number.
    """
    times = [json.loads((folder / f"{name}-{rank}.json").read_text())[name][1:-1] for rank in range(4)]
    others = [values for rank, values in enumerate(times) if rank != SLOW]
    quiet = min(times[SLOW]) - statistics.median(map(min, others))
    above = sorted(own - statistics.median(rest) for own, *rest in zip(times[SLOW], *others, strict=True))
    usual = statistics.mean(above[len(above) // 4 : len(above) - len(above) // 4])
    low, high = sorted((1e9 * quiet, 1e9 * usual))
    return added is not None and 0.9 * low <= added <= 1.1 * high


def test_equal_ranks_have_no_finding(folder: Path) -> None:
    assert findings(folder, "healthy") == []


def test_a_rank_with_a_slow_operator(folder: Path) -> None:
    [one] = findings(folder, "operator")
    assert (one.cause, one.ranks) == ("slow-rank", (SLOW,))
    assert one.operator is not None
    assert "toy_attend" in one.operator.replace("::", "_")
    assert agrees(one.added_ns, folder, "operator")


def test_a_rank_whose_batches_come_late(folder: Path) -> None:
    [one] = findings(folder, "loader")
    assert (one.cause, one.ranks) == ("data-wait-rank", (SLOW,))
    assert agrees(one.added_ns, folder, "loader")


def test_a_rank_beside_other_processes(folder: Path) -> None:
    if not (folder / "process").exists():
        pytest.skip("this case is recorded with DDP only, on two cores or more")
    found = findings(folder, "process")
    assert {rank for one in found for rank in one.ranks} <= {SLOW}
    times = [json.loads((folder / f"process-{rank}.json").read_text())["delay"][1:-1] for rank in range(4)]
    usual = [statistics.median(values) for values in times]
    # On a busy machine the other ranks wait for a core as well: then nobody can be named.
    if usual.pop(SLOW) > STANDS_OUT * max(usual):
        [one] = found
        assert (one.cause, one.ranks) == ("slow-rank", (SLOW,))
        assert one.evidence[0].text.startswith("another process: ")
