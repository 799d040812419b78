"""Events of a line that become spans, those with sound times that are not noise; and their stats."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.read.common.dense import distinct_rows
from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import Mask, sound
from stepscope.read.xplane import xplane_events
from stepscope.read.xplane.planes import Plane
from stepscope.read.xplane.xplane_events import Line, XplaneEvents, XplaneStats

#: Times further from the beginning of the recording than this, ps, are damage.
_MOST = 1 << 61
#: Times beyond this, ns, count from the Unix epoch, others from the beginning of the recording.
EPOCH = 1 << 60


@dataclass(frozen=True, eq=False)
class XplaneBatch:
    """Some events of one line.

    Attributes:
        plane: The plane.
        place: Position of each event's metadata.
        ts: Start, ns since the recording began, or since the Unix epoch where it lies behind :data:`EPOCH`.
        dur: ns.
        stats: Their stats; ``owner`` is the number of the event in this batch, ``key`` the position of the stat's name.
    """

    plane: Plane
    place: Integers
    ts: Integers
    dur: Integers
    stats: XplaneStats

    def __len__(self) -> int:
        return len(self.place)

    def of(self, name: str) -> XplaneStats:
        """Return the stats of a name."""
        place = self.plane.stat_place_of.get(name)
        return self.stats.where(self.stats.key == (-2 if place is None else place))

    def has(self, name: str) -> Mask:
        """Return which events have a stat of a name."""
        having = np.zeros(len(self), np.bool_)
        having[self.of(name).owner] = True
        return having

    def integers(self, name: str) -> pl.Series:
        """Return the integers of a stat; null for events without one."""
        stats = self.of(name)
        stats = stats.where((stats.field == xplane_events.SIGNED) | (stats.field == xplane_events.UNSIGNED))
        values, known = np.zeros(len(self), np.int64), np.zeros(len(self), np.bool_)
        values[stats.owner] = stats.value
        known[stats.owner] = True
        return pl.Series(values).set(pl.Series(~known), None)

    def texts(self, name: str) -> pl.Series:
        """Return the texts of a stat; null for events without one. Each distinct text is decoded once."""
        return self.gathered(self.of(name))

    def gathered(self, stats: XplaneStats) -> pl.Series:
        """Return texts of stats, of which an event has at most one."""
        found, number = distinct(stats)
        values = self.plane.values(found)
        texts = pl.Series([value if isinstance(value, str) else None for value in values], dtype=pl.String)
        place = np.full(len(self), -1, np.int64)
        place[stats.owner] = number
        return texts.gather(pl.Series(place).replace(-1, None))

    def where(self, chosen: Mask) -> XplaneBatch:
        """Return some of the events."""
        number = np.cumsum(chosen) - 1
        stats = self.stats.where(chosen[self.stats.owner])
        stats = dataclasses.replace(stats, owner=number[stats.owner])
        return XplaneBatch(self.plane, self.place[chosen], self.ts[chosen], self.dur[chosen], stats)


def distinct(stats: XplaneStats) -> tuple[XplaneStats, Integers]:
    """Return the distinct values among stats, and for each stat the number of its value."""
    first, number = distinct_rows([stats.field, stats.value, stats.end])
    chosen = np.zeros(len(stats.owner), np.bool_)
    chosen[first] = True
    return stats.where(chosen), number


def batches(plane: Plane, line: Line, noise: Mask) -> Iterator[XplaneBatch]:
    """Yield the events of a line; those left out, such as those with metadata in ``noise``, are counted."""
    if not 0 <= line.timestamp < 2 * EPOCH:
        plane.ledger.add(
            "event_bad_time", sum(len(events.metadata) for events in xplane_events.batches(plane.content, line))
        )
        return
    for events in xplane_events.batches(plane.content, line):
        batch = _batch(plane, line, events, noise)
        if len(batch):
            yield batch


def _batch(plane: Plane, line: Line, events: XplaneEvents, noise: Mask) -> XplaneBatch:
    place = plane.event_places(events.metadata)
    kept = _sound(plane, events, place, noise)
    offset, duration = events.offset[kept], events.duration[kept]
    # Both ends are rounded alike, so that nested events stay nested.
    ts = line.timestamp + (offset + 500) // 1000
    end = line.timestamp + (offset + duration + 500) // 1000
    number = np.cumsum(kept) - 1
    stats = events.stats.where(kept[events.stats.owner])
    stats = dataclasses.replace(stats, owner=number[stats.owner], key=plane.stat_places(stats.key))
    return XplaneBatch(plane, place[kept], ts, end - ts, stats)


def _sound(plane: Plane, events: XplaneEvents, place: Integers, noise: Mask) -> Mask:
    """Return which events become spans; count the others."""
    return sound(
        plane.ledger,
        event_damaged=(place >= 0) & ~events.damaged,
        event_aggregate=~events.aggregate,
        event_bad_time=(np.abs(events.offset) < _MOST) & (events.duration < _MOST),
        event_negative_duration=events.duration >= 0,
        event_noise=~np.append(noise, np.False_)[place],
    )
