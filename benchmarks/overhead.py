"""Time that recording adds to a step: stepscope against torch.profiler with the same switches, in one process.

python benchmarks/overhead.py [--workloads mlp,transformer,convolution,compiled] [--switches plain,shapes,all]
    [--rounds 15] [--collector kineto|native] [--ranks 2 --workloads ddp]

Each round measures blocks of steps without a recorder ("bare"), under torch.profiler, under stepscope and under an
empty observer (empty_observer.cpp: torch's own cost of calling any observer), in random order. The figure of each is
the 10th percentile of its steps over all rounds: the time of an undisturbed step. Medians agree with it on an idle
machine, and mean nothing on a busy one. It prints, by wall time and by CPU time of the training thread: the bare step,
the time that each adds to it, the ratios to the time that torch.profiler adds with 90 % intervals (bootstrap over
rounds), and our added time relative to the bare step. More rounds make the intervals narrower.

With ``--ranks`` several processes train together, and all record in the same order; the figures are those of rank 0.
There the processor time counts: by wall time, each rank also waits for the others.

The C library is set to keep freed memory: otherwise it returns the tensors of some steps to the system and requests
them again, which causes hundreds of page faults that depend on all other allocations.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import torch
from workloads import SWITCHES, WORKLOADS, Step, launched

import stepscope
from stepscope.native.recorder import build

STEPS = 20
#: Resamplings of the bootstrap.
RESAMPLES = 200

#: Settings that glibc reads when a process starts (mallopt).
KEPT_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000"}

Pair: TypeAlias = tuple[float, float]
Recorder: TypeAlias = Callable[[], AbstractContextManager[Any]]
#: Steps of a round by recorder.
Round: TypeAlias = Mapping[str, list[Pair]]


def torch_profiler(switches: dict[str, bool]) -> AbstractContextManager[Any]:
    """Return torch.profiler with the switches, recording and marking steps from its start."""
    schedule = torch.profiler.schedule(wait=0, warmup=0, active=1_000_000)
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule, **switches)


def ours(switches: dict[str, Any], output: str) -> AbstractContextManager[Any]:
    """Return stepscope with the switches and all its default collectors, recording from its start."""
    return stepscope.profile(activities=["cpu"], output=output, analyse="later", **switches)


def empty_observer() -> ctypes.CDLL:
    """Build the empty observer with the flags of the recorder."""
    package = Path(torch.__file__).parent
    flags = [
        "-std=c++20",
        "-O2",
        "-DNDEBUG",
        "-fPIC",
        "-w",
        f"-D_GLIBCXX_USE_CXX11_ABI={torch.compiled_with_cxx11_abi():d}",
    ]
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "empty_observer.so"
        source = str(Path(__file__).with_name("empty_observer.cpp"))
        linked = ["-shared", f"-L{package / 'lib'}", "-ltorch_cpu", "-lc10", "-o", str(library)]
        subprocess.run([build.compiler() or "c++", *flags, f"-I{package / 'include'}", source, *linked], check=True)
        return ctypes.CDLL(str(library))


@contextmanager
def observed(observer: ctypes.CDLL, switches: dict[str, bool]) -> Iterator[None]:
    """Install the empty observer, with the inputs of operators if the switches record shapes."""
    observer.observe(int(bool(switches.get("record_shapes"))))
    yield
    observer.ignore()


def block(recorder: Recorder, step: Step) -> list[Pair]:
    """Return wall and CPU time of the steps of a block in µs, without start and stop of the recorder."""
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


def measure(step: Step, recorders: Mapping[str, Recorder], rounds: int) -> list[Round]:
    """Measure the step under each recorder."""
    return [
        {name: block(recorders[name], step) for name in random.sample(sorted(recorders), k=len(recorders))}
        for _ in range(rounds)
    ]


def figures(rounds: list[Round], clock: int) -> dict[str, float]:
    """Return the bare step and the time that each recorder adds to it, 10th percentiles in µs."""
    steps = {name: [pair[clock] for one in rounds for pair in one[name]] for name in rounds[0]}
    found = {name: statistics.quantiles(times, n=10)[0] for name, times in steps.items()}
    return {name: figure - (found["bare"] if name != "bare" else 0) for name, figure in found.items()}


def intervals(rounds: list[Round], clock: int) -> dict[str, str]:
    """Return the 90 % intervals of the ratio of each recorder's added time to that of torch.profiler."""
    draws = [figures(random.choices(rounds, k=len(rounds)), clock) for _ in range(RESAMPLES)]
    found = {}
    for name in rounds[0]:
        ratios = sorted(draw[name] / draw["torch"] if draw["torch"] > 0 else math.inf for draw in draws)
        found[name] = f"{ratios[RESAMPLES // 20]:.2f}-{ratios[-RESAMPLES // 20]:.2f}"
    return found


def columns(rounds: list[Round], clock: int) -> str:
    """Return the columns of a row by one clock: 0 for wall time, 1 for CPU time."""
    found, within = figures(rounds, clock), intervals(rounds, clock)
    adds = " ".join(f"{found[name]:7.0f}" for name in ("bare", "torch", "empty", "ours"))
    ratios = " ".join(f"{found[name] / found['torch']:6.2f} ({within[name]:>10})" for name in ("empty", "ours"))
    return f"{adds} {ratios} {found['ours'] / found['bare']:7.1%}"


def main() -> None:
    """Print two rows per workload and set of switches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(name for name in WORKLOADS if name != "ddp"))
    parser.add_argument("--switches", default="plain,shapes,shapes+memory,all")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--collector", default="auto", help="collector of stepscope's profile (%(default)s)")
    parser.add_argument("--ranks", type=int, default=1)
    arguments = parser.parse_args()
    if not KEPT_MEMORY.items() <= os.environ.items():
        command = launched(arguments.ranks) if arguments.ranks > 1 else [sys.executable]
        os.execve(command[0], [*command, *sys.argv], {**os.environ, **KEPT_MEMORY})
    random.seed(0)  # the same order in all ranks
    if os.environ.get("RANK", "0") != "0":
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - for the life of the process
    torch.set_num_threads(1)
    observer = empty_observer()
    print(f"torch {torch.__version__}, {arguments.rounds} rounds of {STEPS} steps, µs per step; ratios to torch's")
    adds = f"{'bare':>7} {'torch +':>7} {'empty +':>7} {'ours +':>7}"
    print(f"{'workload':<12} {'switches':<13} {'':9} {adds} {'empty':>6} {'':12} {'ours':>6} {'':12} {'of bare':>7}")
    for workload in arguments.workloads.split(","):
        step = WORKLOADS[workload]()
        for _ in range(50):
            step()
        for name in arguments.switches.split(","):
            # A forked child may still write a capture after a block; it must not disturb the next block.
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as output:
                switches: dict[str, Any] = SWITCHES[name]
                recorders: dict[str, Recorder] = {
                    "bare": nullcontext,
                    "torch": lambda asked=switches: torch_profiler(asked),
                    "empty": lambda asked=switches: observed(observer, asked),
                    "ours": lambda asked=switches, to=output: ours({**asked, "collector": arguments.collector}, to),
                }
                found = measure(step, recorders, arguments.rounds)
            for clock, said in enumerate(("wall", "processor")):
                print(f"{workload:<12} {name:<13} {said:<9} {columns(found, clock)}", flush=True)


if __name__ == "__main__":
    main()
