"""Time that recording adds to a step: stepscope against torch.profiler with the same switches, in one process.

python benchmarks/overhead.py [--workloads mlp,transformer,convolution,compiled] [--switches plain,shapes,all]
    [--rounds 15] [--collector kineto|native]

Each round measures blocks of steps bare, under torch.profiler and under stepscope, in turn and in changing order. The
figure of each is the fastest tenth of its steps of all rounds: its slowest one. That is what a step costs where nothing
else disturbs it; medians agree on a quiet machine, and say nothing on a busy one. Printed: figures by the wall and by
the processor time of the training thread, the ratio of what the two add, and what ours adds to the bare step.
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
from typing import Any, TypeAlias

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


Pair: TypeAlias = tuple[float, float]


def block(recorder: Callable[[], AbstractContextManager[Any]], step: Step) -> list[Pair]:
    """Return the steps of a block by wall and processor, in µs. Start and stop of the recorder are outside of them."""
    steps = []
    gc.collect()
    with recorder() as profiler:
        for number in range(STEPS + 2):
            begin, begin_own = time.perf_counter_ns(), time.thread_time_ns()
            step()
            if profiler is not None:
                profiler.step()
            end_own, end = time.thread_time_ns(), time.perf_counter_ns()
            if number >= 2:
                steps.append(((end - begin) / 1e3, (end_own - begin_own) / 1e3))
    return steps


def figure(steps: list[Pair]) -> Pair:
    """Return the slowest of the fastest tenth, by wall and by processor."""
    wall, processor = (statistics.quantiles((pair[which] for pair in steps), n=10)[0] for which in (0, 1))
    return wall, processor


def compare(step: Step, switches: dict[str, bool], rounds: int, own: dict[str, Any]) -> list[Pair]:
    """Return the bare step, the one under torch.profiler and the one under stepscope, by wall and processor, in µs."""
    steps: list[list[Pair]] = [[], [], []]
    for _ in range(rounds):
        # A child may still be writing the capture when the block is over; it is no part of the figure.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as output:
            recorders: list[Callable[[], AbstractContextManager[Any]]] = [
                nullcontext,
                lambda: torch_profiler(switches),
                lambda directory=output: ours({**switches, **own}, directory),
            ]
            for which in random.sample(range(3), k=3):
                steps[which] += block(recorders[which], step)
    return [figure(of_one) for of_one in steps]


def row(bare: Pair, theirs: Pair, mine: Pair) -> str:
    """Return the columns of a row."""
    added = [(theirs[which] - bare[which], mine[which] - bare[which]) for which in (0, 1)]
    columns = [f"{bare[which]:7.0f} {added[which][0]:7.0f} {added[which][1]:7.0f}" for which in (0, 1)]
    ratios = [f"{own / other:6.2f} {own / base:7.1%}" for (other, own), base in zip(added, bare, strict=True)]
    return "  |".join(f"{columns[which]} {ratios[which]}" for which in (0, 1))


def main() -> None:
    """Print one row a workload and set of switches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--switches", default="plain,shapes,shapes+memory,all")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--collector", default="auto", help="of stepscope's profile (%(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    own = {"collector": arguments.collector}
    print(f"torch {torch.__version__}, {arguments.rounds} rounds of {STEPS} steps, µs a step: wall | processor")
    heading = f"{'bare':>7} {'torch +':>7} {'ours +':>7} {'ratio':>6} {'of bare':>7}"
    print(f"{'workload':<12} {'switches':<13} {heading}  |{heading}")
    for workload in arguments.workloads.split(","):
        step = WORKLOADS[workload]()
        for _ in range(50):
            step()
        for name in arguments.switches.split(","):
            found = compare(step, SWITCHES[name], arguments.rounds, own)
            print(f"{workload:<12} {name:<13} {row(*found)}", flush=True)


if __name__ == "__main__":
    main()
