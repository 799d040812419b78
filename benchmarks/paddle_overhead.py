"""Time that recording adds to a Paddle step on a CPU: stepscope against Paddle's own profiler, in one process.

    python benchmarks/paddle_overhead.py [--modes eager,static] [--switches plain,memory] [--rounds 9]

The steps are those of B2 of Paddle's measurements: one of small operators (about 2 ms), and the same as a static
program. Each round measures blocks of steps bare, under `paddle.profiler.Profiler` and under stepscope, in turn and in
changing order. A block's figure is its median step; a round's figure is the difference to the bare block of the same
round. Printed: medians over rounds, and the ratio of what the two add. Start, stop and writing the file are outside the
figures, and shown beside them. Run it in an environment with Paddle.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

os.environ.setdefault("GLOG_minloglevel", "1")

import numpy as np
import paddle

import stepscope

STEPS = 40
SWITCHES: dict[str, dict[str, bool]] = {"plain": {}, "memory": {"profile_memory": True}}
Step = Callable[[], object]


def network() -> paddle.nn.Layer:
    """Return a network of small operators: 64 × 64."""
    layers = [
        layer for _ in range(6) for layer in (paddle.nn.Linear(64, 64), paddle.nn.LayerNorm(64), paddle.nn.ReLU())
    ]
    return paddle.nn.Sequential(*layers, paddle.nn.Linear(64, 10))


def eager() -> Step:
    """Return one training step in eager mode."""
    model = network()
    optimizer = paddle.optimizer.Momentum(0.01, parameters=model.parameters())
    inputs, labels = paddle.rand([64, 64]), paddle.arange(64) % 10

    def step() -> None:
        paddle.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.clear_grad()

    return step


def static() -> Step:
    """Return one run of the same as a program."""
    paddle.enable_static()
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [64, 64], "float32")
        y = paddle.static.data("y", [64, 1], "int64")
        loss = paddle.nn.functional.cross_entropy(network()(x), y)
        paddle.optimizer.Momentum(0.01).minimize(loss)
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup)
    feed = {"x": np.random.default_rng(0).random((64, 64), np.float32), "y": np.arange(64).reshape(64, 1) % 10}
    return lambda: executor.run(main, feed=feed, fetch_list=[loss])


MODES: dict[str, Callable[[], Step]] = {"eager": eager, "static": static}


@contextlib.contextmanager
def theirs(switches: dict[str, bool], output: str) -> Iterator[Any]:
    """Paddle's own profiler, which writes its protobuf file as stepscope does; what it prints is left out."""
    handler = paddle.profiler.export_protobuf(output)
    profiler = paddle.profiler.Profiler(
        targets=[paddle.profiler.ProfilerTarget.CPU], on_trace_ready=handler, **switches
    )
    with contextlib.redirect_stdout(io.StringIO()), profiler:
        yield profiler


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
    parser.add_argument("--modes", default="eager,static")
    parser.add_argument("--switches", default="plain,memory")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    print(f"Paddle {paddle.__version__}, {arguments.rounds} rounds of {STEPS} steps; µs a step, ms for start and stop")
    print("mode       switches      bare  theirs add  ours add  ratio  their stop  our stop")
    for mode in arguments.modes.split(","):
        step = MODES[mode]()
        for _ in range(30):
            step()
        for name in arguments.switches.split(","):
            found = compare(step, SWITCHES[name], arguments.rounds)
            (bare, _), (their, their_stop), (own, own_stop) = found["bare"], found["theirs"], found["ours"]
            row = f"{mode:<10} {name:<9} {bare:8.0f} {their:11.0f} {own:9.0f} {own / their:6.2f}"
            print(f"{row} {their_stop:11.0f} {own_stop:9.0f}", flush=True)


if __name__ == "__main__":
    main()
