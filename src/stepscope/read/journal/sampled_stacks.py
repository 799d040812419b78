"""The samples of Python stacks in the blocks of ``steps.ssj`` → the tables ``samples`` and ``stacks``.

``collect/host/stack_samples.py`` writes them; ``native/sampler.c`` describes the rows, ``native/sampler_stacks.c`` the
stacks. Stacks and names are written once, with the number of the first one in each block: a damaged block costs the
stacks that it held, which are then unknown, and no others.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.common.part_builder import PartBuilder, as_json
from stepscope.trace.blocks import unpack
from stepscope.trace.clock import Clock
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import LIBRARIES, SAMPLE_STATES, STACK_SAMPLES
from stepscope.trace.tables import FRAME, dtype

#: Times beyond this are damage.
_MOST = 1 << 61
#: Numbers of stacks and names beyond this are damage: the sampler has fewer.
_MOST_STACKS = 1 << 20
#: The most frames of a stack that is followed outwards.
_DEEPEST = 1_000
_UNREAD = (1 << 32) - 1
_Number = Annotated[int, msgspec.Meta(ge=0, le=_MOST_STACKS)]
_Int = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]

Integers: TypeAlias = npt.NDArray[np.int64]


class SamplesBlock(msgspec.Struct):
    """What a block of ``steps.ssj`` holds of samples."""

    rows: str = ""
    stacks: tuple[_Number, str] = (0, "")
    names: tuple[_Number, list[str]] = (0, [])
    threads: list[tuple[_Int, str]] = []
    processes: list[tuple[_Int, _Int, str]] = []
    libraries: list[str] = []
    figures: dict[str, _Int] = {}
    hz: float = 0.0
    every: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1


class DecodedSamples(msgspec.Struct):
    """The same, with the rows and stacks as numbers."""

    block: SamplesBlock
    rows: Any
    stacks: Any


def decoded(block: SamplesBlock) -> DecodedSamples:
    """Return a block with its numbers.

    Raises:
        ValueError: The block is damaged.
    """
    rows, stacks = _varints(block.rows, 7), _varints(block.stacks[1], 3)
    rows[:, 0] = (rows[:, 0] >> 1) ^ -(rows[:, 0] & 1)  # zigzag
    rows[:, 0] = np.cumsum(rows[:, 0])
    number = block.stacks[0] + 1 + np.arange(len(stacks))
    # An outer stack is older than what it contains, so nothing contains itself.
    sound = (stacks[:, 0] < number).all() and (np.abs(rows[:, 0]) < _MOST // 1_000).all()
    if not sound or not (rows[:, 3] < len(SAMPLE_STATES)).all() or len(block.names[1]) % 2:
        message = "Samples of an impossible kind, time or stack."
        raise ValueError(message)
    return DecodedSamples(block, rows, stacks)


def _varints(text: str, width: int) -> Integers:
    """Return rows of so many numbers, of seven bits a byte, the last byte of each below 128."""
    content = np.frombuffer(unpack(base64.b64decode(text, validate=True)) if text else b"", np.uint8)
    ends = np.flatnonzero(content < 128)
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    length = ends - starts + 1
    if len(ends) % width or (len(content) and content[-1] >= 128) or (length > 9).any():
        message = "The numbers of samples are damaged."
        raise ValueError(message)
    if not len(ends):
        return np.empty((0, width), np.int64)
    place = np.arange(len(content)) - np.repeat(starts, length)
    values = np.add.reduceat((content & 127).astype(np.int64) << (7 * place), starts)
    return values.reshape(-1, width)


@dataclass
class SampledStacks:
    """What the blocks of a file hold together."""

    _rows: list[Integers] = field(default_factory=list)
    _periods: list[Integers] = field(default_factory=list)
    _stacks: list[tuple[int, Integers]] = field(default_factory=list)
    _names: dict[int, tuple[str, str]] = field(default_factory=dict)
    _threads: dict[int, str] = field(default_factory=dict)
    _processes: dict[int, tuple[int, str]] = field(default_factory=dict)
    _libraries: list[str] = field(default_factory=list)
    _figures: Mapping[str, int] = field(default_factory=dict)
    _hz: float = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._rows))

    def add(self, found: DecodedSamples) -> None:
        """Add what a block holds."""
        block, before = found.block, self._figures
        ticks, covered = (block.figures.get(name, 0) - before.get(name, 0) for name in ("ticks", "covered"))
        period = covered / ticks if ticks > 0 and covered > 0 else 1e9 / max(block.hz, 0.001)
        of_worker = np.where(found.rows[:, 1] > 0, block.every, 1)
        self._rows.append(found.rows)
        self._periods.append((of_worker * period).astype(np.int64))
        self._stacks.append((block.stacks[0], found.stacks))
        first, names = block.names
        self._names.update(enumerate(zip(names[::2], names[1::2], strict=True), first + 1))
        self._threads.update(block.threads)
        self._processes.update({serial: (pid, name) for serial, pid, name in block.processes})
        self._libraries = block.libraries or self._libraries
        self._figures, self._hz = block.figures or before, block.hz

    def add_tables(self, part: PartBuilder, process: int | None, clock: Clock, ledger: LossLedger) -> None:
        """Add the tables and facts of all samples, and what was lost."""
        if not len(self):
            return
        time, serial, thread, state, count, stack, cpu = np.concatenate(self._rows).T
        stacks, number_of = self._stack_table(stack)
        processes, names = self._names_of(serial, thread, process or 0)
        frame = pl.DataFrame(
            {
                "ts": pl.Series(clock.epochs((time * 1_000).tolist()), dtype=pl.Int64),
                "dur": count * np.concatenate(self._periods),
                "count": count,
                "process": processes,
                "thread": thread,
                "name": names,
                "worker": pl.Series(serial).set(pl.Series(serial == 0), None),
                "state": pl.Series(list(SAMPLE_STATES), dtype=dtype("enum:sample_state"))[pl.Series(state)],
                "stack": number_of,
                "cpu": pl.Series(cpu * 1_000).set(pl.Series(_first_of_each(serial, thread)), None),
            }
        )
        part.add("samples", frame.sort("ts", maintain_order=True))
        part.add("stacks", stacks)
        figures = {name: value for name, value in self._figures.items() if name not in ("waiting", "covered")}
        part.add_facts(as_json({STACK_SAMPLES: {"hz": self._hz, **figures}, LIBRARIES: self._libraries}))
        for loss, name in _LOSSES.items():
            ledger.add(loss, self._figures.get(name, 0))

    def _names_of(self, serial: Integers, thread: Integers, process: int) -> tuple[Integers, pl.Series]:
        """Return the process of each row, and the name of its thread."""
        which, row = np.unique(np.stack([serial, thread]), axis=1, return_inverse=True)
        processes, names = [], []
        for number, tid in which.T.tolist():
            pid, worker = self._processes.get(number, (tid, f"worker {tid}")) if number else (process, "")
            processes.append(pid)
            names.append(worker or self._threads.get(tid, f"thread {tid}"))
        row = row.reshape(-1)
        return np.array(processes, np.int64)[row], pl.Series(names, dtype=pl.Categorical())[row]

    def _stack_table(self, of_row: Integers) -> tuple[pl.DataFrame, pl.Series]:
        """Return the table of the stacks that rows have, and the number of each row's; null where it is not known."""
        size = 1 + max((first + len(stacks) for first, stacks in self._stacks), default=0)
        parent, name, line = np.full(size, -1, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64)
        for first, stacks in self._stacks:
            parent[first + 1 : first + 1 + len(stacks)], name[first + 1 : first + 1 + len(stacks)] = stacks.T[:2]
            line[first + 1 : first + 1 + len(stacks)] = stacks.T[2]
        leaves, row = np.unique(np.where((of_row < size) & (of_row != _UNREAD), of_row, 0), return_inverse=True)
        levels, place, whole = [], leaves, parent[leaves] >= 0
        for level in range(_DEEPEST):
            at = np.flatnonzero(whole & (place > 0))
            if not len(at):
                break
            levels.append(np.stack([at, np.full(len(at), level), name[place[at]], line[place[at]]]))
            place = np.where(whole & (place > 0), parent[place], place)
        whole &= place == 0  # all of its outer stacks are known
        chain = np.concatenate(levels, axis=1) if levels else np.empty((4, 0), np.int64)
        chain = chain[:, whole[chain[0]]]
        frames = self._frames(chain[:, np.lexsort((chain[1], chain[0]))])
        known = pl.Series(np.where(whole, np.arange(len(leaves)), -1)[row.reshape(-1)])
        return frames, known.set(known < 0, None)

    def _frames(self, chain: Integers) -> pl.DataFrame:
        """Return the table ``stacks`` of frames given by stack, place in it, name and line."""
        used, which = np.unique(chain[2], return_inverse=True)
        texts = [self._names.get(number, ("", "?")) for number in used.tolist()]
        files, functions = (pl.Series([pair[column] for pair in texts], dtype=pl.String) for column in (0, 1))
        which = which.reshape(-1)
        frame = pl.DataFrame({"id": chain[0], "file": files[which], "line": chain[3], "function": functions[which]})
        known = frame.with_columns(line=pl.when(pl.col("line") > 0).then("line"))
        return known.group_by("id", maintain_order=True).agg(frames=pl.struct("file", "line", "function").cast(FRAME))


#: Loss → the figure that counts it.
_LOSSES = {"samples_lost": "lost", "stacks_cut": "cut", "samples_stopped": "stopped", "workers_not_sampled": "refused"}


def _first_of_each(serial: Integers, thread: Integers) -> npt.NDArray[np.bool_]:
    """Return which row is the first of its thread: nothing is known of the CPU time before."""
    first = np.zeros(len(serial), np.bool_)
    first[np.unique(np.stack([serial, thread]), axis=1, return_index=True)[1]] = True
    return first
