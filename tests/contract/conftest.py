"""Whatever runs here leaves the process as it found it."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.collect import annotations
from tests.frameworks.left_behind import own_threads


class Surroundings:
    """What a tool could leave behind in a process."""

    def __init__(self) -> None:
        self.threads = frozenset(thread for thread in threading.enumerate() if thread.is_alive())
        self.own_threads = own_threads()
        self.gc_callbacks = tuple(map(id, gc.callbacks))
        self.finders = tuple(map(id, sys.meta_path))
        self.handlers = tuple(signal.getsignal(number) for number in sorted(signal.valid_signals()))
        self.hooks = sys.getprofile(), sys.gettrace(), sys.excepthook, threading.excepthook
        self.recording = annotations.recording()
        self.loader_next = _loader_next()
        self.files = _open_files()

    def left(self, later: Surroundings) -> dict[str, tuple[Any, Any]]:
        """Return what is not the same any more, by name; of files, those that only the later one has.

        Files that earlier tests left to the garbage collection are closed at any time.
        """
        opened = Counter(later.files) - Counter(self.files)
        mine, others = vars(self) | {"files": Counter()}, vars(later) | {"files": opened}
        return {name: (mine[name], others[name]) for name in mine if mine[name] != others[name]}


def _open_files() -> tuple[str, ...]:
    """Return the paths of open files; pipes and polling are those of the interpreter and of libraries' thread pools."""
    links = (os.path.realpath(link) for link in Path("/proc/self/fd").iterdir())
    return tuple(sorted(path for path in links if not path.startswith("/proc/")))


def _loader_next() -> object:
    module = sys.modules.get("torch.utils.data.dataloader")
    return None if module is None else module._BaseDataLoaderIter.__next__  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def left_nothing() -> Iterator[None]:
    """Fail where a test leaves a thread, hook, finder, handler or open file."""
    before = Surroundings()
    yield
    deadline = time.monotonic() + 5
    while (left := before.left(Surroundings())) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    assert not left
