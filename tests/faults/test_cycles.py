"""Profiles that start and stop many times leave nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

from tests.frameworks.torch.programs import TRAINING, python

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

profile = stepscope.profile(output=sys.argv[1], analyse="later")
for _ in range(40):
    cycle(profile)
before, first = state(), memory()
for _ in range(200):
    cycle(profile)
print(json.dumps({"before": before, "after": state(), "growth": (memory() - first) / 200}))
"""
)


def test_two_hundred_cycles_leave_nothing_behind(tmp_path: Path) -> None:
    done = python("-c", CYCLES, tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["after"] == found["before"]
    # torch itself keeps some kilobytes a cycle (measured with torch.profiler alone)
    assert found["growth"] < 32 << 10
    assert list((tmp_path / "runs").iterdir()) == []
