"""The recorder's ticks → nanoseconds since the Unix epoch.

Between two moments at which all clocks were read, ticks move in a straight line against CLOCK_MONOTONIC; before the
first and behind the last, as they do beside them. From there on :class:`stepscope.trace.clock.Clock` goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.native import recorder_words as native
from stepscope.read.common.nesting import Integers
from stepscope.read.recorder.recorder_blocks import Moment, Words
from stepscope.trace.clock import Anchor, Clock

#: So far outside what the clocks say, in ns, times are damaged: the recorder reads them twice a second.
_REACH = 600_000_000_000
_MOST_NS = 1 << 62


class RecorderTicks:
    """Converts ticks by the clocks at some moments; ``ticks_are_ns``: whether ticks are ns of CLOCK_MONOTONIC."""

    def __init__(self, moments: Sequence[Moment], *, ticks_are_ns: bool) -> None:
        #: Whether it is known how long a tick is.
        self.rate_known = ticks_are_ns or len(moments) > 1
        self._at, self._ns = _knots(moments, ticks_are_ns=ticks_are_ns)
        given = list(moments) or [Moment(0, 0, 0, 0, 0)]
        self._bounds = (given[0].monotonic - _REACH, given[-1].monotonic + _REACH) if moments else (0, _MOST_NS)
        #: The last moment, ns of CLOCK_MONOTONIC.
        self.last = given[-1].monotonic
        self._clock = Clock(Anchor(moment.monotonic, moment.epoch, moment.epoch_uncertainty) for moment in given)
        self._set_at = np.array([moment.monotonic for moment in given], np.int64)
        self._offsets = np.array([self._clock.epoch(time) - time for time in self._set_at.tolist()], np.int64)
        #: Times are true within ± so many ns.
        self.error_ns = max(moment.ticks_uncertainty + moment.epoch_uncertainty for moment in given)

    @property
    def jumps(self) -> int:
        """How often the system's clock was set."""
        return self._clock.jumps

    def monotonic(self, ticks: Words) -> Integers:
        """Return CLOCK_MONOTONIC in ns; the result may lie where the ticks lay."""
        if not native.times(ticks, self._at, self._ns):
            return times_in_python(ticks, self._at, self._ns)
        times: Integers = ticks.view(np.int64)
        return times

    def epochs(self, monotonic: Integers) -> Integers:
        """Return ns since the Unix epoch of times of CLOCK_MONOTONIC, as ``Clock.epochs`` does for the journal."""
        if (self._offsets == self._offsets[0]).all():
            return monotonic + int(self._offsets[0])
        since, moved = monotonic - self._set_at[0], self._offsets - self._offsets[0]
        drift = np.interp(since.astype(np.float64), (self._set_at - self._set_at[0]).astype(np.float64), moved)
        times: Integers = monotonic + int(self._offsets[0]) + np.floor(drift).astype(np.int64)
        return times

    def damaged(self, monotonic: Integers) -> npt.NDArray[np.bool_]:
        """Return which times cannot be."""
        return (monotonic < self._bounds[0]) | (monotonic > self._bounds[1])


def _knots(moments: Sequence[Moment], *, ticks_are_ns: bool) -> tuple[Words, Integers]:
    """Return ticks and ns of two or more knots; with less known, ticks are taken for ns."""
    if ticks_are_ns or not moments:
        return np.array([0, 1 << 60], np.uint64), np.array([0, 1 << 60], np.int64)
    knots = [(moment.ticks, moment.monotonic) for moment in moments]
    if len(knots) == 1:
        knots.append((knots[0][0] + 1, knots[0][1] + 1))
    return np.array([at for at, _ in knots], np.uint64), np.array([ns for _, ns in knots], np.int64)


def times_in_python(ticks: Words, at: Words, ns: Integers) -> Integers:
    """Do what the C library does: the same arithmetic, to the bit."""
    piece = np.clip(np.searchsorted(at, ticks, side="right") - 1, 0, len(at) - 2)
    slopes = np.diff(ns).astype(np.float64) / np.diff(at).astype(np.float64)
    # Only the time since the knot passes through a float: half a second, exact to less than a nanosecond.
    since = (ticks - at[piece]).view(np.int64).astype(np.float64)
    elapsed = np.clip(np.floor(since * slopes[piece]), -_MOST_NS, _MOST_NS)
    return ns[piece] + elapsed.astype(np.int64)
