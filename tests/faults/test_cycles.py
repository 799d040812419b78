"""Profiles that start and stop many times leave nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.frameworks.torch.programs import TRAINING, forked
from tests.sizes import Size

CYCLES = (
    TRAINING
    + """
import atexit, gc, json, shutil, threading
import stepscope

def state():
    gc.collect()
    optimizer = torch.optim.Optimizer
    return {
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),
        "finders": len(sys.meta_path),
        "callbacks": len(gc.callbacks),
        "exit functions": atexit._ncallbacks(),
        "signal": str(signal.getsignal(signal.SIGTERM)),
        "hooks": str(torch.autograd.profiler._prepare_profiler),
    }

def memory():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def cycle(profile):
    profile.start()
    step()
    profile.step()
    profile.stop()
    (recorded,) = profile.recorded
    recorded.wait()
    profile.recorded.clear()
    shutil.rmtree(recorded.path)

profile = stepscope.profile(output=sys.argv[1], analyse="later", collector=sys.argv[2])
cycles = int(sys.argv[3])
for _ in range(40):
    cycle(profile)
before, marks = state(), [memory()]
for number in range(cycles):
    cycle(profile)
    if number % (cycles // 4) == cycles // 4 - 1:
        marks.append(memory())
# What is left behind grows in every quarter; what an allocator takes once does not.
growth = 4 * min(later - earlier for earlier, later in zip(marks, marks[1:]))
print(json.dumps({"before": before, "after": state(), "growth": growth}))
"""
)


@pytest.mark.parametrize(
    ("collector", "cycles", "growth"),
    # Bytes in all of the full count. With Kineto, torch itself keeps some kilobytes a cycle (measured with
    # torch.profiler alone).
    [("kineto", 200, 200 * 32 << 10), ("native", 1000, 1 << 20)],
)
def test_a_profile_that_starts_and_stops_leaves_nothing_behind(
    collector: str, cycles: int, growth: int, tmp_path: Path, size: Size
) -> None:
    done = forked("-c", CYCLES, tmp_path / "runs", collector, str(size.many(cycles)), timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["after"] == found["before"]
    assert found["growth"] < growth
    assert list((tmp_path / "runs").iterdir()) == []
