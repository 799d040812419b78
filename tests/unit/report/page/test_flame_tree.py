"""The flame graph adds up what threads and streams did in the steps, each time once."""

from __future__ import annotations

from stepscope.report.page.flame_tree import flame_tree
from stepscope.report.page.lane_spans import lane_spans
from tests.unit.analyse.build import Rank


def test_only_the_work_in_the_steps_is_added_up_by_name_kind_and_surroundings() -> None:
    rank = Rank()
    thread, notes = rank.thread(), rank.track("annotation", "cpu")
    rank.span(notes, "annotation", 0, 300, "says again what the thread says")
    for start in (0, 100, 200):
        rank.span(thread, "step", start, 100, f"ProfilerStep#{start}")
        rank.span(thread, "operator", start, 60, "outer")
        rank.span(thread, "operator", start + 10, 20, "inner")
        rank.span(thread, "python", start + 30, 20, "inner")
    spans = lane_spans(rank.tables())
    root, left_out = flame_tree(spans, [(0, 100), (100, 200)])
    assert root is not None
    assert left_out == 0
    [outer] = root["children"]
    assert (outer["at"], sorted(one["at"] for one in outer["children"])) == (0, [10, 30])
    assert (spans.names[outer["name"]], outer["value"], outer["self"], outer["count"]) == ("outer", 120, 40, 2)
    inner = [(spans.names[one["name"]], one["value"], one["count"]) for one in outer["children"]]
    assert inner == [("inner", 40, 2), ("inner", 40, 2)]
    assert len({one["kind"] for one in outer["children"]}) == 2
