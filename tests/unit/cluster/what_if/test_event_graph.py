"""Events that wait for each other: their times against a plain walk over random graphs."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.cluster.what_if.event_graph import EventGraph, Floats, Ints


def walked(causes: Ints, effects: Ints, delays: Floats, origins: Floats) -> list[float]:
    """Compute the times one event after the other; every cause has a smaller number than its effect."""
    times = origins.tolist()
    for event in range(len(origins)):
        edges = np.flatnonzero(effects == event)
        if len(edges):
            times[event] = max(times[causes[edge]] + delays[edge] for edge in edges)
    return times


@pytest.mark.parametrize("seed", range(20))
def test_times_are_the_longest_paths(seed: int) -> None:
    random = np.random.default_rng(seed)
    events = int(random.integers(2, 60))
    effects = random.integers(1, events, int(random.integers(1, 200)))
    causes = random.integers(0, effects)
    delays, origins = random.random((len(causes), 3)), random.random(events)
    names = random.permutation(events)
    graph = EventGraph(names[causes], names[effects], events)
    placed = np.empty(events)
    placed[names] = origins
    times = graph.times(delays, placed)
    for scenario in range(3):
        assert times[names, scenario].tolist() == walked(causes, effects, delays[:, scenario], origins)


def test_a_circle_is_an_error() -> None:
    with pytest.raises(ValueError, match="2 of 3 events wait for each other"):
        EventGraph(np.array([0, 1, 2]), np.array([1, 2, 1]), 3)


def test_events_without_edges_happen_at_their_origin() -> None:
    nothing = np.array([], np.int64)
    assert EventGraph(nothing, nothing, 2).times(np.zeros(0), np.array([1.0, 2.0])).tolist() == [1, 2]
