"""The clocks of hosts: wrong by seconds, too fast or too slow, and set while the job runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tests.simulator.plans import Floats
from tests.simulator.shapes import Shape

#: When every job begins: nanoseconds since the Unix epoch.
EPOCH = 1_795_000_000_000_000_000


@dataclass(frozen=True)
class HostClock:
    """What a host's clock shows.

    It shows ``EPOCH + t + offset_ns + t · drift_ppm / 10⁶`` at the true time ``t``, and from ``jump_at_ns`` on
    ``jump_ns`` more.
    """

    offset_ns: int
    drift_ppm: float
    jump_at_ns: float = np.inf
    jump_ns: int = 0

    def shows(self, times: Floats) -> Floats:
        """Return what the clock shows at true times, in nanoseconds after ``EPOCH``."""
        return (
            self.offset_ns + times * (1 + self.drift_ppm * 1e-6) + np.where(times >= self.jump_at_ns, self.jump_ns, 0)
        )


def clocks_of(shape: Shape) -> list[HostClock]:
    """Return the clock of each rank; those of one host are one clock."""
    rng = np.random.default_rng([shape.seed, 5])
    hosts = [
        HostClock(int(offset), round(float(drift), 3))
        for offset, drift in zip(
            rng.uniform(-shape.offset_ns, shape.offset_ns, shape.ranks),
            rng.uniform(-shape.drift_ppm, shape.drift_ppm, shape.ranks),
            strict=True,
        )
    ]
    return [hosts[shape.host_of(rank)] for rank in range(shape.ranks)]


def with_jump(clocks: Sequence[HostClock], shape: Shape, rank: int, at: float, by: int) -> list[HostClock]:
    """Return the clocks with that of a rank's host set at a time."""
    host = shape.host_of(rank)
    return [
        replace(clock, jump_at_ns=at, jump_ns=by) if shape.host_of(other) == host else clock
        for other, clock in enumerate(clocks)
    ]
