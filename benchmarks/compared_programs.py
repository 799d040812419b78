"""Six small trainings that `stepscope compare` is judged by, each with a switch that slows it down.

    python compared_programs.py NAME [--units N] [--operator N [--slow N]] [--steps N]

``--units`` adds N small matrix products after every step: a slowdown of the program's own code. ``--operator`` adds N
small multiplications; those of ``--slow`` read every fourth column of a tensor, so that the same operator, called as
often and with the same shapes, takes longer. What a unit takes against a step is measured by :func:`calibrate`, in
turns inside one process. One thread computes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

Step = Callable[[], None]
STEPS = {"mlp": 4000, "conv": 400, "transformer": 600, "data": 1000, "lstm": 2500, "embedding": 2500}


def _trainer(model: nn.Module, loss: Callable[[], torch.Tensor]) -> Step:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def _mlp() -> Step:
    layers = [layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.ReLU())]
    model, batch = nn.Sequential(*layers, nn.Linear(16, 1)), torch.randn(8, 16)
    return _trainer(model, lambda: model(batch).square().mean())


def _conv() -> Step:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 1, 1), nn.BatchNorm2d(32),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    images, labels = torch.randn(24, 3, 64, 64), torch.randint(10, (24,))
    return _trainer(model, lambda: functional.cross_entropy(model(images), labels))


def _transformer() -> Step:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    model, batch = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(16, 48, 64)
    return _trainer(model, lambda: model(batch).square().mean())


def _data() -> Step:
    model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))

    def loss() -> torch.Tensor:
        time.sleep(0.003)  # the sample comes from elsewhere
        return model(torch.randn(32, 128)).square().mean()

    return _trainer(model, loss)


def _lstm() -> Step:
    model, batch = nn.LSTM(32, 64, 1, batch_first=True), torch.randn(16, 32, 32)
    return _trainer(model, lambda: model(batch)[0].square().mean())


def _embedding() -> Step:
    bag, head = nn.EmbeddingBag(200_000, 32, mode="sum", sparse=True), nn.Linear(32, 1)
    index, place = torch.randint(0, 200_000, (40, 512, 16)), [0]
    optimizer = torch.optim.SGD([*bag.parameters(), *head.parameters()], lr=0.01)

    def step() -> None:
        place[0] += 1
        optimizer.zero_grad()
        head(bag(index[place[0] % 40])).square().mean().backward()
        optimizer.step()

    return step


PROGRAMS: dict[str, Callable[[], Step]] = {
    "mlp": _mlp, "conv": _conv, "transformer": _transformer, "data": _data, "lstm": _lstm, "embedding": _embedding,
}  # fmt: skip
_SQUARE = torch.randn(32, 32)
_WHOLE, _APART = torch.randn(64, 64), torch.randn(64, 256)[:, ::4]


def _products(count: int) -> None:
    for _ in range(count):
        torch.mm(_SQUARE, _SQUARE)


def _multiplications(count: int, slow: int = 0) -> None:
    for number in range(count):
        torch.mul(_APART if number < slow else _WHOLE, 0.5)


def _waited_for_core() -> int:
    """Return the run-queue delay of this thread, ns."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


def calibrate(step: Step, unit: Callable[[int], None], rounds: int = 60) -> float:
    """Return how many units take as long as one step: of 10th percentiles of own time, taken in turns."""
    times: list[list[int]] = [[], []]
    for _ in range(rounds):
        for taken, work in zip(times, (step, lambda: unit(50)), strict=True):
            start, waited = time.perf_counter_ns(), _waited_for_core()
            work()
            taken.append(time.perf_counter_ns() - start - _waited_for_core() + waited)
    step_ns, units_ns = (float(np.quantile(taken[rounds // 6 :], 0.1)) for taken in times)
    return 50 * step_ns / units_ns


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=PROGRAMS)
    parser.add_argument("--units", type=int, default=0)
    parser.add_argument("--operator", type=int, default=0)
    parser.add_argument("--slow", type=int, default=0)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--calibrate", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    step = PROGRAMS[arguments.name]()
    if arguments.calibrate:
        units = {"units": _products, "operator": _multiplications, "slow": lambda count: _multiplications(count, count)}
        print(json.dumps({name: calibrate(step, unit) for name, unit in units.items()}))
        return
    for _ in range(arguments.steps or STEPS[arguments.name]):
        step()
        _products(arguments.units)
        _multiplications(arguments.operator, arguments.slow)


if __name__ == "__main__":
    main()
