"""What the program has set in its framework when the window opens, as one fact a framework.

A fact that cannot be read is missing from it, never a guess; ``unread`` names what could not be read.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stepscope.collect.frameworks import is_installed

if TYPE_CHECKING:
    from stepscope.collect.journal.journal import Journal
    from stepscope.collect.protocol import Context


class ProgramState(ABC):
    """Base of the collectors of a framework's state; it keeps no reference to what it reads."""

    name: ClassVar[str]
    framework: ClassVar[str]

    def __init__(self) -> None:
        self._journal: Journal | None = None
        self._unread: list[str] = []
        self._facts = 0
        self._started = False

    def available(self) -> str | None:
        """Return why the state cannot be read: the program does not use the framework."""
        if self.framework in sys.modules:
            return None
        return f"{self.framework} is not {'imported' if is_installed(self.framework) else 'installed'}"

    def prepare(self, context: Context) -> None:
        """Keep the journal for the facts."""
        self._journal = context.journal

    def start(self) -> None:
        """Read the state, on the thread that trains."""
        self._started = True
        self._write("state", self.state())

    def stop(self) -> list[Path]:
        """Read what the steps have used since."""
        used = self.uses() if self._started else {}
        if used:
            self._write("used", used)
        return []

    def describe(self) -> dict[str, object]:
        """Return how many facts were read, and the names of those that could not be."""
        return {"facts": self._facts, **({"unread": self._unread} if self._unread else {})}

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the facts as plain values."""

    def uses(self) -> dict[str, Any]:
        """Return what the recorded steps have used, as plain values."""
        return {}

    def read(self, facts: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """Return the facts that can be read: versions of a framework differ, and parts of it may be missing."""
        found: dict[str, Any] = {}
        for key, fact in facts.items():
            try:
                found[key] = fact()
            except Exception:  # noqa: BLE001 - law 1: the fact is unknown, which `unread` says
                self._unread.append(key)
        return found

    def _write(self, what: str, facts: Mapping[str, Any]) -> None:
        self._facts += len(facts)
        unread = {"unread": list(self._unread)} if self._unread else {}
        if self._journal is not None:
            self._journal.metadata(f"{self.framework}.{what}", json.dumps({**facts, **unread}, default=_named))


def _named(value: object) -> str:
    """Return the type's name: the value or text of an object could wait for a device."""
    return f"<{type(value).__name__}>"


def flushes_denormals() -> bool:
    """Return whether the calling thread computes with denormal numbers as if they were zero."""
    smallest = sys.float_info.min
    return smallest * 0.5 == 0.0
