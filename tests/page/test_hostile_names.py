"""Forty hostile names in every text of a run: they are shown as text, and nothing of them runs."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepscope
from stepscope.report.page.content import Shown
from stepscope.report.page.one_file import comparison_html, html
from tests.page.conftest import Watched, serving
from tests.page.test_pages import Open

HIT = "document.body.dataset.hit=1"
HOSTILE = [
    # HTML, and what ends the element it may stand in
    f"</script><script>{HIT}</script>",
    f"<img src=x onerror={HIT}>",
    f"<svg/onload={HIT}>",
    f"<svg><script>{HIT}</script></svg>",
    f"<svg><animate onbegin={HIT} attributeName=x dur=1s>",
    f"<iframe srcdoc='<script>parent.{HIT}</script>'>",
    f"<details open ontoggle={HIT}>",
    f"<body onload={HIT}>",
    f"<input autofocus onfocus={HIT}>",
    f"<math><mtext></mtext><img src=x onerror={HIT}></math>",
    f"<template><script>{HIT}</script></template>",
    f"</title></style></textarea></noscript><script>{HIT}</script>",
    "<!--<script>",
    "--><!-->",
    "]]>",
    "<style>*{display:none}</style>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<base href=//evil.example/>",
    # attributes, addresses, entities
    f'" onmouseover="{HIT}" x="',
    f"' onfocus='{HIT}' autofocus='",
    f"javascript:{HIT}",
    f"data:text/html,<script>{HIT}</script>",
    "&lt;script&gt;&#x3c;script&#62;",
    "%3Cscript%3E",
    # scripts and templates
    f"${{{HIT}}}",
    f"{{{{{HIT}}}}}",
    f"`;{HIT};//",
    f"');{HIT};//",
    "__proto__",
    "constructor",
    # text that lies about its order, its end or its length
    "\u202egnp.exe\u202c",
    "\u2066\u200f\u061cabc\u2069",
    "\u2028\u2029\ufeff",
    "a\x00b\x1b[31mc\x07\x7f\x9b",
    "\ud800 lone \udfff",
    "a" * 1000,
    "\u0e33" * 300 + "\u0300" * 200,
    # cells that a spreadsheet would compute
    "=cmd|'/c calc'!A1",
    '@SUM(1+9)*cmd,"quoted"\nand\ttwo lines',
]
#: Counts what the policy of the page refused.
REFUSED = "self.refused = 0; addEventListener('securitypolicyviolation', () => self.refused++)"


def test_there_are_forty() -> None:
    assert len(HOSTILE) == len(set(HOSTILE)) == 40


def trace(path: Path, factor: float = 1) -> Path:
    """Write a capture in whose every text, also in the keys of its objects, one of the names stands."""
    events: list[dict[str, Any]] = []
    for place, name in enumerate(HOSTILE):
        at = {"ph": "X", "pid": 1, "tid": 1 + place % 3, "ts": 1000 + 200 * place, "dur": 90 * factor}
        said = {name: name, "Input Dims": [[name]], "Input type": [name], "Call stack": f"{name};{name}"}
        said |= {"Module Hierarchy": name, "Python id": place, "Record function id": place, "External id": place}
        events.append({**at, "cat": "cpu_op", "name": name, "args": said})
        events.append({**at, "cat": "python_function", "name": f"{name}({place}): {name}", "tid": 9, "args": said})
        events.append({**at, "cat": "user_annotation", "name": name, "tid": 8, "args": {name: name}})
        launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": {"correlation": place}}
        events.append({**at, **launch, "dur": 5, "tid": 7})
        on_device = {"device": 0, "stream": 7, "correlation": place, "grid": [name], "kind": name}
        events.append({**at, "cat": "kernel", "name": name, "pid": 0, "tid": 7, "args": on_device})
        for what in ("process_name", "thread_name", "process_labels"):
            said = {"name": name, "labels": name}
            events.append({"ph": "M", "name": what, "pid": 1, "tid": place % 10, "ts": 0, "args": said})
    for number in range(3):
        step = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1}
        events.append({**step, "ts": 1000 + 2700 * number, "dur": 2690, "args": {}})
    top = {f"x{place}": name for place, name in enumerate(HOSTILE)}
    about = {"deviceProperties": [{"id": 0, "name": HOSTILE[0]}], "traceName": HOSTILE[1], "record_shapes": 1}
    path.write_text(json.dumps({**top, **about, "traceEvents": events}))
    return path


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The capture, in a directory and under a name that are hostile, too."""
    folder = tmp_path_factory.mktemp("hostile") / "<img src=x onerror=document.body.dataset.hit=1>\udcff"
    folder.mkdir()
    return trace(folder / "\"><svg onload='document.body.dataset.hit=1'>.json")


def nothing_runs(watched: Watched) -> None:
    page = watched.page
    page.evaluate(REFUSED)
    for one in watched.names:
        watched.show(one)
        assert page.evaluate("document.body.dataset.hit") is None, one
        alive = "template, iframe, img, base, link[href*=evil], body style, svg script, [onload], [onerror], [onfocus]"
        assert page.query_selector_all(alive) == [], one
        assert page.evaluate("[...document.scripts].every(one => !one.textContent.startsWith('document.body'))"), one
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), one
    assert page.evaluate("self.refused") == 0
    assert watched.wrong == []


@pytest.mark.parametrize("source", ["file", "server"])
def test_a_page_shows_hostile_names_as_text(source: str, capture: Path, opened: Open, tmp_path: Path) -> None:
    run = stepscope.open(capture)
    if source == "server":
        with serving(run) as server:
            nothing_runs(opened(server.link))
        return
    file = tmp_path / "hostile.html"
    file.write_bytes(html(Shown.of(run)))
    watched = opened(file.as_uri())
    nothing_runs(watched)

    watched.show("operators")
    page = watched.page
    page.fill('input[aria-label="filter op_statistic"]', "<img src=x onerror")
    cells = [cell.inner_text() for cell in page.query_selector_all('section[aria-label="op_statistic"] tbody td')]
    assert HOSTILE[1] in cells
    page.fill('input[aria-label="filter op_statistic"]', "")
    page.evaluate("navigator.clipboard.writeText = text => { self.copied = text; return Promise.resolve() }")
    page.click('section[aria-label="op_statistic"] button:has-text("copy as CSV")')
    rows = list(csv.DictReader(StringIO(page.evaluate("copied"), newline="")))
    result = run.ranks[0].results["op_statistic"]
    assert isinstance(result, pl.DataFrame)
    names = result["OP Type"].cast(pl.String).to_list()
    assert [row["OP Type"] for row in rows] == [f"'{name}" if name[0] in "=+-@\t\r\n" else name for name in names]
    assert len(names) >= len(HOSTILE)


def test_a_comparison_shows_hostile_names_as_text(capture: Path, opened: Open, tmp_path: Path) -> None:
    found = stepscope.compare(capture, trace(tmp_path / f"{HOSTILE[3].replace('/', '')}.json", factor=0.5))
    file = tmp_path / "hostile.html"
    file.write_bytes(comparison_html(found, found.judge("memory:2%")))
    nothing_runs(opened(file.as_uri()))
