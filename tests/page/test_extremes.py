"""Runs of one span and of ten thousand lanes, other languages, no scripts; and the files that the page is made of."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

import stepscope
from stepscope.report.page.content import Shown
from stepscope.report.page.one_file import bundle, html
from stepscope.run import Run
from tests.page.conftest import ROOT, Files, Watched, serving
from tests.page.test_pages import violations
from tests.sizes import first_quick

Open = Callable[..., Watched]
FILES = ("page.js", "worker.js", "page.css")


def run_of(path: Path, events: list[dict[str, object]]) -> Run:
    path.write_text(json.dumps({"traceEvents": events}))
    return stepscope.open(path)


def span(name: str, start: float, dur: float, thread: int = 1) -> dict[str, object]:
    return {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": thread, "name": name, "ts": start, "dur": dur}


def test_one_span_has_every_page_that_it_can_have(tmp_path: Path, opened: Open) -> None:
    run = run_of(tmp_path / "one.json", [span("n" * 1000, 100, 0.001)])
    with serving(run) as server:
        watched = opened(server.link)
        for name in watched.names:
            watched.show(name)
            assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
            assert violations(watched) == [], name
        watched.show("timeline")
        # The window cannot be smaller than some nanoseconds, nor larger than the run.
        watched.page.focus(".area")
        for key in "wwwwss0":
            watched.page.keyboard.press(key)
        watched.page.keyboard.press("/")
        watched.page.keyboard.type("nnn")
        watched.page.wait_for_selector("text=1 span of 1 name")
        watched.page.keyboard.press("Enter")
        watched.page.wait_for_selector(".details .title")
        assert "1 ns" in watched.page.inner_text(".details dl").replace("1.00 ns", "1 ns")
        assert watched.wrong == []


def test_a_recording_whose_parts_are_unknown_has_its_length(links: dict[str, str], opened: Open) -> None:
    watched = opened(links["damaged"])
    watched.page.wait_for_selector(".tile")
    assert watched.page.locator(".tile b").first.inner_text() == "41.6 s"
    assert watched.wrong == []


@pytest.mark.slow
def test_ten_thousand_lanes_scroll(tmp_path: Path, opened: Open) -> None:
    run = run_of(tmp_path / "lanes.json", [span(f"work {n}", 10.0 * n, 400.0 + n, thread=n) for n in range(10_000)])
    with serving(run) as server:
        watched = opened(server.link + "&p=timeline", first=".holder[data-drawn]")
        page = watched.page
        seen = set(lanes(page))
        for _ in range(5):
            page.focus(".area")
            page.keyboard.press("PageDown")
            page.wait_for_timeout(50)
            seen |= set(lanes(page))
        assert len(seen) > 60
        assert page.locator(".names .lane").count() < 60
        page.fill('input[aria-label="filter lanes"]', "thread 9876")
        page.wait_for_selector(".lane:has-text('thread 9876')")
        assert lanes(page) == ["thread 9876"]
        assert watched.wrong == []


def lanes(page: Page) -> list[str]:
    return page.locator(".names .text").all_inner_texts()


@pytest.mark.parametrize("locale", first_quick(["ar-EG", "de-DE", "fa-IR"]))
def test_numbers_are_the_same_in_every_language(locale: str, files: Files, browser: Browser) -> None:
    texts = []
    for language, zone in (("en-US", "UTC"), (locale, "Asia/Shanghai")):
        context = browser.new_context(locale=language, timezone_id=zone)
        page = context.new_page()
        wrong: list[str] = []
        page.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
        page.goto(files["cpu"].as_uri())
        page.wait_for_selector(".tile")
        texts.append(page.inner_text("main"))
        assert wrong == []
        context.close()
    assert texts[0] == texts[1]


def test_without_scripts_the_page_names_the_command(files: Files, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(files["cpu"].as_uri())
    assert "stepscope report" in page.inner_text("noscript")
    context.close()


def test_the_files_of_the_page_are_small_and_name_no_address() -> None:
    texts = {name: bundle(name) for name in FILES}
    assert sum(len(text.encode()) for text in texts.values()) <= 250_000
    for name, text in texts.items():
        assert not re.search(r"\beval\(|new Function\b|importScripts", text), name
        addresses = set(re.findall(r"https?://[\w./-]+", text))
        assert addresses <= {
            "http://www.w3.org/2000/svg",
            "http://www.w3.org/1998/Math/MathML",
            "http://www.w3.org/1999/xhtml",
        }, name


@pytest.mark.skipif(
    shutil.which("node") is None or not (ROOT / "page/node_modules").is_dir(), reason="Node is not here"
)
def test_the_files_of_the_page_are_the_same_when_they_are_built_again(tmp_path: Path) -> None:
    subprocess.run(["node", "build.mjs", str(tmp_path)], cwd=ROOT / "page", check=True)
    for name in FILES:
        assert (tmp_path / name).read_text(encoding="utf-8") == bundle(name), "is it built? `make page`"


def test_the_same_run_is_the_same_file(files: Files, runs: dict[str, Run]) -> None:
    assert html(Shown.of(runs["cpu"])) == files["cpu"].read_bytes()
