"""What is drawn over a timeline says what the results say: the same times, each at its place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import stepscope
from stepscope.report.page.lane_spans import lane_spans
from stepscope.report.page.overlays import SHOWN_KINDS, overlay_spans

DATA = Path(__file__).parents[3] / "data" / "kineto"


@pytest.mark.parametrize("capture", ["cuda_event_sync.json.gz", "alexnet_simple_add.json.gz"])
def test_pieces_lie_apart_and_add_up_to_the_results(capture: str) -> None:
    rank = stepscope.open(DATA / capture).ranks[0]
    spans = lane_spans(rank.shown)
    over = overlay_spans(rank.shown, spans.lanes, spans.origin, spans.total)
    lane = np.repeat(np.arange(len(over.lanes)), np.diff(over.edges))
    what = np.array([one.kind for one in over.lanes])[lane]
    assert {*what} == {"idle", "path"}
    for number in range(len(over.lanes)):
        mine = lane == number
        assert (over.start[mine][1:] >= (over.start + over.dur)[mine][:-1]).all()
        assert over.lanes[number].busy == over.dur[mine].sum()
        assert over.lanes[number].track in {one.track for one in spans.lanes}

    part = np.array(SHOWN_KINDS)[over.kind]
    assert all(over.names[name].split(":")[0] == kind for name, kind in zip(over.name, part, strict=True))
    idle = rank.results["idle_reasons"]
    assert isinstance(idle, pl.DataFrame)
    expected = dict(idle.group_by("Reason").agg(pl.col("Total Time(us)").sum()).iter_rows())
    found = {reason: over.dur[(what == "idle") & (part == reason)].sum() / 1000 for reason in expected}
    assert found == pytest.approx(expected, abs=0.01)

    path = what == "path"
    begin, end = over.start[path], (over.start + over.dur)[path]
    order = np.argsort(begin, kind="stable")
    # One path: nowhere two pieces at a time, and nothing missing.
    assert (begin[order][1:] == end[order][:-1]).all()


def test_nothing_is_drawn_over_a_capture_without_spans(tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text('{"traceEvents": []}')
    rank = stepscope.open(empty).ranks[0]
    over = overlay_spans(rank.shown, (), 0, 0)
    assert (over.lanes, len(over.start), over.names) == ((), 0, [])
