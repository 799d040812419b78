"""Every cause that a rule names is in the catalogue, in code and as a section of the page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from stepscope.advise.finding import CAUSES, MISFITS, Confidence, Finding, failing
from stepscope.advise.rank_findings import WORTH

ROOT = Path(__file__).parents[3]


def causes() -> Iterator[str]:
    for path in (ROOT / "src/stepscope/advise").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "cause":
                value = node.value
                ends = (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)
                yield from (end.value for end in ends if isinstance(end, ast.Constant) and isinstance(end.value, str))


def test_every_cause_is_in_the_catalogue_and_has_its_section() -> None:
    page = (ROOT / "docs/findings.md").read_text(encoding="utf-8")
    sections = {line.removeprefix("### ") for line in page.splitlines() if line.startswith("### ")}
    assert sections == CAUSES
    assert set(causes()) <= CAUSES


def test_each_section_says_what_how_we_know_when_we_are_wrong_and_what_to_change() -> None:
    page = (ROOT / "docs/findings.md").read_text(encoding="utf-8")
    for cause, text in re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", page, flags=re.MULTILINE | re.DOTALL):
        rows = {row.strip() for row in re.findall(r"^\| ([^|]+) \|", text, flags=re.MULTILINE)}
        last = "what to do" if cause in MISFITS else "before, after"
        assert rows >= {"what", "how we know", "when we are wrong", last}, cause


def test_the_page_says_below_which_gain_nothing_is_told() -> None:
    page = (ROOT / "docs/findings.md").read_text(encoding="utf-8")
    assert page.count(f"{100 * WORTH:.0f} % of the step is not told") == 2


def test_limits_on_the_program_do_not_count_what_others_do_on_the_machine() -> None:
    said = {"title": "", "confidence": Confidence.MEASURED, "basis": "", "evidence": (), "remedy": ""}
    others, loader = (
        Finding(cause=cause, gain_ns=gain, **said)  # type: ignore[arg-type]
        for cause, gain in (("other-processes", 90), ("data-loader-slow", 20))
    )
    found = [others, loader]
    assert failing(found, ["any"], 100) == failing(found, ["gain:10%"], 100) == [loader]
    assert failing(found, ["gain:30%"], 100) == []
    assert failing(found, ["other-processes"], 100) == [others]
