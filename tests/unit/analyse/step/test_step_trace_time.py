"""The split of a step: hand-made cases, and conservation on random tables."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyse.step.step_trace_time import PARTS, split, step_trace_time
from stepscope.trace.tables import Tables
from tests.unit.analyse.build import ORIGIN, Rank

STANDARD = [
    "Step",
    "Start Time(us)",
    "Total",
    "Computing",
    "Communication(Not Overlapped)",
    "Overlapped",
    "Communication",
    "Free",
    "Stage",
    "Bubble",
    "Communication(Not Overlapped and Exclude Receive)",
    "Preparing",
    "Copy(Not Overlapped)",
    "Data Wait",
    "Sync",
    "Host Only",
    "Idle",
]


def row(tables: Tables, step: int = 0) -> dict[str, Any]:
    return step_trace_time(tables).row(step, named=True)


def test_a_device_step_is_split_over_the_union_of_its_streams() -> None:
    """Given two overlapping streams, a copy, a wait for data and host work, then each instant counts once."""
    rank = Rank()
    host, first, second = rank.thread(), rank.stream(7), rank.stream(20)
    rank.step(3, 0, 100_000)
    rank.span(host, "data", 0, 30_000)
    rank.span(host, "operator", 30_000, 60_000)
    rank.span(first, "kernel", 20_000, 20_000)
    rank.span(second, "memset", 30_000, 20_000)
    rank.span(second, "collective", 50_000, 20_000)
    rank.span(first, "kernel", 60_000, 5_000)
    rank.span(first, "memcpy", 65_000, 10_000)
    assert step_trace_time(rank.tables()).columns == STANDARD
    assert row(rank.tables()) == {
        "Step": 3,
        "Start Time(us)": Decimal(ORIGIN // 1000),
        "Total": 100.0,
        "Computing": 35.0,
        "Communication(Not Overlapped)": 15.0,
        "Overlapped": 5.0,
        "Communication": 20.0,
        "Free": 50.0,
        "Stage": 20.0,
        "Bubble": None,  # no operation receives
        "Communication(Not Overlapped and Exclude Receive)": None,
        "Preparing": 20.0,
        "Copy(Not Overlapped)": 5.0,
        "Data Wait": 20.0,
        "Sync": 0.0,
        "Host Only": 15.0,
        "Idle": 10.0,
    }


def test_work_is_clipped_to_the_step() -> None:
    rank = Rank()
    stream = rank.stream()
    rank.step(0, 0, 10_000)
    rank.step(1, 10_000, 10_000)
    rank.span(stream, "kernel", 4_000, 9_500)
    first, second = row(rank.tables()), row(rank.tables(), 1)
    assert (first["Computing"], first["Preparing"], first["Free"]) == (6.0, 4.0, 4.0)
    assert (second["Computing"], second["Preparing"], second["Free"]) == (3.5, 0.0, 6.5)


def test_a_step_without_work_prepares_all_the_time() -> None:
    rank = Rank()
    rank.step(0, 0, 10_000)
    rank.span(rank.thread(), "python", 2_000, 3_000)
    one = row(rank.tables())
    assert (one["Total"], one["Free"], one["Host Only"], one["Idle"]) == (10.0, 10.0, 3.0, 7.0)
    # What prepares a device, and what waits for other ranks, is not asked on a rank with neither.
    assert (one["Preparing"], one["Stage"], one["Bubble"]) == (None, None, None)


def test_on_threads_the_outermost_operators_are_the_work() -> None:
    """Given no device, then a batch put together inside a wait is waiting, and communication does not compute."""
    rank = Rank()
    main, worker = rank.thread(1), rank.thread(2)
    rank.step(0, 0, 100_000)
    rank.span(main, "data", 0, 20_000)
    rank.span(main, "operator", 5_000, 10_000, "aten::stack")
    rank.span(main, "operator", 20_000, 40_000, "aten::linear")
    rank.span(main, "operator", 21_000, 30_000, "aten::addmm")
    rank.span(main, "operator", 60_000, 20_000, "c10d::allreduce_")
    rank.span(main, "collective", 65_000, 15_000, "record_param_comms")
    rank.span(worker, "collective", 50_000, 40_000, "gloo:all_reduce")
    rank.span(main, "python", 92_000, 3_000)
    one = row(rank.tables())
    assert (one["Computing"], one["Communication"], one["Overlapped"]) == (45.0, 40.0, 15.0)
    assert (one["Data Wait"], one["Host Only"], one["Idle"], one["Preparing"]) == (20.0, 3.0, 7.0, None)


def test_receiving_is_the_bubble() -> None:
    rank = Rank()
    stream, other = rank.stream(7), rank.stream(8)
    rank.step(0, 0, 100_000)
    rank.span(stream, "kernel", 15_000, 10_000)
    received = rank.span(other, "collective", 10_000, 10_000)
    reduced = rank.span(stream, "collective", 40_000, 20_000)
    rank.add("collectives", span=received, operation="recv", source=1, destination=0)
    rank.add("collectives", span=reduced, operation="allreduce")
    one = row(rank.tables())
    assert (one["Bubble"], one["Stage"], one["Communication(Not Overlapped)"]) == (10.0, 40.0, 25.0)
    assert one["Communication(Not Overlapped and Exclude Receive)"] == 20.0


def test_without_steps_one_row_covers_everything() -> None:
    rank = Rank()
    rank.span(rank.thread(), "runtime", 0, 5_000)
    rank.span(rank.stream(), "kernel", 10_000, 10_000)
    frame = step_trace_time(rank.tables())
    assert frame.height == 1
    assert frame.row(0, named=True)["Step"] == 0
    assert (row(rank.tables())["Computing"], row(rank.tables())["Free"]) == (10.0, 10.0)


KINDS = (
    "operator",
    "collective",
    "kernel",
    "memcpy",
    "memset",
    "runtime",
    "python",
    "data",
    "sync",
    "annotation",
    "garbage",
)
SPANS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(KINDS), st.integers(0, 80), st.integers(0, 40)), max_size=14
)
STEPS = st.lists(st.tuples(st.integers(-10, 100), st.integers(0, 60)), max_size=4, unique_by=lambda step: step[0])


def random_rank(spans: list[tuple[int, str, int, int]], steps: list[tuple[int, int]]) -> Tables:
    """Two threads and two streams; steps may overlap, lie outside all work, or last no time."""
    rank = Rank()
    tracks = [rank.thread(1), rank.thread(2), rank.stream(7), rank.stream(20)]
    for track, kind, ts, dur in spans:
        rank.span(tracks[track], kind, ts, dur)
    for number, (ts, dur) in enumerate(steps):
        rank.step(number, ts, dur)
    return rank.tables()


@given(SPANS, STEPS)
def test_the_parts_of_every_step_add_up_to_it(
    spans: list[tuple[int, str, int, int]], steps: list[tuple[int, int]]
) -> None:
    tables = random_rank(spans, steps)
    result = split(tables)
    assert all((result.parts[part] >= 0).all() for part in PARTS)
    total = sum(result.parts[part] for part in PARTS)
    assert (total == result.windows.end - result.windows.start).all()
    if steps:
        assert sorted((result.windows.end - result.windows.start).tolist()) == sorted(dur for _, dur in steps)


@given(SPANS, STEPS)
def test_the_columns_of_every_step_agree(spans: list[tuple[int, str, int, int]], steps: list[tuple[int, int]]) -> None:
    """Within a nanosecond, the rounding of the printed µs."""
    tables = random_rank(spans, steps)
    for one in step_trace_time(tables).rows(named=True):
        exposed = one["Communication(Not Overlapped)"]
        assert one["Overlapped"] + exposed == pytest.approx(one["Communication"], abs=0.001)
        parts = one["Copy(Not Overlapped)"] + one["Data Wait"] + one["Sync"] + one["Host Only"] + one["Idle"]
        assert parts == pytest.approx(one["Free"], abs=0.001)
        assert one["Computing"] + exposed + one["Free"] == pytest.approx(one["Total"], abs=0.002)
        # Null without such communication, and without a device.
        assert -0.001 <= (one["Communication(Not Overlapped and Exclude Receive)"] or 0) <= exposed + 0.001
        assert (one["Stage"] or 0) + (one["Bubble"] or 0) >= one["Communication"] - 0.001
        assert 0 <= (one["Preparing"] or 0) <= one["Computing"] + exposed + one["Free"] + 0.001


def moments(spans: list[tuple[int, str, int, int]], wanted: dict[str, set[int]]) -> set[int]:
    """Return the single nanoseconds that spans of these kinds on these tracks cover."""
    return {
        instant for track, kind, ts, dur in spans if track in wanted.get(kind, ()) for instant in range(ts, ts + dur)
    }


def not_computing(spans: list[tuple[int, str, int, int]], track: int) -> set[int]:
    return moments(spans, {"data": {track}, "collective": {track}})


@given(SPANS, STEPS)
def test_the_split_equals_a_count_of_single_nanoseconds(
    spans: list[tuple[int, str, int, int]], steps: list[tuple[int, int]]
) -> None:
    threads, streams = {0, 1}, {2, 3}
    host = ("operator", "collective", "runtime", "python", "sync", "garbage")
    work = ("operator", "collective", "runtime")
    waits = [moments(spans, {"sync": {thread}}) for thread in (0, 1)]
    sets = [
        moments(spans, {"kernel": streams, "memset": streams}),
        moments(spans, {"collective": streams}),
        moments(spans, {"memcpy": streams}),
        moments(spans, {"data": threads}),
        set.union(*waits) - set.union(*(moments(spans, {kind: {t} for kind in work}) - waits[t] for t in (0, 1))),
        moments(spans, dict.fromkeys(host, threads)),
    ]
    if not any(
        track in streams and kind in {"kernel", "memset", "memcpy", "collective"} for track, kind, _, _ in spans
    ):
        sets[4] = set()
        sets[0] = set.union(*(moments(spans, {"operator": {t}}) - not_computing(spans, t) for t in threads))
        sets[1] = moments(spans, {"collective": threads})
    result = split(random_rank(spans, steps))
    for place, (ts, dur) in enumerate(sorted(steps, key=lambda step: step[0])):
        seen: set[int] = set()
        for part, covered in zip(PARTS[:-1], sets, strict=True):
            assert result.parts[part][place] == sum(ts <= instant < ts + dur for instant in covered - seen)
            seen |= covered
