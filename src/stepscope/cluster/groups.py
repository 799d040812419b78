"""What the groups of a job are for (data, tensor, pipeline, expert, context parallel), and the stages of its pipeline.

The program's own name of a group decides. Without one, what the group communicates and which ranks it joins decide:
transfers between two ranks are a pipeline's, an all-to-all is that of experts; of the groups that reduce or gather,
those of neighbouring ranks that do so most often are tensor parallel, the others data parallel.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TypeAlias

import polars as pl

from stepscope.cluster.job_tables import JobTables

Frame: TypeAlias = pl.DataFrame

#: Word in a group's name or description → what the group is for.
_WORDS = {
    **dict.fromkeys(("tp", "tensor"), "tp"),
    **dict.fromkeys(("pp", "pipe", "pipeline", "stage"), "pp"),
    **dict.fromkeys(("ep", "expert", "experts", "moe"), "ep"),
    **dict.fromkeys(("cp", "context", "sp", "sequence", "ring", "ulysses"), "cp"),
    **dict.fromkeys(("dp", "data", "fsdp", "ddp", "hsdp", "shard", "replicate", "zero"), "dp"),
    **dict.fromkeys(("world", "default"), "world"),
}
#: Groups with two purposes: gradients are reduced over the ranks of both.
_JOINED = {frozenset({"dp", "cp"}): "dp", frozenset({"dp", "ep"}): "dp", frozenset({"tp", "ep"}): "ep"}
_TRANSFERS = ("send", "recv", "isend", "irecv")

GROUPS_SCHEMA = {
    "group": pl.Int32,
    "kind": pl.String,
    "name": pl.String,
    "size": pl.Int64,
    "rank": pl.Int32,
    "place": pl.Int64,
}


def parallel_groups(tables: JobTables) -> Frame:
    """Return the groups of a job with their ranks.

    Returns:
        group, kind (dp, tp, pp, ep, cp, world, unknown), name (as the program calls it), size, rank, place (of the rank
        in the group, from 0); one row a group and rank.
    """
    members = _members(tables)
    if not members:
        return pl.DataFrame(schema=GROUPS_SCHEMA)
    labels = {row["id"]: (row["description"], row["name"]) for row in tables.groups.unique("id").iter_rows(named=True)}
    world = max((*(size for size in tables.ranks["world_size"] if size), *map(len, members.values())))
    kinds = _kinds_by_use(tables, members, world)
    rows = []
    for group, ranks in members.items():
        label = labels.get(group, (None, None))
        kind = _kind_by_name(" ".join(filter(None, label)))
        if kind in {None, "world"} and group in kinds:
            kind = kinds[group]
        name = next(filter(None, label), None)
        rows += [(group, kind or "unknown", name, len(ranks), rank, place) for place, rank in enumerate(ranks)]
    return pl.DataFrame(rows, schema=GROUPS_SCHEMA, orient="row")


def stages(tables: JobTables) -> Frame:
    """Return the stage of each rank of a pipeline, from 0: ``rank, stage``; no rows without a pipeline.

    Of two ranks that exchange data, the one that sends first in a step is the earlier: activations precede gradients.
    """
    # A host may run ahead of its device: steps are then those of the host, or those of the device, and a recv waits on
    # the device from long before its send. The right times show one order, in every step and to both ranks of a pair.
    transfers = max((_transfers(tables, time) for time in ("ts", "launch")), key=_order)
    found = _stages_by_transfers(transfers)
    if not found and not _edges(transfers):  # transfers that go round are a ring, whatever its group is called
        found = _stages_by_groups(tables)
    return pl.DataFrame(sorted(found.items()), schema={"rank": pl.Int32, "stage": pl.Int64}, orient="row")


def _members(tables: JobTables) -> dict[int, list[int]]:
    """Return the ranks of each group; of a group that no source describes, those that use it."""
    stated = tables.groups.filter(pl.col("ranks").is_not_null()).unique("id", maintain_order=True)
    members = {group: sorted(ranks) for group, ranks in zip(stated["id"], stated["ranks"], strict=True)}
    used = tables.collectives.drop_nulls("group").group_by("group").agg(pl.col("rank").unique().sort())
    for group, ranks in used.sort("group").iter_rows():
        members.setdefault(group, ranks)
    return members


def _kind_by_name(label: str) -> str | None:
    words = re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", label).lower())
    kinds = frozenset(_WORDS[word] for word in words if word in _WORDS)
    if len(kinds) > 1:
        kinds -= {"world"}
    if "embedding" in words:
        return "unknown"
    if not kinds:
        return None
    return next(iter(kinds)) if len(kinds) == 1 else _JOINED.get(kinds, "unknown")


def _kinds_by_use(tables: JobTables, members: dict[int, list[int]], world: int) -> dict[int, str]:
    """Return the kinds of the groups of which the operations tell it."""
    is_transfer = pl.col("operation").is_in(_TRANSFERS)
    used = (
        tables.collectives.drop_nulls("group")
        .group_by("group")
        .agg(
            transfers=is_transfer.mean(),
            exchanges=(pl.col("operation") == "alltoall").mean(),
            calls=(~is_transfer).sum() / pl.col("rank").n_unique(),
        )
    )
    kinds: dict[int, str] = {}
    families: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)
    for group, transfers, exchanges, calls in used.iter_rows():
        ranks = members[group]
        if transfers > 0.5:
            kinds[group] = "pp"
        elif exchanges > 0.5:
            kinds[group] = "ep"
        elif len(ranks) > 1 and calls and not exchanges:
            families[len(ranks), ranks[1] - ranks[0]].append((group, calls))
    reducing = {key: max(calls for _, calls in groups) for key, groups in families.items()}
    partial = {key: calls for key, calls in reducing.items() if key[0] < world}
    near = min(partial, key=lambda key: key[1], default=None)
    for key, groups in families.items():
        if (
            key == near
            and len(partial) > 1
            and partial[near] > max(partial[other] for other in partial if other != near)
        ):
            kind = "tp"
        else:
            kind = "world" if key[0] == world and len(families) > 1 else "dp"
        kinds.update((group, kind) for group, _ in groups)
    return kinds


def _transfers(tables: JobTables, time: str) -> Frame:
    """Return what is the first transfer of a step between each rank and each other, by their start or their launch.

    Columns: rank, peer, sends (share of the steps in which the rank sends first), after (since the start of the step),
    both (whether data go both ways), together (share of the steps in which both ways begin at once, or end no further
    apart than two transfers take, as in a ring: the gradient of an activation comes back after forward and backward).
    """
    pairs = {group: ranks for group, ranks in _members(tables).items() if len(ranks) == 2}
    known = pl.DataFrame(
        [(group, rank, other) for group, (a, b) in pairs.items() for rank, other in ((a, b), (b, a))],
        schema={"group": pl.Int32, "rank": pl.Int32, "other": pl.Int64},
        orient="row",
    )
    sends = pl.col("operation").is_in(("send", "isend"))
    steps = tables.steps.select("rank", "step", begin="ts").sort("begin")
    rows = (
        tables.collectives.filter(pl.col("operation").is_in(_TRANSFERS))
        .drop("step")
        .with_columns(time=time)
        .drop_nulls("time")
        .sort("time", maintain_order=True)
        .join_asof(steps, left_on="time", right_on="begin", by="rank", check_sortedness=False)
        .join(known, on=["group", "rank"], how="left", maintain_order="left")
        .with_columns(
            peer=pl.coalesce(pl.when(sends).then("destination").otherwise("source"), "other").cast(pl.Int32),
            sends=sends,
            after=pl.col("time") - pl.col("begin"),
            end=pl.col("ts") + pl.col("dur"),
        )
        .drop_nulls("peer")
    )
    there, back = pl.col("sends"), ~pl.col("sends")
    ends, starts = ([pl.col(name).filter(way) for way in (there, back)] for name in ("end", "time"))
    at_once = (starts[0].min() == starts[1].min()) | (
        (ends[0].first() - ends[1].first()).abs() < 2 * pl.col("dur").min()
    )
    return (
        rows.group_by("rank", "step", "peer", maintain_order=True)
        .agg(
            pl.col("sends").first(),
            pl.col("after").first(),
            both=pl.col("sends").any() & (~pl.col("sends")).any(),
            together=at_once,
        )
        .group_by("rank", "peer", maintain_order=True)
        .agg(pl.col("sends").mean(), pl.col("after").median(), pl.col("both").any(), pl.col("together").mean())
    )


def _order(transfers: Frame) -> tuple[float, float, int]:
    """Return how much of an order transfers show; the larger, the more."""
    steady = float((transfers["sends"] - 0.5).abs().mean() or 0)  # type: ignore[arg-type]
    return len(_edges(transfers)) * steady, steady, len(transfers)


def _edges(transfers: Frame) -> list[tuple[float, int, int]]:
    """Return the pairs of ranks that agree on which of them sends first: when in the step, that rank, the other.

    In a pipeline that trains, activations go one way and gradients come back. Where some pairs of ranks send both ways,
    pairs that send one way only (ring attention) are left out; where no pair does, all of them count.
    """
    if transfers["both"].any():
        transfers = transfers.filter("both")
    votes: dict[tuple[int, int], list[tuple[bool, float]]] = defaultdict(list)
    for rank, peer, sends, after, _, together in transfers.iter_rows():
        if (together or 0) <= 0.5:
            first, second = (rank, peer) if sends > 0.5 else (peer, rank)
            votes[min(rank, peer), max(rank, peer)].append((first < second, after or 0))
    edges = []
    for pair, found in votes.items():
        if len({forward for forward, _ in found}) == 1:
            first, second = pair if found[0][0] else pair[::-1]
            edges.append((min(after for _, after in found), first, second))
    return sorted(edges)


def _stages_by_transfers(transfers: Frame) -> dict[int, int]:
    """Return the stage of each rank, from which of two ranks sends first."""
    comes_back = bool(transfers["both"].any())
    followers: dict[int, list[int]] = defaultdict(list)
    for _, first, second in _edges(transfers):
        # With several parts of the model in a stage, the last stage sends to the first: later than all others.
        if _reaches(followers, second, first):
            if not comes_back:
                return {}
        else:
            followers[first].append(second)
            followers.setdefault(second, [])
    return _depths(followers)


def _reaches(followers: dict[int, list[int]], start: int, goal: int) -> bool:
    seen, todo = {start}, [start]
    while todo:
        here = todo.pop()
        if here == goal:
            return True
        new = [one for one in followers.get(here, ()) if one not in seen]
        seen.update(new)
        todo += new
    return False


def _depths(followers: dict[int, list[int]]) -> dict[int, int]:
    waiting = dict.fromkeys(followers, 0)
    for one in (one for ones in followers.values() for one in ones):
        waiting[one] += 1
    depths = {rank: 0 for rank, count in waiting.items() if not count}
    todo = list(depths)
    for rank in todo:
        for one in followers[rank]:
            depths[one] = max(depths.get(one, 0), depths[rank] + 1)
            waiting[one] -= 1
            if not waiting[one]:
                todo.append(one)
    return depths


def _stages_by_groups(tables: JobTables) -> dict[int, int]:
    """Return the place of each rank in its pipeline group, if each rank has one at most."""
    places = parallel_groups(tables).filter(pl.col("kind") == "pp", pl.col("size") > 1).select("rank", "place")
    return {} if places["rank"].is_duplicated().any() else dict(places.iter_rows())
