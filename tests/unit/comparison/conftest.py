"""Captures whose operators take what a test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.conftest import WriteTrace

#: Name of an operator → its time in µs, and shapes of its inputs.
Operators: TypeAlias = Sequence[tuple[str, float, list[list[int]]]]
MakeCapture: TypeAlias = Callable[..., Path]

OPERATORS: Operators = [
    ("aten::embedding", 400, [[100, 8]]),
    ("aten::mm", 1000, [[8, 8], [8, 8]]),
    ("aten::relu", 300, [[8, 8]]),
    ("aten::addmm", 900, [[8, 8], [8, 8]]),
    ("aten::softmax", 500, [[8, 8]]),
    ("aten::mul", 600, [[8, 8]]),
    ("aten::add_", 700, [[8, 8]]),
    ("aten::sqrt", 350, [[8, 8]]),
]


@pytest.fixture
def capture(write_trace: WriteTrace) -> MakeCapture:
    """Write a capture of 8 steps.

    Its arguments: name of the file; operators; a factor of all times, the machine's; a factor of every step, its noise.
    """

    def make(
        name: str, operators: Operators = OPERATORS, *, machine: float = 1.0, noise: Sequence[float] = (1.0,)
    ) -> Path:
        events: list[Mapping[str, object]] = []
        at = 1_000.0
        for number in range(8):
            begin, factor = at, machine * noise[number % len(noise)]
            for operator, took, shapes in operators:
                arguments = {"External id": len(events), "Input Dims": shapes}
                where = {"pid": 1, "tid": 1, "ts": at, "dur": took * factor}
                events.append({"cat": "cpu_op", "name": operator, "args": arguments, **where})
                at += took * factor + 10 * factor
            step = {"cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1}
            events.append({**step, "ts": begin, "dur": at - begin, "args": {}})
            at += 5
        return write_trace(events, name=name)

    return make
