"""The same collective on several ranks: which rows of ``collectives`` are one meeting.

Rows meet by channel, number in the channel, operation and size. A channel is a process group, or a pair of ranks in one
direction. Numbers are the source's. Where a rank only counts what its window holds, its numbers are moved until steps
and the pattern of operations and sizes agree with those of the others. What does not agree never meets.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.cluster.job_tables import Frame, JobTables

Integers = npt.NDArray[np.int64]

#: Operations between two ranks, without underscores.
POINT_TO_POINT = ("send", "recv", "isend", "irecv")
_SENDS = ("send", "isend")
#: Operations of which every rank has the same size.
_SAME_SIZE = ("allreduce", "allgather", "reducescatter", "broadcast")
#: A channel whose rows disagree more often than this is moved.
_DISAGREEING = 0.02
#: Most movements that are tried for a rank in a channel.
_MOVEMENTS = 5
#: Part of a rank's rows that the right movement makes steady, at least; how much steadier another one must be, and the
#: time (ns) from which on a row does not fit anyway.
_MOST, _ALIKE, _FAR = 0.4, 3.0, 1e9
#: Of a group without a name: how much closer the ends must lie than the starts, if not within 5 µs.
_CLOSER, _CLOSE = 0.5, 5_000
#: Two clocks of computers drift apart no faster than this.
_MOST_DRIFT = 2e-4


def meetings(tables: JobTables) -> Frame:
    """Match the collectives of all ranks.

    Returns:
        The rows of ``collectives`` in their order, with the rank itself as source of a send and destination of a recv,
        and the columns ``channel`` (the process group or the pair, null if unknown), ``meeting`` (equal for the rows
        that are one collective; null for a row that fits none), ``members`` (number of ranks seen in it) and
        ``complete`` (whether these are all ranks of the group; null if its size is not known).
    """
    rows = tables.collectives.with_row_index("row").with_columns(plain=plain_name("operation"))
    rows = _channels(rows, tables)
    rows = rows.with_columns(_token())
    numbered = _numbered(rows.filter(pl.col("channel").is_not_null()))
    moved = numbered.filter(pl.col("channel").is_in(_doubtful(numbered).implode()))
    if len(moved):
        apart = [_moved(channel) for channel in moved.partition_by("channel", maintain_order=True)]
        numbered = pl.concat([numbered.join(moved, on="row", how="anti"), *apart])
    met = _met(numbered)
    met = met.filter(~pl.col("channel").is_in(_implausible(met).implode()))
    rows = rows.drop("token").join(met.select("row", "meeting"), on="row", how="left", maintain_order="left")
    members = pl.col("rank").n_unique().over("meeting")
    rows = rows.with_columns(members=pl.when(pl.col("meeting").is_not_null()).then(members).cast(pl.Int32))
    return rows.with_columns(complete=pl.col("members") == pl.col("expected")).drop(
        "row", "expected", "plain", "unnamed"
    )


def plain_name(column: str) -> pl.Expr:
    """Return operations as they are compared: ``all_reduce`` and ``allreduce`` are one."""
    return pl.col(column).str.to_lowercase().str.replace_all(r"[_\-]", "")


def carried() -> pl.Expr:
    """Return the bytes of messages, which their senders put in and their receivers take out."""
    return pl.max_horizontal("bytes_in", "bytes_out")


def of_several_peers() -> pl.Expr:
    """Return whether a message shares its kernel with those of other peers: its end is then not that of the kernel."""
    peer = pl.when(pl.col("source") == pl.col("rank")).then("destination").otherwise("source")
    return plain_name("operation").is_in(POINT_TO_POINT) & (peer.n_unique().over("rank", "group", "ts", "dur") > 1)


def _channels(rows: Frame, tables: JobTables) -> Frame:
    """Add ``channel`` and ``expected``, the number of ranks in it."""
    groups = _same_groups(rows, tables.groups)
    rows = rows.join(groups, on=["rank", "group"], how="left", maintain_order="left")
    rows = rows.with_columns(
        source=pl.when(pl.col("plain").is_in(_SENDS)).then(pl.coalesce("source", "rank")).otherwise("source"),
        destination=pl.when(pl.col("plain").is_in(POINT_TO_POINT) & ~pl.col("plain").is_in(_SENDS))
        .then(pl.coalesce("destination", "rank"))
        .otherwise("destination"),
    )
    pair = pl.col("plain").is_in(POINT_TO_POINT)
    both = pl.col("source").is_not_null() & pl.col("destination").is_not_null()
    # Rows without a group belong to all ranks, if anything: `_implausible` looks whether they do.
    unnamed = ~pair & pl.col("group").is_null() & pl.col("group").is_null().all().over("rank")
    key = (
        pl.when(pair & both)
        .then(pl.format("{}>{} {}", "source", "destination", pl.col("same").fill_null(-1)))
        .when(~pair & pl.col("same").is_not_null())
        .then(pl.format("group {}", "same"))
        .when(unnamed)
        .then(pl.lit("unnamed"))
    )
    world = tables.ranks["world_size"].max()
    size = pl.when(pair).then(2).when(unnamed).then(pl.lit(world, pl.Int64)).otherwise("size")
    rows = rows.with_columns(key=key, expected=size.cast(pl.Int64), unnamed=unnamed.fill_null(value=False))
    number = pl.when(pl.col("key").is_not_null()).then(pl.col("key").rank("dense").cast(pl.Int32) - 1)
    return rows.with_columns(channel=number).drop("key", "same", "size")


def _same_groups(rows: Frame, groups: Frame) -> Frame:
    """Return for each rank and group the identifier that all its ranks share, ``same``, and the ``size``.

    Groups of the same ranks are one where each rank has a name of its own for it. A group whose ranks are not known is
    known by its name, unless more ranks have that name than belong to it.
    """
    used = rows.filter(pl.col("group").is_not_null()).group_by("rank", "group").agg(first=pl.col("ts").min())
    known = groups.select(
        group="id", size=pl.coalesce(pl.col("ranks").list.len().cast(pl.Int64), "size"), ranks="ranks"
    )
    used = used.join(known, on="group", how="left").sort("rank", "first", "group")
    used = used.with_columns(
        users=pl.len().over("group"), member=pl.col("ranks").is_null() | pl.col("ranks").list.contains(pl.col("rank"))
    ).filter("member")
    named = used.filter(pl.col("ranks").is_null()).with_columns(same="group")
    named = named.filter(pl.col("size").is_null() | (pl.col("users") <= pl.col("size")))
    listed = used.filter(pl.col("ranks").is_not_null()).with_columns(
        members=pl.col("ranks").list.sort().cast(pl.List(pl.String)).list.join(",")
    )
    # Each rank has its own name for it, if no name is used by two of its ranks.
    listed = listed.with_columns(
        own_names=(pl.col("users").max().over("members") == 1) & (pl.col("group").n_unique().over("members") > 1),
        place=pl.int_range(pl.len()).over("rank", "members"),
    )
    first = pl.col("group").min().over("members", "place")
    listed = listed.with_columns(same=pl.when("own_names").then(first).otherwise("group"))
    return pl.concat([one.select("rank", "group", "same", "size") for one in (named, listed)])


def _token() -> pl.Expr:
    """Return a number that is equal for rows which may meet: operation, and size where all ranks have the same one."""
    operation = pl.col("plain").str.strip_prefix("i")
    pair = operation.is_in(("send", "recv"))
    whole = operation == "allgather"
    size = pl.when(whole).then(pl.coalesce("bytes_out", "bytes_in")).otherwise(pl.coalesce("bytes_in", "bytes_out"))
    # The receiver of a message puts nothing in, which it may say as 0.
    size = pl.when(pair).then(carried()).when(operation.is_in(_SAME_SIZE)).then(size)
    name = pl.when(pair).then(pl.lit("pair")).otherwise(operation)
    # A size that is not known fits any: the channel then goes by the operations.
    size = pl.when(~size.is_null().any().over("channel")).then(size)
    return pl.concat_str(name, size.cast(pl.String), separator=" ", ignore_nulls=True).rank("dense").alias("token")


def _numbered(rows: Frame) -> Frame:
    """Add ``number`` in the channel, ``time`` (which of several of that number), ``counted`` (the numbers are ours)."""
    of_rank = ("channel", "rank")
    # All ranks call in the same order. Devices start what was called on several streams in orders of their own, and
    # messages of one kernel at once.
    known = pl.col("launch").is_not_null().all().over(of_rank)
    rows = rows.with_columns(called=pl.when(known).then("launch").otherwise("ts"))
    rows = rows.sort("channel", "rank", "called", "row").drop("called")
    place = pl.int_range(pl.len(), dtype=pl.Int64)
    # The numbers of a group count what a rank sends and receives there: sender and receiver of a pair differ in them.
    given = pl.col("sequence").is_not_null().all().over(of_rank) & ~pl.col("plain").is_in(POINT_TO_POINT)
    rows = rows.with_columns(number=pl.when(given).then("sequence").otherwise(place.over(of_rank)))
    # A send to the rank itself is on the same channel as its recv.
    rows = rows.with_columns(time=place.over("channel", "rank", "number", "plain"))
    in_order = (pl.col("number").min() == 0) & (pl.col("number").max() + 1 == pl.len())
    return rows.with_columns(counted=in_order.over(of_rank))


def _doubtful(rows: Frame) -> pl.Series:
    """Return the channels whose numbers do not show the same operations, or show them in other steps."""
    meeting = ("channel", "number", "time")
    rows = rows.with_columns(
        unlike=pl.col("token") != pl.col("token").min().over(meeting),
        later=pl.col("step") - pl.col("step").min().over(meeting),
    )
    counted = pl.col("counted").any()
    each = rows.group_by("channel", "rank").agg(
        unlike=pl.col("unlike").mean(), moved=(pl.col("later") > 0).mean(), counted=counted
    )
    wrong = (pl.col("unlike") > 0.5) | (counted & (pl.col("unlike").max() > _DISAGREEING))
    other_step = counted & (pl.col("moved").max() > _DISAGREEING)
    found = each.group_by("channel").agg(wrong=wrong.any() | other_step.any()).filter("wrong")
    return found["channel"]


def _moved(rows: Frame) -> Frame:
    """Return the rows of one channel with numbers that fit those of the rank that has most rows."""
    ranks = rows.partition_by("rank", maintain_order=True)
    model = max(ranks, key=len)
    parts = [model.with_columns(number=pl.int_range(pl.len(), dtype=pl.Int64), time=pl.lit(0, pl.Int64))]
    for rank in (one for one in ranks if one is not model):
        place = np.arange(len(rank))
        to = place + _movements(model, rank)[:, None]
        there = np.clip(to, 0, len(model) - 1)
        fits = (to == there) & (model["token"].to_numpy()[there] == rank["token"].to_numpy())
        # What moves a rank is the clock; the right movement leaves the ends the same time apart.
        ends = [(one["ts"] + one["dur"] - model["ts"][0]).to_numpy().astype(float) for one in (model, rank)]
        best = _steadiest(ends[0][there] - ends[1], fits, rank["step"].fill_null(-1).to_numpy())
        good = fits[best, place]
        if good.mean() > 0.5:
            number = pl.Series("number", to[best, place])
            parts.append(rank.with_columns(number, time=pl.lit(0, pl.Int64)).filter(pl.Series(good)))
    return pl.concat(parts)


def _movements(model: Frame, rank: Frame) -> Integers:
    """Return how far the rows of a rank may have to be moved, the likeliest first, by the first row of each step."""
    first = [
        one.with_row_index("place").filter(pl.col("step").is_not_null()).group_by("step").agg(pl.col("place").min())
        for one in (model, rank)
    ]
    both = first[0].join(first[1], on="step")
    apart = (both["place"].cast(pl.Int64) - both["place_right"].cast(pl.Int64)).to_numpy()
    values, count = np.unique(apart, return_counts=True)
    likely = values[np.lexsort((np.abs(values), -count))][:_MOVEMENTS].tolist()
    # A step may begin between two rows on one rank, and after both on another.
    near = [one + by for one in (*likely[:1], 0) for by in (0, -1, 1)]
    return np.array(list(dict.fromkeys([*likely, *near])), np.int64)


def _steadiest(apart: npt.NDArray[np.float64], fits: npt.NDArray[np.bool_], steps: Integers) -> Integers:
    """Return for each row the movement (row of ``apart``) by which its ends are as far apart as most are.

    Movements that are equally steady, as in steps that are all alike, are told apart by their order. Something lost in
    the middle moves what follows: so each step has the movement that fits it.
    """
    spread, middle = np.full(len(apart), np.inf), np.zeros(len(apart))
    for number, (one, fit) in enumerate(zip(apart, fits, strict=True)):
        values = np.sort(one[fit])
        size = max(int(_MOST * apart.shape[1]), 2)
        if len(values) >= size:
            width = values[size - 1 :] - values[: len(values) - size + 1]
            spread[number], middle[number] = width.min(), values[int(width.argmin()) + size // 2]
    chosen = int(np.argmax(spread <= _ALIKE * spread.min() + _CLOSE))
    step = np.unique(steps, return_inverse=True)[1]
    off = np.where(fits, np.minimum(np.abs(apart - middle[chosen]), _FAR), _FAR)
    cost = np.stack([np.bincount(step, weights=one) for one in off]) / np.bincount(step)
    best = np.where(cost[chosen] <= _ALIKE * cost.min(axis=0) + _CLOSE, chosen, np.argmin(cost, axis=0))
    found: Integers = best[step]
    return found


def _met(rows: Frame) -> Frame:
    """Add ``meeting``; rows that are unlike most of those with their number are taken out."""
    meeting = ("channel", "number", "time")
    alike = (
        rows.group_by(*meeting, "token").len().sort(*meeting, "len", "token", descending=[False] * 3 + [True, False])
    )
    alike = alike.group_by(meeting, maintain_order=True).first().drop("len")
    met = rows.join(alike, on=[*meeting, "token"], how="semi").sort(*meeting, "rank")
    return met.with_columns(meeting=pl.struct(meeting).rle_id().cast(pl.Int64))


def _implausible(met: Frame) -> pl.Series:
    """Return the channels without a name whose rows do not end together, so that they are of several groups."""
    # Of two ranks, there is one group only.
    unnamed = met.filter(pl.col("unnamed") & (pl.col("expected").fill_null(0) != 2))
    wrong = [channel["channel"][0] for channel in unnamed.partition_by("channel") if not _ends_together(channel)]
    return pl.Series(wrong, dtype=pl.Int32)


def _ends_together(channel: Frame) -> bool:
    spreads = np.array(list(_spreads(channel)))
    if not len(spreads):
        return True
    end, start = np.median(spreads, axis=0)
    return bool(end < max(_CLOSER * start, _CLOSE))


def _spreads(channel: Frame) -> Iterator[tuple[float, float]]:
    """Yield for each rank how much its ends, and its starts, scatter against those of the rank with most rows."""
    ranks = channel.partition_by("rank")
    model = max(ranks, key=len)
    for rank in ranks:
        if rank is not model:
            both = rank.join(model, on="meeting")
            apart = (both["ts"] - both["ts_right"]).to_numpy()
            for_end = apart + (both["dur"] - both["dur_right"]).to_numpy()
            yield _scatter(both["ts"].to_numpy(), for_end), _scatter(both["ts"].to_numpy(), apart)


def _scatter(when: Integers, apart: Integers) -> float:
    """Return how much ``apart`` scatters about a line, as a median deviation: one of the two clocks may drift."""
    half = len(when) // 2
    late, more = (float(np.median(one[half:]) - np.median(one[:half])) if half else 0.0 for one in (when, apart))
    drift = float(np.clip(more / late, -_MOST_DRIFT, _MOST_DRIFT)) if late > 0 else 0.0
    straight = apart - drift * (when - when[:1])
    return float(np.median(np.abs(straight - np.median(straight))))
