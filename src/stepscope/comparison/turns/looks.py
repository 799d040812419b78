"""Pairs of programs in turns until the answer is clear: 3, then 5, then 10."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from stepscope.comparison import noise_history, verdict
from stepscope.comparison.comparison import HEAP, TURNS, Comparison, Side, faults_note, machine_of
from stepscope.comparison.gates import UNSURE, between
from stepscope.comparison.levels import RunLevel
from stepscope.comparison.turns.live_pair import PairPlan, measure_pair
from stepscope.comparison.turns.programs import ProgramInTurns
from stepscope.comparison.verdict import SAME, StepChange

PAIRS = (3, 5, 10)
#: Page faults a step in which runs of one side differ by the luck of the heap; and about what one takes, ns.
_LOTTERY, _FAULT_NS = 200.0, 750.0
#: What makes the heap of the C library give no memory back, so that steps have no page faults.
CALM_HEAP: Mapping[str, str] = {"MALLOC_TRIM_THRESHOLD_": "-1", "MALLOC_MMAP_THRESHOLD_": "4294967296"}


@dataclass(frozen=True)
class TurnsPlan:
    """How programs are compared in turns.

    Attributes:
        pairs: Numbers of pairs after which to look.
        limit: The slowdown that is asked about, as a share.
        pair: How each pair is measured.
        say: Told what happens, a line each.
    """

    pairs: Sequence[int] = PAIRS
    limit: float = 0.05
    pair: PairPlan = field(default_factory=PairPlan)
    say: Callable[[str], None] = lambda _: None


def compare_in_turns(a: ProgramInTurns, b: ProgramInTurns, plan: TurnsPlan) -> Comparison:
    """Let two programs train in turns, pair after pair, until the answer is clear.

    Where runs of one side differ in their page faults, both programs start over with :data:`CALM_HEAP`: the luck of the
    heap is larger than what is looked for.

    Raises:
        UsageError: A program cannot be measured.
    """
    begun = time.monotonic()
    looked, notes = _Looks(a, b, plan), []
    if not looked.until_clear(stop_at_lottery=not _calm(plan)):
        so = f"the turns started over with {HEAP} on both sides"
        notes = faults_note(machine_of(*looked.levels), _lottery(looked.levels), so)
        plan.say("the page faults of one program differ between runs: the turns start over with a heap that is calm")
        calm = replace(plan.pair, environment={**(plan.pair.environment or {}), **CALM_HEAP})
        looked = _Looks(a, b, replace(plan, pair=calm))
        looked.until_clear(stop_at_lottery=False)
    step, more = _without_lottery(looked)
    notes = notes or faults_note(machine_of(*looked.levels), _lottery(looked.levels))
    return Comparison(
        a=Side(name=a.name, runs=[a.command], revision=a.revision),
        b=Side(name=b.name, runs=[b.command], revision=b.revision),
        design=TURNS,
        step=step,
        mean=verdict.change_of_mean(*looked.levels, turns=True, sure=looked.sure),
        machine=machine_of(*looked.levels),
        levels=looked.levels,
        notes=[*notes, *more],
        causes=["page-faults"] if notes else [],
        looks=looked.count,
        took_s=time.monotonic() - begun,
    )


class _Looks:
    """Pairs of two programs, and the looks at them.

    Attributes:
        levels: The level of each run of A and of B.
        step: What the last look said.
        sure: How sure one look is.
        known: What earlier comparisons say of the spread.
        count: Looks so far.
    """

    step: StepChange

    def __init__(self, a: ProgramInTurns, b: ProgramInTurns, plan: TurnsPlan) -> None:
        self.levels: tuple[list[RunLevel], list[RunLevel]] = ([], [])
        self.sure = verdict.SURE if len(plan.pairs) == 1 else verdict.SURE_OF_SEVERAL
        self.count = 0
        self._programs, self._plan = (a, b), plan
        self._key = noise_history.machine_key(f"{b.command} {dict(plan.pair.environment or {})}", turns=True)
        self.known = noise_history.known_spread(self._key, turns=True)

    def until_clear(self, *, stop_at_lottery: bool) -> bool:
        """Look after each number of pairs until the answer is clear; False if a lottery of page faults ended that."""
        for pairs in self._plan.pairs:
            while len(self.levels[0]) < pairs:
                self._plan.say(f"pair {len(self.levels[0]) + 1} of {pairs}")
                self._add_pair()
                if stop_at_lottery and _lottery(self.levels):
                    return False
            self.count += 1
            self.step = verdict.change_of_level(*self.levels, self.known, turns=True, sure=self.sure)
            if _decided(self.step, self._plan.limit):
                break
        if not _lottery(self.levels):
            squares, freedom = verdict.squares_of(*self.levels, turns=True)
            noise_history.remember(self._key, squares, freedom, f"{time.time_ns()} {os.getpid()}")
        return True

    def _add_pair(self) -> None:
        order = (0, 1) if len(self.levels[0]) % 2 == 0 else (1, 0)
        first, second = (self._programs[side] for side in order)
        pair = measure_pair(first, second, self._plan.pair)
        for side, level in zip(order, pair, strict=True):
            self.levels[side].append(level)


def _calm(plan: TurnsPlan) -> bool:
    return CALM_HEAP.items() <= {**os.environ, **(plan.pair.environment or {})}.items()


def _decided(step: StepChange, limit: float) -> bool:
    if step.verdict != SAME or step.low is None or step.high is None or step.detectable is None:
        return True
    return between(step.change, (step.low, step.high), step.detectable, limit) != UNSURE


def _lottery(levels: tuple[list[RunLevel], list[RunLevel]]) -> float:
    """Return how far the page faults of unchanged runs lie apart; 0 if chance does not explain that."""
    spreads = []
    for side in levels:
        faults = [run.faults for run in side if run.faults is not None]
        spreads.append(max(faults) - min(faults) if len(faults) > 1 else 0.0)
    return max(spreads) if max(spreads) > _LOTTERY else 0.0


def _without_lottery(looked: _Looks) -> tuple[StepChange, list[str]]:
    """Return the verdict, and why it is not what the levels say.

    Where unchanged runs of one side differ in their page faults even so, a difference counts only if it stays when
    about the time of the faults is taken off.
    """
    step = looked.step
    if not _lottery(looked.levels) or step.verdict == SAME:
        return step, []
    a, b = ([_less_faults(run) for run in side] for side in looked.levels)
    without = verdict.change_of_level(a, b, looked.known, turns=True, sure=looked.sure)
    if without.verdict == step.verdict:
        return step, []
    said = f"without about the time of page faults the step changes by {without.change:+.1%}, which is within the noise"
    return msgspec.structs.replace(step, verdict=SAME), [said]


def _less_faults(run: RunLevel) -> RunLevel:
    level = math.exp(run.level)
    rest = max(level - _FAULT_NS * (run.faults or 0.0), level / 2)
    return msgspec.structs.replace(run, level=math.log(rest))


def devices_here() -> bool:
    """Return whether this machine has a device of NVIDIA's: its host threads use all cores."""
    return Path("/dev/nvidia0").exists()
