"""Forms of computing in a training's own calls that cost more than another form with the same result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from stepscope.advise.calls import sizes

#: Products of two tensors.
MULTIPLIES = ("aten::matmul", "aten::mm", "aten::bmm", "aten::mv")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Form:
    """What a program computes at a higher cost than it has to.

    Attributes:
        cause: Cause of the finding.
        calls: The outermost calls that another form saves, in whole or in part.
        part: Part of their time, and of their nodes of the backward, that it saves.
        title: What they do, in a clause.
        remedy: What to do instead.
        backward: Whether it saves the nodes of the backward, too.
    """

    cause: str
    calls: pl.DataFrame
    part: float
    title: str
    remedy: str
    backward: bool = True


@dataclass(frozen=True)
class Calls:
    """The outermost calls of the program's own on a thread in a step, in the order of time."""

    table: pl.DataFrame
    names: list[str]
    shapes: list[tuple[Shape, ...]]

    @classmethod
    def of(cls, table: pl.DataFrame) -> Calls:
        """Return the calls of a table with ``name`` and ``shapes``."""
        return cls(table, table["name"].to_list(), [sizes(text) for text in table["shapes"]])

    def places(self, *names: str) -> list[int]:
        """Return the places of the calls of these names."""
        return self.table["name"].is_in(names).arg_true().to_list()

    def behind(self, place: int, count: int) -> Iterator[int]:
        """Yield the places of so many calls behind one, or as many as there are."""
        yield from range(place + 1, min(place + 1 + count, len(self.names)))
