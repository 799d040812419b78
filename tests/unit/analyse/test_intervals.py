"""Interval arithmetic against a twin that counts single nanoseconds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyse import intervals
from stepscope.analyse.intervals import Intervals

EPOCH = 1_763_000_000_000_000_000
PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25)), max_size=12)
INSTANTS = st.lists(st.integers(-5, 95), max_size=8)


def united(pairs: list[tuple[int, int]], origin: int = 0) -> Intervals:
    start = np.array([ts + origin for ts, _ in pairs], np.int64)
    return intervals.unite(start, start + np.array([dur for _, dur in pairs], np.int64))


def nanoseconds(pairs: list[tuple[int, int]]) -> set[int]:
    return {instant for ts, dur in pairs for instant in range(ts, ts + dur)}


def instants(one: Intervals) -> set[int]:
    return {
        instant
        for start, end in zip(one.start.tolist(), one.end.tolist(), strict=True)
        for instant in range(start, end)
    }


def assert_normal(one: Intervals) -> None:
    assert (one.end > one.start).all()
    assert (one.start[1:] > one.end[:-1]).all()


@given(PAIRS)
def test_a_union_covers_the_same_nanoseconds_as_its_members(pairs: list[tuple[int, int]]) -> None:
    one = united(pairs)
    assert_normal(one)
    assert instants(one) == nanoseconds(pairs)
    assert one.length == len(nanoseconds(pairs))


@given(PAIRS, PAIRS)
def test_set_operations_equal_those_of_sets_of_nanoseconds(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    for operation, expected in (
        (intervals.union, nanoseconds(left) | nanoseconds(right)),
        (intervals.subtract, nanoseconds(left) - nanoseconds(right)),
    ):
        result = operation(united(left), united(right))
        assert_normal(result)
        assert instants(result) == expected


@given(PAIRS, st.lists(st.tuples(st.integers(-5, 95), st.integers(0, 60)), max_size=8))
def test_time_within_overlapping_windows(pairs: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    covered = nanoseconds(pairs)
    start = np.array([ts for ts, _ in windows], np.int64)
    end = start + np.array([dur for _, dur in windows], np.int64)
    expected = [sum(ts <= instant < ts + dur for instant in covered) for ts, dur in windows]
    assert united(pairs).within(start, end).tolist() == expected


@given(PAIRS, INSTANTS)
def test_first_and_last_covered_instants(pairs: list[tuple[int, int]], asked: list[int]) -> None:
    one, limits = united(pairs), np.iinfo(np.int64)
    at = np.array(asked, np.int64)
    covered = instants(one)
    first = [min((x for x in covered if x >= a), default=limits.max) for a in asked]
    last = [max((min(x + 1, a) for x in covered if x < a), default=limits.min) for a in asked]
    assert one.first_from(at).tolist() == first
    assert one.last_until(at).tolist() == last


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 25)), max_size=15))
def test_groups_do_not_touch_each_other(rows: list[tuple[int, int, int]]) -> None:
    columns = np.array(rows, np.int64).reshape(-1, 3)
    groups, result = intervals.unite_groups(columns[:, 0], columns[:, 1], columns[:, 1] + columns[:, 2])
    assert (np.diff(groups) >= 0).all()
    for group in range(4):
        mine = Intervals(result.start[groups == group], result.end[groups == group])
        assert_normal(mine)
        assert instants(mine) == nanoseconds([(ts, dur) for number, ts, dur in rows if number == group])


def test_nanoseconds_since_the_epoch_stay_exact() -> None:
    """Given times of today, where a float has steps of 256 ns, then single nanoseconds still count."""
    one = united([(0, 1), (2, 1), (4, 3), (5, 1)], EPOCH)
    assert one.length == 5
    assert one.within(np.array([EPOCH + 5]), np.array([EPOCH + 6])).tolist() == [1]


def test_an_empty_set_covers_nothing() -> None:
    empty = united([(3, 0)])
    assert len(empty) == 0
    assert empty.length == 0
    assert empty.within(np.array([0]), np.array([10])).tolist() == [0]
    assert len(intervals.subtract(empty, united([(1, 5)]))) == 0
