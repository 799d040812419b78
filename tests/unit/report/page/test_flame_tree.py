"""The flame graph adds up what threads and streams did in the steps, each time once."""

from __future__ import annotations

from typing import Any

from stepscope.report.page.flame_tree import flame_tree, launched_tree
from stepscope.report.page.lane_spans import lane_spans
from stepscope.report.page.span_flows import span_flows
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


def test_device_work_lies_below_what_launched_it_with_the_time_of_the_device() -> None:
    rank = Rank()
    thread, stream = rank.thread(), rank.stream()
    for start in (0, 100, 200):
        rank.span(thread, "operator", start, 60, "outer")
        call = rank.span(thread, "runtime", start + 10, 5, "cudaLaunchKernel")
        inner = rank.span(thread, "operator", start + 20, 30, "inner")
        other = rank.span(thread, "runtime", start + 30, 5, "cudaLaunchKernel")
        assert inner != other
        for launch, at, dur, name in ((call, 40, 7, "gemm"), (other, 50, 20, "gemm"), (other, 80, 11, "add")):
            kernel = rank.span(stream, "kernel", start + at, dur, name)
            rank.add("flows", **{"from": launch, "to": kernel, "kind": "launch"})
    tables = rank.tables()
    spans = lane_spans(tables)
    root = launched_tree(spans, span_flows(tables, spans.row), [(0, 100), (100, 200)])
    assert root is not None
    found: dict[str, tuple[int, int, int]] = {}

    def visit(node: dict[str, Any], path: str) -> None:
        for child in node["children"]:
            inside = f"{path}/{spans.names[child['name']]}"
            found[inside] = (child["value"], child["self"], child["count"])
            visit(child, inside)

    visit(root, "")
    assert root["value"] == 2 * 38
    assert found == {
        "/outer": (76, 0, 6),
        "/outer/cudaLaunchKernel": (14, 0, 2),
        "/outer/cudaLaunchKernel/gemm": (14, 14, 2),
        "/outer/inner": (62, 0, 4),
        "/outer/inner/cudaLaunchKernel": (62, 0, 4),
        "/outer/inner/cudaLaunchKernel/gemm": (40, 40, 2),
        "/outer/inner/cudaLaunchKernel/add": (22, 22, 2),
    }
    assert launched_tree(spans, span_flows(tables, spans.row), [(1000, 2000)]) is None
