"""Every page of the server and of the one file: nothing wrong in the console, nothing asked elsewhere, accessible."""

from __future__ import annotations

import csv
from collections.abc import Callable
from decimal import Decimal
from io import StringIO
from pathlib import Path

import polars as pl
import pytest

from stepscope.advise.rank_findings import rank_findings
from stepscope.analyse.quantities import duration_text, percent_text
from stepscope.cli.main import main
from stepscope.errors import UsageError
from stepscope.report.page import one_file
from stepscope.report.page.content import Shown
from stepscope.run import Run
from tests.page.conftest import AXE, CAPTURES, PICTURES, Files, Watched, run_named, serving
from tests.sizes import SIZE

Open = Callable[..., Watched]

NAMES = [name for name in (*CAPTURES, "empty", "damaged") if SIZE.full or name != "host"]
FILES = [*NAMES, "comparison"]
#: A rank, a job and one with losses, which a server shows when quick; a file shows every one.
SERVED = ("gpu", "ranks", "damaged")
#: Dark or light, and the size of the window.
LOOKS = [("light", 1280, 720), ("dark", 1920, 1080)]
#: What moves less is not seen: the ticks above the timeline, once, when its width is known.
LEAST_SHIFT = 0.005


def softmax(run: Run) -> pl.LazyFrame:
    """Return the spans of a kernel that runs twelve times."""
    return run.ranks[0].tables["spans"].filter(pl.col("name").cast(pl.String).str.contains("cunn_SoftMaxForward"))


@pytest.fixture(params=["file", "server"])
def address(request: pytest.FixtureRequest, name: str, runs: dict[str, Run]) -> str:
    run_named(runs, name)
    if request.param == "file":
        path: Path = request.getfixturevalue("files")[name]
        return path.as_uri()
    return request.getfixturevalue("links")[name]


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize(
    ("source", "name"),
    [
        pytest.param(source, name, marks=[pytest.mark.slow] * (source == "server" and name not in SERVED))
        for source, names in (("file", FILES), ("server", NAMES))
        for name in names
    ],
)
def test_every_page(request: pytest.FixtureRequest, source: str, name: str, opened: Open) -> None:
    """In full, each page of a server is loaded by its link, and that of a file is seen in every look; else in one."""
    of_source = request.getfixturevalue("files" if source == "file" else "links")
    looks = LOOKS if SIZE.full and source == "file" else LOOKS[FILES.index(name) % 2 :][:1]
    watched = opened(of_source[name].as_uri() if source == "file" else of_source[name])
    page = watched.page
    shown = watched.names
    assert shown[0] == "overview"
    assert ("timeline" in shown) == (name not in ("empty", "comparison"))
    for one in shown:
        (watched.load if SIZE.full and source == "server" else watched.show)(one)
        for scheme, width, height in looks:
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(color_scheme=scheme)
            page.wait_for_selector(f':root[data-theme="{scheme}"]')
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (one, scheme, width)
            if SIZE.full or source == "file":
                assert violations(watched) == [], (one, scheme)
            if SIZE.full and source == "file":
                page.screenshot(path=PICTURES / name / f"{one}-{scheme}-{width}.png")
        assert [shift for shift in page.evaluate("self.shifts") if shift[0] > LEAST_SHIFT] == [], one
    assert watched.wrong == []


_SEEN = "{include: [['html']], exclude: [['tbody tr:nth-child(n+7)']]}"


def violations(watched: Watched) -> list[tuple[str, str]]:
    """Return the rules of accessibility that the page breaks, each with the first place.

    All rows of a table are made alike: only the first ones are looked at.
    """
    if not watched.page.evaluate("'axe' in self"):
        watched.page.evaluate(AXE.read_text())
    found = watched.page.evaluate(f"axe.run({_SEEN}, {{resultTypes: ['violations']}}).then(r => r.violations)")
    return [(rule["id"], rule["nodes"][0]["html"][:200]) for rule in found]


@pytest.mark.parametrize("name", ["gpu", "cpu"])
def test_tables_hold_the_numbers_of_the_results(address: str, name: str, runs: dict[str, Run], opened: Open) -> None:
    watched = opened(address)
    watched.show("operators")
    result = run_named(runs, name).ranks[0].results["op_statistic"]
    assert isinstance(result, pl.DataFrame)
    rows = watched.page.query_selector_all('section[aria-label="op_statistic"] tbody tr:not([aria-hidden])')
    head = [cell.inner_text().strip() for cell in watched.page.query_selector_all('[aria-label="op_statistic"] th')]
    count, kind = head.index("Count"), head.index("OP Type")
    for row, expected in zip(rows, result.iter_rows(named=True), strict=False):
        cells = [cell.inner_text().strip() for cell in row.query_selector_all("td")]
        assert int(cells[count].replace(",", "")) == expected["Count"]
        assert cells[kind].rstrip("…") in expected["OP Type"]
    assert len(rows) == min(40, len(result))


@pytest.mark.parametrize("name", ["gpu"])
def test_a_search_leads_to_the_span_and_its_link_opens_it_again(
    address: str, name: str, runs: dict[str, Run], opened: Open
) -> None:
    watched = opened(address)
    watched.show("timeline")
    page = watched.page
    page.focus("main")
    page.keyboard.press("/")
    page.keyboard.type("cunn_softmaxforward")
    page.wait_for_selector("text=12 spans of 1 name")
    page.keyboard.press("Enter")
    page.wait_for_selector(".details .title")
    page.focus(".area")
    page.keyboard.press("f")
    facts = page.inner_text(".details dl")
    spans = softmax(run_named(runs, name))
    first = spans.sort("ts").select("id", "dur").first().collect().row(0)
    assert f"{first[1]:,} ns" in facts
    assert f"row of spans\n{first[0]}" in facts
    link = page.url.replace("#", f"{address[address.index('#') :]}&" if "#" in address else "#")
    again = opened(link)
    again.page.wait_for_selector(".details .title")
    assert again.page.inner_text(".details dl") == facts
    assert (watched.wrong, again.wrong) == ([], [])


@pytest.mark.parametrize("name", ["gpu"])
def test_the_statistics_of_a_range_are_those_of_its_spans(
    address: str, name: str, runs: dict[str, Run], opened: Open
) -> None:
    watched = opened(address)
    watched.show("timeline")
    page = watched.page
    page.fill('input[aria-label="filter lanes"]', "stream 7")
    page.keyboard.press("Tab")
    page.focus(".area")
    page.keyboard.press("0")
    page.wait_for_selector(".details td.name:has-text('cunn_S')")
    rows = [row.inner_text().split("\t") for row in page.query_selector_all(".details tbody tr")]
    found = next(row for row in rows if "cunn_Soft" in row[0])
    spans = softmax(run_named(runs, name))
    assert int(found[3]) == spans.select(pl.len()).collect().item() == 12
    assert float(found[1].split()[0]) == pytest.approx(
        spans.select(pl.col("dur").sum()).collect().item() / 1e6, rel=0.01
    )


@pytest.mark.parametrize("name", ["gpu"])
def test_a_finding_says_what_it_saves_and_leads_to_its_evidence(
    files: Files, name: str, runs: dict[str, Run], opened: Open
) -> None:
    finding = rank_findings(run_named(runs, name).ranks[0])[0]
    watched = opened(files[name].as_uri())
    page = watched.page
    assert page.inner_text(".verdict h1") == f"{finding.title}."
    told = page.inner_text("details.finding >> nth=0")
    assert finding.gain_ns
    assert finding.step_ns
    assert f"of {duration_text(finding.step_ns)} ({percent_text(finding.gain_ns / finding.step_ns)})" in told
    assert finding.cause in told
    assert finding.remedy.split(":")[0] in told
    assert finding.evidence[0].text in told
    page.click(f"details.finding >> button:has-text('{finding.evidence[0].result}')")
    page.wait_for_selector(f'section[aria-label="{finding.evidence[0].result}"]')
    assert watched.wrong == []


def test_without_the_browser_side_the_summary_is_printed_and_one_line_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> str:
        return one_file.bundle(f"absent/{name}")

    monkeypatch.chdir(tmp_path)
    assert main(["import", str(CAPTURES["cpu"]), "--output", "runs", "--quiet"]) == 0
    capsys.readouterr()
    with pytest.raises(UsageError, match="not built"):
        missing("page.js")
    monkeypatch.setattr(one_file, "html", lambda _: missing("page.js"))
    assert main(["report", "runs", "--html"]) != 0
    said = capsys.readouterr()
    assert "operators by self time" in said.out
    assert "browser side of stepscope is not built" in said.err


def test_the_list_of_runs_leads_to_each_and_back(runs: dict[str, Run], opened: Open) -> None:
    with serving([runs["cpu"], runs["empty"]]) as server:
        context = opened(server.link, first="td a")
        assert violations(context) == []
        context.page.click("td a >> nth=0")
        context.page.wait_for_selector(".verdict")
        context.page.click("header a")
        context.page.wait_for_selector("td a")
        assert context.wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("name", CAPTURES)
def test_every_table_copies_the_rows_of_its_result(name: str, files: Files, runs: dict[str, Run], opened: Open) -> None:
    """The CSV that a table copies has the values of the result, not the rounded ones of its cells."""
    shown = Shown.of(run_named(runs, name))
    watched = opened(files[name].as_uri())
    page = watched.page
    page.evaluate("navigator.clipboard.writeText = text => { self.copied = text; return Promise.resolve() }")
    compared = 0
    for one in watched.names:
        watched.show(one)
        for table in page.query_selector_all("section.table"):
            result = shown.result(str(table.get_attribute("aria-label")))
            if not isinstance(result, pl.DataFrame):
                continue
            button = table.query_selector("button:has-text('copy as CSV')")
            assert button is not None
            button.click()
            rows = list(csv.DictReader(StringIO(page.evaluate("copied"), newline="")))
            for row, expected in zip(rows, result.iter_rows(named=True), strict=False):
                for column, text in row.items():
                    assert as_copied(text, expected[column]), (one, column, text, expected[column])
            compared += len(rows)
    assert compared > 50
    assert watched.wrong == []


def as_copied(text: str, value: object) -> bool:
    """Return whether a cell of the copied CSV says the value of the result."""
    if value is None or value != value:
        return text == ""
    if isinstance(value, bool):
        return text == str(value).lower()
    if isinstance(value, int | float | Decimal):
        return float(text) == float(value)
    return text.removeprefix("'") == str(value).removeprefix("'")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpu"])
def test_everything_is_done_with_the_keyboard(files: Files, name: str, runs: dict[str, Run], opened: Open) -> None:
    """From the loaded page to the longest kernel, its place on the timeline, and the flame graph; no click."""
    watched = opened(files[name].as_uri())
    page = watched.page
    keys = page.keyboard
    keys.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    keys.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    keys.press("?")
    page.wait_for_selector('[role="dialog"]')
    assert page.evaluate("document.activeElement.id") == "help-close"
    keys.press("Escape")
    page.wait_for_selector('[role="dialog"]', state="detached")
    for key in "gk":
        keys.press(key)
    watched.settle("kernels")
    sort = "document.activeElement.closest('section[aria-label=kernel_details] th')?.innerText.startsWith('Duration')"
    for _ in range(150):
        keys.press("Tab")
        if page.evaluate(sort):
            break
    keys.press("Enter")
    page.wait_for_selector('[aria-label="kernel_details"] th[aria-sort="descending"]')
    longest = run_named(runs, name).ranks[0].tables["spans"].filter(pl.col("kind").cast(pl.String) == "kernel")
    longest = longest.sort("dur", descending=True).select("name", "dur").first().collect()
    cells = page.inner_text('[aria-label="kernel_details"] tbody tr >> nth=0')
    assert longest["name"].cast(pl.String)[0][:40] in cells

    page.focus("main")
    for key in "gt":
        keys.press(key)
    watched.settle("timeline")
    keys.press("/")
    keys.type(longest["name"].cast(pl.String)[0][:60])
    keys.press("Enter")
    page.wait_for_selector(".details .title")
    assert "sel=" in page.url
    keys.press("Escape")

    page.focus("main")
    for key in "gf":
        keys.press(key)
    watched.settle("flame")
    page.focus(".flame")
    whole = page.inner_text(".tools [role=status]")
    keys.press("ArrowDown")
    first = page.inner_text(".tools [role=status]")
    assert first != whole
    keys.press("Enter")
    page.wait_for_selector(".tools button:has-text('up'):not([disabled])")
    assert page.inner_text(".tools [role=status]") == first
    keys.press("Backspace")
    page.wait_for_selector(".tools button:has-text('up')[disabled]")
    assert watched.wrong == []
