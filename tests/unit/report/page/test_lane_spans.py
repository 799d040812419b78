"""What a file holds of a timeline that is too large for it."""

from __future__ import annotations

import numpy as np

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


def test_the_spans_of_a_lane_follow_each_other_and_each_span_lies_on_one() -> None:
    rng = np.random.default_rng(0)
    crossings = 0
    for most in (3, 30, 300):
        rank = Rank()
        threads = [rank.thread(number) for number in (1, 2, 3)]
        starts = rng.integers(0, 400, 60)
        rank.step(0, 0, 1_000)
        for number, start in enumerate(starts.tolist()):
            rank.span(
                threads[int(rng.integers(3))], "operator", start, int(rng.integers(0, most)), f"work {number % 7}"
            )
        tables = rank.tables()
        table = tables["spans"].collect()
        found = lane_spans(tables)
        assert sorted(found.row.tolist()) == table["id"].to_list()
        rows = table[[int(row) for row in found.row]]
        assert (found.start + found.origin).tolist() == rows["ts"].to_list()
        assert found.dur.tolist() == rows["dur"].to_list()
        assert [found.names[code] for code in found.name] == rows["name"].cast(str).to_list()
        for place, lane in enumerate(found.lanes):
            mine = slice(int(found.edges[place]), int(found.edges[place + 1]))
            start, dur = found.start[mine], found.dur[mine]
            assert set(rows["track"][mine].to_list()) == {lane.track}
            assert set(rows["depth"][mine].to_list()) == {lane.depth}
            assert (lane.count, lane.busy) == (len(start), int(dur.sum()))
            assert (start[1:] >= start[:-1]).all()
            crossings += lane.crossing > 0
            follow = start[1:] >= start[:-1] + dur[:-1]
            assert (follow | (dur[1:] == 0)).all(), lane  # a span without duration crosses nothing
    assert crossings
