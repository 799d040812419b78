"""What a file holds of a timeline that is too large for it."""

from __future__ import annotations

from stepscope.report.page.file_timeline import typical_steps
from stepscope.report.page.lane_spans import lane_spans
from tests.unit.analyse.build import Rank


def test_each_window_has_its_share_of_the_longest_spans() -> None:
    rank = Rank()
    thread = rank.thread()
    for start in range(0, 1_000, 100):
        rank.span(thread, "operator", start, 10 + start // 100, "work")
    spans = lane_spans(rank.tables())
    kept = spans.longest([(0, 300), (500, 900)], 4)
    assert kept.start.tolist() == [100, 200, 700, 800]
    assert kept.edges.tolist() == [0, 4]
    everything = spans.longest([(0, spans.total)], 10)
    assert everything.start.tolist() == spans.start.tolist()


def test_the_slowest_step_has_a_window_where_it_is_far_slower_than_the_median() -> None:
    def steps(*durations: int) -> list[dict[str, int]]:
        return [{"number": n, "start": 1_000 * n, "dur": dur} for n, dur in enumerate(durations)]

    assert typical_steps(steps(90, 100, 149)) == [(1_000, 1_100)]
    assert typical_steps(steps(400, 110, 90)) == [(0, 400), (1_000, 1_110)]
    assert typical_steps([]) == []
