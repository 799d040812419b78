"""What sampling Python stacks costs, and how true its shares are.

python benchmarks/stack_samples.py [--seconds 60] [--hz 1000] [--one-core]

*Cost*: blocks of steps with and without sampling, in pairs of random order in one process, at a rate at which the cost
can be seen. What a look adds is the median of the differences of a pair for each look, with a 95 % interval (bootstrap
over pairs), by wall time and by CPU time of the training thread; beside it the CPU time of the sampling thread itself,
which runs on another core if one is free. The percentages are of a core at 50 looks a second: of any step. The steps
are those of a transformer, of many tiny operators, and a loop in Python.

*Shares*: a program that times its own phases, and the shares that its samples give. ``--one-core`` pins all of it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from stepscope.collect.host.stack_samples import StackSampler
from stepscope.read.journal.sampled_stacks import SamplesBlock, decoded

#: Seconds of a block.
BLOCK = 0.1
PHASE = 0.004
RESAMPLES = 1000


def transformer() -> Callable[[], None]:
    """Return a step of about 20 ms."""
    layer = torch.nn.TransformerEncoderLayer(96, 4, 192, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2)
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.randn(16, 48, 96)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def tiny_operators() -> Callable[[], None]:
    """Return a step of 900 operators."""
    values = [torch.randn(8) for _ in range(300)]

    def step() -> None:
        for value in values:
            value.add(1).mul(2).sum()

    return step


def python_loop() -> Callable[[], None]:
    """Return a step that runs Python code only."""

    def step() -> None:
        x = 0
        for i in range(100_000):
            x += i ^ 3

    return step


@contextmanager
def sampling(hz: float) -> Iterator[StackSampler]:
    """Sample what runs inside."""
    sampler = StackSampler()
    if sampler.reason:
        raise SystemExit(sampler.reason)
    sampler.start(hz, share=1.0)
    try:
        yield sampler
    finally:
        sampler.close()


def block(step: Callable[[], None], steps: int) -> tuple[float, float]:
    """Return wall time and CPU time of this thread of a step, in ns."""
    wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
    for _ in range(steps):
        step()
    return (time.perf_counter_ns() - wall) / steps, (time.thread_time_ns() - cpu) / steps


def interval(differences: list[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % interval."""
    resampled = sorted(statistics.median(random.choices(differences, k=len(differences))) for _ in range(RESAMPLES))
    return statistics.median(differences), resampled[RESAMPLES // 40], resampled[-RESAMPLES // 40]


def cost(name: str, step: Callable[[], None], hz: float, seconds: float) -> None:
    """Print what a look adds to the training."""
    for _ in range(10):
        step()
    steps = max(int(BLOCK * 1e9 / block(step, 10)[0]), 1)
    pairs: list[list[float]] = []
    ticks = used = 0
    bare = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        found: dict[bool, tuple[float, float]] = {}
        looks = 0
        for sampled in random.sample([False, True], 2):
            if not sampled:
                found[sampled] = block(step, steps)
                continue
            with sampling(hz) as sampler:
                found[sampled] = block(step, steps)
                looks = sampler.figures["ticks"]
                ticks, used = ticks + looks, used + sampler.figures["cpu"]
        bare.append(found[False][0])
        pairs.append([steps * (found[True][i] - found[False][i]) / max(looks, 1) / 1e3 for i in range(2)])
    wall, cpu = (interval([pair[column] for pair in pairs]) for column in (0, 1))
    own = used / max(ticks, 1) / 1e3
    print(
        f"{name:16}{statistics.median(bare) / 1e6:7.2f} ms a step, {len(pairs)} pairs, {ticks} looks; a look: wall "
        f"{wall[0]:+.0f} us [{wall[1]:+.0f}, {wall[2]:+.0f}], CPU of the training {cpu[0]:+.0f} us "
        f"[{cpu[1]:+.0f}, {cpu[2]:+.0f}], of the sampler {own:.0f} us; at 50 Hz {(own + cpu[0]) * 50 / 1e4:.2f} % "
        f"[{(own + cpu[1]) * 50 / 1e4:.2f}, {(own + cpu[2]) * 50 / 1e4:.2f}]"
    )


CONTENT = bytes(50_000)
LOCK = threading.Lock()


def computes(until: float) -> None:
    """Run Python code."""
    while time.perf_counter() < until:
        sum((1, 2, 3))


def hashes(until: float) -> None:
    """Run C code without the GIL."""
    while time.perf_counter() < until:
        hashlib.sha256(CONTENT)


def sleeps(until: float) -> None:
    """Sleep."""
    time.sleep(max(until - time.perf_counter(), 0))


def waits(until: float) -> None:
    """Wait for a lock."""
    LOCK.acquire(timeout=max(until - time.perf_counter(), 0))


def shares(hz: float, seconds: float) -> None:
    """Print true shares and those of samples."""
    LOCK.acquire()
    spent: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    with sampling(hz) as sampler:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for phase in (computes, hashes, sleeps, waits):
                begin = time.perf_counter()
                phase(begin + PHASE)
                spent[phase.__name__] += round(1e9 * (time.perf_counter() - begin))
        sampler.stop()
        names: dict[int, str] = {}
        parents: dict[int, tuple[int, int]] = {}
        while (taken := sampler.take()) is not None:
            given = {**taken, "stacks": tuple(taken["stacks"]), "names": tuple(taken["names"])}
            found = decoded(SamplesBlock(**given))
            names |= dict(enumerate(taken["names"][1][1::2], taken["names"][0] + 1))
            parents |= {taken["stacks"][0] + i + 1: (row[0], row[1]) for i, row in enumerate(found.stacks.tolist())}
            for row in found.rows.tolist():
                stack = row[5] if row[2] == os.getpid() else 0
                while stack:
                    stack, name = parents[stack]
                    counts[names[name]] += row[4]
    total = sum(counts[name] for name in spent)
    for name, ns in spent.items():
        print(
            f"{name:16} {100 * ns / spent.total():5.1f} % of the time, {100 * counts[name] / total:5.1f} % of {total}"
        )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each workload")
    parser.add_argument("--hz", type=float, default=1000.0)
    parser.add_argument("--one-core", action="store_true")
    arguments = parser.parse_args()
    if arguments.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    for make in (transformer, tiny_operators, python_loop):
        cost(make.__name__, make(), arguments.hz, arguments.seconds)
    shares(min(arguments.hz, 400.0), arguments.seconds)


if __name__ == "__main__":
    main()
