"""The timeline of a run: that of each rank, and where it lies on the clock of the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stepscope.report.page.lane_spans import TimelineLane
from stepscope.report.timeline.job_timeline import RankClock
from stepscope.trace.tables import Tables, columns_of

#: Steps of a rank that are drawn one by one.
MOST_STEPS = 2000


@dataclass(frozen=True)
class Clocks:
    """The clocks of the ranks of a run; of one rank alone, its own.

    Attributes:
        of_rank: The clock of each rank of a job; empty of one rank.
    """

    of_rank: Mapping[int, RankClock] = field(default_factory=dict)

    @property
    def origin(self) -> int | None:
        """Start of the timeline, ns since the Unix epoch, on the clock of the job; None: that of the one rank."""
        begins = [clock.begin for clock in self.of_rank.values() if clock.begin is not None]
        return min(begins, default=None)

    def since(self, rank: int, time: int, origin: int) -> int:
        """Return where a time of a rank lies on the timeline, ns.

        Args:
            rank: The rank.
            time: The time, ns since the Unix epoch, by the clock of the rank.
            origin: Start of the timeline of the rank, likewise: that of a run of this rank alone.
        """
        start = self.origin
        return time - origin if start is None else self.clock(rank).time(time) - start

    def total(self, length: int) -> int:
        """Return the length of the timeline, ns, where that of one rank is ``length``."""
        start = self.origin
        if start is None:
            return max(1, length)
        return max(1, *(clock.end - start for clock in self.of_rank.values() if clock.end is not None))

    def clock(self, rank: int) -> RankClock:
        """Return the clock of a rank."""
        return self.of_rank.get(rank, RankClock())

    def known(self, rank: int) -> dict[str, Any]:
        """Return what the timeline says of a rank before its tables are read."""
        clock = self.clock(rank)
        told = {"host": clock.host, "uncertainty": clock.uncertainty, "reason": clock.reason}
        return {"rank": rank, **told, "read": None}

    def read(self, rank: int, tables: Tables, origin: int, lanes: tuple[TimelineLane, ...]) -> dict[str, Any]:
        """Return lanes and steps of a rank, and how its times become those of the timeline.

        Args:
            rank: The rank.
            tables: Its tables.
            origin: Start of its timeline, ns since the Unix epoch.
            lanes: The lanes of its timeline.
        """
        return {
            "shift": self.since(rank, origin, origin),
            "drift": self.clock(rank).drift,
            "lanes": lanes_shown(lanes),
            "steps": self.steps(rank, tables, origin),
        }

    def steps(self, rank: int, tables: Tables, origin: int) -> list[dict[str, int]]:
        """Return the declared steps of a rank on the timeline."""
        rows = columns_of(tables, "steps", "number", "ts", "dur").sort("ts", maintain_order=True)
        times = ((number, self.since(rank, start, origin), dur) for number, start, dur in rows.iter_rows())
        return [{"number": number, "start": start, "dur": dur} for number, start, dur in times][:MOST_STEPS]


def lanes_shown(lanes: tuple[TimelineLane, ...]) -> list[dict[str, Any]]:
    """Return lanes as plain values."""
    return [{name: getattr(lane, name) for name in lane.__struct_fields__} for lane in lanes]
