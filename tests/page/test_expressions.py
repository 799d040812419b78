"""Regular expressions of a search: they find what Python's find, and none of them holds the page up."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

import stepscope
from tests.clocks import wait_until
from tests.page.conftest import Watched, serving

Open = Callable[..., Watched]
NAMES = (
    *("aten::mm", "aten::addmm", "aten::add_", "Aten::Mul", "void gemm_3<float, 4>(int)", "void gemm_77<half>(int)"),
    *(
        "ncclKernel_AllReduce_RING",
        "a.b",
        "a\\b",
        "a-b",
        "[brackets]",
        "{2}",
        "x{2}",
        "(round)",
        "tab\tend",
        "new\nline",
    ),
    *(
        "aa",
        "aaa",
        "aaaa",
        "ab",
        "abab",
        "ababab",
        "Größe",
        "ΣΑΣ",
        "naïve",
        "^begin",
        "end$",
        "1,000",
        "0x1F",
        "_under_",
    ),
    # Engines that go back try each of the ways to part the letters.
    *(letter * 250 + "!" for letter in "ax"),
)
EXPRESSIONS = (
    *(r"^aten::(mm|addmm)$", r"gemm_\d+", r"gemm_\d+<(float|half)", r"a.b", r"a\.b", r"a\\b", r"a\-b", r"[a\-]-b"),
    *(
        r"^a{3}$",
        r"^a{2,3}$",
        r"^a{3,}$",
        r"^(ab){2}$",
        r"^(?:ab)+$",
        r"^(ab)*$",
        r"^a?b?$",
        r"\bmm\b",
        r"\Bmm",
        r"x\{2\}",
    ),
    *(r"\[brackets\]", r"[^a-z:_]", r"^[A-Z]", r"[\d,]+$", r"\s", r"^\S+$", r"\W$", r"end$", r"\$$", r"\^b", r"größe"),
    *(r"na.ve", r"^$", r"|", r"aten|nccl", r"(mm|mul)$", r"^.{2}$", r"^\w+$", r"a*?b", r"[x\d]{2}", r"tab\tend"),
)
#: Each takes an engine that goes back longer than the world will stand; how many of the names it finds.
CATASTROPHES = {r"^(a+)+$": 3, r"^(a|a)*$": 3, r"^(a*)*b": 3, r"^(x+x+)+y": 0, r"^(a?){60}a{60}b": 0, r"(.*a){20}b": 0}


@pytest.fixture
def page(tmp_path: Path, opened: Open) -> Iterator[Page]:
    """The timeline of a run whose spans have the names."""
    events = [
        {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "name": name, "ts": 10 * place, "dur": 5}
        for place, name in enumerate(NAMES)
    ]
    capture = tmp_path / "names.json"
    capture.write_text(json.dumps({"traceEvents": events}))
    with serving(stepscope.open(capture)) as server:
        watched = opened(f"{server.link}&p=timeline", first=".holder[data-drawn]")
        yield watched.page
        assert watched.wrong == []


def test_an_expression_finds_what_python_finds(page: Page) -> None:
    counts = {one: sum(bool(re.search(one, name, re.IGNORECASE | re.ASCII)) for name in NAMES) for one in EXPRESSIONS}
    for expression, count in (counts | CATASTROPHES).items():
        said = f"of {count} name" if count else "no name matches"
        page.fill("#search", f"/{expression}/")
        wait_until(lambda said=said: said in page.inner_text(".tools"))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("(", "a ( without )"),
        ("a)", "a ) without ("),
        ("[a", "a [ without ]"),
        ("*a", "nothing to repeat"),
        ("a{3,2}", "numbers out of order"),
        ("(?=a)b", "(?…) is not known"),
        (r"(a)\1", r"\1 is not known"),
        ("(a{1,99}){1,99}", "too long"),
    ],
)
def test_what_an_expression_cannot_hold_is_said(page: Page, expression: str, problem: str) -> None:
    page.fill("#search", f"/{expression}/")
    page.wait_for_selector(f"text=not a regular expression: {problem}")
