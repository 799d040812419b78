"""Recorded steps of a training in PyTorch, built by hand: operators with shapes, types and sequence numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from stepscope.advise.finding import Finding
from stepscope.advise.observed import Observed
from stepscope.advise.rank_findings import found_in
from tests.unit.analyse.build import ORIGIN, Rank

#: Duration of a step, ns.
STEP = 10_000_000
STEPS = 3


class Training:
    """A rank whose steps all run the same operators, one after the other.

    Args:
        steps: How many steps are recorded.
        facts: Facts of the run, by key.
    """

    def __init__(self, steps: int = STEPS, **facts: Any) -> None:
        self.rank = Rank()
        self.steps = steps
        self._thread = self.rank.thread()
        self._free = dict.fromkeys(range(steps), 0)
        self._before: dict[int, int] = {}
        for number in range(steps):
            self.rank.step(number, number * STEP, STEP)
        for key, value in {
            "torch": "2.13.0",
            **{key.replace("__", "."): value for key, value in facts.items()},
        }.items():
            self.rank.add("metadata", key=key, value=json.dumps(value))

    def call(
        self, name: str, dur: int, shapes: Sequence[Sequence[int]] = (), phase: str = "other", **more: Any
    ) -> None:
        """Add a call to each step, after those before it; ``inside`` adds it inside the call before it."""
        inside, sequence, shift = more.pop("inside", False), more.pop("sequence", None), more.pop("shift", 0)
        said = {"shapes": json.dumps(list(map(list, shapes)))} if shapes else {}
        said |= {key: json.dumps(value) for key, value in more.items()}
        for number in range(self.steps):
            at = self._before[number] + shift if inside else self._free[number]
            number_of = None if sequence is None else 1000 * number + sequence
            span = self.rank.span(
                self._thread, "operator", number * STEP + at, dur, name, step=number, phase=phase, sequence=number_of
            )
            self.rank.add("operators", span=span, **said)
            if not inside:
                self._before[number], self._free[number] = at, at + dur + 10

    def run_steps(self, count: int = 40, **columns: Any) -> None:
        """Add the times of all steps of the run."""
        for number in range(count):
            row = {"number": number, "ts": ORIGIN + number * STEP, "dur": STEP, "recorded": number < self.steps}
            self.rank.add("run_steps", **(row | columns))

    def findings(self) -> list[Finding]:
        """Return what is found."""
        return found_in(Observed(self.rank.tables()))

    def causes(self) -> list[str]:
        """Return the causes that are found."""
        return [finding.cause for finding in self.findings()]
