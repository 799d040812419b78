"""The timeline of a job: every rank on one clock, what is drawn over it, and what belongs to a span."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote_plus
from urllib.request import Request, urlopen

import numpy as np
import polars as pl
import pytest
from playwright.sync_api import Page, expect

import stepscope
from stepscope.analyse.quantities import duration_text
from stepscope.cluster.clocks import to_job_time
from stepscope.collect.journal.journal import Journal
from stepscope.report.page import file_timeline
from stepscope.report.page.content import Shown
from stepscope.report.page.one_file import html
from stepscope.run import Run
from stepscope.trace.run_directory import RankDirectory
from tests.golden.trace_processor import ask
from tests.page.conftest import Watched, run_named, serving
from tests.simulator.random_faults import random_job
from tests.simulator.shapes import Shape

Open = Callable[..., Watched]
BOTH = pytest.mark.parametrize("where", ["file", "server"])
#: What is the same code for both: when quick, the server alone.
EITHER = pytest.mark.parametrize("where", [pytest.param("file", marks=pytest.mark.slow), "server"])
UNITS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Four machines whose clocks differ by seconds and drift; rank 3 shares no collective with the others."""
    folder = tmp_path_factory.mktemp("job") / "ranks"
    shape = Shape(ranks=4, ranks_per_host=1, steps=3, events=500, step_ns=20e6, seed=5, flows=True)
    random_job(shape, "easy", "alone").write(folder)
    return stepscope.open(folder)


@pytest.fixture(scope="module")
def addresses(job: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    file = tmp_path_factory.mktemp("file") / "job.html"
    file.write_bytes(html(Shown.of(job)))
    with serving(job) as server:
        yield {"file": file.as_uri(), "server": server.link}


@pytest.fixture
def timeline(addresses: dict[str, str], where: str, opened: Open) -> Iterator[Page]:
    watched = opened(addresses[where], height=1000)
    watched.show("timeline")
    until(watched.page, "document.querySelectorAll('.rankrow').length === 4")
    watched.page.wait_for_selector(".names .lane:nth-child(12)")
    yield watched.page
    assert watched.wrong == []


def window(page: Page) -> tuple[int, int]:
    a, b = parse_qs(page.url.split("#")[1])["t"][0].split(",")
    return int(a), int(b)


def facts(page: Page) -> dict[str, str]:
    page.wait_for_selector(".details .title")
    rows = page.evaluate("[...document.querySelectorAll('.details dl div')].map((row) => row.innerText)")
    return dict(row.split("\n", 1) for row in rows)


def nanoseconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * UNITS[unit]


def until(page: Page, condition: str, argument: object = None) -> None:
    """Wait for a condition of the page, asked from outside: its policy forbids the function that Playwright polls."""
    for _ in range(600):
        if page.evaluate(condition, argument):
            return
        page.wait_for_timeout(50)
    raise AssertionError(condition)


def searched(page: Page, text: str) -> None:
    page.fill("#search", text)
    page.wait_for_selector("text=/[0-9] spans? of [0-9]+ name/")


def step_to(page: Page) -> dict[str, str]:
    """Go to the next match, and return what is told of it."""
    before = page.url
    page.press("#search", "Enter")
    until(page, "before => location.href !== before", before)
    until(page, "document.querySelector('.details dl')?.textContent.includes('row of spans')")
    return facts(page)


@EITHER
def test_each_rank_says_how_sure_its_clock_is(timeline: Page, job: Run) -> None:
    rows = job.job.clocks.sort("rank").to_dicts()
    titles = [one.get_attribute("title") or "" for one in timeline.query_selector_all(".lane.rank button")]
    said = [one.inner_text() for one in timeline.query_selector_all(".rankrow")]
    assert [bool(row["reason"]) for row in rows] == [False, False, False, True]
    for row, title, text in zip(rows, titles, said, strict=True):
        clock = f"not aligned: {row['reason']}" if row["reason"] else f"± {duration_text(row['uncertainty_ns'])}"
        assert title == f"rank {row['rank']} · {row['host']} · {clock}"
        assert clock in text
    # Each shows its main thread and its busiest stream.
    for name in ("stream 7", "main thread"):
        expect(timeline.locator(f".names .lane.lane:has-text('{name}')")).to_have_count(4)


@EITHER
def test_it_opens_on_the_median_step_of_the_rank_that_matters(timeline: Page, job: Run) -> None:
    shown = Shown.of(job).rank
    assert timeline.input_value("header select") == str(shown.rank)
    steps = shown.tables["steps"].select("number", "dur").collect()
    middle = sorted(steps["dur"].to_list())[len(steps) // 2]
    number = steps.filter(pl.col("dur") == middle)["number"][0]
    row = timeline.locator(".rankrow").nth(shown.rank)
    assert row.locator(".step").all_inner_texts() == [f"step {number}"]
    assert row.locator(".step").bounding_box()["width"] > 0.99 * row.bounding_box()["width"]  # type: ignore[index]
    # The main thread of this rank is unfolded.
    assert timeline.locator('.lane button[aria-expanded="true"]').count() >= 1


@BOTH
def test_spans_of_all_ranks_lie_on_the_clock_of_the_job(timeline: Page, job: Run) -> None:
    clocks, begins = job.job.clocks, job.job.tables.ranks.select("rank", "begin")
    aligned = to_job_time(begins.with_columns(pl.col("rank").cast(pl.Int32)), clocks, "begin")["begin"]
    origin = aligned.drop_nulls().min()
    searched(timeline, "memcpy htod")
    ends: dict[int, list[float]] = {}
    for _ in range(8):
        step_to(timeline)
        timeline.focus(".area")
        timeline.keyboard.press("f")
        a, b = window(timeline)
        until(timeline, "[...document.querySelectorAll('.details dl dt')].some((name) => name.innerText === 'rank')")
        told = facts(timeline)
        rank, row = int(told["rank"]), int(told["row of spans"])
        dur = (b - a) / 1.2
        start = a + dur * 0.1
        ends.setdefault(rank, []).append(start)
        span = (
            job.ranks[rank].tables["spans"].filter(pl.col("id") == row).select("ts", end=pl.col("ts") + pl.col("dur"))
        )
        times = span.with_columns(rank=pl.lit(rank, pl.Int32)).collect()
        begin, end = to_job_time(times, clocks, "ts", "end").select("ts", "end").row(0)
        if begin is not None:
            assert start == pytest.approx(begin - origin, abs=5)
            assert dur == pytest.approx(end - begin, abs=5)
    # The clocks of the files are seconds apart; a rank without a clock begins with the others.
    firsts = [times[0] for times in ends.values()]
    assert len(firsts) >= 2
    assert np.ptp(firsts) < 20e6


@EITHER
def test_idle_reasons_are_drawn_and_said_in_words(timeline: Page, job: Run) -> None:
    timeline.fill('[aria-label="filter lanes"]', "rank 1")
    timeline.focus(".area")
    timeline.keyboard.press("0")
    timeline.keyboard.press("e")
    timeline.wait_for_selector(".lane.idle")
    timeline.wait_for_selector('.legend[data-overlay="idle"] p > span')
    until(timeline, "document.querySelector('.legend p').textContent.includes('data wait')")
    said = overlay(timeline, "idle")
    result = job.ranks[1].results["idle_reasons"]
    assert isinstance(result, pl.DataFrame)
    expected = dict(result.group_by("Reason").agg(pl.col("Total Time(us)").sum()).iter_rows())
    assert said == {reason: pytest.approx(1e3 * time, rel=0.01) for reason, time in expected.items()}
    timeline.click("button:has-text('idle')")
    timeline.wait_for_selector(".legend", state="detached")
    assert timeline.query_selector(".lane.idle") is None


@EITHER
def test_the_critical_path_is_drawn_and_adds_up(timeline: Page, job: Run) -> None:
    timeline.fill('[aria-label="filter lanes"]', "rank 1")
    timeline.keyboard.press("Tab")
    timeline.click("button:has-text('critical path')")
    timeline.click("button:has-text('everything')")
    # All tracks of the rank: what is not in view is not in the legend.
    timeline.click(".lane.rank button")
    until(timeline, "document.querySelector('.legend p')?.textContent.includes('communication')")
    said = overlay(timeline, "path")
    result = job.ranks[1].results["critical_path"]
    assert isinstance(result, pl.DataFrame)
    parts = result.group_by(pl.col("Part").str.to_lowercase()).agg(pl.col("On Path(us)").sum())
    expected = {part: 1e3 * time for part, time in parts.iter_rows() if time}
    steps = (
        job.ranks[1]
        .tables["steps"]
        .select(pl.col("ts").min(), (pl.col("ts") + pl.col("dur")).max().alias("end"))
        .collect()
        .row(0)
    )
    assert sum(said.values()) == pytest.approx(steps[1] - steps[0], rel=0.01)
    assert said["computing"] == pytest.approx(expected["computing"], rel=0.01)
    assert said["communication"] == pytest.approx(expected["communication"], rel=0.01)


def overlay(page: Page, what: str) -> dict[str, float]:
    texts = [one.inner_text() for one in page.query_selector_all(f'.legend[data-overlay="{what}"] p > span')]
    found = [re.fullmatch(r"(.+?) (\S+ (?:ns|µs|ms|s)) .+", text) for text in texts]
    return {match[1]: nanoseconds(match[2]) for match in found if match}


@BOTH
def test_arrows_lead_from_a_kernel_to_its_launch_and_the_operator_lists_its_kernels(timeline: Page, job: Run) -> None:
    searched(timeline, "flash_fwd")
    told = step_to(timeline)
    tables = job.ranks[int(told["rank"])].tables
    kernel = int(told["row of spans"])
    launch, operator = tables["kernels"].filter(pl.col("span") == kernel).select("launch", "operator").collect().row(0)
    timeline.wait_for_selector("svg.arrows path.launch")
    assert "launched by" in timeline.inner_text('[aria-label="arrows"]')
    timeline.focus(".area")
    timeline.keyboard.press("BracketLeft")
    told_of_row = "row => document.querySelector('.details dl')?.textContent.includes(`row of spans${row}`)"
    until(timeline, told_of_row, launch)
    timeline.keyboard.press("ArrowUp")
    until(
        timeline, "row => document.querySelector('.details dl')?.textContent.includes(`row of spans${row}`)", operator
    )
    launched = tables["kernels"].filter(pl.col("operator") == operator).select("span").collect()["span"]
    works = (
        tables["spans"]
        .filter(pl.col("id").is_in(launched.to_list()))
        .select(pl.col("name").cast(pl.String), "dur")
        .collect()
    )
    assert timeline.locator(".kernels li").count() == len(works)
    texts = timeline.locator(".kernels li button").all_inner_texts()
    assert Counter(text.rstrip("…") for text in texts) == Counter(
        name[: len(text.rstrip("…"))]
        for name, text in zip(works.sort("dur", descending=True)["name"], texts, strict=True)
    )
    timeline.keyboard.press("v")
    assert timeline.query_selector("svg.arrows") is None


@EITHER
def test_forward_leads_to_backward(timeline: Page, job: Run) -> None:
    searched(timeline, "aten::layer_norm")
    step_to(timeline)
    timeline.wait_for_selector("svg.arrows path.forward_backward", state="attached")
    backward = timeline.locator('[aria-label="arrows"] li:has-text("its backward")')
    name = backward.locator("button").first.inner_text()
    backward.locator("button").first.click()
    timeline.wait_for_selector('[aria-label="arrows"] li:has-text("its forward")')
    assert "backward" in name.lower()


@EITHER
def test_marks_are_kept_in_the_link(timeline: Page, addresses: dict[str, str], where: str, opened: Open) -> None:
    searched(timeline, "flash_fwd")
    step_to(timeline)
    timeline.focus(".area")
    timeline.keyboard.press("k")
    timeline.fill(".chip input", "<b>here; ~ & it begins</b>")
    timeline.keyboard.press("Tab")
    timeline.wait_for_selector(".mark")
    address = addresses[where]
    again = opened(timeline.url.replace("#", f"{address[address.index('#') :]}&" if "#" in address else "#"))
    again.page.wait_for_selector(".mark")
    assert again.page.input_value(".chip input") == "<b>here; ~ & it begins</b>"
    assert again.page.inner_text(".mark") == "<b>here; ~ & it begins</b>"
    again.page.wait_for_selector(".details .title")
    assert window(again.page) == window(timeline)
    assert again.wrong == []


@EITHER
def test_a_range_is_kept_in_the_link(timeline: Page, addresses: dict[str, str], where: str, opened: Open) -> None:
    searched(timeline, "flash_fwd")
    step_to(timeline)
    timeline.focus(".area")
    timeline.keyboard.press("m")
    timeline.keyboard.press("Shift+M")
    timeline.wait_for_selector(".mark.kept")
    band = timeline.locator(".mark.kept").bounding_box()
    chosen = timeline.locator(".area .range").bounding_box()
    assert band
    assert chosen
    assert (band["x"], band["width"]) == pytest.approx((chosen["x"], chosen["width"]), abs=3)
    # When: the range is gone, and the link is opened elsewhere
    timeline.keyboard.press("Escape")
    timeline.wait_for_selector(".area .range", state="detached")
    address = addresses[where]
    again = opened(timeline.url.replace("#", f"{address[address.index('#') :]}&" if "#" in address else "#"))
    # Then: the kept one leads back to it
    again.page.click(".marks .chip button")
    again.page.wait_for_selector(".area .range")
    start, length = re.search(r"marks=([^&]+)", again.page.url), re.search(r"range=([^&]+)", again.page.url)
    assert start
    assert length
    (kept,) = json.loads(unquote_plus(start[1]))
    first, last = map(int, unquote_plus(length[1]).split(","))
    assert (kept[0], kept[2]) == (first, last - first)
    assert again.wrong == []


@EITHER
def test_two_spans_are_measured(timeline: Page) -> None:
    area = timeline.locator(".area").bounding_box()
    row = timeline.locator(".lane.lane:has-text('stream 7')").first.bounding_box()
    assert area
    assert row
    timeline.wait_for_timeout(300)
    y = row["y"] + 10
    timeline.mouse.click(area["x"] + area["width"] * 0.25, y)
    first = facts(timeline)
    timeline.keyboard.down("Shift")
    timeline.mouse.click(area["x"] + area["width"] * 0.5, y)
    timeline.keyboard.up("Shift")
    text = timeline.inner_text(".measured")
    assert first["rank"] == "0"
    start_to_start = nanoseconds(re.search(r"start to start (\S+ \S+?),", text)[1])  # type: ignore[index]
    assert 0 < start_to_start < 20e6


@pytest.mark.parametrize("where", ["server"])
def test_the_window_is_saved_for_perfetto(timeline: Page, job: Run, tmp_path: Path) -> None:
    timeline.click("button:has-text('everything')")
    searched(timeline, "flash_bwd")
    step_to(timeline)
    timeline.focus(".area")
    timeline.keyboard.press("f")
    timeline.wait_for_timeout(200)
    a, b = window(timeline)
    with timeline.expect_download() as saved:
        timeline.click("button:has-text('Perfetto')")
    path = tmp_path / saved.value.suggested_filename
    saved.value.save_as(path)
    slices, processes = ask(
        path, ["select ts, dur, name from slice", "select distinct name from process where name is not null"]
    )
    clocks, begins = job.job.clocks, job.job.tables.ranks.select("rank", "begin")
    origin = (
        to_job_time(begins.with_columns(pl.col("rank").cast(pl.Int32)), clocks, "begin")["begin"].drop_nulls().min()
    )
    assert isinstance(origin, int)
    found = Counter((ts, dur, name) for ts, dur, name in slices)
    for rank in job.ranks[:3]:
        spans = rank.shown["spans"].select(
            rank=pl.lit(rank.rank, pl.Int32),
            ts="ts",
            end=pl.col("ts") + pl.col("dur"),
            name=pl.col("name").cast(pl.String),
        )
        moved = to_job_time(spans.collect(), clocks, "ts", "end").filter(
            (pl.col("ts") < origin + b - 5) & (pl.col("end") > origin + a + 5)
        )
        assert len(moved)
        assert not Counter(moved.select("ts", pl.col("end") - pl.col("ts"), "name").iter_rows()) - found
    assert any(name.startswith("rank 3 · node003 · not aligned") for (name,) in processes)
    assert len(slices) < sum(rank.shown["spans"].select(pl.len()).collect().item() for rank in job.ranks) / 2


def test_a_file_has_room_for_every_rank_and_says_what_it_leaves_out(
    job: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, opened: Open
) -> None:
    monkeypatch.setattr(file_timeline, "MOST_SPANS", 400)
    monkeypatch.setattr(file_timeline, "MOST_RANKS", 3)
    path = tmp_path / "small.html"
    path.write_bytes(html(Shown.of(job)))
    watched = opened(path.as_uri())
    watched.show("timeline")
    page = watched.page
    until(page, "document.querySelectorAll('.rankrow').length === 3")
    text = page.inner_text(".timeline > .tools")
    held, of = (int(number.replace(",", "")) for number in re.search(r"holds (\S+) of (\S+) spans", text).groups())  # type: ignore[union-attr]
    assert 100 < held <= 400
    assert of == sum(rank.shown["spans"].select(pl.len()).collect().item() for rank in job.ranks[1:])
    assert "this file holds 3 ranks" in page.inner_text(".saying")
    assert watched.wrong == []


@pytest.mark.slow
def test_a_thousand_ranks_are_read_as_they_come_into_view(tmp_path: Path, opened: Open) -> None:
    shape = Shape(ranks=1024, ranks_per_host=8, steps=2, events=60, step_ns=20e6, seed=5)
    random_job(shape, "easy", "process").write(tmp_path / "job")
    with serving(stepscope.open(tmp_path / "job")) as server:
        # The job is analysed once, before any page waits for it.
        asked = Request(f"http://127.0.0.1:{server.port}/api/content", headers={"X-Stepscope-Token": server.token})
        with urlopen(asked, timeout=500) as answer:
            assert answer.status == 200
        watched = opened(server.link)
        page = watched.page
        page.set_default_timeout(120_000)
        watched.show("timeline")
        until(page, "document.querySelectorAll('.rankrow').length > 3")
        numbers = seen(page)
        slow = int(page.input_value("header select"))
        assert slow in numbers
        read = int(re.search(r"(\d+) of 1,024 ranks read", page.inner_text(".timeline > .tools"))[1])  # type: ignore[index]
        assert read <= len(numbers) + 1
        page.fill('[aria-label="filter lanes"]', "rank 1000")
        until(page, "document.querySelector('.lane.rank')?.textContent.includes('rank 1000')")
        page.wait_for_selector(".rankrow")
        page.fill('[aria-label="filter lanes"]', "")
        page.focus(".area")
        for _ in range(5):
            page.keyboard.press("PageDown")
        until(page, "document.querySelectorAll('.rankrow').length > 3")
        assert min(seen(page)) > 0
        assert page.locator(".names .lane").count() < 60
        assert watched.wrong == []


def seen(page: Page) -> list[int]:
    texts: list[Any] = page.locator(".lane.rank .text").all_inner_texts()
    return [int(text.split()[1]) for text in texts]


def test_the_gpu_capture_has_overlays_and_arrows(runs: dict[str, Run], links: dict[str, str], opened: Open) -> None:
    run = run_named(runs, "gpu")
    watched = opened(links["gpu"])
    watched.show("timeline")
    page = watched.page
    page.focus(".area")
    page.keyboard.press("0")
    page.keyboard.press("e")
    page.wait_for_selector('.legend[data-overlay="idle"] p > span i')
    result = run.ranks[0].results["idle_reasons"]
    assert isinstance(result, pl.DataFrame)
    expected = dict(result.group_by("Reason").agg(pl.col("Total Time(us)").sum()).iter_rows())
    assert overlay(page, "idle") == {reason: pytest.approx(1e3 * time, rel=0.01) for reason, time in expected.items()}
    assert watched.wrong == []


def test_a_run_that_is_being_recorded_is_read_again(tmp_path: Path, opened: Open) -> None:
    directory = RankDirectory(tmp_path / "train_20261123-080000" / "rank0")
    directory.create()
    directory.write_manifest({"status": "recording", "rank": 0, "world_size": 1, "worker": "train"})
    journal = Journal(directory.capture / "journal.ssj")
    at = 1_795_000_000_000_000_000

    def train(steps: range) -> None:
        for step in steps:
            journal.span(f"forward {step}", "annotation", at + step * 10**6, at + step * 10**6 + 600_000, {})
            journal.step(step, at + step * 10**6, at + (step + 1) * 10**6, "declared")
        journal.flush()

    train(range(4))
    with serving(stepscope.open(tmp_path)) as server:
        watched = opened(server.link)
        watched.show("timeline")
        page = watched.page
        page.click("button:has-text('everything')")
        page.click(".steps button:has-text('step 1')")
        until(page, "location.hash.includes('t=1000000')")
        before = window(page)
        searched(page, "forward")
        assert "4 spans of 4 names" in page.inner_text(".timeline > .tools")
        train(range(4, 10))
        page.click("button:has-text('read again')")  # or it was read by itself
        page.wait_for_selector("text=10 spans of 10 names")
        assert window(page) == before
        # What comes later is shown by itself, and the window stays.
        train(range(10, 12))
        page.wait_for_selector("text=12 spans of 12 names")
        assert window(page) == before
        # While a span is selected, it stays as it is.
        page.focus("#search")
        page.keyboard.press("Enter")
        page.wait_for_selector(".details .title")
        train(range(12, 13))
        page.wait_for_timeout(3_000)
        assert "12 spans of 12 names" in page.inner_text(".timeline > .tools")
        page.focus(".area")
        page.keyboard.press("Escape")
        page.wait_for_selector("text=13 spans of 13 names")
        page.click("button:has-text('everything')")
        page.wait_for_selector(".steps button:has-text('step 12')")
        assert watched.wrong == []
    journal.close()
