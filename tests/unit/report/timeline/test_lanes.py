"""Lanes hold no crossing spans, and change nothing where nothing crosses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.report.timeline.lanes import assign

SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 12)), max_size=14)
Spans = list[tuple[int, int, int]]


def lanes_of(spans: Spans) -> list[int]:
    track, ts, dur = (np.array(column, np.int64) for column in (zip(*spans, strict=True) if spans else ([], [], [])))
    return assign(track, ts, dur)[1].tolist()


def crosses(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    first, second = sorted((one, other), key=lambda span: (span[1], -span[2]))
    return first[0] == second[0] and first[1] < second[1] < first[1] + first[2] < second[1] + second[2]


@given(SPANS)
def test_no_two_spans_of_a_lane_cross(spans: Spans) -> None:
    lanes = lanes_of(spans)
    for i, one in enumerate(spans):
        for j in range(i):
            assert lanes[i] != lanes[j] or not crosses(one, spans[j])


@given(SPANS)
def test_spans_stay_on_the_main_lane_where_nothing_crosses(spans: Spans) -> None:
    lanes = lanes_of(spans)
    for track in {span[0] for span in spans}:
        mine = [span for span in spans if span[0] == track]
        if not any(crosses(one, other) for one in mine for other in mine):
            assert all(lane == 0 for span, lane in zip(spans, lanes, strict=True) if span[0] == track)


@given(SPANS)
def test_order_is_by_track_then_start_then_longest(spans: Spans) -> None:
    track, ts, dur = (np.array(column, np.int64) for column in (zip(*spans, strict=True) if spans else ([], [], [])))
    order = assign(track, ts, dur)[0]
    ordered = [spans[place] for place in order]
    assert ordered == sorted(spans, key=lambda span: (span[0], span[1], -span[2]))


def test_a_span_beside_two_that_cross_keeps_the_main_lane() -> None:
    # Given two spans that cross, and one long after them
    assert lanes_of([(1, 0, 10), (1, 5, 10), (1, 100, 5)]) == [0, 1, 0]


@pytest.mark.parametrize("count", [20_000])
def test_thousands_open_at_once_take_no_quadratic_time(count: int) -> None:
    # Given spans each of which crosses all others: as many lanes as spans
    ts = np.arange(count, dtype=np.int64)
    lanes = assign(np.zeros(count, np.int64), ts, np.full(count, count, np.int64))[1]
    assert len(np.unique(lanes)) == count
