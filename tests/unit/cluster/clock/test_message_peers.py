"""Rings of ranks: who their messages go to, and what the job saves without a slow rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from stepscope.cluster.clock.message_peers import with_peers
from stepscope.cluster.job import Job
from stepscope.cluster.job_tables import JobTables, conform
from stepscope.cluster.meetings import meetings

MS = 1_000_000
BEGIN, TRANSIT = 1_700_000_000 * 10**9, 2 * MS


def ring(ranks: int, steps: int, rounds: int, slow: dict[int, int], *, peers: bool) -> JobTables:
    """Return a job in which each rank computes 10 ms, sends to the next one and receives from the one before it.

    Args:
        ranks: Number of ranks.
        steps: Number of steps.
        rounds: How often they do so in a step.
        slow: What ranks compute longer in each round, ms.
        peers: Whether the capture says the peers.
    """
    rows: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    at = [BEGIN] * ranks
    for step in range(steps):
        begin = list(at)
        waited = [0] * ranks
        for _ in range(rounds):
            arrives = [at[rank] + (10 + slow.get(rank, 0)) * MS for rank in range(ranks)]
            for rank in range(ranks):
                at[rank] = max(arrives[(rank + by) % ranks] for by in (-1, 0, 1)) + TRANSIT
                waited[rank] += at[rank] - arrives[rank]
                for name in ("send", "recv"):
                    peer = {"destination": (rank + 1) % ranks} if name == "send" else {"source": (rank - 1) % ranks}
                    row = {"rank": rank, "step": step, "group": 0, "operation": name, "bytes_in": 1 << 20}
                    row |= {
                        "ts": arrives[rank],
                        "dur": at[rank] - arrives[rank],
                        "launch": begin[rank],
                        "launched": True,
                    }
                    rows.append(row | {"exposed": row["dur"]} | (peer if peers else {}))
        for rank in range(ranks):
            work = (10 + slow.get(rank, 0)) * MS * rounds
            mark = {"rank": rank, "step": step, "ts": begin[rank], "dur": at[rank] - begin[rank], "computing": work}
            rest = dict.fromkeys(("copy", "data_wait", "sync", "host_only", "idle"), 0)
            marks.append(mark | rest | {"communication": waited[rank]})
    about = [
        {
            "rank": rank,
            "directory": f"rank{rank}",
            "world_size": ranks,
            "host": "a",
            "device": "cuda:0",
            "framework": "torch",
        }
        for rank in range(ranks)
    ]
    tables = {"collectives": rows, "steps": marks, "ranks": about, "groups": [{"id": 0, "ranks": list(range(ranks))}]}
    made = JobTables(
        **{name: conform(name, pl.DataFrame(found, infer_schema_length=None)) for name, found in tables.items()}
    )
    return replace(made, collectives=with_peers(made.collectives, made.groups))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_messages_of_a_ring_have_peers(ranks: int) -> None:
    said = meetings(ring(ranks, 2, 3, {}, peers=True))
    found = meetings(ring(ranks, 2, 3, {}, peers=False))
    assert found.select("source", "destination", "meeting").equals(said.select("source", "destination", "meeting"))
    assert found["meeting"].null_count() == 0


def test_what_is_no_ring_has_no_peers() -> None:
    tables = ring(4, 2, 3, {}, peers=False)
    first = (pl.col("rank") == 0) & (pl.col("operation") == "send")
    silent = tables.collectives.filter(~first).with_columns(
        pl.lit(None, pl.Int64).alias(name) for name in ("source", "destination")
    )
    assert with_peers(silent, tables.groups).equals(silent)


@pytest.mark.parametrize("peers", [True, False])
@pytest.mark.parametrize("ranks", [4, 8])
def test_a_slow_rank_of_a_ring_costs_what_the_ring_takes_longer(ranks: int, peers: bool) -> None:
    job, healthy = (Job(ring(ranks, 6, 4, slow, peers=peers)) for slow in ({1: 3}, {}))
    assert job.what_if is not None
    steps = [
        one.tables.steps.group_by("step").agg(end=(pl.col("ts") + pl.col("dur")).max())["end"].max()
        for one in (job, healthy)
    ]
    saved = (steps[0] - steps[1]) / 6  # type: ignore[operator]
    assert job.what_if.step_ns == pytest.approx((steps[0] - BEGIN) / 6, rel=0.01)  # type: ignore[operator]
    assert job.what_if.of_ranks({1}).ns == pytest.approx(saved, rel=0.02)
    waits = job.arrivals.filter(pl.col("rank") == ranks - 1)["wait"].sum()
    assert job.arrivals.filter(pl.col("rank") == 1)["wait"].sum() < waits
