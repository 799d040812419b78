"""Idle time, queues and the critical path agree with HolisticTraceAnalysis where it answers the same question."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from stepscope.analyse.device.streams import queue_lengths
from stepscope.analyse.idle.critical_path import critical_path
from stepscope.analyse.idle.gaps import gaps
from stepscope.read import read_files
from stepscope.trace import tables
from stepscope.trace.tables import Tables

from .test_against_hta import WHOLE_MICROSECONDS, as_hta_sees_it

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def hta(captures: dict[str, Path]) -> Iterator[Callable[[str], Any]]:
    """Load a capture with HTA, quietly and once."""
    from hta.trace_analysis import TraceAnalysis

    logging.disable(logging.CRITICAL)
    yield cache(
        lambda name: TraceAnalysis(trace_files={0: str(captures[name])}, trace_dir="", include_last_profiler_step=True)
    )
    logging.disable(logging.NOTSET)


LARGE = ("a100_nccl_2022", "v100_nccl_2022")
each = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in WHOLE_MICROSECONDS]
)


def of_stream(name: str, whole: Tables, stream: int) -> Tables:
    """Return the tables with the work of one stream, as HTA sees it, as one range without steps."""
    seen = as_hta_sees_it(name, whole)["spans"].select("id")
    kernels = whole["kernels"].collect()
    mine = kernels.filter(pl.col("stream") == stream).join(seen.collect(), left_on="span", right_on="id", how="semi")
    spans = whole["spans"].collect().join(kernels, left_on="id", right_on="span", how="anti")
    spans = pl.concat([spans, whole["spans"].collect().join(mine, left_on="id", right_on="span", how="semi")]).sort(
        "id"
    )
    frames = {table: plan.collect() for table, plan in whole.items()}
    return tables.lazy({**frames, "spans": spans, "steps": frames["steps"].clear()})


@each
def test_gaps_whose_work_was_launched_in_them(
    name: str, hta: Callable[[str], Any], tables_of: Callable[[str], Tables]
) -> None:
    """HTA's ``host_wait``: the gaps of a stream that ended with work which was launched after they began.

    Where work of one stream overlaps (``v100_nccl_2022``), HTA counts negative gaps as ``kernel_wait``.
    """
    answer, _ = hta(name).get_idle_time_breakdown(ranks=[0], visualize=False, consecutive_kernel_delay=0)
    for stream, rows in answer.groupby("stream"):
        parts = rows.set_index("idle_category")["idle_time"].to_dict()
        mine = of_stream(name, tables_of(name), stream)
        found = gaps(mine)
        called = np.append(mine["spans"].select("ts").collect()["ts"].to_numpy(), np.iinfo(np.int64).max)[found.launch]
        between = (found.began > np.iinfo(np.int64).min) & (found.next >= 0)
        microseconds = (found.end - found.start) // 1000
        assert microseconds[between & (called > found.began)].sum() == parts.get("host_wait", 0)
        assert microseconds[between & (called <= found.began)].sum() == parts.get("other", 0)


#: What HTA 0.5.0 (with pandas 2, the newest it works with) says of its own cases in µs: the range of its path in the
#: epoch, then by `bound_by`: computing on the GPU, gaps between kernels, launches, and the CPU.
CASES = {
    "simple_add/benchmark_result_493459_1694039959_trace.json.gz":
        (1694039968955744, 40898511, 41141136, 508, 9, 17, 241190),
    "alexnet/benchmark_result_2869224_1695835535_trace.json.gz":
        (1695835542514261, 43313571, 43349596, 3712, 50, 30, 32042),
    "cuda_event_sync/event_sync_trace.json.gz": (1707417525509335, 570, 3093, 38, 0, 28, 2335),
    "cuda_event_sync_multi_stream/event_sync_trace.json.gz": (1712867402348256, 0, 19917, 124, 15, 14, 1025),
}  # fmt: skip
#: What is meant to differ, in µs. Waits for events between streams weigh nothing in HTA, nor do calls that could wait
#: (`cudaEventQuery`, `cudaStreamSynchronize`) and what lies between the end of the awaited work and theirs.
GAPS_MORE = {"alexnet": 1}
CPU_MORE = {"cuda_event_sync": 3 + 1, "cuda_event_sync_multi_stream": 5 + 5 + 6}
HOST = ("Host Preparing", "Allocator")


@pytest.mark.parametrize("name", CASES)
def test_critical_path(shared_data: Path, name: str) -> None:
    origin, begin, end, computing, between, launching, cpu = CASES[name]
    frames = read_files([shared_data / "kineto" / "hta" / "critical_path" / name])
    begin, end = (origin + begin) * 1000, (origin + end) * 1000
    step = {"number": [0], "ts": [begin], "dur": [end - begin], "source": ["declared"]}
    # HTA's path is the heaviest one, and it ends on a device; the path here ends with what ends last, on the host.
    spans = frames["spans"].filter(pl.col("ts") + pl.col("dur") <= end)
    rows = critical_path(tables.lazy(tables.complete({**frames, "spans": spans, "steps": pl.DataFrame(step)})))
    parts = dict(rows.group_by("Part").agg(pl.col("On Path(us)").sum()).rows())
    short = name.split("/")[0]
    assert parts["Computing"] + parts.get("Copy", 0) == computing
    assert parts.get("Queued", 0) == between + GAPS_MORE.get(short, 0)
    assert parts["Launch Latency"] == launching
    assert sum(parts.get(part, 0) for part in HOST) == cpu + CPU_MORE.get(short, 0)
    assert sum(parts.values()) == pytest.approx((end - begin) / 1000)


def without_graphs(whole: Tables) -> Tables:
    replays = whole["spans"].filter(pl.col("name").cast(pl.String) == "cudaGraphLaunch").select(launch="id").collect()
    frames = {table: plan.collect() for table, plan in whole.items()}
    return tables.lazy({**frames, "kernels": frames["kernels"].join(replays, on="launch", how="anti")})


@each
def test_queue_lengths(name: str, hta: Callable[[str], Any], tables_of: Callable[[str], Tables]) -> None:
    """The same changes at the same instants; where several fall into one µs, HTA puts them in any order.

    HTA does not know the kernels of replayed graphs: their launches are taken away before the comparison.
    """
    answer = hta(name).get_queue_length_time_series()[0]
    whole = tables_of(name)
    for stream, rows in answer.groupby("stream"):
        mine = queue_lengths(without_graphs(of_stream(name, whole, stream)))
        last = mine.group_by("ts", maintain_order=True).agg(pl.col("length").last())
        theirs = pl.DataFrame({"ts": rows["ts"].to_numpy(), "length": rows["queue_length"].to_numpy()})
        assert len(mine) == len(theirs)
        origin = int(mine["ts"][0]) - int(theirs["ts"].min()) * 1000
        ends = theirs.sort("ts", maintain_order=True).group_by("ts", maintain_order=True).agg(pl.col("length").last())
        assert [ts * 1000 + origin for ts in ends["ts"].to_list()] == last["ts"].to_list()
        assert ends["length"].to_list() == last["length"].to_list()
