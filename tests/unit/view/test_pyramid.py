"""A picture holds every span: as itself, or in the cover of a pixel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.report.page.lane_spans import LaneSpans, TimelineLane, lane_spans
from stepscope.view.pyramid import Numbering, Pyramid, build, encode
from tests.unit.analyse.build import Rank

#: Per lane the gap before each span, and its duration, ns.
Lanes = list[list[tuple[int, int]]]

#: Gap before a span, and its duration, ns.
SPAN = st.tuples(
    st.sampled_from((0, 1, 7, 300, 5_000, 10**6, 10**9)),
    st.sampled_from((0, 1, 3, 80, 255, 256, 4_000, 10**6, 3 * 10**9)),
)


def timeline(lanes: Lanes) -> LaneSpans:
    rows = []
    for lane, spans in enumerate(lanes):
        now = 0
        for gap, dur in spans:
            rows.append((lane, now + gap, dur))
            now += gap + dur
    table = np.array(rows, np.int64).reshape(-1, 3)
    count = len(table)
    return LaneSpans(
        origin=10**18,
        total=int((table[:, 1] + table[:, 2]).max(initial=0)),
        lanes=tuple(
            TimelineLane(lane, f"lane {lane}", "host", "thread", 0, 0, lane == 0, 0, 0) for lane in range(len(lanes))
        ),
        edges=np.searchsorted(table[:, 0], np.arange(len(lanes) + 1)),
        start=table[:, 1],
        dur=table[:, 2],
        name=(np.arange(count) % 5).astype(np.uint32),
        kind=(np.arange(count) % 3).astype(np.uint8),
        row=np.arange(count),
        names=[f"name {number}" for number in range(5)],
    )


def built(spans: LaneSpans, folder: Path) -> Pyramid:
    build(spans, folder, "these")
    found = Pyramid.of(folder, "these")
    assert found is not None
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(SPAN, max_size=60), min_size=1, max_size=4))
def test_every_level_holds_every_span(tmp_path_factory: pytest.TempPathFactory, lanes: Lanes) -> None:
    spans = timeline(lanes)
    pyramid = built(spans, tmp_path_factory.mktemp("pyramid"))
    for level in pyramid.head.levels:
        assert pyramid.of_level(level.number) == (len(spans.start), int(spans.dur.sum()))


@settings(max_examples=60, deadline=None)
@given(
    lanes=st.lists(st.lists(SPAN, min_size=1, max_size=60), min_size=1, max_size=3),
    pixels=st.sampled_from((1, 7, 100, 1600)),
    with_levels=st.booleans(),
)
def test_a_picture_of_everything_adds_up(
    tmp_path_factory: pytest.TempPathFactory, lanes: Lanes, pixels: int, *, with_levels: bool
) -> None:
    spans = timeline(lanes)
    pyramid = built(spans, tmp_path_factory.mktemp("pyramid"))
    end = spans.total + 1
    picture = (pyramid if with_levels else Pyramid.leaf(spans, "these")).picture(range(len(lanes)), 0, end, pixels)
    shown = np.split(picture.rows, np.cumsum(picture.number)[:-1])
    for lane, rows in enumerate(shown):
        mine = slice(spans.edges[lane], spans.edges[lane + 1])
        assert (spans.dur[rows] >= end / pixels).all()
        covered = picture.cover[lane].sum() * end / pixels
        assert spans.dur[rows].sum() + covered == pytest.approx(spans.dur[mine].sum(), rel=1e-4, abs=2 * end / pixels)
        # what is not shown as itself is seen in some pixel
        assert (len(rows) == len(spans.dur[mine])) == (picture.longest[lane] < 0).all()
    size = 48 + 8 * len(lanes) + 17 * len(picture.rows) + -len(picture.rows) % 4 + 2 * pixels * len(lanes)
    assert len(encode(pyramid, picture, range(len(lanes)), Numbering())) == size + -size % 8


def test_a_window_shows_what_touches_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lanes = [list(zip(rng.integers(0, 900, 3000).tolist(), rng.integers(1, 2_000, 3000).tolist(), strict=True))] * 2
    spans = timeline(lanes)
    pyramid = built(spans, tmp_path)
    for width in (1_000, 30_000, 400_000, 3_000_000):
        a = int(rng.integers(0, spans.total - width))
        picture = pyramid.picture([1], a, a + width, 500)
        mine = np.arange(spans.edges[1], spans.edges[2])
        touching = mine[(spans.start[mine] < a + width) & (spans.start[mine] + spans.dur[mine] > a)]
        long = touching[spans.dur[touching] >= width / 500]
        assert picture.rows.tolist() == long.tolist()
        found = pyramid.statistics([1], a, a + width)
        inside = np.minimum(spans.start + spans.dur, a + width)[touching] - np.maximum(spans.start, a)[touching]
        assert found["total"].sum() == inside.sum()
        assert found["count"].sum() == len(touching)
        by_name = {name: inside[spans.name[touching] == name] for name in range(5)}
        for name, least, most in zip(found["name"], found["least"], found["most"], strict=True):
            assert (least, most) == (by_name[int(name)].min(), by_name[int(name)].max())


def test_names_are_found_in_order_of_time(tmp_path: Path) -> None:
    spans = timeline([[(10, 5), (10, 5), (10, 5)], [(3, 5), (10, 5), (10, 5)]])
    pyramid = built(spans, tmp_path)
    assert pyramid.places([3], [0, 1]).tolist() == [3]
    every = pyramid.places(range(5), [0, 1])
    assert every.tolist() == sorted(range(6), key=lambda row: spans.start[row])


def test_what_was_made_of_other_tables_is_not_opened(tmp_path: Path) -> None:
    build(timeline([[(0, 10)]]), tmp_path, "these")
    assert Pyramid.of(tmp_path, "others") is None
    (tmp_path / "head.json").write_bytes(b'{"made_of"')
    assert Pyramid.of(tmp_path, "these") is None
    assert Pyramid.of(tmp_path / "nowhere", "these") is None


def test_self_times_of_all_lanes_of_a_thread_are_the_time_that_its_outermost_spans_take(tmp_path: Path) -> None:
    rank = Rank()
    thread = rank.thread()
    rng = np.random.default_rng(1)
    for start in range(0, 40_000, 1_000):
        rank.span(thread, "operator", start, 900, "outer")
        for inner in range(int(rng.integers(0, 4))):
            rank.span(thread, "operator", start + 10 + 200 * inner, 150, "inner")
            rank.span(thread, "kernel", start + 20 + 200 * inner, int(rng.integers(1, 100)), "innermost")
    pyramid = built(lane_spans(rank.tables()), tmp_path)
    lanes = range(len(pyramid.head.lanes))
    for a, b in ((0, 40_000), (5_033, 17_477), (60, 61), (905, 990)):
        found = pyramid.statistics(lanes, a, b)
        assert (found["self"] >= 0).all()
        assert found["self"].sum() == pyramid.statistics([0], a, b)["total"].sum()
        # the self time of a lane takes what lies inside its spans off, whether that is asked for or not
        [own] = pyramid.statistics([0], a, b)["self"] if b - a > 100 else [None]
        names = [pyramid.head.names[name] for name in found["name"]]
        assert own is None or own == found["self"][names.index("outer")]
