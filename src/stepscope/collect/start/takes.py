"""Records again while the steps that follow a window are unlike it; for a program that nobody chose steps of.

The first steps of a program are often unlike the others. While the first one is compiled, the workers of its loaders
fill their queues; the next steps drain them, and wait less for data than all later steps do. Files are not in the page
cache yet, or a graph is compiled again. When the draining ends, no interface tells: a queue may be the program's own.
So all steps are timed. Each time the number of steps outside of windows has grown by a quarter, their median and their
midmean are compared with those of the windows. If they differ from those of each window, the next steps are recorded,
too. The median of a few unequal steps is a matter of chance, so each further window has twice the steps of the one
before, as long as they take less than a second. At the end of the program the window stays that is closest to all other
steps, those of the other windows among them. Until then the first one is the run, and the others lie in hidden
directories of it: a program that is killed leaves one run, whose window is whole.

The midmean sees what the median cannot: of steps that are long one time in three, or whose workers finish in pairs, a
window needs the right share of long ones.

A window whose steps proved to be none, because another optimizer ends them, is replaced in every program.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from stepscope.collect.session.recorded import RecordedWindow
from stepscope.trace.run_directory import RankDirectory

#: Relative difference of two medians, and of two midmeans, up to which they count as equal.
NEAR = 0.05
#: Steps before the first comparison, and the most windows of one program.
FIRST, MOST = 16, 8
#: The most steps of a further window, and the most time that more steps than those of the first take, in ns.
LONGEST, LONGEST_NS = 40, 1_000_000_000
#: Steps between the preparation and the beginning of a further window.
SETTLING = 8
#: The most times that are kept: of more steps every second, fourth, … one is.
_ROOM = 1 << 12


@dataclass(frozen=True)
class _Take:
    """One window, and the times of its steps in ns."""

    recorded: RecordedWindow
    durations: tuple[int, ...]
    outdated: bool = False


class Takes:
    """The windows of one program, and the times of all its steps since the first window was prepared.

    Args:
        active: Steps of the first window.
        longest: The most steps of a further window; 0 without further windows.
    """

    def __init__(self, active: int, longest: int = 0) -> None:
        self._active, self._longest = active, longest
        self._takes: list[_Take] = []
        self._ended = 0
        self._open = array("q")
        self._others = array("q")
        self._count, self._stride = 0, 1
        self._look = FIRST
        self._asked = False

    def step(self, end_ns: int, *, recorded: bool) -> bool:
        """Note the end of a step, in ns of ``time.perf_counter_ns``; return whether to record again from the next on.

        Args:
            end_ns: When it ended.
            recorded: Whether it was recorded.
        """
        before, self._ended = self._ended, end_ns
        if recorded:
            self._open.append(end_ns - before)
            return False
        if before:
            self._keep(end_ns - before)
        if not self._takes or self._asked or self._count < self._look:
            return False
        if len(self._takes) >= (MOST if self._longest else 1):
            return False
        self._look = self._count * 5 // 4
        self._asked = all(max(_apart(take.durations, self._others)) > NEAR for take in self._takes)
        return self._asked

    @property
    def active(self) -> int:
        """Steps of the next window."""
        if not self._takes or not self._longest:
            return self._active
        most = min(self._longest, int(LONGEST_NS / max(self._usual(), 1)))
        return max(self._active, min(self._active << len(self._takes), most))

    def place(self) -> RankDirectory | None:
        """Return where the next window records: beside the first, in its run, for it may stay; None for the first."""
        if not self._takes:
            return None
        first = self._takes[0].recorded.rank_path
        return RankDirectory(first.parent / f".take{len(self._takes) + 1}" / first.name)

    def _usual(self) -> float:
        """Return the median of the steps that were not recorded, in ns; 0 without one."""
        return median(self._others) if self._others else 0

    def _distance(self, take: _Take) -> tuple[float, float]:
        """Return how far a window is from all other steps: by the median, and of equal ones by the midmean."""
        others = self._others[:]
        for other in self._takes:
            if other is not take and not other.outdated:
                others.extend(other.durations[:: self._stride])
        middle, mean = _apart(take.durations, others)
        return max(middle, NEAR), mean

    def _keep(self, duration: int) -> None:
        self._count += 1
        if self._count % self._stride == 0:
            self._others.append(duration)
        if len(self._others) == _ROOM:
            self._others, self._stride = self._others[1::2], 2 * self._stride

    def restart_step(self, now_ns: int) -> None:
        """Let the current step begin now: the opening or closing of a window belongs to no step."""
        self._ended = now_ns

    def add(self, recorded: RecordedWindow) -> None:
        """Add a window that has just closed."""
        self._takes.append(_Take(recorded, tuple(self._open) or (0,)))
        self._look = max(FIRST, self._count * 5 // 4)
        self._open, self._asked = array("q"), False

    def outdate(self) -> None:
        """Forget the times: steps end elsewhere than it seemed."""
        self._takes = [replace(take, outdated=True) for take in self._takes]
        self._others, self._count, self._stride, self._look, self._ended = array("q"), 0, 1, FIRST, 0
        self._asked = False

    def keep_best(self, *, last: bool) -> RecordedWindow | None:
        """Return the window that stays, and remove the others.

        Args:
            last: Whether it must be the last one, because the program failed in it.
        """
        if not self._takes:
            return None
        valid = [take for take in self._takes if not take.outdated]
        least = min(self._active, max((len(take.durations) for take in valid), default=0))
        whole = [take for take in valid if len(take.durations) >= least] or self._takes[-1:]
        best = self._takes[-1] if last else min(whole, key=self._distance)
        if best.outdated:
            best.recorded.count_loss(
                "steps_recounted", "an optimizer stepped for the first time after the window began"
            )
        elif len(valid) > 1:
            taken = [{"median_ns": round(median(take.durations)), "kept": take is best} for take in valid]
            best.recorded.note("takes", {"windows": taken, "others_median_ns": round(self._usual())})
        if best is not self._takes[0]:
            best.recorded.exchange(self._takes[0].recorded)
        for take in self._takes:
            if take is not best:
                take.recorded.remove()
        self._takes = [best]
        return best.recorded


def _apart(some: Sequence[int], others: Sequence[int]) -> tuple[float, float]:
    """Return by how much median and midmean of some durations differ from those of others; 0 without others."""
    if not others:
        return 0.0, 0.0
    return abs(median(some) / max(median(others), 1) - 1), abs(midmean(some) / max(midmean(others), 1) - 1)


def midmean(durations: Sequence[int]) -> float:
    """Return the mean of the middle half of some durations; of fewer than four, the median."""
    ordered, whole = sorted(durations), len(durations) // 4
    if not whole:
        return median(ordered)
    inner, part = ordered[whole : len(ordered) - whole], 1 - (len(ordered) / 4 - whole)
    return (sum(inner[1:-1]) + part * (inner[0] + inner[-1])) / (len(ordered) / 2)
