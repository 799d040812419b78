"""What goes wrong in a job: which rank, link or stage, how, and how much."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tests.simulator.models import SORTS
from tests.simulator.plans import Floats, Op
from tests.simulator.solve import Changes
from tests.simulator.training import Job


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        sort: What happens: a name of ``ACCEPTED``.
        ranks: To which ranks; of a link, its two ends; of a stage, or of a group with a slow network, all of its ranks.
        strength: How much longer what is concerned takes, as a factor less 1; of a pause, as a share of a step.
        what: The kind of work, or the module, that is concerned; empty for all.
        stage: Stage of the pipeline; −1 for none.
        first_step: The first step that is concerned.
        every: Every how many steps it happens.
    """

    sort: str
    ranks: tuple[int, ...]
    strength: float = 0.0
    what: str = ""
    stage: int = -1
    first_step: int = 0
    every: int = 1

    def steps(self, count: int) -> range:
        """Return the concerned steps of a job of ``count`` steps; a hiccup concerns one."""
        return range(self.first_step, self.first_step + 1 if self.sort == "hiccup" else count, self.every)


#: Fault → causes of a finding that names it: first the one it should have, then those that say it in other words.
ACCEPTED: dict[str, tuple[str, ...]] = {
    "operator": ("slow-rank",),
    "module": ("slow-rank",),
    "clocks": ("slow-rank",),
    "process": ("slow-rank",),
    "loader": ("data-wait-rank",),
    "host": ("host-bound-rank", "slow-rank"),
    "garbage": ("slow-rank", "host-bound-rank"),
    "link": ("slow-link",),
    "network": ("slow-link",),
    "stage": ("slow-stage",),
    "hung": ("hung-collective",),
    "missing": ("missing-rank",),
    "duplicate": ("duplicate-rank",),
    "steps": ("unequal-steps",),
    "world": ("world-size",),
    "code": ("different-code",),
    "cut": ("unreadable-rank", "unequal-steps", "hung-collective"),
    "jump": ("clock-uncalibrated",),
    "alone": ("clock-uncalibrated",),
    # Nothing is to be said about one hiccup.
    "hiccup": (),
}
#: Faults that make steps longer.
SLOW = ("operator", "module", "clocks", "process", "loader", "host", "garbage", "link", "network", "stage")


def _computes(op: Op) -> bool:
    return op.place.sort in SORTS


def _calls(op: Op) -> bool:
    return op.launched_by < 0 and op.place.sort in ("host", "python") and op.category != "cuda_runtime"


#: Fault → which operations of its ranks take longer.
_CONCERNED: dict[str, Callable[[Op, str], bool]] = {
    "operator": lambda op, what: _computes(op) and op.place.sort == what,
    "module": lambda op, what: _computes(op) and op.place.module == what,
    "clocks": lambda op, what: _computes(op),
    "process": lambda op, what: _computes(op),
    "stage": lambda op, what: _computes(op),
    "loader": lambda op, what: op.place.sort == "loader",
    "host": lambda op, what: _calls(op),
}


def concerned(job: Job, fault: Fault) -> Iterator[tuple[int, int, Op]]:
    """Return the operations that a fault makes longer: number of the plan, number in the plan, operation."""
    condition, wanted = _CONCERNED[fault.sort], set(fault.ranks)
    for p, plan in enumerate(job.plans):
        if wanted & set(plan.ranks.tolist()):
            for number, op in enumerate(plan.ops):
                if op.place.step >= fault.first_step and condition(op, fault.what):
                    yield p, number, op


def _columns(job: Job, p: int, fault: Fault) -> list[int]:
    return [i for i, rank in enumerate(job.plans[p].ranks.tolist()) if rank in fault.ranks]


def changes_of(job: Job, fault: Fault) -> Changes:
    """Return what a fault changes in when things happen; nothing if it concerns the files only."""
    rng = np.random.default_rng([job.shape.seed, 6])
    changes = Changes()
    if fault.sort in _CONCERNED:
        for p, number, op in concerned(job, fault):
            factor = np.ones(len(op.duration))
            # Another process takes the device now and then, for longer or shorter.
            share = 2 * rng.random() if fault.sort == "process" else 1.0
            factor[_columns(job, p, fault)] += fault.strength * share
            changes.durations[p, number] = op.duration * factor
    elif fault.sort in ("garbage", "hiccup"):
        _pause(job, fault, changes, rng)
    elif fault.sort in ("link", "network"):
        _slow_links(job, fault, changes)
    elif fault.sort == "hung":
        _hang(job, fault, changes)
    return changes


def _pause(job: Job, fault: Fault, changes: Changes, rng: np.random.Generator) -> None:
    """Stop the host between two operators: in each of some steps, or once."""
    for p, plan in enumerate(job.plans):
        columns = _columns(job, p, fault)
        for step in fault.steps(job.shape.steps) if columns else ():
            places = [
                number for number, op in enumerate(plan.ops) if op.place.step == step and op.place.sort == "python"
            ]
            number = int(rng.choice(places))
            duration = plan.ops[number].duration.copy()
            duration[columns] += fault.strength * job.shape.step_ns * float(rng.uniform(0.8, 1.2))
            changes.durations[p, number] = duration


def _slow_links(job: Job, fault: Fault, changes: Changes) -> None:
    for number, exchange in enumerate(job.exchanges):
        if exchange.place.step < fault.first_step:
            continue
        slow = [i for i, ranks in enumerate(exchange.members) if set(ranks) == set(fault.ranks)]
        if slow and exchange.groups[0].kind != "WORLD":
            transit: Floats = exchange.transit.copy()
            transit[slow] *= 1 + fault.strength
            changes.transits[number] = transit


def _hang(job: Job, fault: Fault, changes: Changes) -> None:
    """Let a rank never call a collective, in the middle of the first concerned step."""
    for p, plan in enumerate(job.plans):
        columns = _columns(job, p, fault)
        calls = [op.launched_by for op in plan.ops if op.meetings and op.place.step == fault.first_step]
        if columns and calls:
            changes.held[p, calls[len(calls) // 2]] = columns
