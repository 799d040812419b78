"""What must be as before after a recording of MindSpore."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.collect import session
from stepscope.collect.collectors.mindspore_host import _Flags
from tests.frameworks.mindspore.programs import HOOKED


def _state() -> dict[str, object]:
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": {path for path in _open_files() if "_ascend_ms" not in str(path)},  # MindSpore's own logs
        "finders": list(sys.meta_path),
        "SIGTERM": signal.getsignal(signal.SIGTERM),
        "running": session._running,
        "the runtime profiler records": _Flags().enabled,
        **{f"{module}.{place}": _attribute(module, place) for module, place in HOOKED},
    }


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
    """Fail where a test leaves a thread, a file, a hook or a switch of MindSpore's."""
    before = _state()
    yield
    for thread in threading.enumerate():
        if thread.name in ("stepscope-settle", "stepscope-analysis"):
            thread.join(60)
    assert _state() == before
