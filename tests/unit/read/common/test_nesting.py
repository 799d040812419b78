from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope import native
from stepscope.native import nesting as fast
from stepscope.read.common.nesting import (
    Nesting,
    inherit_in_python,
    innermost,
    nearest_in_python,
    nest,
    nest_in_python,
    outermost,
    unrounded,
)

spans = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=40)


def columns(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = np.array(rows, np.int64).reshape(len(rows), 3)
    return table[:, 0].astype(np.int32), table[:, 1].copy(), table[:, 2].copy()


def contains(outer: tuple[int, int, int], inner: tuple[int, int, int]) -> bool:
    """A span contains what begins within it (or with it) and ends no later; it does not reach its own end."""
    same_track, begins = outer[0] == inner[0], outer[1] <= inner[1]
    ends, within = inner[1] + inner[2] <= outer[1] + outer[2], inner[1] < outer[1] + outer[2] or inner[1] == outer[1]
    return same_track and begins and ends and within


@given(spans)
def test_a_parent_is_the_latest_span_before_that_contains_it(rows: list[tuple[int, int, int]]) -> None:
    # Given spans in order of track, start, longest first
    nesting = nest_in_python(*columns(rows))
    ordered = [rows[place] for place in nesting.order]
    assert ordered == sorted(ordered, key=lambda row: (row[0], row[1], -row[2]))
    # Then each span's parent is the last one before it that contains it
    for place, row in enumerate(ordered):
        around = [before for before in range(place) if contains(ordered[before], row)]
        assert nesting.parent[place] == (around[-1] if around else -1)
        above = nesting.parent[place]
        assert nesting.depth[place] == (nesting.depth[above] + 1 if above >= 0 else 0)


@given(spans)
def test_a_span_crosses_a_sibling_that_ends_inside_it(rows: list[tuple[int, int, int]]) -> None:
    nesting = nest_in_python(*columns(rows))
    ordered = [rows[place] for place in nesting.order]
    for place, (track, start, dur) in enumerate(ordered):
        siblings = [index for index in range(place) if nesting.parent[index] == nesting.parent[place]]
        crossed = [ordered[index] for index in siblings if ordered[index][0] == track]
        assert nesting.crossing[place] == any(start < ts + length < start + dur for _, ts, length in crossed)


def test_spans_that_rounding_lets_cross_by_two_nanoseconds_nest_or_touch() -> None:
    """A call that ends with what is in it, a call behind it; in the last two, one really reaches into the other."""
    track, ts, dur = columns([(0, 0, 100), (0, 10, 92), (0, 101, 40), (1, 0, 100), (1, 90, 13)])
    cut = unrounded(track, ts, dur)
    nesting = nest(track, ts, cut)
    assert nesting.order.tolist() == [0, 1, 2, 3, 4] and nesting.parent.tolist() == [-1, 0, -1, -1, -1]
    assert nesting.crossing.tolist() == [False] * 4 + [True]
    assert cut.tolist() == [100, 90, 40, 100, 13]


@pytest.mark.skipif(native.available() is not None, reason=str(native.available()))
@given(spans)
def test_the_c_twin_gives_the_same(rows: list[tuple[int, int, int]]) -> None:
    given_columns = columns(rows)
    found = fast.nest(*given_columns)
    assert found is not None
    for ours, theirs in zip(nest_in_python(*given_columns), found, strict=True):
        assert np.array_equal(ours, theirs)


@given(spans, st.data())
def test_a_value_is_inherited_from_the_nearest_ancestor_that_has_one(
    rows: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    nesting = nest_in_python(*columns(rows))
    own = np.array(data.draw(st.lists(st.integers(-1, 2), min_size=len(rows), max_size=len(rows))), np.int8)
    found = inherit_in_python(nesting.parent, own)
    for place in range(len(rows)):
        above = place
        while above >= 0 and own[above] < 0:
            above = nesting.parent[above]
        assert found[place] == (own[above] if above >= 0 else -1)
    twin = fast.inherit(nesting.parent, own)
    assert twin is None or np.array_equal(found, twin)


@given(spans, st.data())
def test_the_nearest_chosen_span_is_the_first_one_going_up(
    rows: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    nesting = nest_in_python(*columns(rows))
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), np.bool_)
    found = nearest_in_python(nesting.parent, chosen)
    for place in range(len(rows)):
        above = place
        while above >= 0 and not chosen[above]:
            above = nesting.parent[above]
        assert found[place] == above
    twin = fast.nearest(nesting.parent, chosen)
    assert twin is None or np.array_equal(found, twin)


@given(spans, st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 45)), max_size=20))
def test_the_innermost_span_around_a_point_is_the_latest_that_contains_it(
    rows: list[tuple[int, int, int]], points: list[tuple[int, int]]
) -> None:
    track, ts, dur = columns(rows)
    nesting = nest_in_python(track, ts, dur)
    order = nesting.order
    where = np.array(points, np.int64).reshape(len(points), 2)
    found = innermost(nesting.parent, (track[order], ts[order], (ts + dur)[order]), where[:, 0], where[:, 1])
    for (lane, at), place in zip(points, found, strict=True):
        ordered = [rows[index] for index in order]
        around = [
            index
            for index, row in enumerate(ordered)
            if row[0] == lane and (row[1] <= at < sum(row[1:]) or row[1] == at)
        ]
        assert place == (around[-1] if around else -1)


@given(spans, st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 45)), max_size=20))
def test_the_outermost_span_that_starts_at_a_point_is_the_first_that_does(
    rows: list[tuple[int, int, int]], points: list[tuple[int, int]]
) -> None:
    track, ts, dur = columns(rows)
    order = nest_in_python(track, ts, dur).order
    where = np.array(points, np.int64).reshape(len(points), 2)
    found = outermost((track[order], ts[order]), where[:, 0], where[:, 1])
    for point, place in zip(points, found, strict=True):
        starting = [index for index, row in enumerate(order) if rows[row][:2] == point]
        assert place == (starting[0] if starting else -1)


def test_many_levels_and_many_siblings_take_few_rounds() -> None:
    # Given a chain of 50,000 spans, and 50,000 side by side in one
    deep = [(0, place, 100_000 - 2 * place) for place in range(50_000)]
    wide = [(1, 0, 100_000)] + [(1, place, 1) for place in range(50_000)]
    # When they are nested
    nesting: Nesting = nest_in_python(*columns(deep + wide))
    # Then depths are exact
    assert nesting.depth.max() == 49_999
    assert (nesting.parent[50_001:] == 50_000).all()
