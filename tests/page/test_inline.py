"""What a notebook shows, in a browser: accessible, light and dark, and the timeline in a frame of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import stepscope
from stepscope.report.inline import bundle
from stepscope.run import Run
from tests.page.conftest import AXE, Watched, run_named

Open = Callable[..., Watched]

#: What JupyterLab says of its theme, and whether the system is dark: the theme counts more.
THEMES = {"lab-light": ("true", True), "lab-dark": ("false", False), "elsewhere": (None, True)}


def notebook(path: Path, block: str, theme: str | None = None) -> str:
    """Write a page that holds the output of a cell, and return its address."""
    said = f' data-jp-theme-light="{theme}"' if theme else ""
    head = '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>notebook</title></head>'
    path.write_text(f"{head}<body{said}><main><h1>Notebook</h1>{block}</main></body></html>")
    return path.as_uri()


@pytest.mark.parametrize("theme", THEMES)
def test_a_run_can_be_read_in_every_theme(theme: str, runs: dict[str, Run], opened: Open, tmp_path: Path) -> None:
    said, dark = THEMES[theme]
    watched = opened(
        notebook(tmp_path / "cell.html", bundle(run_named(runs, "gpu"))["text/html"], said), dark=dark, first=".verdict"
    )
    page = watched.page
    ground = page.evaluate("getComputedStyle(document.querySelector('.stepscope')).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (theme == "lab-light")
    page.click("summary >> nth=0")
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run('.stepscope', {resultTypes: ['violations']}).then(r => r.violations)")
    assert [(rule["id"], rule["nodes"][0]["html"][:200]) for rule in found] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert watched.wrong == []


def test_the_timeline_works_in_its_frame(runs: dict[str, Run], opened: Open, tmp_path: Path) -> None:
    watched = opened(notebook(tmp_path / "cell.html", run_named(runs, "cpu").timeline().html), first="iframe")
    (frame,) = watched.page.frames[1:]
    frame.wait_for_selector(".holder[data-drawn]", state="attached")
    assert frame.evaluate("origin") == "null"
    frame.click('nav a[href="#p=operators"]')
    frame.wait_for_selector('section[aria-label="op_statistic"]')
    frame.click('nav a[href="#p=timeline"]')
    frame.wait_for_selector(".holder[data-drawn]", state="attached")
    assert watched.page.url.endswith("cell.html")
    assert watched.wrong == []


def test_hostile_names_do_nothing(opened: Open, tmp_path: Path) -> None:
    hostile = [
        "</script><script>document.body.dataset.hit=1</script>",
        "<img src=x onerror=document.body.dataset.hit=1>",
        "\"><iframe srcdoc='<script>parent.document.body.dataset.hit=1</script>'>",
        "</style><style>*{display:none}</style>",
    ]
    at = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 90}
    trace = tmp_path / "hostile.json"
    trace.write_text(
        json.dumps({"traceEvents": [{**at, "name": name, "ts": 100 * i} for i, name in enumerate(hostile)]})
    )
    run = stepscope.open(trace)
    watched = opened(notebook(tmp_path / "cell.html", bundle(run)["text/html"] + run.timeline().html), first="iframe")
    page = watched.page
    page.frames[1].wait_for_selector(".holder[data-drawn]", state="attached")
    assert page.evaluate("document.body.dataset.hit") is None
    assert page.evaluate("[document.querySelectorAll('iframe').length, document.querySelectorAll('img').length]") == [
        1,
        0,
    ]
    assert all(name in page.inner_text(".stepscope") for name in hostile)
    assert watched.wrong == []
