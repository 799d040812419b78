"""The function of the program's own code that a rank spends more time in than its peers."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import polars as pl

#: Fewest looks that tell a function.
_LOOKS = 4
#: A function stands for those that call it if it has this part of what they take longer.
_STANDS_FOR = 0.8


@dataclass(frozen=True)
class SlowFunction:
    """A function that takes a rank longer.

    Attributes:
        name: Function, file and line.
        total_ns: Time in it, a step.
        peers_ns: What it takes the peers: the lower median of the other ranks, ns a step.
    """

    name: str
    total_ns: int
    peers_ns: int

    @property
    def more_ns(self) -> int:
        """What it takes longer than on the peers, ns a step."""
        return self.total_ns - self.peers_ns


def slow_function(functions: pl.DataFrame, rank: int, least_ns: float, thread: str = "training") -> SlowFunction | None:
    """Return the innermost function, or line of one, that takes a rank longer than its peers; None if none does.

    Args:
        functions: The table ``functions`` of the job, of each rank by time.
        rank: The rank.
        least_ns: By how much at least, a step.
        thread: ``training`` or ``workers``.
    """
    others = functions.filter(pl.col("rank") != rank)
    peers = others["rank"].n_unique()
    if not peers:
        return None  # what it takes others is not known
    on_thread = pl.col("thread") == thread
    mine = functions.filter(on_thread & (pl.col("rank") == rank) & (pl.col("looks").fill_null(_LOOKS) >= _LOOKS))
    of_peers: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for function, whole, total in others.filter(on_thread).select("function", "whole", "total").iter_rows():
        of_peers[_same(function, whole=whole)].append(total)
    found = []
    for function, whole, total in mine.select("function", "whole", "total").iter_rows():
        known = of_peers[_same(function, whole=whole)]
        there = sorted([*known, *[0] * (peers - len(known))])
        found.append(SlowFunction(function, total, there[(len(there) - 1) // 2]))
    longer = [one for one in found if one.more_ns >= least_ns]
    most = max((one.more_ns for one in longer), default=0)
    return next((one for one in reversed(longer) if one.more_ns >= _STANDS_FOR * most), None)


def _same(place: str, *, whole: bool) -> tuple[str, bool]:
    """Return what is the same on all ranks: of a whole function, the line that takes most of it may be another one."""
    return place.rpartition(":")[0] if whole else place, whole
