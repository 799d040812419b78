"""No test leaves anything of the profiler behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch

from stepscope.collect.torch import native_build
from stepscope.native.recorder.build import BuildError
from tests.frameworks.left_behind import nothing_but, open_files, threads


def _state() -> dict[str, object]:
    return {
        "threads": threads(),
        "files": open_files(),
        "torch is recording": torch.autograd.profiler._is_profiler_enabled,
        "torch's prepare": torch.autograd.profiler._prepare_profiler,
        "optimizer hook": torch.optim.Optimizer._patch_step_function,
        "SGD.step": torch.optim.SGD.step.__code__,
        "compiled": dict(getattr(sys.modules.get("torch._dynamo.utils"), "compilation_time_metrics", {})),
    }


@pytest.fixture(autouse=True, scope="session")
def recorder_is_built() -> None:
    """No test waits for it, and none is recorded by Kineto because it is still being built."""
    with suppress(BuildError):  # tests that need it say so
        native_build.obtain(native_build.installed(torch))


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    with nothing_but(_state):
        yield
