"""What must be as before after a recording of Paddle."""

from __future__ import annotations

import locale
import os
import signal
import warnings
from collections.abc import Iterator
from importlib import import_module

import pytest

from stepscope.collect.paddle import paddle_optimizers
from stepscope.collect.surgery.paddle_tracer import OFF, RecordingSwitch, log_severity
from tests.frameworks.left_behind import attribute, nothing_but, open_files, threads
from tests.frameworks.paddle.programs import HOOKED

# Silence Paddle's log and its warning about a missing ccache; tests do not read them.
os.environ.setdefault("GLOG_minloglevel", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    utils = import_module("paddle.profiler.utils")

# The first of Paddle's own profilers wraps its optimizers for the rest of the process, unless this flag is set.
utils._has_optimizer_wrapped = True


def _state() -> dict[str, object]:
    level = RecordingSwitch().level
    severity, _ = log_severity()
    assert level is not None
    assert severity is not None
    return {
        "threads": threads(lambda name: not _of_loader(name)),
        "files": open_files(),
        "Paddle records": level.value != OFF,
        "Paddle's log": severity.value,
        "environment": {name: value for name, value in os.environ.items() if name.startswith(("FLAGS_", "GLOG_"))},
        "signals": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "locale": locale.setlocale(locale.LC_ALL),
        "Paddle marks": utils._is_profiler_used,
        "hooks of optimizers": paddle_optimizers.installed,
        **{f"{module}.{place}": attribute(module, place) for module, place in HOOKED},
    }


def _of_loader(name: str) -> bool:
    """Return whether a thread is Paddle's data loader's, whose iterators end late."""
    return "_thread_loop" in name or name.startswith("QueueFeederThread")


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """Fail where a test leaves a thread, a file, a hook or a switch of Paddle's."""
    with nothing_but(_state):
        yield
