"""The ends of steps move to where what they asked for has been computed, and only there."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from stepscope.read.assemble.assemble import assemble, settled
from stepscope.trace.losses import LossLedger
from tests.conftest import WriteTrace
from tests.unit.read.assemble.test_assemble import journal, kineto_part
from tests.unit.read.kineto.test_kineto_reader import device, host


def frame(**columns: list[int]) -> pl.DataFrame:
    return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.Int64))


STEPS = frame(ts=[100, 110, 120], dur=[10, 10, 10])


def rows(steps: pl.DataFrame) -> list[tuple[int, int]]:
    return list(steps.select("ts", "dur").iter_rows())


def test_work_that_is_asked_for_and_computed_later() -> None:
    # Given: a call in each step, and one before all, whose work ends at 150, 200, 250 and 300
    calls = frame(ts=[50, 101, 111, 121], end=[150, 200, 250, 300])
    assert rows(settled(STEPS, calls)) == [(150, 50), (200, 50), (250, 50)]


def test_a_program_that_waits_has_its_steps_where_they_were() -> None:
    calls = frame(ts=[101, 111, 121], end=[109, 119, 129])
    assert rows(settled(STEPS, calls)) == rows(STEPS)


def test_nothing_was_asked_for() -> None:
    assert rows(settled(STEPS, frame(ts=[], end=[]))) == rows(STEPS)
    assert settled(STEPS.clear(), frame(ts=[1], end=[2])).height == 0


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=12), st.lists(st.integers(0, 50), min_size=1)
)
def test_steps_stay_in_order_and_hold_what_they_asked_for(calls: list[tuple[int, int]], lengths: list[int]) -> None:
    begins = [sum(lengths[:place]) for place in range(len(lengths))]
    steps = frame(ts=begins, dur=lengths)
    work = frame(ts=[ts for ts, _ in calls], end=[ts + dur for ts, dur in calls])
    found = rows(settled(steps, work))
    for place, (ts, dur) in enumerate(found):
        end, asked_until = ts + dur, begins[place] + lengths[place]
        assert dur >= 0
        assert end == max([asked_until, *(begin + length for begin, length in calls if begin < asked_until)])
        assert place == 0 or ts == sum(found[place - 1])


def test_a_step_of_the_journal_holds_the_kernels_that_it_launched(write_trace: WriteTrace) -> None:
    # Given a program that launches a kernel of 100 µs in each step of 10 µs, and waits for the last one
    part = kineto_part(
        write_trace,
        *(host("cudaLaunchKernel", 12 + 10 * n, 1, "cuda_runtime", correlation=n) for n in range(1, 4)),
        *(device(f"k{n}", 30 + 100 * n, 100, correlation=n) for n in range(1, 4)),
    )
    own = journal([], [(n, 10_000 + 10_000 * n, 10_000) for n in range(1, 4)])
    tables = assemble([part, own], [LossLedger("a"), LossLedger("b")])
    # Then every step lasts until its kernel has been computed
    assert rows(tables["steps"]) == [(20_000, 210_000), (230_000, 100_000), (330_000, 100_000)]
    kernels = tables["spans"].filter(pl.col("kind") == "kernel")
    assert dict(kernels.select(pl.col("name").cast(pl.String), "step").iter_rows()) == {"k1": 1, "k2": 2, "k3": 3}
