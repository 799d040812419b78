"""Definitions of one chunk → places in a pool of the whole file."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class Pool:
    """Distinct contents of definitions; the first stands for what was not defined, or whose definition is lost."""

    def __init__(self) -> None:
        self.contents: list[bytes] = [b""]
        self._places: dict[bytes, int] = {}

    def place(self, content: bytes) -> int:
        """Return the place of a content, a new one where it has none yet."""
        place = self._places.setdefault(content, len(self.contents))
        if place == len(self.contents):
            self.contents.append(content)
        return place


class Definitions:
    """The definitions of one sort in one chunk.

    Args:
        pool: Where their contents are kept.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._places: dict[int, int] = {}

    def add(self, number: int, content: bytes) -> None:
        """Take one definition."""
        self._places[number] = self._pool.place(content)

    def places(self, numbers: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Return the place in the pool of each number, 0 where it is not defined.

        The table has an entry per number up to the largest, of which pages that no number falls into take no memory.
        """
        if not self._places:
            return np.zeros(len(numbers), np.int32)
        table = np.zeros(max(self._places) + 2, np.int32)
        table[list(self._places)] = list(self._places.values())
        table[0] = 0
        return np.take(table, numbers.view(np.int64) if numbers.itemsize == 8 else numbers, mode="clip")
