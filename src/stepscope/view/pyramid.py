"""Level of detail for a timeline of any size: built once, memory-mapped, a picture in milliseconds.

The leaf is the spans by lane and start. Each level has buckets of ``w`` ns, four times as wide as those of the level
below. A span whose duration is at least ``w`` stands in a level as itself; a shorter one is summed into the bucket of
its start: number, time, and the row of the longest. Nothing is dropped: number and time of every level add up to the
spans. A picture with ``r`` ns a pixel uses the level with ``w <= r < 4 w``, or the leaf if all are wider: spans of at
least a pixel as they are, the rest as cover of pixels.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from stepscope.report.page.lane_spans import LaneSpans, TimelineLane
from stepscope.trace.run_directory import make_private, replacing, write_atomically

Array = npt.NDArray[np.int64]
AnyArray = npt.NDArray[np.generic]

#: Width of the finest possible bucket, ns; the first level has four spans a bucket on average.
_FINEST = 256
#: Widths are powers of two times :data:`_FINEST`; from one level to the next they grow by four.
_STEP = 2
_LEAF = ("start", "dur", "name", "kind", "row", "edges")
_PARTS = ("bucket", "count", "busy", "longest", "edges", "big", "big_start", "big_edges")
_HEAD = "head.json"
_MAGIC, _VERSION = 0x4C545353, 1
_FRAME = struct.Struct("<8I2q")


class LevelHead(msgspec.Struct, frozen=True):
    """One level: log2 of its width over :data:`_FINEST`, and its width in ns."""

    number: int
    width: int


class PyramidHead(msgspec.Struct, frozen=True):
    """What is small of a pyramid, and what it was made of."""

    made_of: str
    origin: int
    total: int
    lanes: tuple[TimelineLane, ...]
    names: tuple[str, ...]
    levels: tuple[LevelHead, ...]


@dataclass(frozen=True)
class Picture:
    """What one view of the timeline shows.

    Attributes:
        a: First time shown, ns since the origin.
        b: Time after the last.
        number: Number of spans that are shown as themselves, per lane that was asked for.
        rows: Places of those spans in the leaf, lane after lane.
        cover: Per lane and pixel, the share that shorter spans cover, 0 to 1.
        longest: Per lane and pixel, place of the longest of those; −1 where there are none.
        level: Number of the level that was used; −1 for the leaf.
    """

    a: int
    b: int
    number: Array
    rows: Array
    cover: npt.NDArray[np.float32]
    longest: Array
    level: int


def build(spans: LaneSpans, directory: Path, made_of: str) -> None:
    """Write the pyramid of a timeline; its head comes last, so that what is half written is never read.

    Args:
        spans: The timeline.
        directory: Where its files go.
        made_of: What identifies the tables; :meth:`Pyramid.open` compares it.

    Raises:
        OSError: The directory cannot be written.
    """
    make_private(directory)
    for name in _LEAF:
        _save(directory / f"{name}.npy", getattr(spans, name))
    levels = [_write_level(directory, spans, level) for level in _levels(spans)]
    head = PyramidHead(made_of, spans.origin, spans.total, spans.lanes, tuple(spans.names), tuple(levels))
    write_atomically(directory / _HEAD, msgspec.json.encode(head))


@dataclass(frozen=True)
class _Level:
    """Buckets of one width by lane; ``stride`` buckets a lane make up a key."""

    number: int
    stride: int
    key: Array
    count: Array
    busy: Array
    top: Array
    big: Array

    @property
    def width(self) -> int:
        return _FINEST << self.number


def _levels(spans: LaneSpans) -> list[_Level]:
    """Return the levels, finest first; the coarsest has at most 512 buckets a lane."""
    if not len(spans.start):
        return []
    mean = 4 * spans.total * len(spans.lanes) / len(spans.start) / _FINEST
    number = max(3, math.ceil(math.log2(max(mean, 1))))
    lane = np.repeat(np.arange(len(spans.lanes)), np.diff(spans.edges))
    below: _Level | None = None
    joined = np.zeros(len(spans.start), np.bool_)
    found = []
    while below is None or below.width * 512 <= spans.total:
        below = _next_level(spans, lane, number, joined, below)
        found.append(below)
        number += _STEP
    return found


def _next_level(
    spans: LaneSpans, lane: Array, number: int, joined: npt.NDArray[np.bool_], below: _Level | None
) -> _Level:
    """Merge the buckets of the level below by four, and add the spans that are short from here on."""
    width = _FINEST << number
    stride = spans.total // width + 2
    new = np.flatnonzero((spans.dur < width) & ~joined)
    joined[new] = True
    dur = spans.dur[new]
    key = lane[new] * stride + spans.start[new] // width
    # The longest span of a bucket is the greatest of duration << 32 | place; a short span's duration has 31 bits left.
    parts = [key, np.ones(len(new), np.int64), dur, np.minimum(dur, 2**31 - 1) << 32 | new]
    if below is not None:
        merged = below.key // below.stride * stride + (below.key % below.stride >> _STEP)
        old = (merged, below.count, below.busy, below.top)
        parts = [np.concatenate(pair) for pair in zip(old, parts, strict=True)]
    order = np.argsort(parts[0], kind="stable")
    key, count, busy, top = (part[order] for part in parts)
    first = np.flatnonzero(np.r_[True, key[1:] != key[:-1]]) if len(key) else np.zeros(0, np.int64)
    if len(key):
        count, busy, top = np.add.reduceat(count, first), np.add.reduceat(busy, first), np.maximum.reduceat(top, first)
    big = np.flatnonzero(spans.dur >= width)
    return _Level(number, stride, key[first], count, busy, top, big)


def _write_level(directory: Path, spans: LaneSpans, level: _Level) -> LevelHead:
    lanes = np.arange(len(spans.lanes) + 1)
    columns: dict[str, AnyArray] = {
        "bucket": (level.key % level.stride).astype(np.uint32),
        "count": level.count.astype(np.uint32),
        "busy": level.busy,
        "longest": (level.top & 0xFFFFFFFF).astype(np.uint32),
        "edges": np.searchsorted(level.key // level.stride, lanes),
        "big": level.big,
        "big_start": spans.start[level.big],
        "big_edges": np.searchsorted(level.big, spans.edges),
    }
    for name in _PARTS:
        _save(directory / f"{level.number}.{name}.npy", columns[name])
    return LevelHead(level.number, level.width)


def _save(path: Path, column: AnyArray) -> None:
    """Write a column; what still has the file of before in memory keeps that."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, column)


class Pyramid:
    """A timeline as pictures are made of it.

    Args:
        head: What is small of it.
        leaf: Its spans by lane and start, by column.
        levels: Its levels by number, each by column; without any, a picture reads all spans of its window.
    """

    def __init__(self, head: PyramidHead, leaf: Mapping[str, Array], levels: Mapping[int, Mapping[str, Array]]) -> None:
        self.head = head
        self.start, self.dur, self.name, self.kind, self.row, self.edges = (leaf[name] for name in _LEAF)
        self._levels = levels

    @classmethod
    def built(cls, directory: Path) -> Pyramid:
        """Return the pyramid that :func:`build` wrote, memory-mapped.

        Raises:
            OSError: Files are missing.
            msgspec.MsgspecError: Its head is damaged.
        """
        head = msgspec.json.decode((directory / _HEAD).read_bytes(), type=PyramidHead)

        def columns(names: Sequence[str], prefix: str = "") -> dict[str, Array]:
            return {name: np.load(directory / f"{prefix}{name}.npy", mmap_mode="r") for name in names}

        levels = {level.number: columns(_PARTS, f"{level.number}.") for level in head.levels}
        return cls(head, columns(_LEAF), levels)

    @classmethod
    def leaf(cls, spans: LaneSpans, made_of: str) -> Pyramid:
        """Return a pyramid without levels: what is there before it is built. Its spans have the same places."""
        head = PyramidHead(made_of, spans.origin, spans.total, spans.lanes, tuple(spans.names), ())
        return cls(head, {name: getattr(spans, name) for name in _LEAF}, {})

    @classmethod
    def of(cls, directory: Path, made_of: str) -> Pyramid | None:
        """Return the pyramid in a directory if it was made of the same; else None."""
        try:
            found = cls.built(directory)
        except (OSError, ValueError):  # missing or damaged
            return None
        return found if found.head.made_of == made_of else None

    @property
    def spans(self) -> LaneSpans:
        """The spans that it was built of."""
        columns = {name: np.asarray(getattr(self, name)) for name in _LEAF}
        names = list(self.head.names)
        return LaneSpans(self.head.origin, self.head.total, self.head.lanes, names=names, **columns)

    def of_level(self, number: int) -> tuple[int, int]:
        """Return number and time of all spans as a level has them, for tests of what every level must keep."""
        level = self._levels[number]
        count = int(level["count"].sum()) + len(level["big"])
        return count, int(level["busy"].sum()) + int(self.dur[level["big"]].sum())

    def picture(self, lanes: Sequence[int], a: int, b: int, pixels: int) -> Picture:
        """Return what a view shows.

        Args:
            lanes: Lanes, by their index.
            a: First time, ns since the origin.
            b: Time after the last.
            pixels: Width of the view.
        """
        per_pixel = (b - a) / pixels
        fitting = [level.number for level in self.head.levels if level.width <= per_pixel]
        number = max(fitting, default=-1)
        cover = np.zeros((len(lanes), pixels), np.float32)
        longest = np.full((len(lanes), pixels), -1, np.int64)
        rows = []
        for index, lane in enumerate(lanes):
            big, place, busy, top = self._found(lane, a, b, per_pixel, number)
            rows.append(big)
            pixel = ((place - a) / per_pixel).astype(np.int64).clip(0, pixels - 1)
            cover[index] = np.bincount(pixel, busy / per_pixel, pixels)
            order = np.argsort(self.dur[top], kind="stable")  # of several in a pixel, the longest is written last
            longest[index, pixel[order]] = top[order]
        count = np.array([len(of_lane) for of_lane in rows], np.int64)
        every = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        return Picture(a, b, count, every, np.minimum(cover, 1), longest, number)

    def _found(self, lane: int, a: int, b: int, per_pixel: float, number: int) -> tuple[Array, Array, Array, Array]:
        """Return the spans of at least a pixel; and of the others the time, their sum, and the longest of each."""
        if number < 0:
            low, high = self.between(lane, a, b)
            every = np.arange(low, high)
            short = self.dur[low:high] < per_pixel
            small = every[short]
            return every[~short], np.asarray(self.start[small]), np.asarray(self.dur[small]), small
        level = self._levels[number]
        width = _FINEST << number
        low, high = int(level["big_edges"][lane]), int(level["big_edges"][lane + 1])
        first, last = np.searchsorted(level["big_start"][low:high], (a, b))
        first = max(0, first - 1)
        big = np.asarray(level["big"][low + first : low + last])
        big = big[self.start[big] + self.dur[big] > a]
        short = self.dur[big] < per_pixel
        small = big[short]
        low, high = int(level["edges"][lane]), int(level["edges"][lane + 1])
        first, last = np.searchsorted(level["bucket"][low:high], (a // width, -(-b // width)))
        found = slice(low + first, low + last)
        middle = level["bucket"][found].astype(np.int64) * width + width // 2
        return (
            big[~short],
            np.concatenate([middle, self.start[small]]),
            np.concatenate([level["busy"][found], self.dur[small]]),
            np.concatenate([level["longest"][found].astype(np.int64), small]),
        )

    def between(self, lane: int, a: int, b: int) -> tuple[int, int]:
        """Return first and last place (excluded) of the spans of a lane that touch the times from a to b."""
        low, high = int(self.edges[lane]), int(self.edges[lane + 1])
        first, last = np.searchsorted(self.start[low:high], (a, b))
        first = max(0, int(first) - 1)
        if first < last and self.start[low + first] + self.dur[low + first] <= a and self.start[low + first] < a:
            first += 1
        return low + first, low + int(last)

    def statistics(self, lanes: Sequence[int], a: int, b: int) -> dict[str, AnyArray]:
        """Return for each name the spans of a range: number, time inside the range, self, least and most of it; ns.

        Self is the time of a span without that of the spans directly inside it, on whatever lane those are.
        """
        size = len(self.head.names)
        count, total, own, most = (np.zeros(size, np.int64) for _ in range(4))
        least = np.full(size, np.iinfo(np.int64).max)
        for lane in lanes:
            low, high = self.between(lane, a, b)
            name, inside = self.name[low:high], self._inside(low, high, a, b)
            time = np.bincount(name, inside, size).astype(np.int64)  # exact below 104 days
            count += np.bincount(name, minlength=size)
            total += time
            own += time - np.bincount(name, self._deeper(lane, a, b), size).astype(np.int64)
            np.minimum.at(least, name, inside)
            np.maximum.at(most, name, inside)
        found = np.flatnonzero(count)
        found = found[np.argsort(-total[found], kind="stable")]
        figures = {"count": count, "total": total, "self": own, "least": least, "most": most}
        return {"name": found, **{name: figure[found] for name, figure in figures.items()}}

    def _inside(self, low: int, high: int, a: int, b: int) -> Array:
        start = self.start[low:high]
        inside: Array = np.minimum(start + self.dur[low:high], b) - np.maximum(start, a)
        return inside

    def _deeper(self, lane: int, a: int, b: int) -> Array:
        """Return for each span of a lane in a range how much of it the spans directly inside it take, ns."""
        low, high = self.between(lane, a, b)
        taken = np.zeros(high - low)
        below = self._below.get(lane)
        if below is not None and high > low:
            first, last = self.between(below, a, b)
            around = np.searchsorted(self.start[low:high], self.start[first:last], side="right") - 1
            ends = self.start[low:high] + self.dur[low:high]
            within = (around >= 0) & (self.start[first:last] < ends[around])
            taken += np.bincount(around[within], self._inside(first, last, a, b)[within], high - low)
        return taken.astype(np.int64)

    @cached_property
    def _below(self) -> dict[int, int]:
        """The lane of the spans directly inside those of a lane."""
        places = {(lane.track, lane.crossing, lane.depth): place for place, lane in enumerate(self.head.lanes)}
        pairs = pairwise(sorted(places))
        return {places[outer]: places[deeper] for outer, deeper in pairs if outer[:2] == deeper[:2]}

    def places(self, names: Sequence[int], lanes: Sequence[int]) -> Array:
        """Return the places of all spans with one of the names, in order of their start."""
        wanted = np.zeros(len(self.head.names), np.bool_)
        wanted[list(names)] = True
        found = [
            np.flatnonzero(wanted[self.name[self.edges[lane] : self.edges[lane + 1]]]) + int(self.edges[lane])
            for lane in lanes
        ]
        every = np.concatenate(found) if found else np.zeros(0, np.int64)
        ordered: Array = every[np.argsort(self.start[every], kind="stable")]
        return ordered


@dataclass(frozen=True)
class Numbering:
    """Rank of a picture; and what to add to its numbers, where several timelines of a rank are numbered as one."""

    rank: int = 0
    lane: int = 0
    place: int = 0
    name: int = 0


def encode(pyramid: Pyramid, picture: Picture, lanes: Sequence[int], add: Numbering) -> bytes:
    """Return a picture of some lanes as the bytes that the browser draws, little endian, a multiple of eight bytes.

    ``u32`` magic, version, q, pixels, lanes, spans, level, rank; ``i64`` a, b; per lane ``u32`` lane, number of its
    spans; columns over the spans: ``u32`` start, width (units of 2^q ns from a), place, name, ``u8`` kind (padded to
    four bytes); per lane and pixel ``u8`` cover (1 to 255; 0 for none), then ``u8`` kind of the longest span under it.
    """
    a, b = picture.a, picture.b
    # Times are 31 bits wide: below 2.1 s a unit is a nanosecond.
    q = max(0, math.ceil(math.log2(max(1.0, (b - a) / 2**31))))
    start, dur = pyramid.start[picture.rows], pyramid.dur[picture.rows]
    first = np.clip(start - a, 0, None)
    width = np.minimum(start + dur, b) - a - first
    count, pixels = len(picture.rows), picture.cover.shape[1]
    header = _FRAME.pack(_MAGIC, _VERSION, q, pixels, len(lanes), count, picture.level & 0xFFFFFFFF, add.rank, a, b)
    table = np.stack([np.array(lanes, np.int64) + add.lane, picture.number], axis=1)
    under = picture.longest
    kinds = np.where(under >= 0, pyramid.kind[np.maximum(under, 0)] if len(pyramid.kind) else 0, 0)
    cover = np.where(under >= 0, np.maximum(1, np.rint(picture.cover * 255)), 0)
    numbers = (table, first >> q, width >> q, picture.rows + add.place, pyramid.name[picture.rows] + add.name)
    found = b"".join(
        (
            header,
            *(column.astype("<u4").tobytes() for column in numbers),
            pyramid.kind[picture.rows].astype("u1").tobytes(),
            b"\0" * (-count % 4),
            cover.astype("u1").tobytes(),
            kinds.astype("u1").tobytes(),
        )
    )
    return found + b"\0" * (-len(found) % 8)
