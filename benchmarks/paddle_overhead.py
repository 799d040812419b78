"""Time that recording adds to a Paddle step on a CPU: stepscope against Paddle's own profiler (`added_time.py`).

    python benchmarks/paddle_overhead.py [--modes eager,static] [--switches plain,memory,shapes] [--rounds 41]

The steps are those of B2 of Paddle's measurements: one of small operators (about 2 ms), and the same as a static
program. Run it in an environment with Paddle.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("GLOG_minloglevel", "1")

import numpy as np
import paddle
from added_time import Peer, Step, Switches, main

SWITCHES: dict[str, Switches] = {"plain": {}, "memory": {"profile_memory": True}, "shapes": {"record_shapes": True}}


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
    """Return one run of the same network as a static program."""
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


@contextlib.contextmanager
def theirs(switches: Switches, output: str) -> Iterator[Any]:
    """Paddle's own profiler, which writes its protobuf file as stepscope does; its output is suppressed."""
    handler = paddle.profiler.export_protobuf(output)
    profiler = paddle.profiler.Profiler(
        targets=[paddle.profiler.ProfilerTarget.CPU], on_trace_ready=handler, **switches
    )
    with contextlib.redirect_stdout(io.StringIO()), profiler:
        yield profiler


if __name__ == "__main__":
    main(Peer(f"Paddle {paddle.__version__}", {"eager": eager, "static": static}, SWITCHES, theirs), __doc__)
