"""What charts show is what the tables say: flame graph, heat map, roofline, step by step, and the whole run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import polars as pl
import pytest
from playwright.sync_api import Page

import stepscope
from stepscope.analyse.quantities import duration_text
from stepscope.report.page.content import Shown
from stepscope.report.page.one_file import html
from stepscope.run import Run
from tests.clocks import wait_until
from tests.page.conftest import Files, Watched, run_named, serving

Open = Callable[..., Watched]
#: What is the same code for both: when quick, the server alone.
EITHER = pytest.mark.parametrize("where", [pytest.param("file", marks=pytest.mark.slow), "server"])
STEPS = 6


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Steps in which `matmul` takes longer each time, and launches a kernel; `load` comes first, and calls `copy`."""
    events = []
    for step in range(STEPS):
        at = 10_000 + 1_000 * step
        spans = (
            (f"ProfilerStep#{step}", 0, 990, "user_annotation", 1),
            ("load", 10, 200, "cpu_op", 1), ("copy", 20, 150, "cpu_op", 1),
            ("matmul", 300, 100 + 50 * step, "cpu_op", 1), ("copy", 310, 40, "cpu_op", 1),
            ("gemm", 400, 60 + 40 * step, "kernel", 7),
        )  # fmt: skip
        for name, start, dur, kind, thread in spans:
            device = {"pid": 0, "args": {"device": 0, "stream": 7}} if kind == "kernel" else {"pid": 1}
            event = {"ph": "X", "name": name, "ts": at + start, "dur": dur, "cat": kind, "tid": thread}
            events.append({**event, **device})
    path = tmp_path_factory.mktemp("steps") / "steps.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return stepscope.open(path)


@pytest.fixture(scope="module")
def places(steps: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    path = tmp_path_factory.mktemp("steps") / "steps.html"
    path.write_bytes(html(Shown.of(steps)))
    with serving(steps) as server:
        yield {"file": path.as_uri(), "server": server.link}


def told(page: Page, place: int = 0) -> str:
    return page.locator("span[role=status]").nth(place).inner_text()


def press(page: Page, key: str) -> None:
    """Press a key, and wait until what it changes is drawn."""
    page.keyboard.press(key)
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def boxes(page: Page, place: int = 0) -> list[str]:
    """Return what is said of the boxes of one row, from left to right."""
    page.locator("canvas.flame").nth(place).focus()
    press(page, "ArrowDown")
    found = [told(page, place)]
    for _ in range(20):
        press(page, "ArrowRight")
        if told(page, place) == found[-1]:
            return found
        found.append(told(page, place))
    return found


def test_a_flame_graph_is_in_the_order_that_is_asked_for(places: dict[str, str], opened: Open) -> None:
    watched = opened(places["file"])
    watched.show("flame")
    page = watched.page
    times = [(100 + 50 * step, 200, 60 + 40 * step) for step in range(STEPS)]
    matmul, load, gemm = (sum(of_name) for of_name in zip(*times, strict=True))
    of = {"matmul": matmul, "load": load, "gemm": gemm}

    def said(name: str) -> str:
        return f"{name} · {duration_text(1e3 * of[name])}"

    assert [text.split(" · ")[0] for text in boxes(page)] == sorted(of, key=lambda name: -of[name])
    page.select_option('select[aria-label="order"]', "time")
    assert [" · ".join(text.split(" · ")[:2]) for text in boxes(page)] == [said("load"), said("matmul"), said("gemm")]
    page.select_option('select[aria-label="spans"]', "device")
    assert [text.split(" · ")[0] for text in boxes(page)] == ["gemm"]
    assert watched.wrong == []


def test_a_name_is_shown_between_who_calls_it_and_what_it_calls(places: dict[str, str], opened: Open) -> None:
    watched = opened(places["file"])
    watched.show("flame")
    page = watched.page
    page.click(".sums button:has-text('copy')")
    page.wait_for_selector("canvas.flame >> nth=1")
    assert page.locator("canvas.flame").count() == 2
    # its callers, by the time of the calls that they make of it; its own time is that of both
    both = STEPS * (150 + 40)
    assert told(page).startswith(f"copy · {duration_text(1e3 * both)} · ")
    page.locator("canvas.flame").first.focus()
    press(page, "ArrowUp")
    assert told(page).startswith(f"load · {duration_text(1e3 * STEPS * 150)} · ")
    press(page, "ArrowRight")
    assert told(page).startswith(f"matmul · {duration_text(1e3 * STEPS * 40)} · ")
    again = opened(page.url)
    again.page.wait_for_selector("canvas.flame >> nth=1")
    assert told(again.page) == f"copy · {duration_text(1e3 * both)} · " + told(again.page).split(" · ", 2)[2]
    assert (watched.wrong, again.wrong) == ([], [])


def test_what_takes_most_time_is_told_step_by_step(places: dict[str, str], opened: Open) -> None:
    watched = opened(places["file"])
    page = watched.page
    [gemm] = page.query_selector_all('section[aria-label^="Kernels"] tbody tr')
    spark = gemm.query_selector(".spark")
    assert spark is not None
    assert spark.get_attribute("aria-label") == f"{STEPS} steps, 60.0 µs to {60 + 40 * (STEPS - 1)} µs"
    heights = [
        float(point.split(" ")[1]) for point in str(spark.query_selector("path").get_attribute("d"))[1:].split("L")
    ]  # type: ignore[union-attr]
    assert heights == sorted(heights, reverse=True)
    for one, name in (("operators", "matmul"), ("kernels", "gemm")):
        watched.show(one)
        assert name in page.inner_text("section.table, .top >> nth=0")
    assert watched.wrong == []


@EITHER
def test_the_whole_run_shows_where_the_window_and_the_matches_are(
    where: str, places: dict[str, str], opened: Open
) -> None:
    watched = opened(places[where])
    watched.show("timeline")
    page = watched.page
    page.fill("#search", "load")
    page.wait_for_selector(f".matches[aria-label='matches lie in {STEPS} of 400 parts of the run']")
    page.click("button:has-text('slowest step')")
    until(page, "location.hash.includes('t=')")
    box = page.locator(".minimap .whole").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 5, steps=3)
    page.mouse.up()
    a, b = (int(time) for time in page.evaluate("new URLSearchParams(location.hash.slice(1)).get('t')").split(","))
    whole = 1e3 * (1_000 * (STEPS - 1) + 990)
    assert (a / whole, b / whole) == (pytest.approx(0.25, abs=0.01), pytest.approx(0.5, abs=0.01))
    here = page.locator(".minimap .here").bounding_box()
    assert here is not None
    assert here["x"] - box["x"] == pytest.approx(box["width"] / 4, abs=4)
    assert watched.wrong == []


@EITHER
def test_self_is_the_time_without_that_of_the_spans_inside(where: str, places: dict[str, str], opened: Open) -> None:
    watched = opened(places[where])
    watched.show("timeline")
    page = watched.page
    page.focus(".area")
    page.keyboard.press("0")
    outer = sum(100 + 50 * n for n in range(STEPS))
    page.wait_for_selector(f".details tr:has-text('matmul') td:has-text('{duration_text(1e3 * outer)}')")
    rows = {row.split("\t")[0]: row.split("\t")[1:4] for row in page.locator(".details tbody tr").all_inner_texts()}
    assert rows["matmul"] == [duration_text(1e3 * outer), duration_text(1e3 * (outer - 40 * STEPS)), str(STEPS)]
    assert rows["load"] == [duration_text(1e3 * 200 * STEPS), duration_text(1e3 * 50 * STEPS), str(STEPS)]
    assert watched.wrong == []


@EITHER
def test_the_link_holds_folds_pins_filter_and_range(where: str, places: dict[str, str], opened: Open) -> None:
    watched = opened(places[where])
    watched.show("timeline")
    page = watched.page
    page.click(".fold[aria-expanded=true]:has-text('thread')")
    page.fill('[aria-label="filter lanes"]', "thread")
    box = page.locator(".area").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 100, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 5, steps=3)
    page.mouse.up()
    page.wait_for_selector(".range")
    seen = [page.inner_text(".names"), page.inner_text(".range"), page.inner_text(".details h2 >> nth=1")]
    link = page.url if where == "file" else page.url.replace("#", f"{places[where][places[where].index('#') :]}&")
    again = opened(link)
    again.page.wait_for_selector(".range")
    assert [again.page.inner_text(one) for one in (".names", ".range", ".details h2 >> nth=1")] == seen
    assert (watched.wrong, again.wrong) == ([], [])


@EITHER
def test_a_range_is_made_with_keys_and_goes_to_the_edges_of_spans(
    where: str, places: dict[str, str], opened: Open
) -> None:
    watched = opened(places[where])
    watched.show("timeline")
    page = watched.page
    page.click("button:has-text('everything')")
    page.fill("#search", "gemm")
    page.wait_for_selector(f"text={STEPS} spans of 1 name")
    for step in range(2):
        page.keyboard.press("Enter")
        until(page, f"document.querySelector('.details dl')?.innerText.includes('({60 + 40 * step},000 ns)')")
    page.focus(".area")
    page.keyboard.press("i")  # from the second one to the fourth
    for step in (2, 3):
        page.keyboard.press("n")
        until(page, f"document.querySelector('.details dl')?.innerText.includes('({60 + 40 * step},000 ns)')")
    page.keyboard.press("o")
    begin, end = 1e3 * (1_000 + 400), 1e3 * (3_000 + 400 + 60 + 40 * 3)
    until(page, f"location.hash.includes('range={begin:.0f}%2C{end:.0f}')")
    # A drag that begins and ends near spans has their times.
    page.keyboard.press("Escape")
    box = page.locator(".area").bounding_box()
    assert box is not None
    whole = 1_000 * (STEPS - 1) + 990
    y = box["y"] + 5  # the stream, which is pinned
    page.mouse.move(box["x"] + 2 + box["width"] * 1_400 / whole, y)
    page.mouse.down()
    page.mouse.move(box["x"] - 2 + box["width"] * (3_400 + 180) / whole, y, steps=5)
    page.mouse.up()
    until(page, f"location.hash.includes('range={begin:.0f}%2C{end:.0f}')")
    assert watched.wrong == []


def test_the_link_holds_how_a_table_is_ordered(places: dict[str, str], opened: Open) -> None:
    watched = opened(places["file"])
    watched.show("operators")
    page = watched.page
    table = 'section[aria-label="op_statistic"]'
    page.fill(f'{table} input[type="search"]', "a")
    page.click(f"{table} th:has-text('Count') button")
    page.wait_for_selector(f"{table} th[aria-sort=descending]")
    rows = page.inner_text(f"{table} tbody")
    again = opened(page.url)
    again.page.wait_for_selector(f"{table} th[aria-sort=descending]:has-text('Count')")
    assert again.page.inner_text(f"{table} tbody") == rows
    assert (watched.wrong, again.wrong) == ([], [])


def test_ranks_by_steps_have_the_times_of_the_result(files: Files, runs: dict[str, Run], opened: Open) -> None:
    result = run_named(runs, "ranks").job.results["cluster_step_trace_time"]
    watched = opened(files["ranks"].as_uri())
    watched.show("ranks")
    page = watched.page
    canvas = page.locator('section[aria-label="Ranks by steps"] canvas')
    box = canvas.bounding_box()
    assert box is not None
    of_ranks = result.filter(pl.col("Type") == "rank").sort("Index")
    for place, row in enumerate(of_ranks.iter_rows(named=True)):
        page.mouse.move(box["x"] + 3, box["y"] + (place + 0.5) * box["height"] / len(of_ranks))
        page.wait_for_selector(
            f"text=rank {row['Index']}, step {row['Step']}: {duration_text(1e3 * float(row['Total']))}"
        )
    assert watched.wrong == []


def test_the_roofline_has_a_point_for_each_operator_of_known_cost(
    files: Files, runs: dict[str, Run], opened: Open
) -> None:
    result = run_named(runs, "gpu").ranks[0].results["roofline"]
    assert isinstance(result, pl.DataFrame)
    known = result.filter((pl.col("Intensity(FLOP/B)") > 0) & (pl.col("Achieved(GFLOP/s)") > 0))
    watched = opened(files["gpu"].as_uri())
    watched.show("roofline")
    page = watched.page
    assert page.locator("svg circle").count() == len(known) > 3
    for device in known["Device_id"].unique():
        of = known.filter(pl.col("Device_id") == device)
        roofs = of.filter(pl.col("Peak(GB/s)").is_not_null() & pl.col("Peak(GFLOP/s)").is_not_null())
        lines = page.locator(f'section[aria-label="Roofline of {device}"] path.roof').count()
        assert lines == roofs.select("Peak(GFLOP/s)", "Peak(GB/s)").unique().height
    assert watched.wrong == []


def until(page: Page, condition: str) -> None:
    wait_until(lambda: page.evaluate(condition))


@EITHER
def test_steps_line_by_line(places: dict[str, str], where: str, opened: Open) -> None:
    watched = opened(places[where])
    watched.show("steps")
    lines = watched.page.locator(".steplines button")
    assert lines.locator(".number").all_inner_texts() == [str(step) for step in range(STEPS)]
    whole = lines.first.locator(".strip").evaluate("of => of.clientWidth")
    for step in range(STEPS):
        piece = lines.nth(step).locator('i[title^="computing, 396 µs after"]')
        taken = piece.evaluate("of => of.getBoundingClientRect().width") / whole * 120
        assert taken == pytest.approx((60 + 40 * step) / 8.25, abs=1.5)
    lines.nth(3).click()
    watched.settle("timeline")
    wait_until(lambda: "t=3000000%2C3990000" in watched.page.url)
    assert watched.wrong == []
