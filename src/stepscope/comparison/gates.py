"""Limits for a build server: ``slower:5%``, ``memory:2%``, ``count:NAME``, ``operator:NAME:10%``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from stepscope.comparison.matching import plain_name
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.comparison.comparison import Comparison
    from stepscope.comparison.part_changes import PartChange

FAILED, PASSED, UNSURE = "failed", "passed", "cannot tell"

#: A comma between limits; one in a kernel's name is part of it.
_BETWEEN = re.compile(r",\s*(?=(?:slower|memory|count|operator):|$)")
_LIMIT = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*%")
_NO_OPERATORS = "the operators of the two cannot be compared"
_RULES = "slower:5%, memory:2%, count:NAME, operator:NAME:10%"


class Gate(msgspec.Struct, frozen=True):
    """A limit: what it is about, the operator's name if it is about one, and the share that is too much."""

    about: str
    name: str = ""
    limit: float = 0.0

    def __str__(self) -> str:
        parts = [self.about, *([self.name] if self.name else []), *([f"{100 * self.limit:g}%"] if self.limit else [])]
        return ":".join(parts)


class Outcome(msgspec.Struct, frozen=True):
    """What came of a limit: the rule, :data:`FAILED`, :data:`PASSED` or :data:`UNSURE`, and why."""

    rule: str
    outcome: str
    why: str


def parse_gates(text: str) -> list[Gate]:
    """Return the limits in a text with commas between them.

    Raises:
        UsageError: One of them is none.
    """
    return [_gate_of(part.strip()) for part in _BETWEEN.split(text) if part.strip()]


def _gate_of(text: str) -> Gate:
    about, _, rest = text.partition(":")
    name, _, last = rest.rpartition(":")
    limit = _LIMIT.fullmatch(last.strip())
    share = float(limit["number"]) / 100 if limit else 0.0
    if about in ("slower", "memory") and share and not name:
        return Gate(about, limit=share)
    if about == "operator" and share and name:
        return Gate(about, name, share)
    if about == "count" and rest:
        return Gate(about, rest)
    message = f"{text!r} is not a limit."
    raise UsageError(message, f"Write one of {_RULES}.")


def judge(comparison: Comparison, gates: Sequence[Gate]) -> list[Outcome]:
    """Return what comes of each limit."""
    judges: dict[str, Callable[[Comparison, Gate], tuple[str, str]]] = {
        "slower": _slower, "memory": _memory, "count": _count, "operator": _operator,
    }  # fmt: skip
    return [Outcome(str(gate), *judges[gate.about](comparison, gate)) for gate in gates]


def between(change: float, ends: tuple[float, float], detectable: float, limit: float) -> str:
    """Return what an interval says of a limit: a slowdown of exactly the limit fails, so the line lies at half of it.

    Args:
        change: B / A - 1.
        ends: Its interval.
        detectable: The smallest change that would have been found.
        limit: The limit, as a share.
    """
    shift, low, high, most = (math.log1p(max(value, -0.999)) for value in (change, *ends, limit))
    if low > 0 and shift > most / 2:
        return FAILED
    return PASSED if high < most or (shift <= most / 2 and detectable <= limit) else UNSURE


def _slower(comparison: Comparison, gate: Gate) -> tuple[str, str]:
    step, parts = comparison.step, comparison.parts
    if step is not None and step.low is not None and step.high is not None and step.detectable is not None:
        outcome = between(step.change, (step.low, step.high), step.detectable, gate.limit)
        return outcome, f"the step: {step.change:+.1%} ({step.low:+.1%} … {step.high:+.1%})"
    if parts is not None and parts.sure and comparison.step_ns:
        share, low = parts.change_ns / comparison.step_ns, parts.low_ns / comparison.step_ns
        if low > 0 and math.log1p(share) > math.log1p(gate.limit) / 2:
            return FAILED, f"single operators add {share:+.1%} of the step"
    return UNSURE, "one run a side cannot tell the program from the machine; give several runs, or use --turns"


def _memory(comparison: Comparison, gate: Gate) -> tuple[str, str]:
    known = [row for row in comparison.memory if row.what == "allocated" and row.a and row.b is not None]
    if not known:
        return UNSURE, "no peak of memory was recorded on both sides"
    worst = max(known, key=lambda row: (row.b or 0) / (row.a or 1))
    share = (worst.b or 0) / (worst.a or 1) - 1
    return FAILED if share > gate.limit else PASSED, f"the peak on {worst.device}: {share:+.2%}"


def _count(comparison: Comparison, gate: Gate) -> tuple[str, str]:
    if gate.name in ("compilations", "recompilations"):
        a, b = comparison.compilations
        if a is None or b is None:
            return UNSURE, "compilations were not watched"
        return FAILED if b > a else PASSED, f"{a} -> {b} compilations"
    parts = _named(comparison, gate.name)
    if parts is None:
        return UNSURE, _NO_OPERATORS
    a_calls, b_calls = sum(part.calls_a for part in parts), sum(part.calls_b for part in parts)
    said = f"{a_calls:g} -> {b_calls:g} calls a step" if parts else f"neither side calls {gate.name}"
    if any(part.varies for part in parts) and a_calls != b_calls:
        return UNSURE, f"{said}, which vary by step"
    return FAILED if b_calls > a_calls else PASSED, said


def _operator(comparison: Comparison, gate: Gate) -> tuple[str, str]:
    parts = _named(comparison, gate.name)
    if parts is None:
        return UNSURE, _NO_OPERATORS
    a, b = (sum(getattr(part, side) for part in parts) for side in ("a_ns", "b_ns"))
    if not parts or not a:
        return (FAILED, f"{gate.name} is new") if b else (PASSED, f"neither side calls {gate.name}")
    change = sum(part.change_ns for part in parts)
    half = math.sqrt(sum(((part.high_ns - part.low_ns) / 2) ** 2 for part in parts))
    said = f"{gate.name}: {change / a:+.1%} (± {half / a:.1%}) beyond what changed everything alike"
    ends = (change - half) / a, (change + half) / a
    return between(change / a, ends, 1.6 * half / a, gate.limit), said


def _named(comparison: Comparison, name: str) -> list[PartChange] | None:
    """Return the parts of that name, whole or as compilers number it, under which it stands on either side."""
    if comparison.parts is None or not comparison.parts.parts:
        return None
    names = {name, plain_name(name)}
    sides = ((part, {*part.name_a.split(" + "), *part.name_b.split(" + ")}) for part in comparison.parts.parts)
    return [part for part, each in sides if names & {*each, *map(plain_name, each)}]
