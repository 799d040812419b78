"""From the monotonic clock to the epoch, also where somebody set the clock."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.clock import Anchor, Clock, take_anchor

SECOND = 1_000_000_000
HALF = SECOND // 2
ORIGIN = 1_700_000_000 * SECOND


def anchors(offsets: list[int], uncertainty: int = 50) -> list[Anchor]:
    """One anchor every half second, whose epoch is ahead by each of the offsets."""
    return [Anchor(i * HALF, i * HALF + offset, uncertainty) for i, offset in enumerate(offsets)]


def test_an_anchor_is_both_clocks_now() -> None:
    before = time.perf_counter_ns(), time.time_ns()
    anchor = take_anchor()
    after = time.perf_counter_ns(), time.time_ns()
    assert before[0] <= anchor.monotonic <= after[0]
    assert before[1] <= anchor.epoch <= after[1]
    assert 0 < anchor.uncertainty < SECOND


def test_the_tightest_of_several_tries_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given: readings of the monotonic clock that lie 100, 8 and 50 ns apart
    times = iter([0, 100, 1000, 1008, 2000, 2050])
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(times))
    monkeypatch.setattr(time, "time_ns", lambda: ORIGIN)
    assert take_anchor(tries=3) == Anchor(1004, ORIGIN, 4)


def test_without_anchor_there_is_no_clock() -> None:
    with pytest.raises(ValueError, match="at least one anchor"):
        Clock([])


def test_one_anchor_holds_everywhere() -> None:
    clock = Clock([Anchor(100, ORIGIN + 100, 10)])
    assert [clock.epoch(moment) for moment in (0, 100, 10**15)] == [ORIGIN, ORIGIN + 100, ORIGIN + 10**15]
    assert clock.jumps == 0


@given(
    noise=st.lists(st.integers(-50, 50), min_size=2, max_size=30),
    moments=st.lists(st.integers(-SECOND, 16 * SECOND), max_size=20),
)
def test_noise_of_the_readings_moves_nothing(noise: list[int], moments: list[int]) -> None:
    # Given: anchors that are true within their uncertainty; then: every duration stays exactly what it is
    clock = Clock(anchors([ORIGIN + off for off in noise]))
    epochs = clock.epochs(moments)
    assert epochs == [clock.epoch(moment) for moment in moments]
    assert len({epoch - moment for epoch, moment in zip(epochs, moments, strict=True)}) <= 1
    assert all(abs(epoch - moment - ORIGIN) <= 50 for epoch, moment in zip(epochs, moments, strict=True))


def test_a_reading_that_was_interrupted_moves_nothing() -> None:
    # Given: one anchor is off by 3 ms, and says so
    sound = anchors([ORIGIN] * 5)
    clock = Clock([*sound, Anchor(5 * HALF, 5 * HALF + ORIGIN + 3_000_000, 3_000_000)])
    assert clock.jumps == 0
    assert clock.epoch(6 * HALF) == ORIGIN + 6 * HALF


@given(drift=st.integers(-400_000, 400_000), moment=st.integers(0, 10 * SECOND))
def test_drift_is_followed_in_a_straight_line(drift: int, moment: int) -> None:
    # Given: clocks that move apart by up to 0.4 ms every half second
    clock = Clock(anchors([ORIGIN + drift * i for i in range(21)]))
    assert clock.jumps == 0
    assert abs(clock.epoch(moment) - (ORIGIN + moment + drift * moment // HALF)) <= 1_200


@given(
    drift=st.lists(st.integers(-400_000, 400_000), min_size=2, max_size=20),
    moments=st.lists(st.integers(0, 10 * SECOND), min_size=2, max_size=50),
)
def test_drift_never_turns_time_around(drift: list[int], moments: list[int]) -> None:
    total, offsets = ORIGIN, []
    for change in drift:
        total += change
        offsets.append(total)
    epochs = Clock(anchors(offsets)).epochs(sorted(moments))
    assert epochs == sorted(epochs)


@pytest.mark.parametrize("jump", [3600 * SECOND, -3600 * SECOND, 2_000_000, -2_000_000])
def test_a_clock_that_is_set_does_not_move_the_time_line(jump: int) -> None:
    # Given: the system clock is set between the third and the fourth anchor
    clock = Clock(anchors([ORIGIN] * 3 + [ORIGIN + jump] * 3))
    assert clock.jumps == 1
    assert clock.epoch(2 * HALF) == ORIGIN + 2 * HALF
    assert clock.epoch(3 * HALF - 1) == ORIGIN + 3 * HALF - 1
    assert clock.epoch(3 * HALF) == ORIGIN + 3 * HALF
    assert clock.epochs([HALF, 4 * HALF]) == [ORIGIN + HALF, ORIGIN + 4 * HALF]
    assert clock.shifts == [jump]


def test_order_of_anchors_does_not_matter() -> None:
    given_anchors = anchors([ORIGIN, ORIGIN + 300_000, ORIGIN + SECOND])
    forward, backward = Clock(given_anchors), Clock(reversed(given_anchors))
    assert [forward.epoch(moment) for moment in range(0, 2 * SECOND, HALF // 3)] == [
        backward.epoch(moment) for moment in range(0, 2 * SECOND, HALF // 3)
    ]
