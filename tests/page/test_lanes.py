"""Each span lies where its times say, in the colour of its kind, at every zoom; and which lanes are shown."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, Route

from stepscope.report.page.lane_spans import KIND_NAMES, LaneSpans, lane_spans
from stepscope.report.page.span_modules import span_modules
from stepscope.run import Run
from tests.clocks import wait_until
from tests.page.conftest import Files, Watched, run_named
from tests.sizes import SIZE

Open = Callable[..., Watched]
BOTH = pytest.mark.parametrize("where", ["file", "server"])
#: What is the same code for both: when quick, the server alone.
EITHER = pytest.mark.parametrize("where", [pytest.param("file", marks=pytest.mark.slow), "server"])
#: A window as a multiple of the span in its middle.
ZOOMS = (1.5, 4, 30, 300, 3_000, 30_000)
ROW = 20
#: page/src/colours.ts, which is checked for contrast and colour blindness.
LIGHT = {
    "kernel": (0x43, 0x4F, 0xC8),
    "operator": (0x43, 0x4F, 0xC8),
    "memcpy": (0xB7, 0x8D, 0x12),
    "memset": (0xB7, 0x8D, 0x12),
    "sync": (0x5B, 0x2E, 0x5E),
    "runtime": (0x65, 0x6F, 0x8E),
    "annotation": (0x36, 0x4B, 0x00),
}
#: Texts to search for, and whether a span is found.
SEARCHES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "kind:kernel": lambda one: one["kind"] == "kernel",
    'lane:"stream 20"': lambda one: "stream 20" in one["lane"],
    "conv dur>1ms": lambda one: "conv" in one["name"].lower() and one["dur"] >= 10**6,
    "kind:operator dur<10us": lambda one: one["kind"] == "operator" and one["dur"] <= 10**4,
    r"/^aten::(conv2d|add)$/": lambda one: one["name"] in ("aten::conv2d", "aten::add"),
}
#: The pixels of a lane at one place, from the top: a name may lie over some of them.
_PIXELS = """([x, y]) => {
    const of = document.querySelector('.area canvas');
    const copy = document.createElement('canvas');
    [copy.width, copy.height] = [of.width, of.height];
    const context = copy.getContext('2d', {willReadFrequently: true});
    context.drawImage(of, 0, 0);
    const column = context.getImageData(x, y, 1, 17).data;
    return Array.from({length: 17}, (_, i) => [...column.slice(4 * i, 4 * i + 3)]);
}"""


@pytest.fixture(scope="module")
def spans(runs: dict[str, Run]) -> LaneSpans:
    return lane_spans(runs["cpu"].ranks[0].shown)


@pytest.fixture
def page(where: str, files: Files, links: dict[str, str], spans: LaneSpans, opened: Open) -> Iterator[Page]:
    """The timeline with all lanes of all tracks, in their order."""
    address = f"{files['cpu'].as_uri()}#" if where == "file" else f"{links['cpu']}&"
    tracks = ",".join(f"0:{track}" for track in dict.fromkeys(lane.track for lane in spans.lanes))
    watched = opened(f"{address}p=timeline&pin=-&over=none&unfold={tracks}", height=1000)
    watched.settle("timeline")
    assert watched.page.locator(".names .lane").count() == len(spans.lanes)
    yield watched.page
    assert watched.wrong == []


def top(page: Page, lane: int) -> float:
    """Return where a lane begins, in pixels from the top of the picture."""
    return float(page.locator(".names .lane").nth(lane).evaluate("lane => parseFloat(lane.style.top)"))


def lane_of(spans: LaneSpans, place: int) -> int:
    return next(lane for lane in range(len(spans.lanes)) if place < spans.edges[lane + 1])


def show(page: Page, a: float, b: float) -> tuple[int, int]:
    """Show a window of time, and wait for its picture; return the window."""
    before = page.evaluate("document.querySelector('.area .holder').dataset.drawn")
    old, new = page.evaluate(
        """([a, b]) => {
            const parts = new URLSearchParams(location.hash.slice(1));
            const old = parts.get('t');
            parts.set('t', `${a},${b}`);
            location.hash = parts;
            return [old, parts.get('t')];
        }""",
        [max(0, round(a)), round(b)],
    )
    if old != new:
        wait_until(lambda: page.evaluate("document.querySelector('.area .holder').dataset.drawn") != before)
    first, last = new.split(",")
    return int(first), int(last)


def some(spans: LaneSpans, number: int) -> list[int]:
    """Return places of spans of every kind, by chance but always the same."""
    chance = random.Random(19)
    long = [place for place in range(len(spans.start)) if spans.dur[place] > 0]
    chosen = []
    for kind in LIGHT:
        of_kind = [place for place in long if KIND_NAMES[spans.kind[place]] == kind]
        chosen += chance.sample(of_kind, min(len(of_kind), max(1, number // len(LIGHT))))
    return chosen


@EITHER
@pytest.mark.usefixtures("size")
def test_a_click_selects_the_span_that_is_there_and_it_keeps_its_colour(page: Page, spans: LaneSpans) -> None:
    """In full, 200 spans at six zooms; of a span that is wide enough to be seen as itself."""
    box = page.locator(".area").bounding_box()
    assert box is not None
    selected = 0
    for place in some(spans, 50 if SIZE.full else 7):
        start, dur, kind = int(spans.start[place]), int(spans.dur[place]), KIND_NAMES[spans.kind[place]]
        lane = lane_of(spans, place)
        y = top(page, lane)
        for zoom in ZOOMS:
            middle = start + dur / 2
            if middle + zoom * dur / 2 + 20 > spans.total:  # the page shows no more than the run
                continue
            a, b = show(page, middle - zoom * dur / 2, middle + zoom * dur / 2 + 20)
            x, wide = (middle - a) / (b - a) * box["width"], dur / (b - a) * box["width"]
            if wide < 8:  # the selected one has edges
                continue
            at = [int(x), int(y)]
            wait_until(lambda at=at, own=list(LIGHT[kind]): own in page.evaluate(_PIXELS, at))  # a server answers later
            drawn = page.evaluate(_PIXELS, at)
            assert not [other for other in LIGHT.values() if other != LIGHT[kind] and list(other) in drawn]
            page.mouse.click(box["x"] + x, box["y"] + y + 12)
            row = f"document.querySelector('.details dl')?.innerText.includes('row of spans\\n{spans.row[place]}')"
            wait_until(lambda row=row: page.evaluate(row))
            selected += 1
    assert selected >= 12


@pytest.mark.parametrize("where", ["server"])
def test_a_click_before_the_answer_of_the_server_selects_what_is_then_there(page: Page, spans: LaneSpans) -> None:
    place = next(place for place in some(spans, 7) if KIND_NAMES[spans.kind[place]] == "operator")
    start, dur = int(spans.start[place]), int(spans.dur[place])
    box = page.locator(".area").bounding_box()
    assert box is not None
    y = box["y"] + top(page, lane_of(spans, place)) + 12
    show(page, 0, spans.total // 2)
    held: list[Route] = []
    page.route("**/api/frame", lambda route: held.append(route))
    page.evaluate(f"location.hash = location.hash.replace(/&t=[^&]*/, '&t={start - dur},{start + 2 * dur}')")
    wait_until(lambda: page.evaluate("1") and held)  # Playwright hands over requests only while it is called
    page.mouse.click(box["x"] + box["width"] / 2, y)
    assert page.evaluate("document.querySelector('.details dl')") is None
    for route in held:
        route.continue_()
    page.unroute("**/api/frame")
    row = f"document.querySelector('.details dl')?.innerText.includes('row of spans\\n{spans.row[place]}')"
    wait_until(lambda: page.evaluate(row), seconds=60)


@BOTH
def test_a_kernel_of_less_than_a_pixel_has_a_shade_of_its_colour(page: Page, spans: LaneSpans) -> None:
    """Seen from far, several share a pixel or its neighbour: between the ground and their colour, never another's."""
    show(page, 0, 1.01 * spans.total)
    width = page.locator(".area").bounding_box()["width"]  # type: ignore[index]
    stream = next(lane for lane, of in enumerate(spans.lanes) if of.name == "stream 20")
    seen = 0
    for place in range(spans.edges[stream], spans.edges[stream + 1]):
        x = int(spans.start[place] / round(1.01 * spans.total) * width)
        near = [page.evaluate(_PIXELS, [x + by, int(top(page, stream))])[12] for by in (0, -1, 1)]
        drawn = next((colour for colour in near if colour != [255, 255, 255]), near[0])
        shades = [
            [(255 - part) / (255 - ink) for part, ink in zip(drawn, LIGHT[kind], strict=True)]
            for kind in ("kernel", "memset")
        ]
        alike = [shade for shade in shades if max(shade) - min(shade) < 0.03]
        assert alike and 0.24 < alike[0][0] <= 1.01, drawn
        seen += 1
    assert seen > 1


@EITHER
def test_the_window_is_as_small_as_some_nanoseconds(page: Page, spans: LaneSpans) -> None:
    place = next(place for place in range(len(spans.start)) if spans.dur[place] > 1000)
    middle = int(spans.start[place] + spans.dur[place] // 2)
    show(page, middle - 1000, middle + 1000)
    page.focus(".area")
    for _ in range(40):
        page.keyboard.press("w")
    wait_until(lambda: page.inner_text(".zooms b") == "20.0 ns")
    a, b = (int(time) for time in page.evaluate("new URLSearchParams(location.hash.slice(1)).get('t')").split(","))
    assert b - a == 20
    assert abs(a - middle) < 1000
    ticks = page.locator(".ticks span").all_inner_texts()
    assert len(ticks) >= 3 and len(set(ticks)) == len(ticks)
    assert all(text.endswith("ns") for text in ticks[1:])


@EITHER
def test_a_track_is_pinned_and_hidden_and_the_link_keeps_that(page: Page, spans: LaneSpans) -> None:
    names = list(dict.fromkeys(lane.name for lane in spans.lanes))

    def shown() -> list[str]:
        return page.locator(".names .text").all_inner_texts()

    first = next(lane for lane, of in enumerate(spans.lanes) if of.name == "stream 20")
    place = int(spans.edges[first])
    box = page.locator(".area").bounding_box()
    assert box is not None
    start, dur = int(spans.start[place]), int(spans.dur[place])
    a, b = show(page, start - dur, start + 2 * dur)
    page.mouse.click(box["x"] + (start + dur / 2 - a) / (b - a) * box["width"], box["y"] + top(page, first) + 12)
    page.wait_for_selector(".details .title")
    page.focus(".area")
    page.keyboard.press("p")
    wait_until(lambda: shown()[0] == "stream 20")
    page.reload()
    page.wait_for_selector(".area .holder[data-drawn]", state="attached")
    assert shown()[0] == "stream 20"
    page.wait_for_selector(".details .title")
    page.focus(".area")
    page.keyboard.press("p")
    wait_until(lambda: shown()[0] == names[0])
    page.keyboard.press("h")
    wait_until(lambda: "stream 20" not in shown())
    assert shown() == [name for name in names if name != "stream 20"]
    page.wait_for_selector("button:has-text('show 1 hidden')")
    page.reload()
    page.wait_for_selector(".area .holder[data-drawn]", state="attached")
    assert "stream 20" not in shown()
    page.focus(".area")
    page.keyboard.press("u")
    wait_until(lambda: shown() == names)


@BOTH
def test_a_search_takes_kinds_lanes_durations_and_expressions(page: Page, spans: LaneSpans) -> None:
    rows = [
        {
            "kind": KIND_NAMES[spans.kind[place]],
            "lane": spans.lanes[lane_of(spans, place)].name,
            "name": spans.names[spans.name[place]],
            "dur": int(spans.dur[place]),
        }
        for place in range(len(spans.start))
    ]
    for text, is_found in SEARCHES.items():
        expected = sum(map(is_found, rows))
        assert expected, text
        page.fill("#search", text)
        said = f" {expected} span"
        wait_until(lambda said=said: said in f" {page.inner_text('.tools').replace(chr(10), ' ')}")
    page.fill("#search", "/(/")
    page.wait_for_selector("text=not a regular expression: a ( without )")


#: How many pixels of the picture have a colour.
_OF_COLOUR = """([r, g, b]) => {
    const of = document.querySelector('.area canvas');
    const copy = document.createElement('canvas');
    [copy.width, copy.height] = [of.width, of.height];
    const context = copy.getContext('2d', {willReadFrequently: true});
    context.drawImage(of, 0, 0);
    const all = context.getImageData(0, 0, copy.width, copy.height).data;
    let number = 0;
    for (let i = 0; i < all.length; i += 4) number += all[i] === r && all[i + 1] === g && all[i + 2] === b;
    return number;
}"""


@BOTH
def test_a_search_for_a_module_finds_its_operators_and_their_kernels(
    where: str, runs: dict[str, Run], files: Files, links: dict[str, str], opened: Open
) -> None:
    shown = run_named(runs, "gpu").ranks[0].shown
    spans = lane_spans(shown)
    modules = span_modules(shown, spans.row)
    kernel = np.asarray(spans.kind) == KIND_NAMES.index("kernel")
    address = f"{files['gpu'].as_uri()}#" if where == "file" else f"{links['gpu']}&"
    watched = opened(f"{address}p=timeline&over=none", height=1000)
    watched.settle("timeline")
    page = watched.page
    # Given: two modules that launch kernels, and a third that does not exist
    one, other = "layernorm_36", "conv2d_0"
    for text in (one, other):
        expected = int((kernel & modules.holding(text)).sum())
        assert 0 < expected < kernel.sum()
        page.fill("#search", f"kind:kernel module:{text}")
        said = f" {expected} span"
        wait_until(lambda said=said: said in f" {page.inner_text('.tools').replace(chr(10), ' ')}")
    page.fill("#search", "module:nowhere")
    wait_until(lambda: " 0 spans" in f" {page.inner_text('.tools').replace(chr(10), ' ')}")
    # When: one of its kernels is selected and fills the window
    page.fill("#search", f"kind:kernel module:{one}")
    page.press("#search", "Enter")
    page.wait_for_selector(".details .title")
    row = int(page.evaluate("document.querySelector('.details dl').innerText.match(/row of spans\\s+(\\d+)/)[1]"))
    assert (kernel & modules.holding(one))[np.flatnonzero(spans.row == row)[0]]
    page.focus(".area")
    page.keyboard.press("f")
    # Then: it has its colour, and is faint when another module is searched
    wait_until(lambda: page.evaluate(_OF_COLOUR, list(LIGHT["kernel"])) > 1000)
    page.fill("#search", f"kind:kernel module:{other}")
    wait_until(lambda: page.evaluate(_OF_COLOUR, list(LIGHT["kernel"])) == 0)
    assert watched.wrong == []
