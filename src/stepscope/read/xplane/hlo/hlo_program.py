"""A compiled program out of its serialised form (XLA's ``HloProto``): computations, instructions, where they come from.

Field numbers are those of OpenXLA's ``xla/service/hlo.proto`` and ``xla/xla_data.proto``. A damaged program gives what
stands before the damage.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from stepscope.read.common.nesting import Integers
from stepscope.read.common.protobuf import Fields, Messages
from stepscope.read.xplane.hlo import hlo_shapes
from stepscope.read.xplane.hlo.hlo_shapes import Shape, T, grouped, numbers
from stepscope.trace.losses import LossLedger

_TRIPS = re.compile(r'"known_trip_count"\s*:\s*\{\s*"n"\s*:\s*"?(\d{1,18})')


@dataclass(frozen=True, eq=False)
class HloProgram:
    """The instructions of a program, a list entry each, in the order of the file: callees before their callers.

    Attributes:
        name: Name of the program: ``jit_step``.
        fields: The fields of the instructions as they lie in the file.
        names: Name of each instruction.
        opcodes: What each does.
        shapes: Type and shape of each result.
        operands: Positions of the instructions that each takes as operands; −1 for a missing one.
        called: Numbers of the computations that each calls; −1 for a missing one.
        computation: Number of the computation that each stands in.
        computations: Names of the computations.
        members: Positions of the instructions of each computation.
        roots: Position of the instruction that each computation returns; −1 for a missing one.
    """

    name: str
    fields: Fields
    names: list[str]
    opcodes: list[str]
    shapes: list[Shape]
    operands: list[list[int]]
    called: list[list[int]]
    computation: list[int]
    computations: list[str]
    members: list[list[int]]
    roots: list[int]
    ledger: LossLedger
    frames: Messages | None

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def parents(self) -> list[int]:
        """Place of the first instruction that calls the computation each stands in; −1 at the top."""
        callers = [-1] * len(self.computations)
        for place, called in enumerate(self.called):
            for computation in called:
                if computation >= 0 and callers[computation] < 0 and computation != self.computation[place]:
                    callers[computation] = place
        return [callers[computation] for computation in self.computation]

    @cached_property
    def scopes(self) -> list[str | None]:
        """Place of each in the source program (``OpMetadata.op_name``); None where the compiler does not say.

        A fusion or call without one of its own has that of what it gives, or of what comes before.
        """
        owners, metadata = self.fields.within(7)
        texts = metadata.fields().texts(2, self.ledger).to_list()
        return self._of_root_else(_placed(owners, texts, len(self)))

    @cached_property
    def sources(self) -> list[str | None]:
        """File and line that each comes from; None where the compiler does not say."""
        owners, metadata = self.fields.within(7)
        fields = metadata.fields()
        files, lines = fields.texts(3, self.ledger).to_list(), fields.integers(4).to_list()
        frames = self._stack_frames()
        found: list[str | None] = []
        for file, line, frame in zip(files, lines, fields.integers(15).fill_null(0).to_list(), strict=True):
            if file:
                found.append(f"{file}:{line}" if line else file)
            else:
                found.append(frames[frame - 1] if 0 < frame <= len(frames) else None)
        return self._of_root_else(_placed(owners, found, len(self)))

    def _of_root_else(self, texts: list[str | None]) -> list[str | None]:
        """Give fusions and calls that lack a text that of what they give."""
        for place, opcode in enumerate(self.opcodes):
            if not texts[place] and opcode in ("fusion", "call"):
                texts[place] = next((texts[made] for made in self._results(place) if texts[made]), None)
        return [text or None for text in texts]

    def _results(self, place: int) -> list[int]:
        """Return the places of what a fusion or call contains, from what it gives to what it takes."""
        called = [number for number in self.called[place][:1] if number >= 0]
        inside = [member for number in called for member in reversed(self.members[number])]
        root = self.root_of(place)
        several = self.operands[root] if root >= 0 and self.opcodes[root] == "tuple" else []
        return [made for made in (root, *several, *inside) if made >= 0 and self.opcodes[made] != "parameter"]

    def root_of(self, place: int) -> int:
        """Return the position of the root of the computation that an instruction calls; −1 without one."""
        called = self.called[place]
        return self.roots[called[0]] if called and called[0] >= 0 else -1

    def operand(self, place: int, number: int) -> Shape:
        """Return the shape of an operand; of one that is not there, what is unknown."""
        operands = self.operands[place]
        found = operands[number] if -len(operands) <= number < len(operands) else -1
        return self.shapes[found] if found >= 0 else hlo_shapes.UNKNOWN

    def of(self, places: Sequence[int]) -> Fields:
        """Return the fields of some instructions."""
        whole = self.fields.messages
        chosen = np.array(places, np.int64)
        return Messages(whole.content, whole.start[chosen], whole.end[chosen]).fields()

    def places(self, *opcodes: str) -> list[int]:
        """Return the places of the instructions with one of these opcodes."""
        return [place for place, opcode in enumerate(self.opcodes) if opcode in opcodes]

    @cached_property
    def trips(self) -> dict[int, int]:
        """How often each loop runs, where the compiler knows."""
        places = self.places("while")
        if not places:
            return {}
        configs = self.of(places).texts(43, self.ledger).to_list()
        found = {place: _TRIPS.search(config or "") for place, config in zip(places, configs, strict=True)}
        return {place: int(match[1]) for place, match in found.items() if match}

    def _stack_frames(self) -> list[str | None]:
        """Return file and line of each stack frame, innermost first in their chain: the one that made the operation."""
        if self.frames is None:
            return []
        fields = self.frames.fields()
        _, files = fields.every_text(1, self.ledger)
        locations = fields.within(3)[1].fields()
        named = zip(
            locations.integers(1).fill_null(0).to_list(), locations.integers(3).fill_null(0).to_list(), strict=True
        )
        lines = [f"{files[file - 1]}:{line}" if 0 < file <= len(files) else None for file, line in named]
        frames = fields.within(4)[1].fields().integers(1).fill_null(0).to_list()
        return [lines[location - 1] if 0 < location <= len(lines) else None for location in frames]


def parse(program: bytes, ledger: LossLedger) -> HloProgram:
    """Read a serialised program.

    What is damaged is left out and counted.
    """
    whole = Messages.whole(program).fields()
    module = whole.within(1, cut=True)[1].fields()
    _, computations = module.within(3, cut=True)
    of_computation = computations.fields()
    computation, instructions = of_computation.within(2, cut=True)
    fields = instructions.fields()
    damaged = sum(int(level.broken.sum()) for level in (whole, module, of_computation, fields))
    ledger.add("program_damaged", int(damaged > 0 or not len(module.messages)))
    places = _by_number(fields.integers(35))
    frames = module.within(17)[1]
    kinds = of_computation.integers(5)
    return HloProgram(
        name=next((name for name in module.texts(1, ledger).to_list() if name), ""),
        fields=fields,
        names=fields.texts(1, ledger).fill_null("").to_list(),
        opcodes=fields.texts(2, ledger).fill_null("").to_list(),
        shapes=_shapes(fields),
        operands=_found(numbers(fields, 36), places),
        called=_found(numbers(fields, 38), _by_number(kinds)),
        computation=computation.tolist(),
        computations=of_computation.texts(1, ledger).fill_null("").to_list(),
        members=grouped(computation, range(len(computation)), len(computations)),
        roots=[places.get(number, -1) for number in of_computation.integers(6).fill_null(0).to_list()],
        ledger=ledger,
        frames=frames if len(frames) else None,
    )


def _by_number(numbers_of_rows: pl.Series) -> dict[int, int]:
    """Return the place of each number; the format leaves out a number that is 0."""
    return {number: place for place, number in enumerate(numbers_of_rows.fill_null(0).to_list())}


def _found(lists: list[list[int]], places: dict[int, int]) -> list[list[int]]:
    return [[places.get(number, -1) for number in row] for row in lists]


def _shapes(fields: Fields) -> list[Shape]:
    owners, messages = fields.within(3)
    found = _placed(owners, hlo_shapes.read(messages), len(fields.messages))
    return [shape or hlo_shapes.UNKNOWN for shape in found]


def _placed(owners: Integers, values: Sequence[T | None], number: int) -> list[T | None]:
    """Return the last value of each owner; None where it has none."""
    result: list[T | None] = [None] * number
    for owner, value in zip(owners.tolist(), values, strict=True):
        result[owner] = value
    return result
