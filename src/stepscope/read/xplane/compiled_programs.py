"""The compiled programs of a file: their instructions, and which of them an event runs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stepscope.read.common.dense import distinct_rows
from stepscope.read.common.nesting import Integers
from stepscope.read.xplane.batches import XplaneBatch
from stepscope.read.xplane.hlo import hlo_collectives, hlo_costs, hlo_phases, hlo_products, hlo_program
from stepscope.read.xplane.planes import Plane
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import conform, empty

_PROGRAM = "Hlo Proto"
#: Name of a program with its number: ``jit_step(30)``.
_NUMBERED = re.compile(r".*\((\d{1,19})\)$", re.DOTALL)
#: More operands than this are not written out; a tuple of all weights has thousands.
_MOST_OPERANDS = 32
#: Calls of JAX, whose names are those of functions; and transformations, around the name of a scope.
_CALL = re.compile(r"(?:jit|pjit|xla_call|xla_pmap|shard_map|core_call|custom_jvp|custom_vjp)\(.*\)")
_TRANSFORMED = re.compile(r"(?:jvp|transpose|vmap|pmap|remat|checkpoint|rematted_computation|linearize)\((.*)\)")
#: What JAX's control flow puts between scopes.
_INSIDE = re.compile(
    r"while|body|cond|scan|closed_call|branch_\d+_fun|checkpoint|remat\d?|rematted_computation|shard_map|pjit"
    r"|custom_[jv][jv]p_call\w*|core_call|xla_pmap"
)


@dataclass
class CompiledPrograms:
    """What is compiled.

    Attributes:
        ledger: Where losses are counted.
        instructions: Table ``instructions`` of each program; ids are unique among all.
        collectives: What each says of its communication.
    """

    ledger: LossLedger
    instructions: list[pl.DataFrame] = field(default_factory=list)
    collectives: list[pl.DataFrame] = field(default_factory=list)
    _first: int = 0

    def read(self, plane: Plane) -> None:
        """Read the programs that a plane holds."""
        for name, stats in zip(plane.event_names.to_list(), plane.event_stats, strict=True):
            program = stats.get(_PROGRAM)
            if isinstance(program, bytes):
                self._add(program, _number(name, stats.get("program_id")))

    def _add(self, program: bytes, number: int) -> None:
        table = instructions(program, number, self.ledger)
        first = self._first
        self.instructions.append(table.with_columns(pl.col("id") + first, pl.col("parent") + first))
        if table["opcode"].cast(pl.String).is_in(list(hlo_collectives.OPERATIONS)).any():
            collectives = hlo_collectives.collectives(program, number, LossLedger(self.ledger.source))
            self.collectives.append(collectives.with_columns(pl.col("instruction") + first))
        self._first += table.height

    def table(self) -> pl.DataFrame:
        """Return the table ``instructions``."""
        return pl.concat([empty("instructions"), *(conform("instructions", one) for one in self.instructions)])

    def communication(self) -> pl.DataFrame:
        """Return details of communication by ``instruction``."""
        return pl.concat([pl.DataFrame(schema=hlo_collectives.SCHEMA), *self.collectives])


def _number(name: str, said: object) -> int:
    """Return the number of a program: as a stat, or behind its name."""
    if isinstance(said, int):
        return said if said < 1 << 63 else said - (1 << 64)
    match = _NUMBERED.match(name)
    number = int(match[1]) if match else -1
    return number if number < 1 << 63 else -1


@dataclass
class RunInstructions:
    """Numbers the instructions that events name, by the program's number and the instruction's name."""

    names: dict[tuple[int | None, str | None, str], int] = field(default_factory=dict)

    def of(self, batch: XplaneBatch) -> Integers:
        """Return the number of the instruction that each event runs; −1 where it runs none."""
        stats = batch.of("hlo_op")
        result = np.full(len(batch), -1, np.int64)
        if not len(stats.owner):
            return result
        part = batch.where(batch.has("hlo_op"))
        name, program = part.texts("hlo_op"), part.integers("program_id")
        module = part.texts("hlo_module")
        codes = [column.rank("dense").fill_null(0).to_numpy().astype(np.int64) for column in (name, program, module)]
        first, number = distinct_rows(codes)
        rows = zip(*(column.gather(pl.Series(first)).to_list() for column in (program, module, name)), strict=True)
        numbers = [-1 if row[2] is None else self.names.setdefault(row, len(self.names)) for row in rows]
        result[np.flatnonzero(batch.has("hlo_op"))] = np.array(numbers, np.int64)[number]
        return result

    def table(self, programs: CompiledPrograms) -> pl.DataFrame:
        """Return by number: program's number, its name, the instruction's name, and what is known of it.

        For an event without the number of its program, the program's name decides, if only one program has it.
        """
        schema = {"program_id": pl.Int64, "program": pl.String, "name": pl.String}
        asked = pl.DataFrame(list(self.names), schema=schema, orient="row")
        known = programs.table().with_columns(pl.col("program", "name", "opcode", "scope").cast(pl.String))
        known = known.rename({"id": "instruction"}).unique(["program_id", "name"], keep="first", maintain_order=True)
        details = known.drop("program", "parent", "computation", "source")
        only = known.group_by("program").agg(pl.col("program_id").unique()).filter(pl.col("program_id").list.len() == 1)
        by_name = only.select("program", only_id=pl.col("program_id").list.first())
        asked = asked.join(by_name, on="program", how="left", maintain_order="left")
        asked = asked.with_columns(pl.coalesce("program_id", "only_id")).drop("only_id")
        found = asked.join(details, on=["program_id", "name"], how="left", maintain_order="left")
        return found.join(programs.communication(), on="instruction", how="left", maintain_order="left")


def instructions(program: bytes, program_id: int, ledger: LossLedger) -> pl.DataFrame:
    """Return the table ``instructions`` of an ``HloProto``, with ids from 0; of a damaged one, the part before."""
    parsed = hlo_program.parse(program, ledger)
    number = len(parsed)
    counted = hlo_costs.costs(parsed)
    frame = pl.DataFrame(
        {
            "id": pl.Series(range(number), dtype=pl.Int64),
            "name": pl.Series(parsed.names, dtype=pl.String),
            "opcode": pl.Series(parsed.opcodes, dtype=pl.String),
            "computation": pl.Series([parsed.computations[one] for one in parsed.computation], dtype=pl.String),
            "parent": pl.Series(parsed.parents, dtype=pl.Int64).replace(-1, None),
            "scope": pl.Series(parsed.scopes, dtype=pl.String),
            "phase": pl.Series(hlo_phases.phases(parsed), dtype=pl.String),
            "shape": pl.Series([shape.text for shape in parsed.shapes], dtype=pl.String),
            "operands": pl.Series([_operands(parsed, place) for place in range(number)], dtype=pl.String),
            "takes": pl.Series(_takes(parsed), dtype=pl.String),
            "flops": pl.Series([cost.flops for cost in counted], dtype=pl.Int64),
            "transcendentals": pl.Series([cost.transcendentals for cost in counted], dtype=pl.Int64),
            "bytes": pl.Series([cost.bytes for cost in counted], dtype=pl.Int64),
            "source": pl.Series(parsed.sources, dtype=pl.String),
        }
    )
    named = frame.with_columns(
        pl.lit(parsed.name, pl.String).alias("program"), pl.lit(program_id, pl.Int64).alias("program_id")
    )
    return conform("instructions", named)


def _operands(program: hlo_program.HloProgram, place: int) -> str:
    """Return the shapes of the operands as text."""
    places = program.operands[place]
    texts = [program.operand(place, number).text for number in range(min(len(places), _MOST_OPERANDS))]
    return ", ".join([*texts, f"… {len(places)} in all"] if len(places) > _MOST_OPERANDS else texts)


def _takes(program: hlo_program.HloProgram) -> list[str]:
    """Return the names of what each instruction takes."""
    taken = [list(places) for places in program.operands]
    inside = [
        place
        for place in program.places("parameter")
        if program.parents[place] >= 0 and program.opcodes[program.parents[place]] in ("fusion", "call")
    ]
    for place, number in zip(inside, hlo_products.parameter_numbers(program, inside), strict=True):
        taken[place] = program.operands[program.parents[place]][number : number + 1]
    return [", ".join(program.names[one] for one in places if one >= 0) for places in taken]


def module(scope: str) -> str | None:
    """Return the layers of a scope, outermost first; None without layers.

    ``jit(step)/transpose(jvp(loss))/layer2/dot_general`` is ``loss/layer2``: calls are left out, transformations taken
    off, and the last name is the primitive's.
    """
    layers = [_bare(part) for part in _split(scope)[:-1]]
    named = [layer for layer in layers if layer and not _INSIDE.fullmatch(layer)]
    return "/".join(named) or None


def _split(scope: str) -> list[str]:
    """Split at the slashes outside of parentheses."""
    parts, depth, start = [], 0, 0
    for place, character in enumerate(scope):
        depth += (character == "(") - (character == ")")
        if character == "/" and depth <= 0:
            parts.append(scope[start:place])
            start = place + 1
    return [*parts, scope[start:]]


def _bare(part: str) -> str:
    """Return a part of a scope without calls and transformations around it."""
    while match := _TRANSFORMED.fullmatch(part):
        part = match[1]
    return "" if _CALL.fullmatch(part) else part
