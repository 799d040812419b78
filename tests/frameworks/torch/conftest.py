"""No test leaves anything of the profiler behind."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stepscope.collect import session


def _state() -> dict[str, object]:
    optimizer = torch.optim.Optimizer
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": {path.resolve() for path in Path("/proc/self/fd").iterdir() if path.resolve().is_file()},
        "finders": list(sys.meta_path),
        "SIGTERM": signal.getsignal(signal.SIGTERM),
        "torch is recording": torch.autograd.profiler._is_profiler_enabled,
        "torch's prepare": torch.autograd.profiler._prepare_profiler,
        "optimizer hook": optimizer._patch_step_function,
        "SGD.step": torch.optim.SGD.step.__code__,
        "running": session._running,
    }


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before = _state()
    yield
    for thread in threading.enumerate():
        if thread.name in ("stepscope-settle", "stepscope-analysis"):
            thread.join(60)
    assert _state() == before
