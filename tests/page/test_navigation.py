"""The ways through a timeline: windows that were zoomed into, the menu of a lane, the chain of arrows, copies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from stepscope.report.page.lane_spans import LaneSpans, lane_spans
from stepscope.report.page.span_flows import SpanFlows, span_flows
from stepscope.run import Run
from tests.clocks import wait_until
from tests.page.conftest import Files, Watched

Open = Callable[..., Watched]
#: What is the same code for both: when quick, the server alone.
EITHER = pytest.mark.parametrize("where", [pytest.param("file", marks=pytest.mark.slow), "server"])
BOTH = pytest.mark.parametrize("where", ["file", "server"])


@pytest.fixture
def page(where: str, files: Files, links: dict[str, str], opened: Open) -> Iterator[Page]:
    address = f"{files['cpu'].as_uri()}#" if where == "file" else f"{links['cpu']}&"
    watched = opened(f"{address}p=timeline&over=none&pin=-", height=1000)
    watched.settle("timeline")
    watched.page.focus(".area")
    yield watched.page
    assert watched.wrong == []


@pytest.fixture(scope="module")
def spans(runs: dict[str, Run]) -> LaneSpans:
    return lane_spans(runs["cpu"].ranks[0].shown)


@pytest.fixture(scope="module")
def flows(runs: dict[str, Run], spans: LaneSpans) -> SpanFlows:
    return span_flows(runs["cpu"].ranks[0].shown, spans.row)


def part(page: Page, name: str) -> str:
    return parse_qs(page.url.split("#")[1]).get(name, [""])[0]


def names(page: Page) -> list[str]:
    return page.locator(".names .lane .text").all_inner_texts()


@EITHER
def test_windows_that_were_zoomed_into_lead_back(page: Page) -> None:
    zooms = page.locator(".zooms")
    page.keyboard.press("0")
    expect(zooms.locator("button")).to_have_count(0)
    whole = part(page, "t")
    texts = [zooms.inner_text()]
    for number in (1, 2):
        for _ in range(4):
            page.keyboard.press("w")
        expect(zooms.locator("button")).to_have_count(number)
        page.wait_for_timeout(600)  # a window that stands still is one to go back to
        texts.append(zooms.locator("b").inner_text())
    assert zooms.locator("button").all_inner_texts() == texts[:2]
    zooms.locator("button").nth(1).click()
    expect(zooms.locator("button")).to_have_count(1)
    assert zooms.locator("b").inner_text() == texts[1]
    zooms.locator("button").first.click()
    wait_until(lambda: part(page, "t") == whole)
    page.go_back()
    expect(zooms.locator("b")).to_have_text(texts[1])


@EITHER
def test_the_menu_of_a_lane(page: Page) -> None:
    expect(page.get_by_role("menu")).to_have_count(0)
    lane = page.locator(".names .lane button").nth(1)
    name = lane.locator(".text").inner_text()
    lane.click(button="right")
    menu = page.get_by_role("menu")
    expect(menu).to_have_attribute("aria-label", re.compile(f"{re.escape(name)}$"))
    expect(menu.get_by_role("menuitem").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(menu).to_have_count(0)
    lane.click(button="right")
    menu.get_by_role("menuitem", name="hide").click()
    expect(page.locator("text=show 1 hidden")).to_be_visible()
    assert name not in names(page)
    page.keyboard.press("u")
    page.locator(".names .lane button").nth(1).click(button="right")
    expect(menu.get_by_role("menuitem").first).to_be_focused()
    page.keyboard.press("ArrowUp")  # from the first to the last
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    wait_until(lambda: part(page, "lanes") == name)
    assert all(name in one for one in names(page))


@BOTH
def test_the_chain_of_a_span_is_drawn(page: Page, spans: LaneSpans, flows: SpanFlows) -> None:
    lengths = {place: len(flows.chain(place, 500)) for place in np.unique(flows.begin)[:200].tolist()}
    place = max(lengths, key=lambda one: lengths[one])
    start, dur = int(spans.start[place]), int(spans.dur[place])
    page.evaluate(
        "([place, a, b]) => { location.hash += `&sel=0:${place}&t=${a},${b}`; location.reload(); }",
        [place, max(0, start - dur), start + 2 * dur],
    )
    page.wait_for_selector(".details .title")
    page.focus(".area")
    page.keyboard.press("Shift+BracketRight")
    page.wait_for_selector(f"text=/its chain: {lengths[place]} arrows? between/")
    assert page.locator("svg.arrows > path").count() <= lengths[place]
    page.keyboard.press("Shift+BracketRight")
    expect(page.locator("text=its chain")).to_have_count(0)


@EITHER
def test_keys_fold_a_track_go_to_the_filter_and_copy(page: Page, spans: LaneSpans) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate("document.querySelector('.area').focus()")
    page.keyboard.press("/")
    page.fill("#search", "aten::conv2d")
    page.press("#search", "Enter")
    page.wait_for_selector(".details .title")
    page.focus(".area")
    lanes = page.locator(".names .lane").count()
    page.keyboard.press("t")
    wait_until(lambda: page.locator(".names .lane").count() != lanes)
    page.keyboard.press("t")
    expect(page.locator(".names .lane")).to_have_count(lanes)
    # A key that comes as soon as the picture of the one before is there
    page.evaluate(
        """() => {
            const event = () => new KeyboardEvent("keydown", { code: "KeyT", bubbles: true });
            const press = () => document.querySelector(".area").dispatchEvent(event());
            new MutationObserver((_, seen) => { seen.disconnect(); press(); window.pressed = true; })
                .observe(document.querySelector(".names"), { childList: true, subtree: true });
            press();
        }"""
    )
    wait_until(lambda: page.evaluate("window.pressed"))
    expect(page.locator(".names .lane")).to_have_count(lanes)
    page.keyboard.press("Control+c")
    wait_until(lambda: "name\taten::conv2d" in page.evaluate("navigator.clipboard.readText()"))
    page.keyboard.press("y")
    wait_until(lambda: page.evaluate("navigator.clipboard.readText()") == page.url)
    page.keyboard.press("l")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "filter lanes"


@EITHER
def test_turns_of_the_wheel_that_come_before_a_picture_add_up(page: Page) -> None:
    page.keyboard.press("w")
    wait_until(lambda: part(page, "t"))
    begin, end = map(int, part(page, "t").split(","))
    page.evaluate(
        """async () => {
            const lanes = document.querySelector(".area");
            const event = () => new WheelEvent("wheel", { deltaX: 20, bubbles: true, cancelable: true });
            const turn = () => lanes.dispatchEvent(event());
            const { port1, port2 } = new MessageChannel();
            for (let turns = 0; turns < 4; turns++) {
                turn();
                await new Promise((resolve) => { port1.onmessage = resolve; port2.postMessage(0); });
            }
        }"""
    )
    width = page.locator(".area canvas").first.bounding_box()["width"]  # type: ignore[index]
    wait_until(lambda: part(page, "t") != f"{begin},{end}")
    moved = int(part(page, "t").split(",")[0]) - begin
    assert moved == pytest.approx(4 * 20 / width * (end - begin), rel=0.1)
