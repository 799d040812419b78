"""The ends of steps move to where what they asked for has been computed, and only there."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepscope
from stepscope.cli.main import main
from stepscope.read import read_files
from stepscope.read.assemble.assemble import assemble, settled
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import STEPS_OF_DEVICE
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


def test_steps_of_a_host_that_runs_ahead_are_said_as_the_device_works_for_them(
    write_trace: WriteTrace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given steps of 100 µs that each launch a kernel of 300 µs, and wait for none
    events = []
    for step in range(3):
        events += [
            host(f"ProfilerStep#{step}", 100 * step, 100, cat="user_annotation"),
            host("cudaLaunchKernel", 100 * step + 10, 5, cat="cuda_runtime", correlation=step + 1),
            device("gemm", 300 * step + 20, 300, correlation=step + 1),
        ]
    path = write_trace(events)
    # When it is read, then the marks are those of the file, and the times of the device stand beside them
    tables = read_files([path])
    assert tables["steps"]["dur"].to_list() == [100_000] * 3
    said = tables["metadata"].filter(pl.col("key") == STEPS_OF_DEVICE)["value"].item()
    assert json.loads(said) == [[0, 320_000], [1, 300_000], [2, 300_000]]
    assert stepscope.open(path).ranks[0].summary.steps.of_device == (300_000, 300_000, 320_000)
    assert main(["import", str(path), "--output", str(tmp_path / "runs")]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "the host runs ahead: for the device, a step lasts 300 µs (300 µs to 320 µs)" in told


def test_steps_of_a_host_that_waits_are_those_of_the_device(write_trace: WriteTrace) -> None:
    step = host("ProfilerStep#1", 0, 400, cat="user_annotation")
    launch = host("cudaLaunchKernel", 10, 5, cat="cuda_runtime", correlation=1)
    tables = read_files([write_trace([step, launch, device("gemm", 20, 300, correlation=1)])])
    assert tables["metadata"].filter(pl.col("key") == STEPS_OF_DEVICE).is_empty()
