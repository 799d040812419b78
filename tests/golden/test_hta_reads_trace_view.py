"""HolisticTraceAnalysis reads our ``trace_view.json`` and finds in it what it finds in the file that PyTorch wrote.

Files of whole microseconds give equal numbers. In files of nanoseconds HTA reads PyTorch's times since 1970 as floats,
in steps of a quarter µs, and rounds them to whole µs; ours it reads exactly. So each piece of device work may move its
ends by 1 µs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from stepscope.report.protocol import Source
from stepscope.report.timeline.chrome_trace import TraceView
from stepscope.trace.tables import Tables

# HTA 0.5 calls what pandas 3 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore")

Pair: TypeAlias = tuple[Any, Any, Tables]


@pytest.fixture(scope="module", params=["nccl_2023_rank0", "nanoseconds_2024", "multi_stream_2024"])
def pair(
    request: pytest.FixtureRequest,
    captures: dict[str, Path],
    tables_of: Callable[[str], Tables],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    """HTA's analysis of PyTorch's file and of ours."""
    from hta.trace_analysis import TraceAnalysis

    logging.disable(logging.CRITICAL)
    tables = tables_of(request.param)
    directory = tmp_path_factory.mktemp("hta")
    TraceView().write(Source(tables, {}, {}), directory)
    rank = tables["tracks"].select("rank").first().collect().item()
    theirs = TraceAnalysis(trace_files={rank: str(captures[request.param])}, trace_dir="")
    # HTA finds our file in its directory, and the rank in the file.
    yield theirs, TraceAnalysis(trace_dir=str(directory)), tables
    logging.disable(logging.NOTSET)


def tolerance(theirs: Any) -> int:
    """Number of pieces of device work where times are rounded; 0 where they are whole microseconds."""
    [rank] = theirs.t.get_ranks()
    raw = theirs.t.get_raw_trace_for_one_rank(rank)["traceEvents"]
    whole = all(event["ts"] == int(event["ts"]) for event in raw if event["ph"] == "X")
    return 0 if whole else int((theirs.t.get_trace(rank)["stream"] >= 0).sum())


def test_temporal_breakdown(pair: Pair) -> None:
    theirs, ours, _ = pair
    within = tolerance(theirs)
    columns = ["idle_time(us)", "compute_time(us)", "non_compute_time(us)"]
    expected, found = (analysis.get_temporal_breakdown(visualize=False) for analysis in (theirs, ours))
    for column in columns:
        assert found[column].to_numpy() == pytest.approx(expected[column].to_numpy(), abs=within)
    assert found["kernel_time(us)"][0] == pytest.approx(expected["kernel_time(us)"][0], abs=2 if within else 0)


def test_kernels_by_name(pair: Pair) -> None:
    theirs, ours, _ = pair
    within = tolerance(theirs)
    expected, found = (analysis.get_gpu_kernel_breakdown(visualize=False)[1] for analysis in (theirs, ours))
    expected, found = (frame.set_index("name")["sum (us)"].to_dict() for frame in (expected, found))
    # HTA sums up small kernels as "others"; which those are may differ by rounding.
    common = set(expected) & set(found)
    assert len(common) >= 0.8 * len(expected)
    for name in common - {"others"}:
        assert found[name] == pytest.approx(expected[name], abs=within)


def test_launches_keep_their_kernels(pair: Pair) -> None:
    theirs, ours, _ = pair
    expected, found = (launch_stats(analysis) for analysis in (theirs, ours))
    assert sorted(found["correlation"]) == sorted(expected["correlation"])
    both = expected.merge(found, on="correlation")
    for column in ("cpu_duration", "gpu_duration", "launch_delay"):
        assert abs(both[f"{column}_x"] - both[f"{column}_y"]).max() <= (2 if tolerance(theirs) else 0)


def test_queue_lengths(pair: Pair) -> None:
    theirs, ours, _ = pair
    expected, found = (analysis.get_queue_length_summary(ranks=theirs.t.get_ranks()) for analysis in (theirs, ours))
    assert list(found.index) == list(expected.index)
    assert found["queue_length"]["count"].tolist() == expected["queue_length"]["count"].tolist()


def test_steps_and_categories(pair: Pair) -> None:
    theirs, ours, _ = pair
    assert ours.t.get_iterations() == theirs.t.get_iterations()
    assert categories(ours) == categories(theirs)


def launch_stats(analysis: Any) -> Any:
    [rank] = analysis.t.get_ranks()
    return analysis.get_cuda_kernel_launch_stats(ranks=[rank], visualize=False)[rank]


def categories(analysis: Any) -> dict[str, int]:
    """Count the events of each category that both files can hold."""
    analysis.t.decode_symbol_ids(use_shorten_name=False)
    counts = analysis.t.get_trace(*analysis.t.get_ranks())["s_cat"].value_counts().to_dict()
    return {name: count for name, count in counts.items() if name not in ("ac2g", "fwdbwd", "Trace")}
