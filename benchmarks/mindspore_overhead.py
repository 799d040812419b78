"""Time that recording adds to a MindSpore step on a CPU: stepscope against MindSpore's own profiler, in one process.

    python benchmarks/mindspore_overhead.py [--modes pynative,graph] [--switches plain,memory,host] [--rounds 41]

Each round measures blocks of steps bare, under `mindspore.profiler.profile` and under stepscope, in turn and in
changing order. A block's figure is its median step; a round's figure is the difference to the bare block of the same
round. Printed: medians over rounds, and the ratio of what the two add. Start and stop are outside the figures, and
shown beside them. Run it in an environment with MindSpore.

Each row compares the same recording. `plain` and `memory` are what MindSpore's profiler knows; `host` is the host
pipeline besides, which MindSpore has in a profiler of its own (``MS_ENABLE_RUNTIME_PROFILER``) that cannot be ended, so
that it is begun and ended for both by stepscope's switch.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

import stepscope
from stepscope.collect.collectors.mindspore_host import RuntimeProfiler

STEPS = 40
SWITCHES: dict[str, dict[str, bool]] = {
    "plain": {"host_pipeline": False},
    "memory": {"profile_memory": True, "host_pipeline": False},
    "host": {"host_pipeline": True},
}
Step = Callable[[], object]


def training(mode: str) -> Step:
    """Return one training step of a network of small operators, as in B8 of MindSpore's measurements: 64 × 64."""
    # Asynchronous dispatch varies by milliseconds on two cores.
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE, pynative_synchronize=mode != "graph")
    layers = [layer for _ in range(6) for layer in (nn.Dense(64, 64), nn.LayerNorm((64,)), nn.ReLU())]
    network = nn.SequentialCell(*layers, nn.Dense(64, 10))
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    cell = nn.TrainOneStepCell(nn.WithLossCell(network, loss), nn.Momentum(network.trainable_params(), 0.01, 0.9))
    inputs = ms.Tensor(np.random.default_rng(0).standard_normal((64, 64)), ms.float32)
    labels = ms.Tensor(np.arange(64) % 10, ms.int32)
    return lambda: cell(inputs, labels).asnumpy()


@contextlib.contextmanager
def theirs(switches: dict[str, bool], output: str) -> Iterator[Any]:
    """MindSpore's own profiler; it analyses nothing here."""
    from mindspore import profiler

    handler = profiler.tensorboard_trace_handler(output, analyse_flag=False)
    host = RuntimeProfiler()
    if switches["host_pipeline"]:
        host.start(Path(output))
    with profiler.profile(
        activities=[profiler.ProfilerActivity.CPU],
        schedule=profiler.schedule(wait=0, active=1_000_000),
        on_trace_ready=handler,
        profile_memory=switches.get("profile_memory", False),
    ) as profile:
        yield profile
    host.stop()


def ours(switches: dict[str, bool], output: str) -> AbstractContextManager[Any]:
    """Return stepscope with its default collectors."""
    return stepscope.profile(activities=["cpu"], output=output, analyse="later", **switches)


def block(recorder: Callable[[], AbstractContextManager[Any]], step: Step) -> tuple[float, float]:
    """Return the median step of a block in µs, and what start and stop took in ms."""
    times = []
    begin = time.perf_counter_ns()
    with recorder() as profiler:
        outside = time.perf_counter_ns() - begin
        for number in range(STEPS + 3):
            begin = time.perf_counter_ns()
            step()
            if profiler is not None:
                profiler.step()
            if number >= 3:
                times.append(time.perf_counter_ns() - begin)
        begin = time.perf_counter_ns()
    return statistics.median(times) / 1e3, (outside + time.perf_counter_ns() - begin) / 1e6


def compare(step: Step, switches: dict[str, bool], rounds: int) -> dict[str, tuple[float, float]]:
    """Return for each recorder medians: what it adds to a step in µs (bare: the step), and its start and stop in ms."""
    added: dict[str, list[tuple[float, float]]] = {"bare": [], "theirs": [], "ours": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as output:
            recorders: dict[str, Callable[[], AbstractContextManager[Any]]] = {
                "bare": nullcontext,
                "theirs": lambda directory=output: theirs(switches, directory),
                "ours": lambda directory=output: ours(switches, directory),
            }
            figures = {name: block(recorders[name], step) for name in random.sample(sorted(recorders), k=3)}
        bare = figures["bare"][0]
        for name, (median, outside) in figures.items():
            added[name].append((median - (bare if name != "bare" else 0), outside))
    return {
        name: (statistics.median(median for median, _ in rows), statistics.median(outside for _, outside in rows))
        for name, rows in added.items()
    }


def main() -> None:
    """Print one row a mode and set of switches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", default="pynative,graph")
    parser.add_argument("--switches", default="plain,memory,host")
    parser.add_argument("--rounds", type=int, default=41)
    arguments = parser.parse_args()
    ms.set_device("CPU")
    print(f"MindSpore {ms.__version__}, {arguments.rounds} rounds of {STEPS} steps; µs a step, ms for start and stop")
    print("mode       switches      bare  theirs add  ours add  ratio  their stop  our stop")
    for mode in arguments.modes.split(","):
        step = training(mode)
        for _ in range(30):
            step()
        for name in arguments.switches.split(","):
            found = compare(step, SWITCHES[name], arguments.rounds)
            (bare, _), (their, their_stop), (own, own_stop) = found["bare"], found["theirs"], found["ours"]
            row = f"{mode:<10} {name:<9} {bare:8.0f} {their:11.0f} {own:9.0f} {own / their:6.2f}"
            print(f"{row} {their_stop:11.0f} {own_stop:9.0f}", flush=True)


if __name__ == "__main__":
    main()
