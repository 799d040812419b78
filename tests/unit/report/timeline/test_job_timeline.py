"""Ranks on one time line, where the clock of none of them is known; with known clocks: tests/golden."""

from __future__ import annotations

import polars as pl

import stepscope
from stepscope.report.timeline.job_timeline import aligned
from tests.conftest import WriteTrace

#: A day, in µs.
DAY = 86_400_000_000


def test_ranks_of_which_no_clock_is_known_begin_together(write_trace: WriteTrace) -> None:
    for rank in (0, 1):
        event = {"cat": "cpu_op", "name": "aten::mm", "ts": 1000 + rank * DAY, "dur": 10, "pid": 1, "tid": 1}
        path = write_trace([event], f"rank{rank}.json", distributedInfo={"rank": rank, "world_size": 2})
    ranks = list(aligned(stepscope.open(path.parent)))
    assert ["not aligned" in one.label for one in ranks] == [True, True]
    assert len({one.tables["spans"].select(pl.col("ts").min()).collect().item() for one in ranks}) == 1
