"""Which function takes a rank longer than its peers."""

from __future__ import annotations

import polars as pl
import pytest

from stepscope.cluster.job_tables import conform
from stepscope.cluster.slow.slow_functions import slow_function

MS = 1_000_000
MAIN, TRAIN, AUDIT, READ = (
    f"{name} (train.py:{line})" for name, line in (("<module>", 90), ("train", 20), ("audit", 7), ("read", 3))
)


def functions(*rows: tuple[int, str, float, int | None], thread: str = "training", whole: bool = True) -> pl.DataFrame:
    names = ("rank", "function", "total", "looks")
    made = [dict(zip(names, (rank, name, round(ms * MS), looks), strict=True)) for rank, name, ms, looks in rows]
    return conform(
        "functions", pl.DataFrame([{**row, "thread": thread, "whole": whole} for row in made], infer_schema_length=None)
    )


EVERYWHERE = [(rank, name, ms, 50) for rank in range(4) for name, ms in ((MAIN, 30.0), (TRAIN, 29.0))]


def test_the_innermost_function_with_the_time_is_named() -> None:
    table = functions(*EVERYWHERE, (2, AUDIT, 8, 12), (2, READ, 7.5, 11), (2, "helper (train.py:5)", 3, 5))
    found = slow_function(table, 2, 4 * MS)
    assert found is not None
    assert (found.name, found.total_ns, found.peers_ns) == (READ, 7.5 * MS, 0)


@pytest.mark.parametrize(
    "rows",
    [
        [(2, AUDIT, 8, 3)],  # seen too seldom
        [(2, AUDIT, 3, 9)],  # too little
        [(rank, AUDIT, 8, 9) for rank in range(4)],  # everywhere
    ],
)
def test_what_explains_nothing_is_not_named(rows: list[tuple[int, str, float, int | None]]) -> None:
    assert slow_function(functions(*EVERYWHERE, *rows), 2, 4 * MS) is None


def test_without_peers_nothing_is_named() -> None:
    assert slow_function(functions((2, AUDIT, 8, 12)), 2, 4 * MS) is None


def test_a_function_is_the_same_by_another_line() -> None:
    peers = [(rank, AUDIT.replace("7", "9"), 3.0, 5) for rank in (0, 1, 3)]
    found = slow_function(functions(*EVERYWHERE, *peers, (2, AUDIT, 8, 12)), 2, 4 * MS)
    assert found is not None
    assert (found.name, found.more_ns) == (AUDIT, 5 * MS)


def test_recorded_calls_need_no_looks_and_workers_are_asked_for_by_name() -> None:
    found = slow_function(functions(*EVERYWHERE, (2, AUDIT, 8, None)), 2, 4 * MS)
    assert found is not None
    assert found.name == AUDIT
    both = pl.concat([functions(*EVERYWHERE), functions((2, READ, 8, 12), thread="workers")])
    assert slow_function(both, 2, 4 * MS) is None
    found = slow_function(both, 2, 4 * MS, "workers")
    assert found is not None
    assert found.name == READ


def test_a_line_is_named_where_its_function_takes_the_peers_as_long() -> None:
    sleeps, waits = "train (train.py:12)", "train (train.py:14)"
    lines = functions((0, waits, 29, 50), (1, waits, 29, 50), (2, sleeps, 20, 40), (2, waits, 9, 18), whole=False)
    found = slow_function(pl.concat([functions(*EVERYWHERE), lines]), 2, 10 * MS)
    assert found is not None
    assert (found.name, found.more_ns) == (sleeps, 20 * MS)
