"""Claims: findings with the time that each explains; of claims on the same time, the deeper cause stays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from stepscope.advise.finding import Finding, by_gain

#: A claim stays if deeper ones leave it at least this part of the time that it explains.
_LEFT = 0.5


class Depth(IntEnum):
    """How deep a rule looks. The deeper cause explains the others: a symptom has no finding beside its cause."""

    SYMPTOM = 0
    """A part of the step: it waits for data, it idles."""
    PLACE = 1
    """Where that comes from: a line, an operator, a call."""
    CAUSE = 2
    """What makes it so: a setting, a state or a pattern that the recording shows."""


@dataclass(frozen=True)
class Claim:
    """A finding, and the time that it explains.

    Attributes:
        finding: The finding.
        depth: How deep its rule looks.
        explains: Time per step in ns by what it is: ``data wait``, ``line train.py:41``, ``operator aten::mm``,
            ``garbage``. Claims meet where these names are equal; a claim without any meets no other.
    """

    finding: Finding
    depth: Depth
    explains: Mapping[str, float] = field(default_factory=dict)


def merged(claims: Iterable[Claim]) -> list[Finding]:
    """Return the findings of claims, largest gain first: one for each time that is explained, the deepest cause."""
    taken: dict[str, float] = {}
    kept: list[Finding] = []
    for claim in sorted(claims, key=lambda claim: (-claim.depth, -(claim.finding.gain_ns or 0))):
        free = sum(max(time - taken.get(name, 0.0), 0.0) for name, time in claim.explains.items())
        if claim.explains and free < _LEFT * sum(claim.explains.values()):
            continue
        kept.append(claim.finding)
        for name, time in claim.explains.items():
            taken[name] = taken.get(name, 0.0) + time
    return by_gain(kept)
