"""Idle time of devices as rules see it: one row for each reason, call and operator, in sums of whole nanoseconds."""

from __future__ import annotations

from stepscope.advise.device_idle import idle_rows
from stepscope.analyse.step.device_waits import allocating
from stepscope.trace.tables import Tables
from tests.unit.analyse.build import Rank

#: What a GPU idles in each of seven steps because the host takes memory, ns; the launch that follows takes longer.
GAPS = (100_001, 70_303, 50_707, 30_011, 20_101, 10_907, 5_003)
STEP, LATENCY = 1_000_000, 200


def training(*, steps: bool, filled: int = 0) -> Tables:
    """Return steps on one GPU that idles in one ``cudaMalloc`` in ``aten::empty`` on the host.

    Args:
        steps: Whether they are marked.
        filled: How many of the first ones hold work that was launched before the recording.
    """
    rank = Rank()
    main, gpu = rank.thread(11), rank.stream()

    def launched(call: int, ts: int, end: int) -> None:
        launch = rank.span(main, "runtime", call, 100, "cudaLaunchKernel")
        rank.add("kernels", span=rank.span(gpu, "kernel", ts, end - ts, "gemm"), device=0, launch=launch)

    for number, gap in enumerate(GAPS):
        begin = number * STEP
        if steps:
            rank.step(number, begin, STEP)
            rank.rows["steps"][-1]["launched_before"] = int(number < filled)
        launched(begin - 1_000, begin, begin + 500_000)
        end = begin + 500_000 + gap
        rank.span(main, "operator", begin + 400_000, 100_000 + gap, "aten::empty")
        rank.span(main, "runtime", begin + 450_000, 50_000 + gap, "cudaMalloc")
        launched(end, end + LATENCY, begin + STEP)
    return rank.tables()


def test_pieces_of_one_call_and_operator_are_one_row() -> None:
    tables = training(steps=True)
    [row] = [row for row in idle_rows(tables, after_waits=False) if row.allocates]
    assert (row.reason, row.call, row.operator, row.copy, row.line) == (
        "allocator", "cudaMalloc", "aten::empty", None, None
    )  # fmt: skip
    mallocs = [place for place, name in enumerate(tables["spans"].collect()["name"]) if name == "cudaMalloc"]
    assert row.spans.tolist() == mallocs
    assert row.calls == 1
    assert row.time * len(GAPS) == sum(GAPS)


def test_without_steps_the_longest_piece_is_left_out() -> None:
    [row] = [row for row in idle_rows(training(steps=False), after_waits=False) if row.allocates]
    assert row.time == sum(GAPS) - max(GAPS)


def test_steps_that_hold_earlier_work_are_left_out_if_there_are_others() -> None:
    rows = {
        filled: next(row for row in idle_rows(training(steps=True, filled=filled), after_waits=False) if row.allocates)
        for filled in (1, 3, 7)
    }
    assert rows[1].time * 6 == sum(GAPS[1:])
    assert rows[3].time * 4 == sum(GAPS[3:])
    assert rows[7].time * 7 == sum(GAPS)


def test_the_names_of_calls_are_looked_at_once() -> None:
    tables = training(steps=True)
    assert allocating(tables) is allocating(tables)
