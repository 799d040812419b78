"""Communication between devices that a compiled program holds: who takes part, and how many bytes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import polars as pl

from stepscope.read.protobuf import Fields
from stepscope.read.xplane import hlo_program
from stepscope.read.xplane.hlo_program import Program
from stepscope.read.xplane.hlo_shapes import grouped, numbers
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
_SCHEMA = {
    "instruction": pl.Int64,
    "operation": pl.String,
    "group_ranks": pl.String,
    "group_size": pl.Int64,
    "dtype": pl.String,
    "bytes_in": pl.Int64,
    "bytes_out": pl.Int64,
}
#: More devices than this are no job's.
_MOST_DEVICES = 1 << 20
_LARGEST = (1 << 63) - 1


def collectives(program: bytes, program_id: int, ledger: LossLedger) -> pl.DataFrame:  # noqa: ARG001
    """Return the collective operations of a program.

    Args:
        program: The program as the profiler keeps it (XLA's ``HloProto``).
        program_id: Its number in the process.
        ledger: Counts a damage.

    Returns:
        A row per operation: instruction (``instructions.id`` as :func:`stepscope.read.xplane.hlo.instructions` numbers
        it), operation, group_ranks (JSON, the groups of devices: ``[[0,1],[2,3]]``; of a permutation its pairs of
        source and target), group_size (of the largest group), dtype, bytes_in and bytes_out of one device. Groups are
        null where all devices are one group.
    """
    parsed = hlo_program.parse(program, ledger)
    places = _made(parsed)
    fields = parsed.of(places)
    groups = _groups(fields)
    rows = [
        (place, OPERATIONS[parsed.opcodes[place]], _json(one), _size(one), *_moved(parsed, place))
        for place, one in zip(places, groups, strict=True)
    ]
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def _made(program: Program) -> list[int]:
    """Return the places of the operations."""
    return program.places(*OPERATIONS)


def _moved(program: Program, place: int) -> tuple[str | None, int | None, int | None]:
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


def _groups(fields: Fields) -> list[list[list[int]]]:
    """Return the groups of devices of each operation; of a permutation its pairs; empty where it does not say."""
    number = len(fields.messages)
    owners, lists = fields.within(87)
    of = lists.fields()
    result: list[list[list[int]]] = [[] for _ in range(number)]
    for found_in, found in ((None, _listed(fields, 49)), (owners, _listed(of, 1)), (owners, _iota(of))):
        places = range(number) if found_in is None else found_in.tolist()
        for place, groups in zip(places, found, strict=True):
            result[place] = result[place] or groups
    pairs = _pairs(fields)
    return [groups or pair for groups, pair in zip(result, pairs, strict=True)]


def _listed(fields: Fields, number: int) -> list[list[list[int]]]:
    """Return groups that are written out."""
    owners, groups = fields.within(number)
    return grouped(owners, numbers(groups.fields(), 1), len(fields.messages))


def _iota(fields: Fields) -> list[list[list[int]]]:
    """Return groups that are written as devices counted from 0, in a shape whose dimensions are exchanged."""
    owners, messages = fields.within(2)
    of = messages.fields()
    sizes = zip(of.integers(1).fill_null(0), of.integers(2).fill_null(0), strict=True)
    found = [
        _counted(*size, dims, order) for size, dims, order in zip(sizes, numbers(of, 3), numbers(of, 4), strict=True)
    ]
    lists = grouped(owners, found, len(fields.messages))
    return [one[-1] if one else [] for one in lists]


def _counted(groups: int, size: int, dims: Sequence[int], order: Sequence[int]) -> list[list[int]]:
    total = groups * size
    if not 0 < total <= _MOST_DEVICES or groups < 1 or not 0 < len(dims) < 32 or min(dims) < 1:
        return []
    product = 1
    for one in dims:
        product *= one
    if product != total or sorted(order) != list(range(len(dims))):
        return []
    devices = np.arange(total).reshape(dims).transpose(order).reshape(groups, size)
    result: list[list[int]] = devices.tolist()
    return result


def _pairs(fields: Fields) -> list[list[list[int]]]:
    owners, pairs = fields.within(52)
    of = pairs.fields()
    found = [list(pair) for pair in zip(of.integers(1).fill_null(0), of.integers(2).fill_null(0), strict=True)]
    return grouped(owners, found, len(fields.messages))


def _json(groups: list[list[int]]) -> str | None:
    return msgspec.json.encode(groups).decode() if groups else None


def _size(groups: list[list[int]]) -> int | None:
    return max(map(len, groups)) if groups else None
