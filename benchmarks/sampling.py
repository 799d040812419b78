"""The cost of sampling operators: blocks of steps, bare and recorded, in one process.

python benchmarks/sampling.py [--workloads mlp,compiled] [--sample 0.01] [--steps 120] [--rounds 25]

Each round measures a bare block and one under ``stepscope.profile(sample=…)``, in random order, without start and stop.
The steps of a sample are of three kinds: the first step, in which each operator is drawn independently; drawn steps;
and the others, which record only marks of steps, garbage collections and counters. The figure of a kind is the 10th
percentile of its steps over all rounds, as in overhead.py. It prints the bare step and the added time of each kind in
µs, then the overhead of a long recording in percent, with the kinds weighted by their frequency.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import torch
from workloads import WORKLOADS, Step

import stepscope
from stepscope.analyse.step.sample import of as sample_of
from stepscope.trace.tables import lazy

BARE, FIRST, DRAWN, OTHERS = "bare", "first", "drawn", "others"


def timed(step: Step, count: int, recorder: stepscope.profile | None) -> list[int]:
    """Return the time of each step but the first, in ns."""
    times = []
    for _ in range(count):
        begin = time.perf_counter_ns()
        step()
        if recorder is not None:
            recorder.step()
        times.append(time.perf_counter_ns() - begin)
    return times[1:]


def recorded(step: Step, count: int, sample: float) -> dict[str, list[int]]:
    """Return the times of the steps of a block by their kind."""
    with tempfile.TemporaryDirectory() as output:
        options = {"activities": ["cpu"], "collector": "native", "analyse": "later"}
        with stepscope.profile(output=output, sample=sample, **options) as recorder:
            times = timed(step, count, recorder)
        recorder.recorded[0].wait(60)
        (path,) = Path(output).iterdir()
        tables = stepscope.open(path).ranks[0].read()
    known = sample_of(lazy(tables))
    found = defaultdict(list)
    for number, duration in enumerate(times, 1):
        found[FIRST if number < known.first else DRAWN if number in known.drawn else OTHERS].append(duration)
    return found


def measure(step: Step, sample: float, count: int, rounds: int) -> dict[str, float]:
    """Return the figure of each kind in µs."""
    times: dict[str, list[int]] = defaultdict(list)
    for _ in range(rounds):
        for bare in random.sample([True, False], k=2):
            gc.collect()
            for kind, found in ({BARE: timed(step, count, None)} if bare else recorded(step, count, sample)).items():
                times[kind] += found
    return {kind: statistics.quantiles(found, n=10)[0] / 1e3 for kind, found in times.items()}


def main() -> None:
    """Print one row per workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--sample", type=float, default=0.01, help="fraction of operators (%(default)s)")
    parser.add_argument("--steps", type=int, default=120, help="steps of a block (%(default)s)")
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, sample {arguments.sample}, {arguments.rounds} rounds; µs per step")
    print(f"{'workload':<12} {'bare':>8} {'first +':>8} {'drawn +':>8} {'others +':>8}   of bare")
    for workload in arguments.workloads.split(","):
        step = WORKLOADS[workload]()
        for _ in range(50):
            step()
        found = measure(step, arguments.sample, arguments.steps, arguments.rounds)
        more = {kind: found[kind] - found[BARE] for kind in (FIRST, DRAWN, OTHERS)}
        whole = arguments.sample * more[DRAWN] + (1 - arguments.sample) * more[OTHERS]
        columns = " ".join(f"{more[kind]:8.1f}" for kind in (FIRST, DRAWN, OTHERS))
        print(f"{workload:<12} {found[BARE]:8.1f} {columns}   {whole / found[BARE]:.2%}", flush=True)


if __name__ == "__main__":
    main()
