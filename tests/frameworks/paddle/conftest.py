"""What must be as before after a recording of Paddle."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from stepscope.collect import paddle_optimizers, session
from stepscope.collect.collectors.paddle_tracer import _OFF, _Switch
from tests.frameworks.paddle.programs import HOOKED

# Paddle's messages are not what is tested: that of its log, and the warning that there is no ccache.
os.environ.setdefault("GLOG_minloglevel", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    utils = import_module("paddle.profiler.utils")

# The first of Paddle's own profilers wraps its optimizers for good; here it believes that it has.
utils._has_optimizer_wrapped = True


def _state() -> dict[str, object]:
    level = _Switch()._level
    assert level is not None
    return {
        "threads": sorted(name for thread in threading.enumerate() if not _of_loader(name := thread.name)),
        "files": _open_files(),
        "finders": list(sys.meta_path),
        "SIGTERM": signal.getsignal(signal.SIGTERM),
        "running": session._running,
        "Paddle records": level.value != _OFF,
        "Paddle marks": utils._is_profiler_used,
        "hooks of optimizers": paddle_optimizers._layer,
        **{f"{module}.{place}": _attribute(module, place) for module, place in HOOKED},
    }


def _of_loader(name: str) -> bool:
    """Return whether a thread is Paddle's data loader's, whose iterators end late."""
    return "_thread_loop" in name or name.startswith("QueueFeederThread")


def _open_files() -> set[Path]:
    links = (path.resolve() for path in Path("/proc/self/fd").iterdir())
    return {path for path in links if path.is_file()}


def _attribute(module: str, place: str) -> object:
    """Return what stands at ``Class.method`` itself, not what a base class has there."""
    *owner, name = place.split(".")
    found: object = sys.modules[module]
    for part in owner:
        found = getattr(found, part)
    return vars(found).get(name)


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """Fail where a test leaves a thread, a file, a hook or a switch of Paddle's."""
    before = _state()
    yield
    for thread in threading.enumerate():
        if thread.name in ("stepscope-settle", "stepscope-analysis"):
            thread.join(60)
    assert _state() == before
