"""Time that recording adds to a step: stepscope against torch.profiler with the same switches, in one process.

python benchmarks/overhead.py [--workloads mlp,transformer,convolution,compiled] [--switches plain,shapes,all]
    [--rounds 15] [--collector kineto|native]

Each round measures blocks of steps bare, under torch.profiler and under stepscope, in turn and in changing order. The
figure of each is the fastest tenth of its steps of all rounds: its slowest one. That is what a step costs where nothing
else disturbs it; medians agree on a quiet machine, and say nothing on a busy one. Printed: figures by the wall and by
the processor time of the training thread, the ratio of what the two add with its interval of 90 % (rounds drawn anew,
bootstrap), and what ours adds to the bare step. Where the interval is wide, more rounds make it narrower.
"""

from __future__ import annotations

import argparse
import gc
import math
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
#: Draws of rounds for an interval.
RESAMPLES = 200


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


#: Steps of each round: bare, under torch.profiler, under stepscope.
Measured: TypeAlias = list[tuple[list[Pair], list[Pair], list[Pair]]]


def compare(step: Step, switches: dict[str, bool], rounds: int, own: dict[str, Any]) -> Measured:
    """Measure the step bare, under torch.profiler and under stepscope."""
    measured: Measured = []
    for _ in range(rounds):
        # A child may still be writing the capture when the block is over; it is no part of the figure.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as output:
            recorders: list[Callable[[], AbstractContextManager[Any]]] = [
                nullcontext,
                lambda: torch_profiler(switches),
                lambda directory=output: ours({**switches, **own}, directory),
            ]
            found = {which: block(recorders[which], step) for which in random.sample(range(3), k=3)}
        measured.append((found[0], found[1], found[2]))
    return measured


def figures(measured: Measured, clock: int) -> tuple[float, float, float]:
    """Return the bare step and what torch.profiler and stepscope add: the slowest of the fastest tenth, in µs."""
    bare, theirs, mine = (
        statistics.quantiles((pair[clock] for one in measured for pair in one[which]), n=10)[0] for which in range(3)
    )
    return bare, theirs - bare, mine - bare


def columns(measured: Measured, clock: int) -> str:
    """Return the columns of a row by one clock: 0 for the wall, 1 for the processor."""
    bare, theirs, mine = figures(measured, clock)
    ratios = []
    for _ in range(RESAMPLES):
        _, of_torch, of_ours = figures(random.choices(measured, k=len(measured)), clock)
        ratios.append(of_ours / of_torch if of_torch > 0 else math.inf)
    ratios.sort()
    low, high = ratios[RESAMPLES // 20], ratios[-RESAMPLES // 20]
    return f"{bare:7.0f} {theirs:7.0f} {mine:7.0f} {mine / theirs:6.2f} ({low:5.2f} -{high:5.2f}) {mine / bare:7.1%}"


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
    heading = f"{'bare':>7} {'torch +':>7} {'ours +':>7} {'ratio':>6} {'of 90 %':>14} {'of bare':>7}"
    print(f"{'workload':<12} {'switches':<13} {heading}  |{heading}")
    for workload in arguments.workloads.split(","):
        step = WORKLOADS[workload]()
        for _ in range(50):
            step()
        for name in arguments.switches.split(","):
            found = compare(step, SWITCHES[name], arguments.rounds, own)
            print(f"{workload:<12} {name:<13} {columns(found, 0)}  |{columns(found, 1)}", flush=True)


if __name__ == "__main__":
    main()
