"""What recording costs on a GPU, against torch.profiler with the same switches, in turns in one process."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import stepscope

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

SWITCHES = [{}, {"record_shapes": True}]
#: Of what torch.profiler adds to a step, and of what its end takes: what ours may.
STEP, STALL = {"kineto": 1.0, "native": 0.5}, {"kineto": 1.0, "native": 0.1}


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


def ours(switches: dict[str, bool], collector: str, output: Path) -> Any:
    return stepscope.profile(output=output, analyse="later", collector=collector, **switches)


def median_step(profiler: Any, step: Callable[[], None], steps: int = 30) -> float:
    """Return the median step in seconds, without start and stop."""
    times = []
    with profiler as recording:
        for _ in range(steps):
            begin = time.perf_counter()
            step()
            if recording is not None:
                recording.step()
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_what_is_added_to_a_step(
    switches: dict[str, bool],
    collector: str,
    step: Callable[[], None],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    rounds = []
    for number in range(7):
        gc.collect()
        bare = median_step(nullcontext(), step)
        their_step = median_step(theirs(switches), step)
        our_step = median_step(ours(switches, collector, tmp_path / f"{number}"), step)
        rounds.append((bare, their_step - bare, our_step - bare))
    bare, they_add, we_add = map(statistics.median, zip(*rounds, strict=True))
    record_property("added by stepscope ÷ added by torch.profiler", round(we_add / they_add, 3))
    print(f"{collector}, {switches}: a step of {bare * 1e6:.0f} µs, torch.profiler adds {they_add * 1e6:.0f} µs,")
    print(f"stepscope {we_add * 1e6:.0f} µs, ratio {we_add / they_add:.2f}")
    # A twentieth of the step is left to chance.
    assert we_add <= STEP[collector] * they_add + bare / 20


def test_the_end_of_a_window(
    step: Callable[[], None], collector: str, tmp_path: Path, record_property: Callable[[str, object], None]
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
        profiler = ours({}, collector, tmp_path / f"run{number}")
        ratios.append(stall(profiler, lambda _: None) / their_stall)
        (recorded,) = profiler.recorded
        assert recorded.wait(300)
    ratio = statistics.median(ratios)
    record_property("stall of stepscope ÷ torch.profiler's stop and export", round(ratio, 3))
    print(f"{collector}: stall of stepscope ÷ torch.profiler's stop and export: {ratio:.3f}")
    assert ratio <= STALL[collector]
