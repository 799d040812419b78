"""The summary's numbers, and the rules of its last line."""

from __future__ import annotations

import math

import pytest
from hypothesis import given

from stepscope.analyse.memory.memory_record import RESIDENT
from stepscope.analyse.step.step_trace_time import PARTS
from stepscope.analyse.step.summarise import summarise
from stepscope.analyse.step.summary import Entry, Garbage
from stepscope.trace import tables
from tests.unit.analyse.build import ORIGIN, Rank

from .test_step_trace_time import SPANS, STEPS, random_rank


def training() -> Rank:
    """Four steps of 100, 100, 100 and 200 µs; each begins with a wait of 30 µs and runs a kernel of 50 µs."""
    rank = Rank()
    host, stream = rank.thread(), rank.stream()
    for number, ts in enumerate((0, 100_000, 200_000, 300_000)):
        rank.step(number, ts, 200_000 if number == 3 else 100_000)
        wait = rank.span(host, "data", ts, 30_000, "loader")
        rank.add("arguments", span=wait, key="workers", value="2")
        rank.span(host, "operator", ts + 30_000, 10_000, "aten::mm", step=number)
        rank.span(stream, "kernel", ts + 40_000, 50_000, "gemm", step=number)
    rank.span(host, "operator", 600_000, 10_000, "after the last step")
    rank.span(host, "garbage", 90_000, 5_000, "gen2")
    return rank


def test_what_compiles_in_the_steps_comes_first_and_its_garbage_is_its_own() -> None:
    # Given a step that collects garbage for 40 of the 60 µs in which it compiles, as MindSpore does
    rank = Rank()
    host = rank.thread()
    rank.step(0, 0, 100_000)
    compiling = rank.span(host, "compile", 10_000, 60_000, "compile step")
    rank.add("arguments", span=compiling, key="function", value='"step (train.py:7)"')
    rank.add("arguments", span=compiling, key="why", value='"argument 0: float32[12, 8], before float32[16, 8]"')
    rank.span(host, "garbage", 15_000, 40_000, "gen2")
    rank.span(host, "operator", 80_000, 10_000, "MatMul", step=0)
    summary = summarise(rank.tables())
    assert summary.garbage == Garbage(0, 0.0, 0)
    assert summary.compiling is not None
    assert (summary.compiling.total_ns, summary.compiling.share) == (60_000, 0.6)
    assert summary.compiling.longest == "step (train.py:7)"
    assert summary.compiling.why == "argument 0: float32[12, 8], before float32[16, 8]"


def test_steps_split_and_top_entries() -> None:
    summary = summarise(training().tables())
    assert (summary.steps.count, summary.steps.total_ns) == (4, 500_000)
    assert (summary.steps.mean_ns, summary.steps.p50_ns) == (125_000, 100_000)
    assert summary.steps.p95_ns == pytest.approx(185_000)
    assert (summary.steps.shortest_ns, summary.steps.longest_ns) == (100_000, 200_000)
    assert summary.steps.per_second == pytest.approx(8000)
    assert {part.name: part.total_ns for part in summary.split} == {
        "computing": 200_000,
        "communication": 0,
        "copy": 0,
        "data wait": 120_000,
        "sync": 0,
        "host only": 45_000,
        "idle": 135_000,
    }
    assert summary.kernels == (Entry("gemm", "kernel", 200_000, 4, 1.0),)
    assert summary.operators == (Entry("aten::mm", "operator", 40_000, 4, 1.0),)
    assert (summary.on_device, summary.devices) == (True, ("cuda:0",))
    assert (summary.data_wait.total_ns, summary.data_wait.exposed_ns) == (120_000, 120_000)
    assert (summary.data_wait.count, summary.data_wait.workers) == (4, 2)
    assert summary.garbage == Garbage(5_000, 0.01, 1)


@given(SPANS, STEPS)
def test_the_split_adds_up_to_the_steps(spans: list[tuple[int, str, int, int]], steps: list[tuple[int, int]]) -> None:
    summary = summarise(random_rank(spans, steps))
    assert [part.name for part in summary.split] == list(PARTS)
    assert sum(part.total_ns for part in summary.split) == summary.steps.total_ns
    assert math.isclose(sum(part.share for part in summary.split), 1.0 if summary.steps.total_ns else 0.0)


def test_peaks_of_memory() -> None:
    rank = training()
    for ts, allocated in enumerate((100, 300, 200)):
        rank.add("allocations", ts=ORIGIN + ts, device="cuda:0", bytes=1, allocated=allocated, reserved=1000)
        rank.add("counters", ts=ORIGIN + ts, track=0, name=RESIDENT, value=float(allocated), unit="bytes")
    rank.add("allocations", ts=ORIGIN, device="cpu", bytes=1, allocated=0, reserved=500)  # a mapped file
    rank.add("allocations", ts=ORIGIN, device="mtia:0", bytes=1)
    summary = summarise(rank.tables())
    peaks = [(peak.device, peak.allocated, peak.reserved) for peak in summary.memory]
    assert peaks == [("cpu", 0, None), ("cuda:0", 300, 1000)]
    assert summary.resident_bytes == 300


def test_losses_most_severe_first() -> None:
    rank = training()
    rank.add("losses", what="flow_dangling", count=2, severity="info", source="a.json", advice="")
    rank.add("losses", what="file_cut", count=1, severity="data_loss", source="a.json", advice="Record again.")
    assert [loss.what for loss in summarise(rank.tables()).losses] == ["file_cut", "flow_dangling"]


def test_a_loader_without_workers_is_known_by_its_name() -> None:
    rank = Rank()
    host = rank.thread()
    rank.span(host, "data", 0, 90_000, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
    rank.span(host, "operator", 90_000, 10_000)
    summary = summarise(rank.tables())
    assert summary.data_wait.workers == 0
    assert (summary.steps.count, summary.steps.total_ns) == (0, 100_000)


def test_empty_tables_say_so() -> None:
    summary = summarise(tables.lazy(tables.complete({})))
    assert summary.steps.count == 0
