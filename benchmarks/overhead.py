"""Time that recording adds to a step: stepscope against torch.profiler with the same switches, in one process.

python benchmarks/overhead.py [--workloads mlp,transformer,convolution] [--switches plain,shapes,all] [--rounds 15]
    [--collector kineto|native]

Each round measures blocks of steps bare, under torch.profiler and under stepscope, in turn and in changing order. A
block's figure is its median step; a round's figure is the difference to the bare block of the same round. Printed:
medians over rounds, and the ratio of what the two add.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from workloads import SWITCHES, WORKLOADS, Step

import stepscope

STEPS = 20


def torch_profiler(switches: dict[str, bool]) -> AbstractContextManager[Any]:
    """Return torch.profiler with the switches, recording and marking steps from its start."""
    schedule = torch.profiler.schedule(wait=0, warmup=0, active=1_000_000)
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule, **switches)


def ours(switches: dict[str, Any], output: str) -> AbstractContextManager[Any]:
    """Return stepscope with the switches, recording from its start; its default collectors, nothing switched off."""
    return stepscope.profile(activities=["cpu"], output=output, analyse="later", **switches)


def block(recorder: Callable[[], AbstractContextManager[Any]], step: Step) -> float:
    """Return the median step of a block, in µs. Start and stop of the recorder are outside the figure."""
    times = []
    gc.collect()
    with recorder() as profiler:
        for number in range(STEPS + 2):
            begin = time.perf_counter_ns()
            step()
            if profiler is not None:
                profiler.step()
            if number >= 2:
                times.append(time.perf_counter_ns() - begin)
    return statistics.median(times) / 1e3


def compare(step: Step, switches: dict[str, bool], rounds: int, collector: str) -> tuple[float, float, float]:
    """Return the bare step, what torch.profiler adds and what stepscope adds, in µs."""
    bare, added_torch, added_ours = [], [], []
    for _ in range(rounds):
        # A child may still be writing the capture when the block is over; it is no part of the figure.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as output:
            recorders: dict[str, Callable[[], AbstractContextManager[Any]]] = {
                "bare": nullcontext,
                "torch": lambda: torch_profiler(switches),
                "ours": lambda directory=output: ours({**switches, "collector": collector}, directory),
            }
            order = random.sample(sorted(recorders), k=3)
            figures = {name: block(recorders[name], step) for name in order}
        bare.append(figures["bare"])
        added_torch.append(figures["torch"] - figures["bare"])
        added_ours.append(figures["ours"] - figures["bare"])
    return statistics.median(bare), statistics.median(added_torch), statistics.median(added_ours)


def main() -> None:
    """Print one row a workload and set of switches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--switches", default="plain,shapes,shapes+memory,all")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--collector", default="auto", help="of stepscope's profile (%(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {arguments.rounds} rounds of {STEPS} steps, µs a step")
    print(f"{'workload':<12} {'switches':<14} {'bare':>9} {'torch adds':>11} {'ours adds':>11} {'ratio':>7}")
    for workload in arguments.workloads.split(","):
        step = WORKLOADS[workload]()
        for _ in range(50):
            step()
        for name in arguments.switches.split(","):
            bare, theirs, own = compare(step, SWITCHES[name], arguments.rounds, arguments.collector)
            print(f"{workload:<12} {name:<14} {bare:9.0f} {theirs:11.0f} {own:11.0f} {own / theirs:7.2f}", flush=True)


if __name__ == "__main__":
    main()
