"""What must be as before after a recording, whatever the framework."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from stepscope.collect.session import session

#: Threads of stepscope's that may still end a window.
_ENDING = ("stepscope-settle", "stepscope-analysis")


@contextmanager
def nothing_but(state: Callable[[], Mapping[str, object]]) -> Iterator[None]:
    """Fail where threads, files, hooks, or what ``state`` returns of the framework, differ afterwards."""
    # Objects that an earlier test dropped are collected here, not during this test. Frozen objects are skipped by the
    # next test's collection, which takes half a second otherwise in a process that has loaded everything.
    _wait_for_windows()
    gc.collect()
    gc.freeze()
    before = {**_common(), **state()}
    yield
    _wait_for_windows()
    after = {**_common(), **state()}
    changed = {name: (before[name], found) for name, found in after.items() if found != before[name]}
    assert not changed, changed


def _wait_for_windows() -> None:
    """Wait until windows of this test, or of the one before it, have let go of their files."""
    for thread in threading.enumerate():
        if thread.name in _ENDING:
            thread.join(60)


def threads(counts: Callable[[str], bool] = bool) -> Counter[str]:
    """Return the names of Python's threads, of those that count, and of stepscope's."""
    return Counter([thread.name for thread in threading.enumerate() if counts(thread.name)]) + Counter(own_threads())


def own_threads() -> list[str]:
    """Return the names of stepscope's threads as the system has them, which keeps 15 bytes."""

    def look() -> list[str]:
        found = []
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it has just ended
                found.append((thread / "comm").read_text(encoding="utf-8").strip())
        return [name for name in found if name.startswith("stepscope")]

    if look():
        time.sleep(0.02)  # the system lists a thread for a moment after it has ended
    return look()


def open_files() -> set[Path]:
    """Return the files that this process has open."""
    links = (path.resolve() for path in Path("/proc/self/fd").iterdir())
    return {path for path in links if path.is_file()}


def attribute(module: str, place: str) -> object:
    """Return what stands at ``Class.method`` itself, not what a base class has there."""
    *owner, name = place.split(".")
    found: object = sys.modules[module]
    for part in owner:
        found = getattr(found, part)
    return vars(found).get(name)


def _common() -> dict[str, object]:
    return {
        "finders": list(sys.meta_path),
        "SIGTERM": signal.getsignal(signal.SIGTERM),
        "running": session.current_session,
    }
