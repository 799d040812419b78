"""What the compiler made of a program: its instructions with their place in the source, their operations and bytes."""

from __future__ import annotations

import polars as pl

from stepscope.read.xplane.hlo import hlo_costs, hlo_phases, hlo_program
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import conform

#: More operands than this are not written out: a tuple of all weights.
_MOST_OPERANDS = 32


def instructions(program: bytes, program_id: int, ledger: LossLedger) -> pl.DataFrame:
    """Return the table ``instructions`` of one program; ids begin at 0.

    Args:
        program: The program as the profiler keeps it (XLA's ``HloProto``).
        program_id: Its number in the process.
        ledger: Counts a damage; what stands before it is there.
    """
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


def _operands(program: hlo_program.Program, place: int) -> str:
    """Return the shapes of the operands as text."""
    places = program.operands[place]
    texts = [program.operand(place, number).text for number in range(min(len(places), _MOST_OPERANDS))]
    return ", ".join([*texts, f"… {len(places)} in all"] if len(places) > _MOST_OPERANDS else texts)
