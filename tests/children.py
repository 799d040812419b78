"""The processes that a process started."""

from __future__ import annotations

from contextlib import suppress

import psutil


def children_with(word: str, process: psutil.Process | None = None) -> list[psutil.Process]:
    """Return the children of a process, by default this one, that have a word in their command and still run."""
    found = []
    for child in (process or psutil.Process()).children():
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if word in child.cmdline():
                found.append(child)
    return found
