"""Faults as they are found: drawn at random, as strong as a level asks for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.simulator.faults import SLOW, Fault, changes_of, concerned
from tests.simulator.groups import rank_at
from tests.simulator.jobs import Simulated, simulated, step_of
from tests.simulator.schedules import build
from tests.simulator.shapes import Shape
from tests.simulator.solve import solve
from tests.simulator.training import Job

#: How often a fault is drawn.
_WEIGHTS = {
    "operator": 14, "module": 8, "clocks": 12, "process": 8, "loader": 10, "host": 10, "garbage": 8, "link": 8,
    "network": 5, "stage": 8, "hung": 5, "missing": 4, "duplicate": 3, "steps": 4, "world": 3, "code": 4, "cut": 4,
    "jump": 4, "alone": 2,
}  # fmt: skip
#: Level → what the job loses by a fault, as a share of its step: least and most.
LEVELS = {"easy": (0.10, 0.50), "hard": (0.03, 0.08)}
#: Faults without which a job can be drawn; they are asked for by name.
_BY_NAME = ("hiccup",)
#: Upper limit of the faults of one rank or link; those of loaders and hosts have none.
_STRONGEST = 200.0


class ImpossibleFaultError(ValueError):
    """A job cannot have the fault that is asked for, or not as strong as that."""


def possible(shape: Shape) -> list[str]:
    """Return the faults that a job of a shape can have."""
    found = [sort for sort in _WEIGHTS if sort not in ("link", "network", "stage", "host", "code")]
    if shape.device:
        found += ["host", "code"]
    if shape.pipeline > 1:
        found.append("stage")
        if shape.data * shape.tensor > 1:
            found.append("link")
    if len(_networks(shape)) > 2:
        found.append("network")
    if shape.ranks // shape.ranks_per_host < 3 or shape.steps < 4:
        # All clocks are one, or nobody can say which of two was set, or not when.
        found.remove("jump")
    if shape.ranks_per_host > 1:
        # Its clock is that of the others on its host.
        found.remove("alone")
    return found


def _networks(shape: Shape) -> list[tuple[int, ...]]:
    """Return groups of the same kind, size and distance, whose networks can be compared."""
    if shape.kind == "moe":
        return [tuple(range(i, i + shape.experts)) for i in range(0, shape.ranks, shape.experts)]
    if shape.hybrid:
        return [tuple(range(i, shape.ranks, shape.ranks_per_host)) for i in range(shape.ranks_per_host)]
    if shape.kind == "3d" and shape.data > 1:
        return [
            tuple(rank_at(shape, tensor, data, stage) for data in range(shape.data))
            for stage in range(shape.pipeline)
            for tensor in range(shape.tensor)
        ]
    return []


def random_fault(job: Job, level: str, rng: np.random.Generator, sort: str = "") -> Fault:
    """Return a fault that the job can have; one that makes steps longer is as strong as the level asks for.

    Raises:
        ImpossibleFaultError: The job cannot have the fault, or loses as much by no strength of it.
    """
    shape = job.shape
    if sort and sort not in (*possible(shape), *_BY_NAME):
        message = f"this job cannot have the fault {sort}"
        raise ImpossibleFaultError(message)
    for _ in range(50):
        sorts = [sort] if sort else possible(shape)
        weights = np.array([_WEIGHTS.get(one, 1) for one in sorts], float)
        fault = _drawn(job, str(rng.choice(sorts, p=weights / weights.sum())), rng)
        if fault.sort not in SLOW:
            return fault
        low, high = LEVELS[level]
        strong = _strong(job, fault, float(np.exp(rng.uniform(np.log(low), np.log(high)))))
        if strong is not None:
            return strong
    message = f"{sort or 'no fault'} costs this job {LEVELS[level][0]:.0%} at no strength"
    raise ImpossibleFaultError(message)


def _drawn(job: Job, sort: str, rng: np.random.Generator) -> Fault:
    """Return a fault of a sort, without its strength."""
    shape = job.shape
    rank = int(rng.integers(shape.ranks))
    late = int(rng.integers(shape.steps // 3 + 1)) if rng.random() < 0.3 else 0
    plan = next(plan for plan in job.plans if rank in plan.ranks)
    if sort == "operator":
        sorts = sorted({op.place.sort for _, _, op in concerned(job, Fault("clocks", (rank,)))})
        return Fault(sort, (rank,), what=str(rng.choice(sorts)), first_step=late)
    if sort == "module":
        modules = sorted({op.place.module for op in plan.ops if op.place.module})
        return Fault(sort, (rank,), what=str(rng.choice(modules)), first_step=late)
    if sort == "garbage":
        return Fault(sort, (rank,), every=int(rng.integers(1, min(4, shape.steps // 2) + 1)))
    if sort == "link":
        pairs = [members for exchange in job.exchanges if exchange.operation == "send" for members in exchange.members]
        return Fault(sort, tuple(sorted(pairs[int(rng.integers(len(pairs)))])), first_step=late)
    if sort == "network":
        networks = _networks(shape)
        return Fault(sort, networks[int(rng.integers(len(networks)))], first_step=late)
    if sort == "stage":
        stage = int(rng.integers(shape.pipeline))
        return Fault(sort, tuple(job.plans[stage].ranks.tolist()), stage=stage, first_step=late)
    if sort == "jump":
        same_host = tuple(other for other in range(shape.ranks) if shape.host_of(other) == shape.host_of(rank))
        return Fault(sort, same_host, first_step=int(rng.integers(shape.steps // 4, 3 * shape.steps // 4)))
    if sort in ("hung", "hiccup", "steps"):
        return Fault(
            sort, (rank,), float(rng.uniform(0.3, 1.5)), first_step=int(rng.integers(shape.steps // 2, shape.steps))
        )
    return Fault(sort, (rank,), first_step=late if sort in SLOW else 0)


def _strong(job: Job, fault: Fault, share: float) -> Fault | None:
    """Return the fault so strong that the job loses a share of its step; None if no strength does that."""
    shape, healthy = job.shape, step_of(job, solve(job.plans, job.exchanges))
    goal = share * healthy
    # Below the time of the device, a slow host holds nobody up.
    strength = (share + (fault.sort == "host")) * shape.step_ns / _base(job, fault)
    for _ in range(7):
        found = replace(fault, strength=strength)
        gain = step_of(job, solve(job.plans, job.exchanges, changes_of(job, found))) - healthy
        if 0.8 * goal <= gain <= 1.25 * goal:
            return found
        strength *= float(np.clip(goal / gain, 0.2, 4.0)) if gain > 0.02 * goal else 3.0
        if strength > _STRONGEST and fault.sort not in ("loader", "host"):
            return None
    return None


def _base(job: Job, fault: Fault) -> float:
    """Return what the concerned operations of one rank take in a step."""
    if fault.sort == "garbage":
        return job.shape.step_ns
    if fault.sort in ("link", "network"):
        return 0.1 * job.shape.communicates * job.shape.step_ns
    total = sum(float(np.median(op.duration)) for _, _, op in concerned(job, replace(fault, ranks=fault.ranks[:1])))
    return max(total / job.shape.steps, 1.0)


def random_job(shape: Shape, level: str, sort: str = "") -> Simulated:
    """Return a job of a shape with a fault of a level: ``easy``, ``hard``, or ``healthy`` for none but a hiccup.

    A job whose fault is drawn, and that can have it at no strength, draws another.

    Raises:
        ImpossibleFaultError: It cannot have the fault ``sort``, or not as strong as that.
    """
    rng = np.random.default_rng([shape.seed, 7])
    job = build(shape)
    if level != "healthy":
        return simulated(job, random_fault(job, level, rng, sort))
    hiccup = sort == "hiccup" or (rng.random() < 0.3 and shape.steps >= 5)
    return simulated(job, _drawn(job, "hiccup", rng) if hiccup else None)
