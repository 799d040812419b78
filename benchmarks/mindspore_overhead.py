"""Time that recording adds to a MindSpore step on a CPU: stepscope against MindSpore's own profiler (`added_time.py`).

    python benchmarks/mindspore_overhead.py [--modes pynative,graph,…] [--switches plain,memory,host] [--rounds 41]

Each row compares recordings of the same content. `plain` and `memory` are those of MindSpore's profiler; `host` adds
the host pipeline, which MindSpore has in a separate profiler (``MS_ENABLE_RUNTIME_PROFILER``) that it cannot end, so
stepscope's switch starts and ends it for both. A step trains a network of small operators; in the modes that end in
`40` it is B8 of MindSpore's measurements: forty operators on 64 × 64. Run it in an environment with MindSpore.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from added_time import Peer, Step, Switches, main
from mindspore import nn

from stepscope.collect.surgery.mindspore_runtime import RuntimeProfiler

SWITCHES: dict[str, Switches] = {
    "plain": {"host_pipeline": False},
    "memory": {"profile_memory": True, "host_pipeline": False},
    "host": {"host_pipeline": True},
}


def set_mode(mode: str) -> None:
    """Set MindSpore's mode; asynchronous dispatch varies by milliseconds on two cores."""
    graph = mode == "graph"
    ms.set_context(mode=ms.GRAPH_MODE if graph else ms.PYNATIVE_MODE, pynative_synchronize=not graph)


def operators(mode: str) -> Step:
    """Return forty operators one after the other."""
    set_mode(mode)

    class Forty(nn.Cell):
        def construct(self, x: ms.Tensor) -> ms.Tensor:
            for _ in range(40):
                x = ms.ops.tanh(x)
            return x

    network, inputs = Forty(), ms.Tensor(np.ones((64, 64)), ms.float32)
    return lambda: network(inputs).asnumpy()


def training(mode: str) -> Step:
    """Return one training step of a network of small operators, on 64 × 64."""
    set_mode(mode)
    layers = [layer for _ in range(6) for layer in (nn.Dense(64, 64), nn.LayerNorm((64,)), nn.ReLU())]
    network = nn.SequentialCell(*layers, nn.Dense(64, 10))
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    cell = nn.TrainOneStepCell(nn.WithLossCell(network, loss), nn.Momentum(network.trainable_params(), 0.01, 0.9))
    inputs = ms.Tensor(np.random.default_rng(0).standard_normal((64, 64)), ms.float32)
    labels = ms.Tensor(np.arange(64) % 10, ms.int32)
    return lambda: cell(inputs, labels).asnumpy()


@contextlib.contextmanager
def theirs(switches: Switches, output: str) -> Iterator[Any]:
    """MindSpore's own profiler, without its analysis."""
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


if __name__ == "__main__":
    ms.set_device("CPU")
    modes = {mode: functools.partial(training, mode) for mode in ("pynative", "graph")}
    modes |= {f"{mode}40": functools.partial(operators, mode) for mode in ("pynative", "graph")}
    main(Peer(f"MindSpore {ms.__version__}", modes, SWITCHES, theirs), __doc__)
