"""Communication between devices that a compiled program holds: who takes part, and how many bytes."""

from __future__ import annotations

import msgspec
import polars as pl

from stepscope.read.xplane.hlo import hlo_program
from stepscope.read.xplane.hlo.hlo_devices import device_groups
from stepscope.read.xplane.hlo.hlo_program import HloProgram
from stepscope.trace.losses import LossLedger

#: Opcode → the operation as the table ``collectives`` calls it. The ends of asynchronous ones are not among them.
OPERATIONS: dict[str, str] = {
    opcode + end: operation
    for opcode, operation in {
        "all-reduce": "allreduce",
        "all-gather": "allgather",
        "reduce-scatter": "reduce_scatter",
        "all-to-all": "alltoall",
        "ragged-all-to-all": "alltoall",
        "collective-permute": "permute",
        "collective-broadcast": "broadcast",
        "send": "send",
        "recv": "recv",
    }.items()
    for end in ("", "-start")
}
#: Columns of :func:`collectives`.
SCHEMA: dict[str, type[pl.DataType]] = {
    "instruction": pl.Int64,
    "operation": pl.String,
    "group_ranks": pl.String,
    "group_size": pl.Int64,
    "dtype": pl.String,
    "bytes_in": pl.Int64,
    "bytes_out": pl.Int64,
}
_LARGEST = (1 << 63) - 1


def collectives(program: bytes, program_id: int, ledger: LossLedger) -> pl.DataFrame:  # noqa: ARG001
    """Return the collective operations of a program (XLA's ``HloProto``).

    Returns:
        A row per operation: instruction (``instructions.id`` counted from 0 in the program), operation,
        group_ranks (JSON, the groups of devices: ``[[0,1],[2,3]]``; of a permutation its pairs of source and target),
        group_size (of the largest group), dtype, bytes_in and bytes_out of one device. Groups are null where all
        devices are one group.
    """
    parsed = hlo_program.parse(program, ledger)
    places = parsed.places(*OPERATIONS)
    rows = []
    for place, groups in zip(places, device_groups(parsed.of(places)), strict=True):
        devices = (msgspec.json.encode(groups).decode(), max(map(len, groups))) if groups else (None, None)
        rows.append((place, OPERATIONS[parsed.opcodes[place]], *devices, *_moved(parsed, place)))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _moved(program: HloProgram, place: int) -> tuple[str | None, int | None, int | None]:
    """Return type of the elements, bytes that a device puts in, and bytes that it gets."""
    given = [program.operand(place, number) for number in range(len(program.operands[place]))]
    if program.opcodes[place] == "ragged-all-to-all":
        given = given[:1]
    leaves = [leaf for shape in given for leaf in shape.leaves if leaf.dtype not in ("token", "?")]
    result = program.shapes[place]
    started = program.opcodes[place].endswith("-start") and result.dtype == "tuple" and len(result.parts) > 1
    if started and program.opcodes[place] != "all-reduce-start":
        result = result.parts[1]  # a started operation gives its operands, its result, and what it works with
    got = [leaf for leaf in result.leaves if leaf.dtype not in ("token", "?")]
    dtypes = {leaf.dtype for leaf in (*leaves, *got)}
    fitting = [
        total if total <= _LARGEST else None for total in (sum(leaf.bytes for leaf in side) for side in (leaves, got))
    ]
    return (dtypes.pop() if len(dtypes) == 1 else None, fitting[0], fitting[1])
