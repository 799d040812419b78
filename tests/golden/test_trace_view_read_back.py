"""What stepscope exports for Chrome's viewers, read by stepscope again, says what the capture said."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.report.protocol import Source
from stepscope.report.timeline.chrome_trace import TraceView
from stepscope.run import Run

CAPTURES = (
    "paddle/paddle331_dygraph.json",
    "mindspore_cpu/ms210_cpu_graph",
    "ascend/text_level2/rank0_ascend_pt",
    "xplane/jax_mi300_conv.xplane.pb",
    "kineto/tracelens/mi300_bert_small.json.gz",
)
#: What the summary of a step counts: operators, and the work of streams.
COUNTED = ("operator", "kernel", "memcpy", "memset", "collective")


def work(rank: Run) -> dict[tuple[str, str], tuple[int, int]]:
    """Number and time of the spans of each kind, on threads and on streams."""
    tracks = rank.tables["tracks"].select(pl.col("id").alias("track"), lane=pl.col("kind").cast(pl.String))
    spans = rank.tables["spans"].select("track", "dur", kind=pl.col("kind").cast(pl.String)).join(tracks, on="track")
    kept = spans.filter(pl.col("lane").is_in(["thread", "stream"]) & pl.col("kind").is_in(COUNTED))
    sums = kept.group_by("kind", "lane").agg(pl.len(), pl.col("dur").sum()).collect()
    return {(kind, lane): (number, time) for kind, lane, number, time in sums.rows()}


def devices(rank: Run) -> set[str]:
    streams = rank.tables["tracks"].filter(pl.col("kind").cast(pl.String) == "stream")
    return {device.rpartition(":")[2] for device in streams.select("device").collect()["device"]}


@pytest.mark.parametrize("capture", CAPTURES)
def test_work_is_on_the_same_kinds_of_track(capture: str, shared_data: Path, tmp_path: Path) -> None:
    original = stepscope.open(shared_data / capture).ranks[0]
    [path] = TraceView().write(Source(original.tables, original.results, original.manifest), tmp_path)
    again = stepscope.open(path).ranks[0]
    assert work(again) == work(original)
    assert devices(again) == devices(original)
