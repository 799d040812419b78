"""Two runs side by side: each its own rows, one window, which counts from the start of a step of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Page

import stepscope
from stepscope.collect.journal.journal import Journal
from stepscope.run import Run
from stepscope.trace.run_directory import RankDirectory
from stepscope.view.server import Server
from tests.page.conftest import Watched, serving
from tests.page.test_pages import Open, violations
from tests.page.test_timeline import facts, until, window

BEGIN = 1_795_000_000_000_000_000
STEPS = 6


def recorded(folder: Path, name: str, step_ns: int) -> Run:
    """Return a run of six steps, in each a span of 60 % of it; it begins by its own clock."""
    directory = RankDirectory(folder / f"{name}_20261123-080000" / "rank0")
    directory.create()
    journal = Journal(directory.capture / "journal.ssj")
    first = BEGIN + step_ns * 1000
    for number in range(STEPS):
        start = first + number * step_ns
        journal.span(f"{name} {number}", "annotation", start, start + step_ns * 6 // 10, {})
        journal.step(number, start, start + step_ns, "declared")
    journal.close()
    directory.write_manifest({"status": "complete", "rank": 0, "world_size": 1, "worker": name})
    return stepscope.open(directory.path.parent)


Both = tuple[Server, Watched, Open]


@pytest.fixture
def both(tmp_path: Path, opened: Open) -> Iterator[Both]:
    """The page of two runs, of which the second takes twice as long a step."""
    runs = [recorded(tmp_path, name, step_ns) for name, step_ns in (("before", 10**6), ("after", 2 * 10**6))]
    with serving(runs) as server:
        for place in (0, 1):  # each is analysed before any page waits for it
            about = Request(
                f"http://127.0.0.1:{server.port}/{place}/api/content", headers={"X-Stepscope-Token": server.token}
            )
            with urlopen(about, timeout=500) as answer:
                assert answer.status == 200
        watched = opened(f"{server.link}&beside=0,1", first="main")
        drawn(watched.page)
        yield server, watched, opened
        assert watched.wrong == []


def drawn(page: Page) -> None:
    until(page, "document.querySelectorAll('.beside .holder[data-drawn]').length === 2")


def places(page: Page, side: int) -> dict[str, tuple[float, float]]:
    """Return left and right of each step in the picture of a side, in pixels from its left."""
    part = page.locator(".beside > section").nth(side)
    left = part.locator(".area").bounding_box()["x"]  # type: ignore[index]
    found = {}
    for button in part.locator(".steps button").all():
        box = button.bounding_box()
        assert box is not None
        found[button.get_attribute("title").split(":")[0]] = (box["x"] - left, box["x"] + box["width"] - left)  # type: ignore[union-attr]
    return found


def ticks(page: Page) -> list[list[str]]:
    return [one.locator(".ticks span").all_inner_texts() for one in page.locator(".beside .ruler").all()]


def test_both_begin_with_the_chosen_step_in_one_window(both: Both) -> None:
    page = both[1].page
    titles = page.locator(".beside > section > h2 a").all_inner_texts()
    assert [title.split("_")[0] for title in titles] == ["before", "after"]
    # The window is as long as the longer of both steps, and both median steps begin at its left.
    a, b = places(page, 0), places(page, 1)
    width = page.locator(".beside .area").first.bounding_box()["width"]  # type: ignore[index]
    chosen = [one.input_value() for one in page.locator(".beside > section > h2 select").all()]
    assert a[f"step {chosen[0]}"] == pytest.approx((0, width / 2), abs=2)
    assert b[f"step {chosen[1]}"] == pytest.approx((0, width), abs=2)
    assert ticks(page)[0] == ticks(page)[1]
    assert len({area.bounding_box()["width"] for area in page.locator(".beside .area").all()}) == 1  # type: ignore[index]
    # Another step of B comes to where the one before began; A stays.
    page.locator(".beside > section > h2 select").nth(1).select_option("4")
    until(page, "location.hash.includes('steps=')")
    assert places(page, 1)["step 4"] == pytest.approx((0, width), abs=2)
    assert places(page, 0) == a


def test_keys_move_both_and_the_link_opens_the_same(both: Both) -> None:
    server, watched, opened = both
    page = watched.page
    page.locator(".beside .area").first.focus()
    page.keyboard.press("0")
    until(page, "/[&#]t=/.test(location.hash)")
    start, end = window(page)
    chosen = [int(one.input_value()) for one in page.locator(".beside > section > h2 select").all()]
    begins = [number * step for number, step in zip(chosen, (10**6, 2 * 10**6), strict=True)]
    assert (start, end) == (-max(begins), max(STEPS * 10**6 - begins[0], STEPS * 2 * 10**6 - begins[1]))
    page.keyboard.press("w")
    until(page, "before => !location.hash.includes(before)", f"t={start}")
    assert ticks(page)[0] == ticks(page)[1]
    again = opened(page.url.replace("#", f"#{server.link.split('#')[1]}&"), first="main")
    drawn(again.page)
    assert window(again.page) == window(page)
    assert [places(again.page, side) for side in (0, 1)] == [places(page, side) for side in (0, 1)]
    assert again.wrong == []


def test_the_details_are_those_of_the_side_that_was_touched(both: Both) -> None:
    page = both[1].page
    page.wait_for_timeout(300)
    for side, name in ((1, "after"), (0, "before")):
        part = page.locator(".beside > section").nth(side)
        box = part.locator(".area").bounding_box()
        assert box is not None
        for lane in part.locator(".names .lane.lane").all():
            row = lane.bounding_box()
            assert row is not None
            page.mouse.click(box["x"] + box["width"] * 0.1, row["y"] + row["height"] / 2)
            page.wait_for_timeout(200)
            if name in page.inner_text('.details section[aria-label="Span"]'):
                break
        told = facts(page)
        assert re.fullmatch(rf"{name} \d", page.inner_text(".details .title"))
        assert re.search(r"\d", told["row of spans"])
        assert page.locator(".details").count() == 1
        until(page, f"location.hash.includes('sel{side}=0')")
    # The search is that of the side, too.
    page.keyboard.press("/")
    page.keyboard.type("before")
    page.wait_for_selector("text=6 spans of 6 names")


def test_it_is_accessible_and_the_list_leads_to_it(both: Both) -> None:
    server, watched, opened = both
    assert violations(watched) == []
    listed = opened(server.link, first="table")
    button = listed.page.locator("button:has-text('side by side')")
    assert button.is_disabled()
    for box in listed.page.locator("tbody input").all():
        box.check()
    button.click()
    drawn(listed.page)
    assert "beside=0" in listed.page.url
    assert violations(listed) == []
    assert listed.wrong == []
