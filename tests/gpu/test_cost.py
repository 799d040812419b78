"""What recording costs on a GPU, against torch.profiler with the same switches, in turns in one process."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepscope

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

SWITCHES = [{}, {"record_shapes": True}]


@pytest.fixture(scope="module")
def step() -> Callable[[], None]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(12))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(64, 256, device="cuda")

    def once() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()

    for _ in range(20):
        once()
    return once


def theirs(switches: dict[str, bool]) -> Any:
    return torch.profiler.profile(**switches)


def ours(switches: dict[str, bool], output: Path) -> Any:
    return stepscope.profile(output=output, analyse="later", **switches)


def median_step(profiler: Any, step: Callable[[], None], steps: int = 30) -> float:
    """Return the median step in seconds, without start and stop."""
    times = []
    with profiler:
        for _ in range(steps):
            begin = time.perf_counter()
            step()
            profiler.step()
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_a_step_costs_no_more(
    switches: dict[str, bool],
    step: Callable[[], None],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    ratios = []
    for number in range(7):
        gc.collect()
        their_step = median_step(theirs(switches), step)
        our_step = median_step(ours(switches, tmp_path / f"{number}"), step)
        ratios.append(our_step / their_step)
    ratio = statistics.median(ratios)
    record_property("step under stepscope ÷ step under torch.profiler", round(ratio, 3))
    print(f"step under stepscope ÷ step under torch.profiler, {switches}: {ratio:.3f}")
    # The goal of the design is 1.0 of the added time; a twentieth of the whole step is left to chance.
    assert ratio <= 1.05


def test_the_end_of_a_window_stalls_no_longer(
    step: Callable[[], None], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    def stall(profiler: Any, export: Callable[[Any], None]) -> float:
        profiler.start()
        for _ in range(300):
            step()
            profiler.step()
        begin = time.perf_counter()
        profiler.stop()
        export(profiler)
        return time.perf_counter() - begin

    ratios = []
    for number in range(3):
        their_stall = stall(theirs({}), lambda p, n=number: p.export_chrome_trace(str(tmp_path / f"{n}.json")))
        profiler = ours({}, tmp_path / f"run{number}")
        ratios.append(stall(profiler, lambda _: None) / their_stall)
        (recorded,) = profiler.recorded
        assert recorded.wait(300)
    ratio = statistics.median(ratios)
    record_property("stall of stepscope ÷ torch.profiler's stop and export", round(ratio, 3))
    print(f"stall of stepscope ÷ torch.profiler's stop and export: {ratio:.3f}")
    assert ratio <= 1.0
