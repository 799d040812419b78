"""Stacks that other tools sampled → tables ``samples`` and ``stacks``.

Such tools say which stacks there were and for how long; they do not say what a thread did or waited for, nor how the
system knows it: the state is null, and threads without a number get one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import polars as pl

from stepscope.read.common.part_builder import LARGEST_TIME, PartBuilder, sound
from stepscope.trace.losses import LossLedger

#: File, line and function of a frame; None where it is unknown.
Frame: TypeAlias = tuple[str | None, int | None, str]


class SampledThread(NamedTuple):
    """A thread of a foreign profile: what it is called, and its numbers, where the profile says them."""

    name: str
    process: int | None = None
    thread: int | None = None
    main: bool = False


class ForeignSamples:
    """Gathers the samples of one capture."""

    def __init__(self) -> None:
        self._stacks: dict[Hashable, int] = {}
        self._frames: list[list[dict[str, object]]] = []
        self._rows: list[tuple[int, int, int, int, int, str, int | None]] = []
        self._threads: dict[SampledThread, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def stack(self, frames: Sequence[Frame]) -> int | None:
        """Return the number of a stack, innermost frame first; None for an empty one."""
        if not frames:
            return None
        number = self._stacks.setdefault(tuple(frames), len(self._frames))
        if number == len(self._frames):
            self._frames.append([{"file": file, "line": line, "function": name} for file, line, name in frames])
        return number

    def add(self, thread: SampledThread, rows: Iterable[tuple[int, int, int, int | None]]) -> None:
        """Add samples of a thread: start and time that it stands for (ns), looks, number of its stack."""
        process, number = self._threads.setdefault(thread, self._numbers(thread))
        self._rows += [(ts, dur, count, process, number, thread.name, stack) for ts, dur, count, stack in rows]

    def _numbers(self, thread: SampledThread) -> tuple[int, int]:
        process = thread.process or 0
        # The main thread has the number of its process.
        return process, process if thread.main else thread.thread or process + len(self._threads) + 1

    def add_to(self, part: PartBuilder, ledger: LossLedger) -> None:
        """Add the tables; rows whose times are impossible are counted."""
        names = ("ts", "dur", "count", "process", "thread", "name", "stack")
        kinds = dict.fromkeys(names, pl.Int64) | {"name": pl.Categorical()}
        possible = [row for row in self._rows if all(-LARGEST_TIME < number < LARGEST_TIME for number in row[:5])]
        ledger.add("event_bad_time", len(self._rows) - len(possible))
        frame = pl.DataFrame(possible, schema=kinds, orient="row")
        kept = sound(ledger, event_bad_time=frame["ts"] >= 0, event_negative_duration=frame["dur"] >= 0)
        part.add("samples", frame.filter(pl.Series(kept)).sort("ts", maintain_order=True))
        part.add_stacks(self._frames)
