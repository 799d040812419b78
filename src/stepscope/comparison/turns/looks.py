"""Pairs of programs in turns until the answer is clear: 3, then 5, then 10."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from stepscope.comparison import noise_history, verdict
from stepscope.comparison.comparison import TURNS, Comparison, Side, faults_note, machine_of
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

    Raises:
        UsageError: A program cannot be measured.
    """
    begun = time.monotonic()
    key = noise_history.machine_key(f"{b.command} {dict(plan.pair.environment or {})}", turns=True)
    known = noise_history.known_spread(key, turns=True)
    sure = verdict.SURE if len(plan.pairs) == 1 else verdict.SURE_OF_SEVERAL
    levels: tuple[list[RunLevel], list[RunLevel]] = ([], [])
    step = None
    for looks, count in enumerate(plan.pairs, start=1):  # noqa: B007 - told below
        while len(levels[0]) < count:
            plan.say(f"pair {len(levels[0]) + 1} of {count}")
            first, second = (a, b) if len(levels[0]) % 2 == 0 else (b, a)
            pair = measure_pair(first, second, plan.pair)
            for side, level in zip(levels if first is a else reversed(levels), pair, strict=True):
                side.append(level)
        step = verdict.change_of_level(levels[0], levels[1], known, turns=True, sure=sure)
        if _decided(step, plan.limit):
            break
    assert step is not None  # noqa: S101 - there is one look at least
    squares, freedom = verdict.squares_of(levels[0], levels[1], turns=True)
    if not _lottery(levels):
        noise_history.remember(key, squares, freedom, f"{time.time_ns()} {os.getpid()}")
    step, notes = _without_lottery(step, levels, known, sure)
    return Comparison(
        a=Side(name=a.name, runs=[a.command], revision=a.revision),
        b=Side(name=b.name, runs=[b.command], revision=b.revision),
        design=TURNS,
        step=step,
        mean=verdict.change_of_mean(levels[0], levels[1], turns=True, sure=sure),
        machine=machine_of(levels[0], levels[1]),
        levels=levels,
        notes=notes,
        causes=["page-faults"] if notes else [],
        looks=looks,
        took_s=time.monotonic() - begun,
    )


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


def _without_lottery(
    step: StepChange, levels: tuple[list[RunLevel], list[RunLevel]], known: verdict.Spread, sure: float
) -> tuple[StepChange, list[str]]:
    """Return the verdict, and what to say of page faults.

    Where unchanged runs of one side differ in their page faults, a difference counts only if it stays when about the
    time of the faults is taken off.
    """
    spread = _lottery(levels)
    notes = faults_note(machine_of(*levels), spread)
    if not spread or step.verdict == SAME:
        return step, notes
    a, b = ([_less_faults(run) for run in side] for side in levels)
    without = verdict.change_of_level(a, b, known, turns=True, sure=sure)
    if without.verdict == step.verdict:
        return step, notes
    notes.append(f"without about their time the step changes by {without.change:+.1%}, which is within the noise")
    return msgspec.structs.replace(step, verdict=SAME), notes


def _less_faults(run: RunLevel) -> RunLevel:
    level = math.exp(run.level)
    rest = max(level - _FAULT_NS * (run.faults or 0.0), level / 2)
    return msgspec.structs.replace(run, level=math.log(rest))


def devices_here() -> bool:
    """Return whether this machine has a device of NVIDIA's: its host threads use all cores."""
    return Path("/dev/nvidia0").exists()
