"""What every format of stacks is made of: which stack each thread and stream had, when, and for how long.

Threads have the Python stacks that were sampled; without samples, the operators and ranges that contain each other.
Streams have their kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import polars as pl

from stepscope.analyse.stacks.sampled_time import sampled_time
from stepscope.report.protocol import Source
from stepscope.trace.tables import Tables, columns_of, has_rows

#: File, line and function; file and line are None where they are unknown.
Place: TypeAlias = tuple[str | None, int | None, str]


class StackLabels(NamedTuple):
    """What a stack belongs to; None where it is unknown."""

    step: int | None = None
    phase: str | None = None
    module: str | None = None


class StackTime(NamedTuple):
    """A thread had this stack from ``ts`` on for ``dur`` (ns); ``node`` is that of the tree, None for no frame."""

    ts: int
    dur: int
    looks: int
    node: int | None
    labels: StackLabels


@dataclass
class StackThread:
    """A thread or stream, and its rows by time."""

    name: str
    process: int
    number: int
    main: bool
    rows: list[StackTime] = field(default_factory=list)


class StackTree:
    """Every stack as a node: the one of its caller, and its innermost frame. Callers come before what they call."""

    def __init__(self) -> None:
        self.frames: list[Place] = []
        self.nodes: list[tuple[int | None, int]] = []
        self._frames: dict[Place, int] = {}
        self._nodes: dict[tuple[int | None, int], int] = {}

    def below(self, caller: int | None, place: Place) -> int:
        """Return the node of a frame that a node, or None, called."""
        frame = self._frames.setdefault(place, len(self.frames))
        if frame == len(self.frames):
            self.frames.append(place)
        node = self._nodes.setdefault((caller, frame), len(self.nodes))
        if node == len(self.nodes):
            self.nodes.append((caller, frame))
        return node

    def path(self, node: int | None) -> list[int]:
        """Return the frames of a node, innermost first."""
        path = []
        while node is not None:
            node, frame = self.nodes[node]
            path.append(frame)
        return path


@dataclass
class WeightedStacks:
    """The stacks of a rank."""

    tree: StackTree
    threads: list[StackThread]

    @cached_property
    def begin(self) -> int:
        """Time of the first row, ns; 0 without rows."""
        return min((row.ts for thread in self.threads for row in thread.rows), default=0)

    @cached_property
    def end(self) -> int:
        """End of the last row, ns; 0 without rows."""
        return max((row.ts + row.dur for thread in self.threads for row in thread.rows), default=0)


def weighted_stacks(source: Source) -> WeightedStacks:
    """Return the stacks of a rank, its threads before its streams; those without rows are left out."""
    tree = StackTree()
    sampled = has_rows(source.tables, "samples")
    threads = _sampled(source.tables, tree) if sampled else []
    threads += _of_spans(source.tables, tree, ("stream",) if sampled else ("thread", "stream"))
    return WeightedStacks(tree, [thread for thread in threads if thread.rows])


def _sampled(tables: Tables, tree: StackTree) -> list[StackThread]:
    nodes = {}
    for number, frames in tables["stacks"].select("id", "frames").collect().iter_rows():
        node = None
        for frame in reversed(frames):
            node = tree.below(node, (frame["file"], frame["line"], frame["function"]))
        nodes[number] = node
    phases = dict(sampled_time(tables).rows.select("stack", "phase").drop_nulls().iter_rows())
    samples = columns_of(tables, "samples", "ts", "dur", "count", "process", "thread", "name", "stack").sort("ts")
    threads: dict[tuple[int, int], StackThread] = {}
    for (ts, dur, count, process, number, name, stack), step in zip(
        samples.iter_rows(), _steps_at(tables, samples["ts"]), strict=True
    ):
        thread = threads.setdefault((process, number), StackThread(name, process, number, process == number))
        thread.rows.append(StackTime(ts, dur, count, nodes.get(stack), StackLabels(step, phases.get(stack))))
    return sorted(threads.values(), key=lambda thread: (thread.process, not thread.main, thread.number))


def _steps_at(tables: Tables, times: pl.Series) -> list[int | None]:
    """Return the step of the run in which each time lies."""
    known = "run_steps" if has_rows(tables, "run_steps") else "steps"
    steps = columns_of(tables, known, "number", "ts", "dur").drop_nulls().sort("ts")
    if steps.is_empty():
        return [None] * len(times)
    at = np.searchsorted(steps["ts"].to_numpy(), times.to_numpy(), side="right") - 1
    inside = (at >= 0) & (times.to_numpy() < (steps["ts"] + steps["dur"]).to_numpy()[np.maximum(at, 0)])
    numbers = steps["number"].to_numpy()[np.maximum(at, 0)]
    return [int(number) if held else None for number, held in zip(numbers, inside, strict=True)]


def _of_spans(tables: Tables, tree: StackTree, kinds: tuple[str, ...]) -> list[StackThread]:
    tracks = columns_of(tables, "tracks", "id", "kind", "device", "process", "thread", "stream", "name", "order")
    tracks = tracks.filter(pl.col("kind").cast(pl.String).is_in(kinds)).sort("order")
    modules = tables["operators"].select(pl.col("span").alias("id"), pl.col("module").cast(pl.String))
    spans = (
        tables["spans"]
        .filter(pl.col("kind").cast(pl.String) != "step")
        .join(tracks.lazy().select(track="id"), on="track", how="semi")
        .join(modules, on="id", how="left")
        .select("track", "ts", "dur", pl.col("name").cast(pl.String), "step", pl.col("phase").cast(pl.String), "module")
        .sort("track", "ts", "dur", descending=[False, False, True], maintain_order=True)
        .collect()
    )
    of_track = {track: frame for (track,), frame in spans.group_by("track", maintain_order=True)}
    threads = []
    for place, (track, kind, device, process, thread, _, name, _) in enumerate(tracks.iter_rows(), 1):
        if track in of_track:
            shown = name if kind == "thread" else f"{device} {name}"
            number = thread if kind == "thread" and thread is not None else 1_000_000_000 + place
            rows = list(_self_times(of_track[track], tree))
            threads.append(StackThread(shown, process or 0, number, process == thread and process is not None, rows))
    return threads


class _Open(NamedTuple):
    """A span that has begun and not ended: its node, its end, and what it belongs to."""

    node: int
    end: int
    labels: StackLabels


def _self_times(spans: pl.DataFrame, tree: StackTree) -> Iterator[StackTime]:
    """Yield the times in which a span of a track is the innermost one; a span that crosses another is cut there."""
    stack: list[_Open] = []
    now = 0
    for _, ts, dur, name, step, phase, module in spans.iter_rows():
        while stack and stack[-1].end <= ts:
            yield from _until(now, stack[-1].end, stack[-1])
            now = max(now, stack.pop().end)
        if stack:
            yield from _until(now, ts, stack[-1])
        around = stack[-1] if stack else None
        known = around.labels if around else StackLabels()
        labels = StackLabels(step if step is not None else known.step, phase or known.phase, module or known.module)
        end = min(ts + dur, around.end) if around else ts + dur
        stack.append(_Open(tree.below(around.node if around else None, (None, None, name)), end, labels))
        now = max(now, ts)
    while stack:
        yield from _until(now, stack[-1].end, stack[-1])
        now = max(now, stack.pop().end)


def _until(begin: int, end: int, span: _Open) -> Iterator[StackTime]:
    if end > begin:
        yield StackTime(begin, end - begin, 1, span.node, span.labels)
