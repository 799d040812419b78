"""When everything happens: start and end of each operation on each rank, given what waits for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.simulator.plans import Exchange, Floats, Op, Plan


@dataclass
class Changes:
    """What a fault changes.

    Attributes:
        durations: Durations of operations, by plan and number.
        transits: Transit times of exchanges, by number.
        held: Operations that ranks never start, by plan and number: indices of the ranks.
    """

    durations: dict[tuple[int, int], Floats] = field(default_factory=dict)
    transits: dict[int, Floats] = field(default_factory=dict)
    held: dict[tuple[int, int], list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Times:
    """When each plan's operations start and end: a row for each operation, a column for each rank.

    Infinite is never.
    """

    starts: Sequence[Floats]
    ends: Sequence[Floats]


class _Solver:
    """Computes every operation once, as soon as what it waits for is known."""

    def __init__(self, plans: Sequence[Plan], exchanges: Sequence[Exchange], changes: Changes) -> None:
        self.plans, self.exchanges, self.changes = plans, exchanges, changes
        self.starts = [np.zeros((len(plan.ops), len(plan.ranks))) for plan in plans]
        self.ends = [np.zeros((len(plan.ops), len(plan.ranks))) for plan in plans]
        self.latest = [np.full(len(exchange.members), -np.inf) for exchange in exchanges]
        self.missing = [exchange.parts for exchange in exchanges]
        self.met: list[list[tuple[int, int]]] = [[] for _ in exchanges]
        self.ready: list[tuple[int, int]] = []
        self.left: set[tuple[int, int]] = set()
        self.done = 0
        self._dependents()

    def _dependents(self) -> None:
        self.awaits = [[0] * len(plan.ops) for plan in self.plans]
        self.dependents: list[list[list[int]]] = [[[] for _ in plan.ops] for plan in self.plans]
        for p, plan in enumerate(self.plans):
            for i, op in enumerate(plan.ops):
                wanted = {number for number, _ in op.after} | ({op.until} if op.until >= 0 else set())
                self.awaits[p][i] = len(wanted)
                for number in wanted:
                    self.dependents[p][number].append(i)
                if not wanted:
                    self.ready.append((p, i))

    def run(self) -> Times:
        while self.ready:
            p, i = self.ready.pop()
            op, start = self.plans[p].ops[i], self.starts[p][i]
            for number, lag in op.after:
                np.maximum(start, self.ends[p][number] + lag, out=start)
            if (p, i) in self.changes.held:
                start[self.changes.held[p, i]] = np.inf
            if op.meetings:
                self._arrive(p, i, op)
            else:
                end = start + self.changes.durations.get((p, i), op.duration)
                self._finish(p, i, np.maximum(end, self.ends[p][op.until]) if op.until >= 0 else end)
        if self.done != sum(len(plan.ops) for plan in self.plans):
            raise RuntimeError("the ranks wait for each other")
        return Times(self.starts, self.ends)

    def _arrive(self, p: int, i: int, op: Op) -> None:
        for meeting in op.meetings:
            number = meeting.exchange
            np.maximum.at(self.latest[number], meeting.group, self.starts[p][i])
            self.missing[number] -= 1
            self.met[number].append((p, i))
        for number in {meeting.exchange for meeting in op.meetings}:
            if not self.missing[number]:
                for member in self.met[number]:
                    self._leave(*member)

    def _leave(self, p: int, i: int) -> None:
        op = self.plans[p].ops[i]
        if (p, i) in self.left or any(self.missing[meeting.exchange] for meeting in op.meetings):
            return
        self.left.add((p, i))
        last = np.zeros(len(self.plans[p].ranks))
        for meeting in op.meetings:
            number = meeting.exchange
            transit = self.changes.transits.get(number, self.exchanges[number].transit)
            np.maximum(last, (self.latest[number] + transit)[meeting.group], out=last)
        self._finish(p, i, last + op.duration)

    def _finish(self, p: int, i: int, end: Floats) -> None:
        self.ends[p][i] = end
        self.done += 1
        for number in self.dependents[p][i]:
            self.awaits[p][number] -= 1
            if not self.awaits[p][number]:
                self.ready.append((p, number))


def solve(plans: Sequence[Plan], exchanges: Sequence[Exchange], changes: Changes | None = None) -> Times:
    """Return when every operation starts and ends.

    Raises:
        RuntimeError: Ranks wait for each other, so that nothing goes on: the program is wrong.
    """
    return _Solver(plans, exchanges, changes or Changes()).run()
