"""Are the recorded steps like the others? Twenty programs, whose own stopwatch times all of their steps.

python benchmarks/typical.py [--only WORD] [--torch PYTHON] [--mindspore PYTHON] [--paddle PYTHON] [--jax PYTHON]

Every program runs once under ``stepscope run`` with default options, in a process of its own, and notes when each of
its steps ended. The median of the recorded steps is compared with the median of all steps but the first. The loaders
sleep like a disk, for 0.5 to 1.5 of the mean, or compute like a decoder. Most are near their limit: a little faster or
slower than the training.

Steps that vary have medians that vary: ``by chance`` is the difference that one in ten stretches of as many steps of
the same program exceed, anywhere in it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import stepscope

TORCH = """
import os, queue, sys, threading, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
work = torch.randn(256, 256)

class Items(Dataset):
    def __init__(self, sleep=0.0, compute=0): self.sleep, self.compute = sleep, compute
    def __len__(self): return 1_000_000
    def __getitem__(self, index):
        time.sleep(self.sleep * (0.5 + torch.rand(1).item()))
        for _ in range(self.compute): work @ work
        return torch.randn(64)

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train(batch, sleep=0.0, net=model):
    optimizer.zero_grad()
    net(batch).square().mean().backward()
    time.sleep(sleep)
    optimizer.step()

def loader(size=8, **options):
    kind = {name: options.pop(name) for name in ("sleep", "compute") if name in options}
    return DataLoader(Items(**kind), batch_size=size, **options)

def synthetic(*shape):
    batch = torch.randn(*shape)
    while True: yield batch
"""
LOOP = """
def run(batches, steps, train=train, **options):
    for number, batch in enumerate(batches):
        train(batch, **options)
        if number == 0: time.sleep(FIRST)
        stamps.append(time.perf_counter_ns())
        if number == steps: break

stamps = []
FIRST = 0.3  # the first step of a real program compiles, allocates, and asks for devices
"""
THREAD = """
def ahead(make, depth):
    found = queue.Queue(depth)
    def fill():
        while True: found.put(make())
    threading.Thread(target=fill, daemon=True).start()
    while True: yield found.get()
"""
END = """
import json
json.dump(stamps, open("stamps.json", "w"))
os._exit(0) if "--hard" in sys.argv else None
"""
MINDSPORE = """
import os, sys, time
import numpy as np, mindspore as ms
import mindspore.dataset as ds
from mindspore import nn

ms.set_context(mode=ms.{mode}, device_target="CPU")

def numbers():
    for _ in range(1_000_000): yield np.random.rand(64).astype(np.float32), np.int32(1)

def slow(row):
    time.sleep({sleep} * (0.5 + np.random.rand()))
    return row

data = ds.GeneratorDataset(numbers, ["x", "y"]).map(slow, ["x"], num_parallel_workers=1).batch(8)
net = nn.SequentialCell(nn.Dense(64, 256), nn.ReLU(), nn.Dense(256, 10))
loss, optimizer = nn.CrossEntropyLoss(), nn.SGD(net.trainable_params(), 0.01)
if {graph}:
    cell = nn.TrainOneStepCell(nn.WithLossCell(net, loss), optimizer).set_train()
else:
    gradient = ms.value_and_grad(lambda x, y: loss(net(x), y), None, optimizer.parameters)
    def cell(x, y):
        value, gradients = gradient(x, y)
        optimizer(gradients)
        return value

def train(batch):
    cell(*batch).asnumpy()
"""
PADDLE = """
import os, sys, time
import numpy as np, paddle
from paddle.io import DataLoader, Dataset

class Items(Dataset):
    def __len__(self): return 1_000_000
    def __getitem__(self, index):
        time.sleep({sleep} * (0.5 + np.random.rand()))
        return np.random.rand(64).astype("float32")

model = paddle.nn.Sequential(paddle.nn.Linear(64, 256), paddle.nn.ReLU(), paddle.nn.Linear(256, 8))
optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())

def train(batch, sleep=0.0):
    model(batch[0] if isinstance(batch, (list, tuple)) else batch).square().mean().backward()
    time.sleep(sleep)
    optimizer.step()
    optimizer.clear_grad()

data = DataLoader(Items(), batch_size=8, num_workers={workers})
"""
JAX = """
import os, queue, sys, threading, time
import jax, jax.numpy as jnp, numpy as np

parameters = {"a": jnp.ones((64, 256)), "b": jnp.ones((256, 8))}

@jax.jit
def update(parameters, batch):
    loss = lambda p: jnp.mean((jnp.tanh(batch @ p["a"]) @ p["b"]) ** 2)
    return jax.tree_util.tree_map(lambda p, g: p - 0.01 * g, parameters, jax.grad(loss)(parameters))

def train(batch):
    global parameters
    parameters = jax.block_until_ready(update(parameters, batch))

def batch(sleep):
    time.sleep(sleep * (0.5 + np.random.rand()))
    return np.random.rand(32, 64).astype("float32")
"""


class Program(NamedTuple):
    """A program: the framework, its code, and options of ``stepscope run``."""

    framework: str
    code: str
    options: tuple[str, ...] = ()


def _torch(call: str, *options: str, more: str = "") -> Program:
    return Program("torch", TORCH + THREAD + LOOP + more + f"\nif __name__ == '__main__':\n    {call}\n", options)


def _mindspore(call: str, **values: object) -> Program:
    return Program("mindspore", MINDSPORE.format(**values) + LOOP + call)


def _paddle(call: str, **values: object) -> Program:
    return Program("paddle", PADDLE.format(**values) + LOOP + call)


_CODE = """
    import stepscope
    plan = stepscope.schedule(skip_first=80, wait=1, warmup=1, active=5, repeat=2)
    with stepscope.profile(schedule=plan, analyse="later", output="runs") as prof:
        def step(batch):
            train(batch, sleep=0.02)
            prof.step()
        run(loader(sleep=0.0065, num_workers=2, prefetch_factor=2), 120, train=step)
"""
_EVALUATE = """
def evaluated(batch, count=[0]):
    train(batch, sleep=0.01)
    count[0] += 1
    if count[0] % 25 == 0:
        with torch.no_grad():
            for _ in range(20): model(batch); time.sleep(0.005)
"""
_SAVE = """
def saved(batch, count=[0]):
    train(batch, sleep=0.01)
    count[0] += 1
    if count[0] % 30 == 0: torch.save(model.state_dict(), "weights.pt"); time.sleep(0.2)
"""
_BIG = """
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
optimizer = torch.optim.Adam(model.parameters())
big = lambda batch: train(batch, net=model)
"""
_COMPILED = """
compiled = torch.compile(model)
quick = lambda batch: train(batch, sleep=0.01, net=compiled)
"""

PROGRAMS = {
    "0 workers, disk": _torch("run(loader(sleep=0.002), 150, sleep=0.01)"),
    "0 workers, decoding": _torch("run(loader(compute=4), 150)"),
    "1 worker, a little slower": _torch("run(loader(sleep=0.003, num_workers=1), 200, sleep=0.02)"),
    "1 worker, a little faster": _torch("run(loader(sleep=0.002, num_workers=1), 150, sleep=0.02)"),
    "1 worker, twice as slow": _torch("run(loader(sleep=0.005, num_workers=1), 120, sleep=0.018)"),
    "2 workers, 27 % data wait": _torch("run(loader(sleep=0.0104, num_workers=2), 150, sleep=0.03)"),
    "2 workers, prefetch 8": _torch("run(loader(sleep=0.007, num_workers=2, prefetch_factor=8), 200, sleep=0.02)"),
    "2 workers, decoding": _torch("run(loader(compute=8, num_workers=2), 150)"),
    "2 workers, Kineto and stacks": _torch(
        "run(loader(sleep=0.008, num_workers=2), 150, sleep=0.02)", "--collector", "kineto", "--stacks"
    ),
    "own thread reads ahead": _torch("run(ahead(lambda: Items(sleep=0.03)[0][None], 12), 150, sleep=0.015)"),
    "large batch": _torch("run(synthetic(512, 512), 60, train=big)", more=_BIG),
    "small steps": _torch("run(synthetic(8, 64), 1500)"),
    "compiled, 1 worker": _torch("run(loader(sleep=0.003, num_workers=1), 150, train=quick)", more=_COMPILED),
    "evaluation every 25 steps": _torch(
        "run(loader(sleep=0.004, num_workers=2), 150, train=evaluated)", more=_EVALUATE
    ),
    "checkpoint every 30 steps": _torch("run(loader(sleep=0.002, num_workers=1), 150, train=saved)", more=_SAVE),
    "profile(), two windows": Program("torch", TORCH + LOOP + f"\nif __name__ == '__main__':\n{_CODE}", ("code",)),
    "MindSpore, PyNative, slow map": _mindspore(
        "run(data.create_tuple_iterator(), 100)\n", mode="PYNATIVE_MODE", graph=False, sleep=0.003
    ),
    "MindSpore, graph, slow map": _mindspore(
        "run(data.create_tuple_iterator(), 100)\n", mode="GRAPH_MODE", graph=True, sleep=0.003
    ),
    "Paddle, 2 workers": _paddle("run(data, 150, sleep=0.02)\n", sleep=0.006, workers=2),
    "JAX, own thread reads ahead": Program("jax", JAX + THREAD + LOOP + "run(ahead(lambda: batch(0.02), 12), 150)\n"),
}


class Result(NamedTuple):
    """What one program showed; times in ms."""

    steps: int
    own: float
    recorded: list[float]
    preparing: list[float]
    opening: list[float]
    windows: int
    chance: list[float]


def measure(program: Program, python: Path) -> Result:
    """Run a program and return the medians of its own stopwatch and of the recorded steps of each run."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "train.py").write_text(program.code + END)
        start = ["-m", "stepscope", "run", "--later", "-q", "-o", "runs", *program.options, "train.py"]
        command = [str(python), *(["train.py"] if program.options == ("code",) else start)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        stamps = json.loads((folder / "stamps.json").read_text())
        durations = [after - before for before, after in pairwise(stamps)]
        recorded, preparing, opening, chance, windows = [], [], [], [], 1
        for path in sorted((folder / "runs").iterdir()):
            steps = stepscope.open(path).tables["steps"].select("dur").collect()
            recorded.append(median(steps["dur"].to_list()) / 1e6)
            chance.append(_by_chance(durations, steps.height))
            manifest = json.loads((path / "rank0" / "manifest.json").read_text())
            preparing.append(manifest["cost"]["prepare_ns"] / 1e6)
            opening.append(manifest["cost"]["start_ns"] / 1e6)
            windows = len(manifest.get("takes", {}).get("windows", [0]))
        return Result(len(durations), median(durations) / 1e6, recorded, preparing, opening, windows, chance)


def _by_chance(durations: list[int], length: int) -> float:
    """Return the relative difference to the median that one in ten stretches of ``length`` steps exceed."""
    usual = median(durations)
    stretches = (durations[first : first + length] for first in range(len(durations) - length + 1))
    return quantiles([abs(median(stretch) / usual - 1) for stretch in stretches], n=10)[-1]


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run only programs with this word in their name")
    for name in ("torch", "mindspore", "paddle", "jax"):
        parser.add_argument(f"--{name}", type=Path, default=Path(f".envs/{name}/bin/python"), help="its Python")
    arguments = parser.parse_args()
    head = (
        "program",
        "steps",
        "own ms",
        "recorded ms",
        "difference",
        "by chance",
        "windows",
        "preparing ms",
        "opening ms",
    )
    lines = [_row(head), _row(["---"] * len(head))]
    near = total = 0
    for name, program in PROGRAMS.items():
        if arguments.only not in name:
            continue
        found = measure(program, getattr(arguments, program.framework).absolute())
        kept = zip(found.recorded, found.chance, found.preparing, found.opening, strict=True)
        for recorded, chance, *stalls in kept:
            difference = recorded / found.own - 1
            total, near = total + 1, near + (abs(difference) <= 0.05)
            held = (f"{stall:.1f}" for stall in stalls)
            figures = (
                f"{found.own:.1f}",
                f"{recorded:.1f}",
                f"{difference:+.1%}",
                f"{chance:.1%}",
                found.windows,
                *held,
            )
            lines.append(_row((name, found.steps, *figures)))
            sys.stderr.write(f"{lines[-1]}\n")
    print("\n".join(lines))
    print(f"\n{near} of {total} within 5 %")


if __name__ == "__main__":
    main()
