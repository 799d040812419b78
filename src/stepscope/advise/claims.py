"""Claims: findings with the time that each explains; of claims on the same time, the deeper cause stays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import msgspec

from stepscope.advise.finding import Evidence, Finding, by_gain

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
        limits: What works beside the training thread and limits it, such as the workers of its loader: as long as it
            does, the thread waits longer if it has less to do. Empty where nothing does.
    """

    finding: Finding
    depth: Depth
    explains: Mapping[str, float] = field(default_factory=dict)
    limits: str = ""


def merged(claims: Iterable[Claim]) -> list[Finding]:
    """Return the findings of claims, largest gain first: one for each time that is explained, the deepest cause.

    Beside one that limits the training thread the others have no gain: by itself none shortens the step.
    """
    taken: dict[str, float] = {}
    kept: list[Claim] = []
    for claim in sorted(claims, key=lambda claim: (-claim.depth, -(claim.finding.gain_ns or 0))):
        free = sum(max(time - taken.get(name, 0.0), 0.0) for name, time in claim.explains.items())
        if claim.explains and free < _LEFT * sum(claim.explains.values()):
            continue
        kept.append(claim)
        for name, time in claim.explains.items():
            taken[name] = taken.get(name, 0.0) + time
    limits = next((claim.limits for claim in kept if claim.limits), "")
    return by_gain(claim.finding if claim.limits or not limits else _hidden(claim.finding, limits) for claim in kept)


def _hidden(finding: Finding, limits: str) -> Finding:
    told = Evidence(text=f"by itself it saves nothing: the training then waits longer for {limits}")
    evidence = (told, *finding.evidence)
    return msgspec.structs.replace(finding, gain_ns=None, gain_low_ns=None, gain_high_ns=None, evidence=evidence)
