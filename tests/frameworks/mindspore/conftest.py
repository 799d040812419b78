"""What must be as before after a recording of MindSpore."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stepscope.collect.surgery.mindspore_runtime import _Flags
from tests.frameworks.left_behind import attribute, nothing_but, open_files, threads
from tests.frameworks.mindspore.programs import HOOKED


def _state() -> dict[str, object]:
    return {
        "threads": threads(),
        "files": {path for path in open_files() if "_ascend_ms" not in str(path)},  # MindSpore's own logs
        "the runtime profiler records": _Flags().enabled,
        **{f"{module}.{place}": attribute(module, place) for module, place in HOOKED},
    }


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """Fail where a test leaves a thread, a file, a hook or a switch of MindSpore's."""
    with nothing_but(_state):
        yield
