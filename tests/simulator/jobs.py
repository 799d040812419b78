"""A job that ran: the files of its ranks, and beside them ``truth.json``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tests.simulator.faults import ACCEPTED, SLOW, Fault, changes_of
from tests.simulator.host_clocks import EPOCH, HostClock, clocks_of, with_jump
from tests.simulator.kineto_files import Defects, KinetoFiles
from tests.simulator.plans import Floats
from tests.simulator.schedules import build
from tests.simulator.shapes import Shape
from tests.simulator.solve import Times, solve
from tests.simulator.training import Job

TRUTH = "truth.json"


@dataclass
class Simulated:
    """A job that ran.

    Attributes:
        job: What its ranks do.
        times: When it happened.
        clocks: The clock of each rank.
        fault: What went wrong; None if nothing did.
        healthy_ns: How long a step of the same job takes without the fault.
        added_ns: What the concerned ranks, or the link, take longer a step by themselves; the largest of them.
    """

    job: Job
    times: Times
    clocks: Sequence[HostClock]
    fault: Fault | None
    healthy_ns: float
    added_ns: float

    @property
    def step_ns(self) -> float:
        """How long a step takes."""
        return step_of(self.job, self.times)

    def write(self, directory: Path, *, compress: bool = False) -> None:
        """Write the files of all ranks and the truth into a new directory."""
        directory.mkdir(parents=True)
        files, fault = KinetoFiles(self.job, self.times), self.fault
        for rank, clock in enumerate(self.clocks):
            concerned = fault is not None and rank in fault.ranks
            name = self.file_of(rank, compress=compress)
            if concerned and fault and fault.sort == "missing":
                continue
            defects = self._defects() if concerned else Defects()
            files.write(directory / name, rank, clock, defects)
            if concerned and fault and fault.sort == "duplicate":
                files.write(directory / f"again_{name}", rank, clock, defects)
        (directory / TRUTH).write_bytes(msgspec.json.format(msgspec.json.encode(self.truth()), indent=1))

    def file_of(self, rank: int, *, compress: bool = False) -> str:
        """Return the name of a rank's file: as users, or PyTorch's own handlers, call it."""
        shape, end = self.job.shape, ".gz" if compress else ""
        process = 1_000 + 211 * (rank % shape.ranks_per_host) + shape.host_of(rank)
        names = (
            f"rank{rank}.pt.trace.json",
            f"node{shape.host_of(rank):03d}_{process}.{EPOCH + 7_919 * rank}.pt.trace.json",
            f"worker{rank}.{EPOCH // 1_000_000 + rank}.pt.trace.json",
            f"trace_rank_{rank:04d}.json",
        )
        return names[shape.seed % len(names)] + end

    def _defects(self) -> Defects:
        """Return what is wrong with the file of a rank that has the fault."""
        shape, fault = self.job.shape, self.fault
        assert fault is not None
        kept = max(1, shape.steps - 1 - int(fault.strength * shape.steps / 5)) if fault.sort == "steps" else shape.steps
        return Defects(
            steps=kept,
            world_size=shape.ranks * 2 if fault.sort == "world" else shape.ranks,
            other_code=fault.sort == "code",
            cut=fault.sort == "cut",
            alone=fault.sort == "alone",
        )

    def truth(self) -> dict[str, Any]:
        """Return what is true of the job."""
        shape = self.job.shape
        ranks = [
            {
                "rank": rank,
                "file": self.file_of(rank),
                "host": shape.host_of(rank),
                "offset_ns": clock.offset_ns,
                "drift_ppm": clock.drift_ppm,
                "jump_at_ns": None if np.isinf(clock.jump_at_ns) else clock.jump_at_ns,
                "jump_ns": clock.jump_ns,
            }
            for rank, clock in enumerate(self.clocks)
        ]
        groups = {kind: [group.ranks for group in groups] for kind, groups in self.job.groups.items()}
        return {
            "shape": asdict(shape),
            "epoch_ns": EPOCH,
            "step_ns": self.step_ns,
            "groups": groups,
            "ranks": ranks,
            "fault": self._said_of_fault(),
            "collectives": self._collectives(),
        }

    def _said_of_fault(self) -> dict[str, Any] | None:
        fault, shape = self.fault, self.job.shape
        if fault is None:
            return None
        slow = fault.sort in SLOW
        return {
            **asdict(fault),
            "causes": ACCEPTED[fault.sort],
            "link": sorted(fault.ranks) if fault.sort == "link" else None,
            "steps": [shape.first_step + step for step in fault.steps(shape.steps)],
            "added_ns": self.added_ns if slow else None,
            "gain_ns": self.step_ns - self.healthy_ns if slow else None,
        }

    def _collectives(self) -> list[dict[str, Any]]:
        """Return when each collective ended, on the true clock, in each of its groups: the first of its ranks."""
        ends: dict[int, Floats] = {}
        for p, plan in enumerate(self.job.plans):
            for number, op in enumerate(plan.ops):
                for meeting in op.meetings:
                    exchange = self.job.exchanges[meeting.exchange]
                    first = ends.setdefault(meeting.exchange, np.full(len(exchange.members), np.inf))
                    np.minimum.at(first, meeting.group, self.times.ends[p][number])
        return [
            {
                "operation": exchange.operation,
                "kind": exchange.groups[0].kind,
                "step": exchange.place.step,
                "ends_ns": [round(end) if np.isfinite(end) else None for end in ends[number].tolist()],
            }
            for number, exchange in enumerate(self.job.exchanges)
        ]


def step_of(job: Job, times: Times) -> float:
    """Return how long a step takes: from the first operation's start to the end of what ends last, over the steps."""
    last = max(float(np.max(ends[np.isfinite(ends)])) for ends in times.ends)
    return last / job.shape.steps


def simulated(job: Job, fault: Fault | None = None) -> Simulated:
    """Run a job with or without a fault; everything but the fault is the same."""
    healthy = solve(job.plans, job.exchanges)
    if fault is None:
        return Simulated(job, healthy, clocks_of(job.shape), None, step_of(job, healthy), 0.0)
    changes = changes_of(job, fault)
    times = solve(job.plans, job.exchanges, changes)
    clocks = _set_clocks(job, fault, healthy)
    added: dict[tuple[int, int], float] = defaultdict(float)
    for (p, number), duration in changes.durations.items():
        for column, more in enumerate((duration - job.plans[p].ops[number].duration).tolist()):
            added[p, column] += more
    more = [float(np.max(transit - job.exchanges[number].transit)) for number, transit in changes.transits.items()]
    largest = max([*added.values(), sum(more)], default=0.0)
    return Simulated(job, times, clocks, fault, step_of(job, healthy), largest / job.shape.steps)


def _set_clocks(job: Job, fault: Fault, times: Times) -> Sequence[HostClock]:
    """Return the clocks of the ranks, one of them set in the middle of a step if that is the fault."""
    clocks, shape = clocks_of(job.shape), job.shape
    if fault.sort != "jump":
        return clocks
    rng = np.random.default_rng([shape.seed, 8])
    by = int(10 ** rng.uniform(5.5, 8) * rng.choice([-1, 1]))
    return with_jump(clocks, shape, fault.ranks[0], (fault.first_step + 0.5) * step_of(job, times), by)


def simulate(shape: Shape, fault: Fault | None = None) -> Simulated:
    """Run the job of a shape, with or without a fault."""
    return simulated(build(shape), fault)
