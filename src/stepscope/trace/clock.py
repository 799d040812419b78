"""From the monotonic clock to nanoseconds since the Unix epoch.

A recording takes its times from the monotonic clock (``time.perf_counter_ns``): that never jumps and costs 50 ns.
Pairs of both clocks, taken at every block, carry them to the epoch later. Where the system clock was set in between
(NTP, an administrator, a suspended machine), the relation of before goes on, so that all of a recording lies on one
time line; what other sources read from the system clock afterwards is moved there (:attr:`Clock.shifts`).

The standard library only: the training process imports this module.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

#: Clocks that move apart by more than this (1 ms), and by more than a thousandth of the time between, did not drift:
#: one was set.
_JUMP = 1_000_000
_DRIFT = 1_000
#: Times further apart than this (30 days) are of different recordings, or of clocks with different beginnings.
APART_NS = 30 * 86_400 * 1_000_000_000


@dataclass(frozen=True, order=True)
class Anchor:
    """Both clocks at one moment.

    Attributes:
        monotonic: ``time.perf_counter_ns``, in ns.
        epoch: Nanoseconds since the Unix epoch.
        uncertainty: Half the time that the reading took, in ns: the pair is true within ± this.
    """

    monotonic: int
    epoch: int
    uncertainty: int

    @property
    def offset(self) -> int:
        """Nanoseconds to add to the monotonic time."""
        return self.epoch - self.monotonic


def take_anchor(tries: int = 5) -> Anchor:
    """Read both clocks ``tries`` times and return the tightest pair (about 1 µs a try)."""
    return min((_read_both() for _ in range(tries)), key=lambda anchor: anchor.uncertainty)


def _read_both() -> Anchor:
    before = time.perf_counter_ns()
    epoch = time.time_ns()
    after = time.perf_counter_ns()
    return Anchor((before + after) // 2, epoch, (after - before + 1) // 2)


class Clock:
    """Converts monotonic times by the anchors of one recording.

    Between two anchors the relation moves in a straight line, where it moves at all: differences that the uncertainty
    of the readings explains are none. Before the first and after the last anchor the nearest one holds.

    Args:
        anchors: At least one, in any order.

    Raises:
        ValueError: No anchor is given.
    """

    def __init__(self, anchors: Iterable[Anchor]) -> None:
        ordered = sorted(anchors)
        if not ordered:
            message = "A clock needs at least one anchor."
            raise ValueError(message)
        first, *others = _segments(ordered)
        self._unset = _Segment(first)
        #: Each time that the system clock was set: nanoseconds by which it was then ahead of this one.
        self.shifts = [anchors[0].epoch - self.epoch(anchors[0].monotonic) for anchors in others]

    @property
    def jumps(self) -> int:
        """How often the system clock was set."""
        return len(self.shifts)

    def epoch(self, monotonic: int) -> int:
        """Return nanoseconds since the Unix epoch of a monotonic time in ns."""
        return monotonic + self._unset.offset(monotonic)

    def epochs(self, monotonic: Sequence[int]) -> list[int]:
        """Return nanoseconds since the Unix epoch of many monotonic times in ns, in their order."""
        offset = self._unset.constant
        return [self.epoch(time_ns) if offset is None else time_ns + offset for time_ns in monotonic]


class _Segment:
    """Anchors between which the clock was not set."""

    def __init__(self, anchors: list[Anchor]) -> None:
        knots = _knots(anchors)
        self.constant = knots[0].offset if len(knots) == 1 else None
        self._times = [knot.monotonic for knot in knots]
        self._offsets = [knot.offset for knot in knots]

    def offset(self, monotonic: int) -> int:
        """Return what to add to ``monotonic``."""
        right = bisect_right(self._times, monotonic)
        if right == 0 or right == len(self._times):
            return self._offsets[max(right - 1, 0)]
        left = right - 1
        passed, whole = monotonic - self._times[left], self._times[right] - self._times[left]
        return self._offsets[left] + (self._offsets[right] - self._offsets[left]) * passed // whole


def _segments(ordered: list[Anchor]) -> list[list[Anchor]]:
    segments = [[ordered[0]]]
    for before, after in pairwise(ordered):
        moved = abs(after.offset - before.offset)
        allowed = max(_JUMP, (after.monotonic - before.monotonic) // _DRIFT)
        if moved > allowed + before.uncertainty + after.uncertainty:
            segments.append([])
        segments[-1].append(after)
    return segments


def _knots(anchors: list[Anchor]) -> list[Anchor]:
    """Return the tightest anchor, and besides only those that differ from the knot before by more than chance."""
    tightest = min(anchors, key=lambda anchor: anchor.uncertainty)
    if all(_agree(tightest, anchor) for anchor in anchors):
        return [tightest]
    knots = [anchors[0]]
    for anchor in anchors[1:]:
        if not _agree(knots[-1], anchor):
            knots.append(anchor)
    return knots


def _agree(one: Anchor, other: Anchor) -> bool:
    return abs(one.offset - other.offset) <= one.uncertainty + other.uncertainty + 1_000
