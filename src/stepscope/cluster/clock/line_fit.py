"""Straight lines through the ends of the same collectives: the numbers behind :mod:`stepscope.cluster.clocks`.

All members of a collective end together, within the exit jitter. So the ends on the clock of a rank, against the median
over the members, lie on a line: offset and drift of that clock against the channel. The lines of all channels make
a graph; least squares over the graph, by conjugate gradients, give each rank one line. Both are repeated: better clocks
make better medians. Nothing is larger than the number of rows, so that 1,024 ranks take a second or two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

#: Normal distribution: standard deviation of one whose median absolute deviation is 1.
MAD = 1.4826
_HUBER = 1.345
_ROUNDS, _SETTLED = 12, 30.0
#: Drifts of two clocks against each other that are usual (1e-4 is 100 ppm).
_DRIFT = 1e-4
#: Part of the exit jitter that does not average out: some ranks always leave a little later.
_LASTING = 0.1
_FLOOR = 20.0
_DRAWS = 24
#: With more rows than these, the scatter of an edge is its own.
_ENOUGH = 6
#: So few rows say nothing of outliers: a line through two of them leaves one.
_LINE = 3
#: So many ends of a rank show whether its clock was set amid them; fewer may not.
OFTEN = 10
#: Parts of a recording in which ends are compared with the line, and ends at its beginning and its end.
_PARTS, _LAST = 8, 5


@dataclass(frozen=True)
class Ends:
    """The ends of collectives that are used, one row a rank and collective.

    Attributes:
        rank: Index of the rank.
        meeting: Index of the collective.
        channel: Index of the channel.
        local: End by the clock of the rank, in ns since a moment of its own.
        edge: Index of the pair of channel and rank; ``edge_rank`` and ``edge_channel`` name the two.
        pair: For each edge, whether its channel has messages of two ranks, and no collectives.
        host: For each rank, the number of its host; negative if unknown.
        bias: For each edge, by how many ns its ends may be late all the time.
        resolution: Step of the times, in ns.
    """

    rank: Integers
    meeting: Integers
    channel: Integers
    local: Floats
    edge: Integers
    edge_rank: Integers
    edge_channel: Integers
    pair: Flags
    host: Integers
    bias: Floats
    resolution: float


@dataclass(frozen=True)
class Lines:
    """The clocks, job time = ``offset`` + local + ``drift`` × (local − ``centre``), all in ns, by index of the rank.

    Attributes:
        offset: Job time less local time at ``centre``.
        drift: Rate of the job's clock against this one, less 1.
        centre: Middle of the ends of the rank, by its own clock.
        reach: Half the time between its first and its last end.
        noise: Exit jitter of each rank: a standard deviation, by the median absolute deviation.
        scatter: The same, by the differences between one end and the next.
        bend: How far the ends of a part of the recording lie off the line, more than chance explains.
        moved: The same of each edge, against the ends of its channel; positive if later ends lie later.
        group: For each rank, the lowest of those that one clock is sure to have, or that it meets all the time.
        apart: How far ends of its group leave the line where it meets other groups: the mean; 0 if by chance.
        between: For each channel, whether it has members of several groups.
        count: Number of ends of each rank.
        deviation: Standard deviation of the offset at ``centre``.
        end_deviation: The same at the first or the last end, whichever is larger.
        drift_deviation: Standard deviation of the drift.
        component: Ranks with the same number share collectives, directly or through others.
        reference: For each rank, the rank whose clock is that of its component.
    """

    offset: Floats
    drift: Floats
    centre: Floats
    reach: Floats
    noise: Floats
    scatter: Floats
    bend: Floats
    moved: Floats
    group: Integers
    apart: Floats
    between: Flags
    count: Integers
    deviation: Floats
    end_deviation: Floats
    drift_deviation: Floats
    component: Integers
    reference: Integers


def fit(ends: Ends, start: Floats, component: Integers, reference: Integers) -> Lines:
    """Fit the clocks.

    Args:
        ends: The ends.
        start: For each rank, a first offset: true within the drift of the window.
        component: Number of the component of each rank.
        reference: For each rank, the rank whose clock is that of its component.
    """
    ranks = len(start)
    low, high = np.full(ranks, np.inf), np.full(ranks, -np.inf)
    np.minimum.at(low, ends.rank, ends.local)
    np.maximum.at(high, ends.rank, ends.local)
    seen = np.isfinite(low)
    centre = np.bincount(ends.rank, weights=ends.local, minlength=ranks) / np.maximum(
        np.bincount(ends.rank, minlength=ranks), 1
    )
    reach = np.where(seen, np.maximum(high - centre, centre - low), 0.0)
    offset, drift = start.copy(), np.zeros(ranks)
    scale = max(float(reach.max(initial=0.0)), 1.0)
    for _ in range(_ROUNDS):
        time = ends.local + offset[ends.rank] + drift[ends.rank] * (ends.local - centre[ends.rank])
        apart = time - _median(time, ends.meeting)
        middle = float(np.median(time)) if len(time) else 0.0
        graph = _Graph.of(ends, (time - middle, scale), apart, ranks)
        solution = graph.solve(graph.line[:, :, None])[:, :, 0]
        at_centre = (centre + offset - middle) / scale
        change = solution[:, 0] + solution[:, 1] * at_centre
        offset -= change
        drift -= solution[:, 1] / scale
        if np.abs(change).max(initial=0.0) + np.abs(solution[:, 1]).max(initial=0.0) < _SETTLED:
            break
    noise = _of_members(_deviation(apart, ends.rank, ranks), ends, ranks)
    count = np.bincount(ends.rank, minlength=ranks)
    bend, moved, scatter = _bends(apart, ends, ranks)
    group, between = _often_together(ends, ranks)
    deviation, end_deviation, drift_deviation = graph.with_misfits().spread(at_centre, reach / scale, reference)
    # The clock of the reference is the job's: the others' lines are seen from it.
    rate = drift[reference]
    base = offset[reference] + (centre + offset - centre[reference] - offset[reference]) * rate
    floor = max(_FLOOR, 0.3 * ends.resolution)
    return Lines(
        offset=np.where(reference == np.arange(ranks), 0.0, offset - base),
        drift=drift - rate,
        centre=centre,
        reach=reach,
        noise=np.where(count > 0, np.maximum(noise, floor), 0.0),
        scatter=np.maximum(scatter, floor),
        bend=bend,
        moved=moved,
        group=group,
        apart=_between_groups(apart, ends, (group, between), scatter),
        between=between,
        count=count,
        deviation=deviation,
        end_deviation=end_deviation,
        drift_deviation=np.where(count > 0, drift_deviation / scale, np.inf),
        component=component,
        reference=reference,
    )


def _bends(apart: Floats, ends: Ends, ranks: int) -> tuple[Floats, Floats, Floats]:
    """Return how far ends leave the line in a part of the recording, those of each rank and of each edge; the scatter.

    A clock that is set moves the ends of messages and those of collectives alike. Where only those of messages leave
    the line, sends and receives are not matched as they ran.
    """
    apart = apart - _median(apart, ends.edge)
    pair = ends.pair[ends.edge]
    order = _order(ends.local, ends.rank)
    rank, left = ends.rank[order], apart[order]
    inside = np.flatnonzero(rank[1:] == rank[:-1])
    scatter = _deviation(left[inside + 1] - left[inside], rank[inside], ranks) / np.sqrt(2)
    bend = np.abs(_leaving(left, rank, pair[order], scatter))
    # Few ends are little among many; but where their channel alone spans hosts, only they show that a clock was set.
    order = _order(ends.local, ends.edge)
    order = order[~pair[order]]
    moved = _leaving(apart[order], ends.edge[order], pair[order], scatter[ends.edge_rank])
    return bend, moved, scatter


def _between_groups(apart: Floats, ends: Ends, groups: tuple[Integers, Flags], scatter: Floats) -> Floats:
    """Return how far the ends of each rank's group leave the line where it meets other groups; 0 if by chance.

    Such ends may be few in each channel, and few among all ends of the rank.
    """
    group, ranks = groups[0], len(groups[0])
    order = _order(ends.local, ends.rank)
    order = order[groups[1][ends.channel[order]]]
    rank, left = ends.rank[order], (apart - _median(apart, ends.edge))[order]
    leaving = _leaving(left, rank, ends.pair[ends.edge][order], scatter) != 0
    there = np.bincount(rank, minlength=ranks) > 0
    alike = _median_of_groups(leaving[there].astype(float), group[there], ranks) > 0
    members = np.maximum(np.bincount(group[rank], minlength=ranks), 1)
    # A clock that was set leaves the line in all of its channels, one that it meets only where they meet.
    mean = np.bincount(group[rank], np.abs(left), ranks) / members
    return np.where(alike, mean, 0.0)[group]


def _often_together(ends: Ends, ranks: int) -> tuple[Integers, Flags]:
    """Return the group of each rank, joined by hosts and by channels with many ends; and which channels join groups."""
    often = (np.bincount(ends.edge, minlength=len(ends.edge_rank)) >= OFTEN) & ~ends.pair
    rank, channel = ends.edge_rank, ends.edge_channel
    channels = int(channel.max(initial=-1)) + 1
    group, known = np.arange(ranks), np.flatnonzero(ends.host >= 0)
    while True:
        lowest, joined = np.full(channels, ranks), group.copy()
        np.minimum.at(lowest, channel[often], group[rank[often]])
        np.minimum.at(joined, rank[often], lowest[channel[often]])
        of_host = np.full(ranks + 1, ranks)  # hosts are numbered from 1 on
        np.minimum.at(of_host, ends.host[known], joined[known])
        joined[known] = of_host[ends.host[known]]
        if (joined == group).all():
            break
        group = joined
    low, high = np.full(channels, ranks), np.full(channels, -1)
    np.minimum.at(low, channel, group[rank])
    np.maximum.at(high, channel, group[rank])
    return group, low < high


def _leaving(left: Floats, group: Integers, pair: Flags, scatter: Floats) -> Floats:
    """Return for each group of ends, which are in order of time, how far a part of it leaves the line.

    It is positive if what is later lies later than what is earlier.
    """
    groups = len(scatter)
    count = np.bincount(group, minlength=groups)
    place = np.arange(len(group)) - (np.cumsum(count) - count)[group]
    bend = np.zeros(groups)
    # Equal parts; and the first and the last few ends, which a clock that is set near an end leaves alone.
    whole = group * _PARTS + place * _PARTS // np.maximum(count[group], 1)
    first, last = place < _LAST, place >= count[group] - _LAST
    half = np.arange(_PARTS) < _PARTS // 2
    parts = ((whole, slice(None), half), (group * _PARTS, first, half | True), (group * _PARTS, last, half & False))
    for part, members, early in parts:
        size = np.bincount(part[members], minlength=groups * _PARTS)
        middle = _midmeans(left[members], part[members], groups * _PARTS)
        moved = np.abs(middle)
        for chosen in (pair[members], ~pair[members]):
            there = np.bincount(part[members][chosen], minlength=groups * _PARTS) > 0
            same = np.sign(middle) * _median_of_groups(left[members][chosen], part[members][chosen], groups * _PARTS)
            moved = np.where(there, np.minimum(moved, same), moved)
        # A clock that was set moves all ends alike; ends that are late now and then differ among themselves.
        own = np.maximum(_deviation(left[members], part[members], groups * _PARTS), np.repeat(scatter, _PARTS))
        beyond = np.where(size >= 3, moved - 4 * own / np.sqrt(np.maximum(size, 1)), 0.0).reshape(groups, _PARTS)
        most = np.arange(groups), beyond.argmax(axis=1)
        later = np.sign(middle.reshape(groups, _PARTS)[most]) * np.where(early[most[1]], -1, 1)
        bend = np.where(beyond[most] > np.abs(bend), beyond[most] * later, bend)
    return bend


@dataclass(frozen=True)
class _Graph:
    """Lines of the edges between ranks and channels, and how well each is known.

    Attributes:
        ends: The rows that they are made of.
        ranks: Number of ranks.
        line: Offset and slope of each edge.
        covariance: Their covariance.
    """

    ends: Ends
    ranks: int
    line: Floats
    covariance: Floats

    @classmethod
    def of(cls, ends: Ends, times: tuple[Floats, float], apart: Floats, ranks: int) -> _Graph:
        """Fit a robust line to each edge; the times are in ns and come with the scale of the slopes."""
        scale = times[1]
        time = times[0] / scale
        edges = len(ends.edge_rank)
        count = np.bincount(ends.edge, minlength=edges).astype(float)
        line: Floats = np.zeros((edges, 2))
        line[:, 0] = _median_of_groups(apart, ends.edge, edges)
        for turn in range(4):
            left = apart - line[ends.edge, 0] - line[ends.edge, 1] * time
            if turn % 2 == 0:
                noise = _pooled(left, ends, count)
            size = np.abs(left) / noise[ends.edge]
            weight = np.where(size > _HUBER, _HUBER / np.maximum(size, 1e-9), 1.0)
            information, moment = _normal(ends.edge, weight, time, apart, edges)
            # A slope that few or close rows cannot show is one that clocks have.
            prior = np.zeros((edges, 2, 2))
            prior[:, 1, 1] = (noise / (_DRIFT * scale)) ** 2
            line[:] = np.linalg.solve(information + prior, moment[:, :, None])[:, :, 0]
        # Of few rows the scatter is not known well either, least of those that few others meet.
        unsure = (1 + 4 / count) * (1 + 2 / _freedom(ends, count))
        covariance = np.linalg.inv(information + prior) * ((noise * unsure) ** 2)[:, None, None]
        covariance[:, 0, 0] += (_LASTING * noise) ** 2 + ends.bias**2
        return cls(ends, ranks, line, covariance)

    def with_misfits(self) -> _Graph:
        """Return the graph with larger errors where the lines of the edges contradict each other."""
        solved, channels = self._both(self.line[:, :, None])
        misfit = (self.line - solved[self.ends.edge_rank, :, 0] + channels[self.ends.edge_channel, :, 0])[:, 0]
        covariance = self.covariance.copy()
        covariance[:, 0, 0] += misfit**2
        return replace(self, covariance=covariance)

    def solve(self, lines: Floats) -> Floats:
        """Return the line of each rank, of lines of the edges (edges × 2 × several)."""
        return self._both(lines)[0]

    def spread(self, centre: Floats, reach: Floats, reference: Integers) -> tuple[Floats, Floats, Floats]:
        """Return standard deviations of each rank's line: in the middle, at its ends, of its slope.

        They are those against the reference, or against the mean of its component, whichever is larger.

        They come from trials: the lines of the edges, wrong by chance, are solved as the real ones are.
        """
        chance = np.random.default_rng(7).standard_normal((len(self.line), 2, _DRAWS))
        errors = self._both(np.linalg.cholesky(self.covariance) @ chance, accuracy=1e-8)[0]
        members = np.maximum(np.bincount(reference, minlength=self.ranks), 1)[:, None, None]
        sums = np.zeros_like(errors)
        np.add.at(sums, reference, errors)
        largest = np.zeros((4, self.ranks))
        for against in (errors[reference], (sums / members)[reference]):
            left = errors - against
            places = [left[:, 0] + left[:, 1] * place[:, None] for place in (centre, centre - reach, centre + reach)]
            found = [np.sqrt((one**2).mean(axis=1)) for one in (*places, left[:, 1])]
            largest = np.maximum(largest, found)
        return largest[0], np.maximum(largest[1], largest[2]), largest[3]

    def _both(self, lines: Floats, accuracy: float = 1e-14) -> tuple[Floats, Floats]:
        """Return the lines of ranks and channels: conjugate gradients on the normal equations of the graph."""
        precision = np.linalg.inv(self.covariance)
        rank, channel = self.ends.edge_rank, self.ends.edge_channel
        nodes = self.ranks + int(channel.max(initial=-1)) + 1
        to, off = np.concatenate((rank, self.ranks + channel)), np.concatenate((precision, precision))
        order = np.argsort(to, kind="stable")
        starts = np.flatnonzero(np.diff(to[order], prepend=-1))
        present = to[order][starts]

        def gathered(values: Floats) -> Floats:
            sums = np.zeros((nodes, *values.shape[1:]))
            sums[present] = np.add.reduceat(np.concatenate((values, -values))[order], starts, axis=0)
            return sums

        blocks = np.zeros((nodes, 2, 2))
        blocks[present] = np.add.reduceat(off[order], starts, axis=0)
        # Drift is held, by far less than any collective says, so that every node has one line.
        blocks[:, 1, 1] += 1e-12 * max(float(blocks[:, 1, 1].max(initial=0.0)), 1e-12)
        blocks[:, 0, 0] += 1e-300
        empty = np.setdiff1d(np.arange(nodes), present)
        blocks[empty] = np.eye(2)
        inverse = np.linalg.inv(blocks)
        right = gathered(precision @ lines)
        found = np.zeros_like(right)
        rest = right
        step = inverse @ rest
        size = (rest * step).sum(axis=(0, 1))
        first = np.maximum(size, 1e-300)
        for _ in range(4 * nodes + 50):
            if (size <= accuracy * first).all():
                break
            moved = gathered(precision @ (step[rank] - step[self.ranks + channel]))
            length = size / np.maximum((step * moved).sum(axis=(0, 1)), 1e-300)
            found = found + length * step
            rest = rest - length * moved
            towards = inverse @ rest
            before, size = size, (rest * towards).sum(axis=(0, 1))
            step = towards + size / np.maximum(before, 1e-300) * step
        return found[: self.ranks], found[self.ranks :]


def _freedom(ends: Ends, count: Floats) -> Floats:
    """Return for each edge how many rows of its channel are more than its lines need; 1 where none is."""
    members = np.bincount(ends.edge_channel)
    free = np.bincount(ends.edge_channel, np.maximum(count - 2, 0)) * (1 - 1 / np.maximum(members, 1))
    return np.maximum(free, 1)[ends.edge_channel]


def _pooled(left: Floats, ends: Ends, count: Floats) -> Floats:
    """Return the exit jitter of each edge: its own, and for few rows that of its channel and of the job."""
    channels = int(ends.edge_channel.max(initial=-1)) + 1
    own = _deviation(left, ends.edge, len(count))
    # Few rows lie nearer to their own line than to the true one.
    whole = _deviation(left * _of_few(count)[ends.edge], ends.channel, channels)[ends.edge_channel]
    enough = count > _ENOUGH
    job = float(np.median(own[enough] if enough.any() else whole)) if len(own) else 0.0
    members = np.bincount(ends.edge_channel, minlength=channels)[ends.edge_channel]
    # The median of two ends lies in the middle between them, and moves with each.
    alone = np.sqrt(members / np.maximum(members - 1, 1))
    # Two rows are always on a line.
    free = np.maximum(count - 2, 0)
    near = np.minimum(free, _ENOUGH)
    both: Floats = np.sqrt((free * own**2 + near * whole**2 + 4 * job**2) / (free + near + 4)) * alone
    floor = max(_FLOOR, 0.3 * ends.resolution)
    jitter: Floats = np.maximum(both, floor)
    return jitter


def _of_members(noise: Floats, ends: Ends, ranks: int) -> Floats:
    """Correct the jitter of ranks for the size of their channels, as :func:`_pooled` does."""
    members = np.bincount(ends.edge_channel)[ends.channel]
    count = np.maximum(np.bincount(ends.rank, minlength=ranks), 1)
    mean = np.maximum(np.bincount(ends.rank, weights=members, minlength=ranks) / count, 2)
    corrected: Floats = noise * np.sqrt(mean / (mean - 1))
    return corrected


def _normal(edge: Integers, weight: Floats, time: Floats, apart: Floats, edges: int) -> tuple[Floats, Floats]:
    information, moment = np.empty((edges, 2, 2)), np.empty((edges, 2))
    total, once, twice, offset, slope = (
        np.bincount(edge, weights=weight * factor, minlength=edges)
        for factor in (1.0, time, time * time, apart, apart * time)
    )
    information[:, 0, 0], information[:, 1, 1] = total, twice
    information[:, 0, 1] = information[:, 1, 0] = once
    moment[:, 0], moment[:, 1] = offset, slope
    return information, moment


def _median(values: Floats, group: Integers) -> Floats:
    """Return for each value the median of its group."""
    return _median_of_groups(values, group, int(group.max(initial=-1)) + 1)[group]


def _median_of_groups(values: Floats, group: Integers, groups: int) -> Floats:
    """Return the median of each group; 0 for one without values."""
    count = np.bincount(group, minlength=groups)
    ordered = values[_order(values, group)]
    first = np.cumsum(count) - count
    last = max(len(values) - 1, 0)
    low, high = np.clip(first + (count - 1) // 2, 0, last), np.clip(first + count // 2, 0, last)
    if not len(values):
        return np.zeros(groups)
    return np.where(count > 0, (ordered[low] + ordered[high]) / 2, 0.0)


def _order(values: Floats, group: Integers) -> Integers:
    """Return the order of the values by group, then by value."""
    order = np.argsort(values)
    # numpy sorts 16 bits by radix: five times as fast as `lexsort`.
    for shift in range(0, max(int(group.max(initial=0)).bit_length(), 1), 16):
        order = order[np.argsort((group[order] >> shift & 0xFFFF).astype(np.uint16), kind="stable")]
    return order


def _midmeans(values: Floats, group: Integers, groups: int) -> Floats:
    """Return the mean of the middle half of each group; 0 for one without values."""
    count = np.bincount(group, minlength=groups)
    order = _order(values, group)
    place = (np.arange(len(values)) - (np.cumsum(count) - count)[group[order]] + 0.5) / count[group[order]]
    middle = order[(place > 0.25) & (place < 0.75)]
    kept = np.bincount(group[middle], minlength=groups)
    return np.bincount(group[middle], weights=values[middle], minlength=groups) / np.maximum(kept, 1)


def _deviation(values: Floats, group: Integers, groups: int) -> Floats:
    """Return the standard deviation of each group, of which values far out count no more than those at three of it.

    It is by the median absolute deviation, and not less than the mean square; a little more for small groups.
    """
    middle = _median_of_groups(values, group, groups)
    count = np.maximum(np.bincount(group, minlength=groups), 1)
    left = np.abs(values - middle[group])
    deviation = MAD * _median_of_groups(left, group, groups)
    # Of three values off a line, two are equal: their median absolute deviation is 0, and none of them is far out.
    most = np.where(count > _LINE, 3 * deviation, np.inf)
    square = np.bincount(group, weights=np.minimum(left, most[group]) ** 2, minlength=groups) / count
    return np.maximum(deviation, np.sqrt(square)) * _of_few(count)


def _of_few(count: Integers | Floats) -> Floats:
    """Return how much more than it seems so many values scatter, which lie about a line that they have made."""
    more: Floats = 1 + 1.5 / np.maximum(count, 1)
    return more
