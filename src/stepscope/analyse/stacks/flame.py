"""The flame graph of sampled Python stacks, as a tree of rows. Definition: ``docs/definitions.md``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import polars as pl

from stepscope.analyse.stacks.sampled_time import STATES, sampled_time
from stepscope.trace.tables import Tables

#: File, line and function.
_Place = tuple[str | None, int | None, str]

_SCHEMA: dict[str, type[pl.DataType]] = {
    "Node": pl.Int64, "Parent": pl.Int64, "Depth": pl.Int64, "Thread": pl.String, "Function": pl.String,
    "File": pl.String, "Line": pl.Int64, "Own": pl.Boolean, "Samples": pl.Int64, "Self(us)": pl.Float64,
    "Total(us)": pl.Float64, "Total per Step(us)": pl.Float64, **dict.fromkeys(STATES, pl.Float64),
}  # fmt: skip


@dataclass
class _FlameNode:
    """A frame below the frames that called it."""

    place: _Place
    own: bool
    count: int = 0
    time: int = 0
    total: int = 0
    inside: int = 0
    states: dict[str | None, int] = field(default_factory=dict)
    inner: dict[_Place, _FlameNode] = field(default_factory=dict)


def flame(tables: Tables) -> pl.DataFrame:
    """Return one row per frame and the frames that called it: parents first, children by falling total time."""
    sampled = sampled_time(tables)
    frames = sampled.frames.sort("stack", "place", descending=[False, True])
    columns = [pl.col(name) for name in ("file", "line", "function", "own")]
    listed = frames.group_by("stack", maintain_order=True).agg(*columns)
    stacks = {stack: list(zip(*of_frames, strict=True)) for stack, *of_frames in listed.iter_rows()}
    roots: dict[tuple[int, str], _FlameNode] = {}
    for order, thread, stack, _, state, count, time, inside, _ in sampled.rows.iter_rows():
        node = roots.setdefault((order, thread), _FlameNode((None, None, thread), own=False))
        path = [node]
        for file, line, function, own in stacks.get(stack, ()):
            place = (file, line, function)
            node = node.inner.setdefault(place, _FlameNode(place, own))
            path.append(node)
        node.count += count
        node.time += time
        node.states[state] = node.states.get(state, 0) + time
        for outer in path:
            outer.total += time
            outer.inside += inside
    rows: list[tuple[object, ...]] = []
    for (_, thread), root in sorted(roots.items(), key=lambda item: (item[0][0], -item[1].total, item[0][1])):
        rows.extend(_rows(root, thread, len(rows), sampled.steps))
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def _rows(root: _FlameNode, thread: str, first: int, steps: int) -> Iterator[tuple[object, ...]]:
    """Yield the rows of a tree, numbered from ``first`` on."""
    waiting: list[tuple[_FlameNode, int | None, int]] = [(root, None, 0)]
    number = first
    while waiting:
        node, parent, depth = waiting.pop()
        file, line, function = node.place
        yield (
            number, parent, depth, thread, function, file, line, node.own, node.count, round(node.time / 1000, 3),
            round(node.total / 1000, 3), round(node.inside / 1000 / steps, 3) if steps else None,
            *(None if None in node.states else round(node.states.get(state, 0) / 1000, 3) for state in STATES.values()),
        )  # fmt: skip
        inner = sorted(node.inner.values(), key=lambda found: (found.total, str(found.place)))
        waiting += [(found, number, depth + 1) for found in inner]
        number += 1
