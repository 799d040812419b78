"""Arrows between spans: those of a span, and the chain that they make."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.report.page.span_flows import SpanFlows

Pairs = list[tuple[int, int]]


def flows(pairs: Pairs) -> SpanFlows:
    begin, end = np.array(sorted(pairs), np.int64).reshape(-1, 2).T
    return SpanFlows(begin, end, np.zeros(len(pairs), np.int64))


def reached(pairs: Pairs, place: int) -> set[int]:
    """Return the places that arrows lead to, from this one on."""
    found, more = {place}, {place}
    while more:
        more = {end for begin, end in pairs if begin in more} - found
        found |= more
    return found


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30, unique=True))
def test_a_chain_has_the_arrows_on_from_a_span_and_those_that_lead_to_it(pairs: Pairs) -> None:
    of, place = flows(pairs), pairs[0][0]
    on, back = reached(pairs, place), reached([(end, begin) for begin, end in pairs], place)
    chain = [(int(of.begin[number]), int(of.end[number])) for number in of.chain(place, 500)]
    assert sorted(chain) == sorted((begin, end) for begin, end in pairs if begin in on or end in back)


def test_of_a_long_chain_the_nearest_arrows_are_there() -> None:
    of = flows([(place, place + 1) for place in range(2_000)])
    assert sorted(of.chain(1_000, 500).tolist()) == list(range(750, 1_250))
    assert of.chain(5_000, 500).tolist() == []
