"""Results agree with HolisticTraceAnalysis where it answers the same question, within its rounding.

HTA rounds starts up and ends down to whole microseconds in files of nanoseconds, so every united interval may lose up
to 2 µs; in files of whole microseconds the numbers are equal. HTA leaves out device work that no host call of the
traced steps launched, and counts fills of memory as memory work, where stepscope counts them as computing
(``docs/definitions.md``): the tables are filtered in the same way before the comparison.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stepscope.analyse.device.device_time import device_time
from stepscope.analyse.operators.op_statistic import op_statistic
from stepscope.trace.tables import Tables

from .conftest import small_quick

Read = Callable[[str], Tables]

# HTA 0.5 calls what pandas 3 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore")

#: Captures with device work and steps that HTA reads, small or of middle size.
WHOLE_MICROSECONDS = ("nccl_2023_rank0", "nccl_2023_rank1", "a100_nccl_2022", "v100_nccl_2022")
NANOSECONDS = ("nanoseconds_2024", "h100_small_2025", "mtia_2024")
each = pytest.mark.parametrize("name", small_quick(WHOLE_MICROSECONDS + NANOSECONDS))


@pytest.fixture(scope="module")
def hta(captures: dict[str, Path]) -> Iterator[Callable[[str], Any]]:
    """Load a capture with HTA, quietly and once."""
    from hta.trace_analysis import TraceAnalysis

    logging.disable(logging.CRITICAL)

    def load(name: str) -> Any:
        return TraceAnalysis(trace_files={0: str(captures[name])}, trace_dir="", include_last_profiler_step=True)

    yield cache(load)
    logging.disable(logging.NOTSET)


#: Streams that stepscope named after a thread, because their events (137 copies) carry none; HTA leaves those out.
UNNUMBERED = {"mtia_2024": 801}


def as_hta_sees_it(name: str, tables: Tables) -> Tables:
    """Keep the device work that host calls up to the end of the last step launched, and on numbered streams."""
    end = tables["steps"].select((pl.col("ts") + pl.col("dur")).max()).collect().item()
    several = tables["steps"].select(pl.len()).collect().item() > 1
    calls = tables["spans"].filter(pl.col("ts") <= end).select(pl.col("id").alias("launch"))
    launched = tables["kernels"].join(calls, on="launch", how="semi") if several else tables["kernels"]
    kept = launched.filter(pl.col("stream") != UNNUMBERED.get(name, -1)).select(pl.col("span").alias("id"))
    spans = tables["spans"].join(kept, on="id", how="semi")
    return {**tables, "spans": spans}


def without(tables: Tables, *kinds: str) -> Tables:
    return {**tables, "spans": tables["spans"].filter(~pl.col("kind").is_in(kinds))}


def tolerance(name: str, tables: Tables) -> float:
    """Two µs for each piece of device work at most; none where the file has whole microseconds."""
    return 0 if name in WHOLE_MICROSECONDS else 2.0 * tables["spans"].select(pl.len()).collect().item()


@each
def test_temporal_breakdown(name: str, tables_of: Read, hta: Callable[[str], Any]) -> None:
    tables = as_hta_sees_it(name, tables_of(name))
    answer = hta(name).get_temporal_breakdown(visualize=False).iloc[0]
    row = device_time(tables).row(0, named=True)
    computing = device_time(without(tables, "memset")).row(0, named=True)["Computing(us)"]
    within = tolerance(name, tables)
    assert row["Range(us)"] == pytest.approx(answer["kernel_time(us)"], abs=2 if within else 0)
    assert computing == pytest.approx(answer["compute_time(us)"], abs=within)
    assert row["Idle(us)"] == pytest.approx(answer["idle_time(us)"], abs=within)
    assert row["Busy(us)"] - computing == pytest.approx(answer["non_compute_time(us)"], abs=within)


@pytest.mark.parametrize("name", small_quick(WHOLE_MICROSECONDS))
def test_overlap_of_communication_and_computing(name: str, tables_of: Read, hta: Callable[[str], Any]) -> None:
    answer = hta(name).get_comm_comp_overlap(visualize=False).iloc[0]["comp_comm_overlap_pctg"]
    row = device_time(without(as_hta_sees_it(name, tables_of(name)), "memset", "memcpy")).row(0, named=True)
    hidden = row["Communication(us)"] - row["Communication(Not Overlapped)(us)"]
    assert round(100 * hidden / row["Communication(us)"], 2) == answer


@each
def test_time_by_kernel_name(name: str, tables_of: Read, hta: Callable[[str], Any]) -> None:
    options = {"visualize": False, "include_memory_kernels": True, "num_kernels": 100_000, "duration_ratio": 1.0}
    _, answer = hta(name).get_gpu_kernel_breakdown(**options)
    tables = as_hta_sees_it(name, tables_of(name))
    rows = op_statistic(tables).group_by("OP Type").agg(pl.col("Total Time(us)").sum(), pl.col("Count").sum())
    found = {kernel: (total, count) for kernel, total, count in rows.rows()}
    assert set(answer["name"]) <= set(found)
    assert answer["sum (us)"].sum() == pytest.approx(rows["Total Time(us)"].sum(), abs=tolerance(name, tables))
    for kernel, total in zip(answer["name"], answer["sum (us)"], strict=True):
        within = 0 if name in WHOLE_MICROSECONDS else 2 * found[kernel][1]
        assert total == pytest.approx(found[kernel][0], abs=within), kernel
