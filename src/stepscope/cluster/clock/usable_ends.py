"""Which ends of collectives say something about clocks, and whose clock was set while it recorded."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analyse.quantities import duration_text
from stepscope.cluster.clock import line_fit
from stepscope.cluster.clock.line_fit import Ends, Flags, Floats, Integers, Lines
from stepscope.cluster.clock.shared_hosts import hosts
from stepscope.cluster.job_tables import Frame
from stepscope.cluster.meetings import POINT_TO_POINT, carried, of_several_peers, plain_name

#: Of two clocks that contradict each other, one that bends so many times as much is the one that was set.
_WORSE = 1.2
#: Operations whose members end together. The root of the others leaves when its own part is done.
TOGETHER = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
#: A send that nobody waits for may end long before its recv; where one of both has waited for the other, they end
#: together. That one takes longer than usual for its size by the first factor, or than the other by the second.
_WAITED, _WAITED_MORE = 2.0, 10.0
#: A collective whose sizes differ by more than this over the ranks lets them end apart.
_UNEVEN = 0.05
#: Fewest collectives of a rank.
_FEWEST = 3
#: A clock that bends by more than this many times its scatter, and by more than these ns, was set.
_BENT, _BENT_NS = 2.0, 3_000.0
#: Channels in which one clock that was set moves the ends of the others.
_SMALL = 4


def fitted(meetings: Frame, names: Frame, base: Integers) -> tuple[Lines, Floats, list[str]]:
    """Fit the clocks to the ends, without those of clocks that were set.

    Members of a collective whose clocks moved apart do not meet in it any more: a clock that was set is still that of
    the ranks whose clocks were set with it.

    Args:
        meetings: The collectives of all ranks.
        names: The ranks, with their hosts.
        base: For each, a time in ns that its times are counted from.

    Returns:
        The clocks; by how much the clock of each rank moved against others, ns, 0 where it did not; and for each rank
        the reason why it has no clock, empty where it has one.
    """
    reasons = [""] * len(names)
    places = pl.DataFrame({"rank": names["rank"], "base": base}).with_row_index("at")
    rows = _usable(meetings).join(places, on="rank")
    # Times of a device are not the host's: CUPTI converts them for each process.
    host = np.where(names["device"].eq("cpu").fill_null(value=False).to_numpy(), hosts(names), -1)
    moved = np.zeros(len(names))
    while True:
        rows = _shared(rows)
        ends, start, component, reference = _prepared(rows, hosts(names))
        lines = line_fit.fit(ends, start, component, reference)
        parts, apart = _parted(rows, lines, ends, host)
        if parts["channel"].n_unique() > rows["channel"].n_unique():
            np.maximum.at(moved, ends.edge_rank, apart)
            rows = parts
            continue
        seen = lines.count > 0
        wrong = _set(rows, _of_hosts(_unlikely(lines.bend, lines.scatter), seen, host), reasons)
        if not wrong:
            return lines, moved, reasons
        rows = rows.filter(~pl.col("at").is_in(wrong))


def _shared(rows: Frame) -> Frame:
    """Keep the collectives that at least two ranks have, and the ranks that have enough of them."""
    while True:
        several = (pl.len() > 1).over("meeting") & (pl.len() >= _FEWEST).over("at")
        kept = rows.filter(several)
        if len(kept) == len(rows):
            return kept
        rows = kept


def _usable(meetings: Frame) -> Frame:
    """Return the rows whose ends are together with those of the other members."""
    rows = meetings.filter(pl.col("meeting").is_not_null() & (pl.col("members") > 1) & ~of_several_peers())
    rows = rows.filter(pl.col("launched").fill_null(value=True)).unique(["meeting", "rank"], maintain_order=True)
    rows = rows.with_columns(plain_name("operation"))
    pair = pl.col("operation").is_in(POINT_TO_POINT)
    size = pl.when(pair).then(carried()).otherwise(pl.coalesce("bytes_in", "bytes_out"))
    even = (size.max() - size.min()).over("meeting") <= _UNEVEN * size.max().over("meeting")
    rows = rows.with_columns(
        shortest=pl.col("dur").quantile(0.1).over("operation", size),
        less=pl.col("dur").min().over("meeting"),
    )
    waited = pl.col("dur") > pl.min_horizontal(_WAITED * pl.col("shortest"), _WAITED_MORE * pl.col("less"))
    together = pl.col("operation").str.strip_prefix("i").is_in(TOGETHER) & even.fill_null(value=True)
    # How late a recv always ends is not known where data goes one way only: not more than the shortest takes.
    low, high = pl.min_horizontal("source", "destination"), pl.max_horizontal("source", "destination")
    one_way = pair & (pl.col("channel").n_unique().over(low, high, pair) == 1)
    return rows.filter(together | (pair & waited.any().over("meeting"))).select(
        pair.alias("pair"),
        "rank",
        "meeting",
        "channel",
        "step",
        "ts",
        "dur",
        end=pl.col("ts") + pl.col("dur"),
        bias=pl.when(one_way).then(pl.col("shortest") / 2).otherwise(0.0),
    )


def _prepared(rows: Frame, host: Integers) -> tuple[Ends, Floats, Integers, Integers]:
    """Return the ends, first offsets, and component and reference of each rank."""
    count = len(host)
    at = rows["at"].to_numpy().astype(np.int64)
    meeting = np.unique(rows["meeting"].to_numpy(), return_inverse=True)[1]
    channel = np.unique(rows["channel"].to_numpy(), return_inverse=True)[1]
    edges, edge = np.unique(channel * count + at, return_inverse=True)
    bias, pair = np.zeros(len(edges)), np.zeros(len(edges), np.bool_)
    np.maximum.at(bias, edge, rows["bias"].to_numpy())
    pair[edge] = rows["pair"].to_numpy()
    local = (rows["end"] - rows["base"]).to_numpy().astype(float)
    step = next((float(step) for step in (1_000_000, 1_000) if not (rows["end"] % step != 0).any()), 1.0)
    ends = Ends(at, meeting, channel, local, edge, edges % count, edges // count, pair, host, bias, step)
    start, component, reference = _start(ends, count)
    return ends, start, component, reference


def _start(ends: Ends, count: int) -> tuple[Floats, Integers, Integers]:
    """Return offsets along a tree of channels, and which ranks it joins."""
    table = pl.DataFrame({"rank": ends.rank, "meeting": ends.meeting, "channel": ends.channel, "end": ends.local})
    links: list[tuple[int, int, float]] = []
    while len(table):
        each = table.group_by("channel", "rank").len().sort("channel", "len", "rank", descending=[False, True, False])
        hub = each.unique("channel", keep="first", maintain_order=True).select("channel", "rank")
        middle = table.join(hub, on=["channel", "rank"]).select("meeting", hub="rank", there="end")
        apart = (pl.col("there") - pl.col("end")).median()
        met = table.join(middle, on="meeting").group_by("channel", "hub", "rank").agg(apart)
        links += met.select("hub", "rank", "there").iter_rows()
        table = table.join(met, on=["channel", "rank"], how="anti")
    return _tree(links, np.bincount(ends.rank, minlength=count))


def _tree(links: list[tuple[int, int, float]], busy: Integers) -> tuple[Floats, Integers, Integers]:
    near: list[list[tuple[int, float]]] = [[] for _ in busy]
    for hub, rank, apart in links:
        near[hub].append((rank, apart))
        near[rank].append((hub, -apart))
    start, component, reference = np.zeros(len(busy)), np.full(len(busy), -1), np.arange(len(busy))
    for first in range(len(busy)):
        if component[first] >= 0:
            continue
        component[first] = first
        members = [first]
        for rank in members:
            for other, apart in near[rank]:
                if component[other] < 0:
                    component[other], start[other] = first, start[rank] + apart
                    members.append(other)
        enough = busy[members].max() / 2
        reference[members] = min(rank for rank in members if busy[rank] >= enough)
    return start, component, reference


def _parted(rows: Frame, lines: Lines, ends: Ends, host: Integers) -> tuple[Frame, Floats]:
    """Return the rows with channels and meetings of their own for members whose clocks moved apart, and by how much.

    A channel is parted into those whose clocks moved ahead, those whose clocks moved back, and the others. A channel
    with too few ends to show it, such as one collective a step, is parted like the others of its members.
    """
    far = _unlikely(np.abs(lines.moved), lines.scatter[ends.edge_rank])
    of_rank = np.zeros(len(host))
    np.maximum.at(of_rank, ends.edge_rank, far)
    alike = _of_hosts(of_rank, lines.count > 0, host)[ends.edge_rank] > 0
    moved = np.where((far > 0) & alike, lines.moved, 0.0)
    ahead, back = (np.zeros(int(ends.edge_channel.max(initial=-1)) + 1) for _ in range(2))
    np.maximum.at(ahead, ends.edge_channel, moved)
    np.maximum.at(back, ends.edge_channel, -moved)
    of_rank = np.zeros(len(host))
    np.add.at(of_rank, ends.edge_rank, moved)
    few = (np.bincount(ends.edge) < line_fit.OFTEN) & (ahead + back == 0)[ends.edge_channel]
    side = np.sign(np.where(few, of_rank[ends.edge_rank], moved)).astype(np.int64)
    alone = _alone(lines, ends)
    side = np.where(alone > 0, 2 + lines.group[ends.edge_rank], side)
    parts = rows.with_columns(pl.Series("side", side[ends.edge])).with_columns(
        pl.struct(column, "side").rank("dense").cast(pl.Int64).alias(column) for column in ("meeting", "channel")
    )
    return parts.drop("side"), np.where(moved != 0, (ahead + back)[ends.edge_channel], alone)


def _alone(lines: Lines, ends: Ends) -> Floats:
    """Return how far, ns, each edge to other groups leaves the line whose group's clock was set; 0 for all others."""
    bent = _unlikely(lines.apart, lines.scatter)
    rank, channel, group = ends.edge_rank, ends.edge_channel, lines.group[ends.edge_rank]
    between = lines.between[channel]
    worst = np.zeros(len(lines.between))
    np.maximum.at(worst, channel[between], bent[rank[between]])
    beaten = np.zeros(len(bent), bool)
    beaten[group[between & (worst[channel] > _WORSE * bent[rank])]] = True
    return np.where(between & ~beaten[group], bent[rank], 0.0)


def _unlikely(far: Floats, scatter: Floats) -> Floats:
    """Return how far ends leave their line, ns; 0 where it may be one."""
    return np.where((far > _BENT * scatter) & (far > _BENT_NS), far, 0.0)


def _of_hosts(bent: Floats, seen: Flags, host: Integers) -> Floats:
    """Return by how much the clock of each rank bends, without what is not of the clock.

    A host has one clock. It bends only for all of its ranks alike, and only against other hosts: one rank of it that
    bends has left its collectives late, as on a machine that is busy.
    """
    for number in np.unique(host[seen & (host >= 0)]):
        same = seen & (host == number)
        if not bent[same].all() or same.sum() == seen.sum():
            bent[same] = 0.0
    return bent


def _set(rows: Frame, bent: Floats, reasons: list[str]) -> list[int]:
    """Give a reason to ranks whose clock is not a line, and return them; of ranks that meet in pairs, the worse one."""
    at, channel = rows["at"].to_numpy().astype(np.int64), rows["channel"].to_numpy()
    if not bent.any():
        return []
    small = rows.with_columns(size=pl.col("at").n_unique().over("channel"))["size"].to_numpy() <= _SMALL
    worst = np.zeros(int(channel.max()) + 1)
    np.maximum.at(worst, channel[small], bent[at[small]])
    beaten = np.zeros(len(bent), bool)
    beaten[at[small][worst[channel[small]] > bent[at[small]]]] = True
    wrong = np.flatnonzero((bent > 0) & ~beaten)
    for rank in wrong:
        reasons[rank] = (
            f"its clock was set, or did not run evenly, while it recorded: by about {duration_text(bent[rank])}"
        )
    return [int(rank) for rank in wrong]
