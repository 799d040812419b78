"""Ranks whose host holds them up though their steps do not show it: what the host does in every step tells.

Where the host runs ahead of the device, a wait for data in every step may idle the device in one of them only, as a
hiccup does. And the only rank of a stage has no peers: but whatever its stage computes, its device should not wait for
its host, or for data, longer than those of other stages do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from stepscope.cluster.job_tables import JobTables
from stepscope.cluster.slow.outliers import lower_median
from stepscope.cluster.slow.own_time import OwnTime, own_time
from stepscope.cluster.slow.slow_ranks import WORTH, unusual_part

#: Rank → what the job's step loses by it, ns, as the recorded job put together again says; None if it cannot say.
Lost: TypeAlias = Callable[[int], "int | None"]
Row: TypeAlias = dict[str, Any]

#: What a job loses by a rank, as a share of its step, that proves that the others wait for it.
HOLDS_UP = 2 * WORTH
#: From this share of a step on, the only rank of a stage is named: nothing else says that others wait for it.
_OF_ONE = 0.05


def with_hidden_waits(slow: pl.DataFrame, tables: JobTables, lost: Lost) -> pl.DataFrame:
    """Return ``slow`` with the ranks marked as slow, too, that their hosts hold up.

    Args:
        slow: What :func:`stepscope.cluster.slow.slow_ranks.slow_ranks` returns.
        tables: The tables of the job.
        lost: What the job loses by a rank.
    """
    times = own_time(tables.steps)
    with_device = {*tables.ranks.filter(pl.col("device") != "cpu")["rank"]}
    place = {rank: row for row, rank in enumerate(times.ranks) if rank in with_device}
    rows = {row["rank"]: row for row in slow.rows(named=True)}
    candidates = [rank for rank in place if rank in rows and not rows[rank]["slow"] and rows[rank]["step_ns"]]
    found: dict[int, Row] = {}
    for part, members, amounts in _longer(times, rows, place):
        for rank in members:
            amount, row = amounts.get(rank, 0.0), rows[rank]
            if rank in found or rank not in candidates or amount <= WORTH * row["step_ns"]:
                continue
            alone = row["peers"] == 0
            proven = amount >= _OF_ONE * row["step_ns"] if alone else (lost(rank) or 0) >= HOLDS_UP * row["step_ns"]
            if proven:
                more = {"slow": True, "added_ns": round(amount), f"{part}_ns": round(amount), "hiccups": []}
                more |= {"added_low_ns": None, "added_high_ns": None}
                found[rank] = row | more | ({"peers_wait_ns": None, "peers": len(place) - 1} if alone else {})
    if not found:
        return slow
    return pl.DataFrame([found.get(rank, row) for rank, row in rows.items()], schema=slow.schema)


def _longer(
    times: OwnTime, rows: dict[int, Row], place: dict[int, int]
) -> Iterator[tuple[str, list[int], dict[int, float]]]:
    """Yield part, ranks, and what it takes some of them longer in most steps, ns: by role, and over all."""
    for role in sorted({row["role"] for row in rows.values()}):
        members = [rank for rank in place if rank in rows and rows[rank]["role"] == role]
        if len(members) > 1:
            data = times.parts["data_total"][[place[rank] for rank in members]]
            yield "data_wait", members, dict(zip(members, unusual_part(data).tolist(), strict=True))
    everyone = [rank for rank in place if rank in rows]
    if len(everyone) < 2:
        return
    # Whatever a stage computes, it should not wait for data.
    data = unusual_part(times.parts["data_total"][[place[rank] for rank in everyone]])
    alone = {rank: more for rank, more in zip(everyone, data.tolist(), strict=True) if not rows[rank]["peers"]}
    yield "data_wait", [*alone], alone
    host = times.parts["host"][[place[rank] for rank in everyone]]
    longer = unusual_part(host)
    means, usual = np.nanmean(np.nan_to_num(host), axis=1), lower_median(host)
    amounts = {}
    for row in np.flatnonzero(longer).tolist():
        role = rows[everyone[row]]["role"]
        peers = [i for i, rank in enumerate(everyone) if rows[rank]["role"] == role and i != row]
        # A stage whose hosts all take longer has other work.
        if not peers or usual[row] - float(np.median(usual[peers])) >= longer[row] / 2:
            amounts[everyone[row]] = float(means[row] - np.median(means))
    yield "host", everyone, amounts
