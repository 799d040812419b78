"""Four devices on the host, and what must be as before after a recording of JAX."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from tests.frameworks.left_behind import nothing_but, open_files, threads

DEVICES = "--xla_force_host_platform_device_count=4"
if "jax" not in sys.modules and DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}".strip()


def _state() -> dict[str, object]:
    from jax._src import api, monitoring, pjit
    from jaxlib import _profiler

    annotation = vars(sys.modules["jax"].profiler.StepTraceAnnotation)
    return {
        "threads": threads(lambda name: not name.startswith("Dummy-")),  # XLA's, which have called Python
        "files": open_files(),
        "profile function": sys.getprofile(),
        "XLA records": _profiler.TraceMe.is_enabled(),
        "sessions": _profiler.ProfilerSession,
        "post hook": (api._post_hook_state, api._post_hook_state.get_global()),
        "listeners": list(monitoring.get_event_duration_listeners()),
        "first runs": pjit._get_fastpath_data,
        "annotations": (annotation.get("__enter__"), annotation.get("__exit__")),
    }


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """Fail where a test leaves a thread, a file, a hook or a listener, or XLA recording."""
    with nothing_but(_state):
        yield
