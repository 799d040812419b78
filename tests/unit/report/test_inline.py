"""What a notebook shows: text, and HTML in which every text of a run is text."""

from __future__ import annotations

import json
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

import stepscope
from stepscope.advise.finding import Evidence, Finding, Findings
from stepscope.advise.rank_findings import rank_findings, rank_sentence
from stepscope.analyse.quantities import duration_text, percent_text
from stepscope.report.inline import bundle
from stepscope.report.page.content import Shown
from stepscope.report.page.one_file import html
from tests.conftest import WriteTrace
from tests.samples import DATA, a_journal

#: As many as a table names.
HOSTILE = [
    "</script><script>document.body.dataset.hit=1</script>",
    "<img src=x onerror=document.body.dataset.hit=1>",
    "</style></div></details><style>*{display:none}</style>",
    "&lt;b&gt;\u202egnp.exe\x1b[31m",
    "a" * 100_000,
]
#: What the block is made of; nothing else may come out of a run.
TAGS = {
    "div",
    "style",
    "span",
    "b",
    "p",
    "i",
    "details",
    "summary",
    "ul",
    "li",
    "code",
    "br",
    "table",
    "thead",
    "tbody",
}
TAGS |= {"tr", "th", "td"}
ATTRIBUTES = {"class", "style", "role", "aria-label", "open", "title"}


class Parsed(HTMLParser):
    """The tags, attributes and texts of a block."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: dict[str, list[str]] = {}
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def shown(thing: object) -> Parsed:
    return Parsed(thing._repr_mimebundle_()["text/html"])  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def run() -> stepscope.Run:
    return stepscope.open(DATA / "kineto" / "alexnet_simple_add.json.gz")


def hostile_run(directory: Path) -> stepscope.Run:
    at = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1}
    events = [
        {**at, "name": name, "dur": 90 - place, "ts": 100 * place, "args": {"Input Dims": name}}
        for place, name in enumerate(HOSTILE)
    ]
    path = directory / "<b>&.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return stepscope.open(path)


def test_a_run_shows_the_numbers_of_its_summary(run: stepscope.Run) -> None:
    found, summary = shown(run), run.summary
    assert rank_sentence(run.ranks[0]) in found.text
    for part in summary.split:
        assert (f"{part.name} " in found.text) == (part.total_ns > 0)
        if part.total_ns:
            assert {percent_text(part.share), duration_text(part.mean_ns)} <= set(found.texts)
    for entry in summary.operators[:5]:
        assert {entry.name, percent_text(entry.share)} <= set(found.texts)
    assert found.texts[-1] == str(run.path)
    assert shown(run.ranks[0]).texts == found.texts


def test_text_is_the_screen_of_the_terminal_without_escapes(
    run: stepscope.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a kernel of Jupyter sets it
    text = bundle(run)["text/plain"]
    assert "operators by self time" in text
    assert run.summary.operators[0].name in text
    assert "\x1b" not in text
    assert "operators by self time" in bundle(run.summary)["text/plain"]


def test_a_summary_says_nothing_of_findings_that_it_does_not_know(run: stepscope.Run) -> None:
    found = shown(run.summary)
    assert run.summary.operators[0].name in found.texts
    assert "Nothing stands out" not in found.text


def test_hostile_names_are_text(tmp_path: Path) -> None:
    run = hostile_run(tmp_path)
    found = shown(run)
    assert set(found.tags) <= TAGS
    assert set(found.attributes) <= ATTRIBUTES
    assert found.tags["style"] == 1
    assert HOSTILE[0] in found.texts
    assert HOSTILE[2] in found.texts
    assert r"&lt;b&gt;\u202egnp.exe\x1b[31m" in found.texts
    assert f"{'a' * 99}…" in found.texts
    assert max(map(len, [*found.texts[1:], *found.attributes["title"]])) < 400
    frame = shown(run.timeline())
    assert found.tags["script"] == 0
    assert set(frame.tags) == {"iframe"}


def test_hostile_findings_are_text() -> None:
    text = HOSTILE[1]
    finding = Finding(
        cause="slow-python", title=text, remedy=text, check=text, basis=text, evidence=(Evidence(text=text),)
    )
    for thing in (finding, Findings([finding])):
        found = shown(thing)
        assert set(found.tags) <= TAGS
        assert found.texts.count(text) >= 3


def test_findings_are_a_list_that_shows_itself(run: stepscope.Run) -> None:
    found = stepscope.findings(run)
    assert found == rank_findings(run.ranks[0])
    assert isinstance(found, list)
    assert shown(Findings()).texts[-1] == "Nothing stands out."
    finding = Finding(
        cause="slow-python",
        title="5 ms of 20 ms are Python",
        gain_ns=5_000_000,
        step_ns=20_000_000,
        evidence=(Evidence(text="train.py:3 takes it"),),
        remedy="Take it out of the step.",
    )
    told = shown(Findings([finding, finding])).text
    for text in (finding.title, finding.remedy, "train.py:3 takes it", "saves 5.00 ms (25 %)", "slow-python"):
        assert told.count(text) == 2
    assert "Take it out of the step." in bundle(finding)["text/plain"]


def test_the_timeline_is_the_page_in_a_frame_that_cannot_reach_the_notebook(run: stepscope.Run) -> None:
    timeline = run.timeline(height=300)
    frame = shown(timeline)
    assert frame.attributes["srcdoc"] == [html(Shown.of(run), first="timeline").decode()]
    assert frame.attributes["sandbox"] == ["allow-scripts"]
    assert "height:300px" in frame.attributes["style"][0]
    assert len(timeline.html) < 3_000_000
    assert "stepscope report" in bundle(timeline)["text/plain"]


def test_an_error_is_one_line_with_what_to_do(run: stepscope.Run, tmp_path: Path) -> None:
    found = bundle(run.timeline(rank=7))
    assert "has no rank 7. It has the ranks 0." in found["text/plain"]
    assert "has no rank 7" in Parsed(found["text/html"]).text


def test_a_job_shows_its_ranks(write_trace: WriteTrace, tmp_path: Path) -> None:
    for rank in (0, 1):
        at = {"cat": "cpu_op", "pid": 1, "tid": 1, "dur": 400 + 100 * rank, "name": "aten::mm"}
        step = {"cat": "user_annotation", "pid": 1, "tid": 1, "dur": 900}
        steps = [{**step, "name": f"ProfilerStep#{number}", "ts": 1000 * number} for number in range(3)]
        events = [*steps, *({**at, "ts": 1000 * number + 50} for number in range(3))]
        said = {"backend": "gloo", "rank": rank, "world_size": 2}
        write_trace(events, f"rank{rank}.json", distributedInfo=said)
    run = stepscope.open(tmp_path)
    found = shown(run)
    assert set(found.tags) <= TAGS
    assert {"rank 0", "rank 1", "2 of 2 ranks"} <= set(found.texts)
    assert "aten::mm" in found.texts
    assert "2 ranks" in bundle(run)["text/plain"]


def test_a_comparison_shows_its_verdict(tmp_path: Path) -> None:
    sides = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        sides.append(stepscope.open(a_journal(tmp_path / name)))
    found = stepscope.compare(*sides)
    told = shown(found)
    assert set(told.tags) <= TAGS
    assert "One run a side" in told.text
    assert "One run a side" in bundle(found)["text/plain"]


def test_a_profile_shows_what_it_recorded_last(tmp_path: Path) -> None:
    recording = stepscope.profile(output=tmp_path, analyse="later", quiet=True)
    assert "nothing is recorded yet" in bundle(recording)["text/plain"]
    with recording:
        for _ in range(3):
            recording.step()
    assert "3 steps" in shown(recording).text
    assert str(recording.recorded[-1].path) in shown(recording).text
