"""Pauses of Python's garbage collector: every collection as a span on the thread that it ran on."""

from __future__ import annotations

import gc
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.collect.journal.journal import Journal
    from stepscope.collect.protocol import Context

_NAMES = tuple(f"garbage collection, generation {generation}" for generation in range(3))


class GarbageCollector:
    """Listens to ``gc.callbacks`` while the window is open."""

    name = "garbage"

    def __init__(self) -> None:
        self._journal: Journal | None = None
        self._start_ns = 0
        self._collections = 0
        self._paused_ns = 0

    def available(self) -> str | None:
        """Return why collections cannot be recorded, or None."""
        return None if hasattr(gc, "callbacks") else "This Python has no gc.callbacks."

    def prepare(self, context: Context) -> None:
        """Keep the journal for the spans."""
        self._journal = context.journal

    def start(self) -> None:
        """Add the callback."""
        gc.callbacks.append(self._on_collection)

    def stop(self) -> list[Path]:
        """Remove the callback; all spans are in the journal."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)
        return []

    def describe(self) -> dict[str, object]:
        """Return the number of collections and their total time in ns."""
        return {"collections": self._collections, "paused_ns": self._paused_ns}

    def _on_collection(self, moment: str, info: dict[str, int]) -> None:
        # Runs inside any allocation of any thread, which may hold any lock: taking a lock here could deadlock, so it is
        # lock-free, and it allocates little.
        if moment == "start":
            self._start_ns = perf_counter_ns()
            return
        end_ns = perf_counter_ns()
        start_ns, self._start_ns = self._start_ns, 0
        if start_ns and self._journal is not None:  # else the collection began before the window
            self._collections += 1
            self._paused_ns += end_ns - start_ns
            self._journal.span(_NAMES[info["generation"]], "garbage", start_ns, end_ns, info)
