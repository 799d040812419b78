"""What each operation of a training step with pipeline parallelism waits for, after Lin et al. (OSDI 2025), section 3.

A rank computes forward and backward passes of microbatches one after the other. Each kind of transfer has a stream of
its own: a pass waits for what it receives, a send waits for the pass. After the last pass the gradients are reduced and
the optimizer runs.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

FORWARD, BACKWARD = "forward-compute", "backward-compute"
GATHER, REDUCE, SEPARATE = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
LAYER_NORM, EMBEDDING = "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
GARBAGE, CLIP, OPTIMIZER = "gc", "optimizer-clip-main-grad", "optimizer"
TRANSFERS = ("forward-send", "forward-recv", "backward-send", "backward-recv")
#: Operations in which all data-parallel ranks take part.
REPLICATED = (GATHER, REDUCE, SEPARATE, CLIP)
COMMUNICATION = (*TRANSFERS, GATHER, SEPARATE, REDUCE, LAYER_NORM, EMBEDDING, CLIP)
#: By how much two clocks may differ before a transfer is taken for one that never ran, in seconds.
CLOCK_ERROR = 5e-5


class Operation(NamedTuple):
    """One operation of a step: its type, the stage that runs it, its number among those of its type there."""

    kind: str
    stage: int
    number: int


@dataclass
class PipelineOrder:
    """What waits for what in one step of one pipeline.

    Attributes:
        causes: Operations that end before each starts; its keys are all operations.
        meetings: Operations that end together.
    """

    causes: dict[Operation, list[Operation]] = field(default_factory=dict)
    meetings: list[list[Operation]] = field(default_factory=list)

    def chain(self, *operations: Operation) -> None:
        """Let each of ``operations`` wait for the one before it; leave out those that the step does not have."""
        there = [operation for operation in operations if operation in self.causes]
        for before, after in pairwise(there):
            self.causes[after].append(before)


def pipeline_order(rows: list[dict[str, Any]], *, replicated: bool) -> PipelineOrder:
    """Return what waits for what.

    Args:
        rows: The operations of one step of one pipeline: optype, stage, seq_id, start_ts, end_ts, mc (part of the
            model in its stage) and gmc (in the model).
        replicated: Whether several ranks hold each part of the model.
    """
    rows = sorted(rows, key=lambda row: (row["start_ts"], row["seq_id"], row["optype"]))
    order = PipelineOrder({_operation(row): [] for row in rows})
    stages = range(max(row["stage"] for row in rows) + 1)
    parts = len(stages) * (max(row["mc"] for row in rows) + 1)
    pairs: dict[tuple[str, int, int], list[Operation]] = defaultdict(list)
    for stage in stages:
        here = [row for row in rows if row["stage"] == stage]
        passes = [row for row in here if row["optype"] in {FORWARD, BACKWARD}]
        order.chain(*map(_operation, passes))
        for kind in TRANSFERS:
            transfers = [row for row in here if row["optype"] == kind]
            order.chain(*map(_operation, transfers))
            real = _join_passes(order, kind, transfers, passes, parts)
            sender = (
                stage if kind.endswith("send") else (stage - (1 if kind.startswith("forward") else -1)) % len(stages)
            )
            for number, operation in enumerate(real):
                pairs[kind.split("-")[0], sender, number].append(operation)
            order.meetings += [[one] for one in map(_operation, transfers) if one not in real]
        _join_first_backward(order, passes)
        if replicated:
            _join_parameters(order, here, passes)
        _join_end(order, here, passes, replicated=replicated)
    order.meetings += pairs.values()
    ends = sorted({stages[0], stages[-1]})
    groups = ([[one] for one in order.causes if one.kind in {GATHER, REDUCE, SEPARATE}] if replicated else []) + [
        [Operation(EMBEDDING, stage, 0) for stage in ends],
        [Operation(CLIP, stage, 0) for stage in stages],
    ]
    order.meetings += [there for group in groups if (there := [one for one in group if one in order.causes])]
    return order


def _operation(row: dict[str, Any]) -> Operation:
    return Operation(row["optype"], row["stage"], row["seq_id"])


def _join_passes(
    order: PipelineOrder, kind: str, transfers: list[dict[str, Any]], passes: list[dict[str, Any]], parts: int
) -> list[Operation]:
    """Let passes and transfers of one kind wait for each other; return the transfers that have a partner.

    A profiler may note transfers at the ends of the pipeline that never ran. Those before the first pass or after the
    last belong to no pass; those of the model's first and last part have no partner.
    """
    direction, receives = kind.split("-")[0], kind.endswith("recv")
    mine = [row for row in passes if row["optype"] == f"{direction}-compute"]
    if not mine:
        return []
    last_start, first_end = max(row["start_ts"] for row in mine), min(row["end_ts"] for row in mine)
    ran = [
        row
        for row in transfers
        if (row["start_ts"] <= last_start + CLOCK_ERROR if receives else row["end_ts"] >= first_end - CLOCK_ERROR)
    ]
    missing = 1 if receives and len(ran) + 1 == len(mine) else 0
    by_number = {row["seq_id"]: row for row in mine}
    towards = 1 if (direction == "forward") != receives else -1
    real = []
    for number, row in enumerate(ran, start=missing):
        transfer, computed = _operation(row), _operation(by_number[number])
        if receives:
            order.chain(transfer, computed)
            order.chain(computed._replace(number=number - 1), transfer)
        else:
            order.chain(computed, transfer)
        if 0 <= by_number[number]["gmc"] + towards < parts:
            real.append(transfer)
    return real


def _join_first_backward(order: PipelineOrder, passes: list[dict[str, Any]]) -> None:
    """Let the first backward transfers wait for the pass two before the first backward pass."""
    first = next((index for index, row in enumerate(passes) if row["optype"] == BACKWARD), 0)
    if first >= 2:
        before = passes[first - 2]
        for kind in ("backward-recv", "backward-send"):
            order.chain(_operation(before), Operation(kind, before["stage"], 0))


def _join_parameters(order: PipelineOrder, here: list[dict[str, Any]], passes: list[dict[str, Any]]) -> None:
    """Let the first forward pass of each part wait for its parameters, and one collective for the one before it."""
    order.chain(*(_operation(row) for row in here if row["optype"] in {GATHER, REDUCE}))
    last = {row["mc"]: row for row in sorted(here, key=lambda row: int(row["seq_id"])) if row["optype"] == GATHER}
    for part, row in last.items():
        first = next(one for one in passes if one["mc"] == part and one["optype"] == FORWARD)
        order.chain(_operation(row), _operation(first))


def _join_end(
    order: PipelineOrder, here: list[dict[str, Any]], passes: list[dict[str, Any]], *, replicated: bool
) -> None:
    """Let the reduction of gradients and the optimizer wait for the last pass, and for each other."""
    stage = passes[0]["stage"]
    reductions = sorted(_operation(row) for row in here if row["optype"] == REDUCE)
    overlapped = any(operation.kind == SEPARATE for operation in order.causes)
    garbage, norm, embedding, separate, clip, optimizer = (
        Operation(kind, stage, 0) for kind in (GARBAGE, LAYER_NORM, EMBEDDING, SEPARATE, CLIP, OPTIMIZER)
    )
    last = max(passes, key=lambda row: float(row["end_ts"]))
    order.chain(_operation(last), garbage)
    order.chain(garbage, norm)
    if replicated and overlapped:
        for part in {row["mc"] for row in here if row["optype"] == REDUCE}:
            first = min(_operation(row) for row in here if row["optype"] == REDUCE and row["mc"] == part)
            final = max(
                (one for one in passes if one["mc"] == part and one["optype"] == BACKWARD),
                key=lambda row: float(row["end_ts"]),
            )
            order.chain(_operation(final), first)
        order.chain(*reductions[-1:], norm)
        order.chain(norm, embedding, separate, clip, optimizer)
    else:
        order.chain(norm, embedding, *(reductions if replicated else ()), clip, optimizer)
