"""The peers of messages whose capture names none (PyTorch before 2.5 does not): in groups of two, and in rings."""

from __future__ import annotations

import polars as pl

Frame = pl.DataFrame

#: What is equal on all ranks of a ring, in the order of their calls.
_ALIKE = ("plain", "bytes_in", "step")


def with_peers(collectives: Frame, groups: Frame) -> Frame:
    """Return the table ``collectives`` with the source and destination that follow from the group of a message.

    In a group of two, the peer is the other rank. In a group of more, all ranks of which send one message and receive
    one in each of their kernels, of the same sizes in the same order, each rank sends to the next one of the group.

    Args:
        collectives: The collectives of the job.
        groups: Its process groups.
    """
    plain = pl.col("operation").str.strip_prefix("i")
    silent = plain.is_in(["send", "recv"]) & pl.col("source").is_null() & pl.col("destination").is_null()
    rows = collectives.with_row_index("row")
    messages = rows.filter(silent).with_columns(
        plain=plain, called=pl.coalesce("launch", "ts"), kernel=pl.struct("ts", "dur")
    )
    used = messages["group"].drop_nulls().unique()
    sized = groups.filter(pl.col("id").is_in(used.implode()) & (pl.col("ranks").list.len() > 1))
    found = []
    for group, ranks in sized.select("id", "ranks").iter_rows():
        mine = messages.filter((pl.col("group") == group) & pl.col("rank").is_in(ranks))
        if len(ranks) == 2 or _is_ring(mine, ranks):
            after = dict(zip(ranks, [*ranks[1:], ranks[0]], strict=True))
            before = {later: rank for rank, later in after.items()}
            sends = pl.col("plain") == "send"
            found.append(
                mine.select(
                    "row",
                    to=pl.when(sends).then(pl.col("rank").replace_strict(after, return_dtype=pl.Int64)),
                    of=pl.when(~sends).then(pl.col("rank").replace_strict(before, return_dtype=pl.Int64)),
                )
            )
    if not found:
        return collectives
    known = rows.join(pl.concat(found), on="row", how="left", maintain_order="left")
    peers = (pl.coalesce(name, told).alias(name) for name, told in (("source", "of"), ("destination", "to")))
    return known.with_columns(peers).drop("of", "to", "row")


def _is_ring(messages: Frame, ranks: list[int]) -> bool:
    """Return whether all ranks send and receive the same in the same order, one message each way in every kernel."""
    ordered = messages.sort("rank", "called", "row")
    each = ordered.group_by("rank", maintain_order=True).agg(_ALIKE)
    if each.height < len(ranks) or each.select(pl.struct(_ALIKE).n_unique()).item() != 1:
        return False
    kernels = ordered.group_by("rank", "kernel").agg(pl.len(), sends=(pl.col("plain") == "send").sum())
    return bool(((kernels["len"] == 2) & (kernels["sends"] == 1)).all())
