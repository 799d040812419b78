"""The page of a comparison: the sentence of the terminal, the numbers of the JSON, and what is sure."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.comparison.comparison import Comparison
from stepscope.comparison.wording import headline, interval_text, signed
from stepscope.report.page.one_file import comparison_html
from tests.page.conftest import Watched
from tests.page.test_pages import Open
from tests.unit.comparison.conftest import OPERATORS, MakeCapture, capture  # noqa: F401 - a fixture

LIMITS = "slower:5%,operator:aten::mm:10%"


@pytest.fixture
def found(capture: MakeCapture) -> Comparison:  # noqa: F811 - the fixture
    """Several runs a side: one operator is slower for sure, one has other shapes, one is new."""
    new = [
        (name, time * (1.6 if name == "aten::mm" else 1), [[16, 8]] if name == "aten::relu" else shapes)
        for name, time, shapes in [*OPERATORS, ("aten::copy_", 150, [[8]])]
    ]
    sides = [
        [capture(f"{side}{run}.json", operators, machine=1 + 0.002 * run) for run in range(3)]
        for side, operators in (("a", OPERATORS), ("b", new))
    ]
    return stepscope.compare(*sides)


def shown(found: Comparison, opened: Open, folder: Path) -> Watched:
    file = folder / "comparison.html"
    file.write_bytes(comparison_html(found, found.judge(LIMITS)))
    assert file.stat().st_size < 3_000_000
    return opened(file.as_uri())


def copied(watched: Watched, table: str) -> list[dict[str, Any]]:
    """Return what a table copies, cell by cell."""
    watched.page.evaluate("navigator.clipboard.writeText = text => { window.copied = text; return Promise.resolve() }")
    watched.page.click(f'section[aria-label="{table}"] button:has-text("copy as CSV")')
    return list(csv.DictReader(StringIO(watched.page.evaluate("copied"))))


def test_the_verdict_comes_first_and_the_numbers_are_those_of_the_json(
    found: Comparison, opened: Open, tmp_path: Path
) -> None:
    watched = shown(found, opened, tmp_path)
    page = watched.page
    told = json.loads(json.dumps(found.to_dict(found.judge(LIMITS))))
    assert found.step is not None
    assert found.parts is not None
    assert page.inner_text(".verdict h1") == headline(found)
    assert interval_text(found.step).split(" (")[0] in page.inner_text(".tiles")
    rows = [row.inner_text().split("\t") for row in page.query_selector_all(".changes tbody tr")]
    assert [row[0] for row in rows] == [part.name for part in found.parts.sure] == ["aten::mm", "aten::copy_"]
    assert [row[5] for row in rows] == [signed(part.change_ns) for part in found.parts.sure]
    assert all("sure" in row[-1] and "not" not in row[-1] for row in rows)
    assert "slower:5% failed" in page.inner_text('[aria-label="What to know first"]')
    assert "calls of aten::copy_" in page.inner_text('[aria-label="Exact differences"]')

    watched.show("operators")
    parts = {row["name"]: row for row in copied(watched, "parts")}
    for part in [*told["operators"], *told["only_a"], *told["only_b"]]:
        row = parts.pop(part["name"])
        for name in ("a_ns", "b_ns", "change_ns", "low_ns", "high_ns", "calls_a", "calls_b"):
            assert float(row[name]) == part[name], (part["name"], name)
        assert row["sure"] == str(part["sure"]).lower()
    assert not parts

    watched.show("exact")
    assert [(row["name"], float(row["a"]), float(row["b"])) for row in copied(watched, "calls")] == [
        (count["name"], count["a"], count["b"]) for count in told["counts"]
    ]
    assert [row["a"] for row in copied(watched, "shapes")] == ["; ".join(one["a"]) for one in told["shapes"]]

    watched.show("steps")
    quantiles = copied(watched, "step_quantiles")
    for side, levels in zip("AB", told["levels"], strict=True):
        for place, level in enumerate(levels):
            assert [float(row[f"{side} {place + 1}_ns"]) for row in quantiles] == level["quantiles_ns"]
    assert len(copied(watched, "runs")) == 6
    assert watched.wrong == []


def test_where_only_phases_can_be_told_the_page_says_what_is_missing(
    capture: MakeCapture,  # noqa: F811 - the fixture
    opened: Open,
    tmp_path: Path,
) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text('{"traceEvents": []}')
    found = stepscope.compare(capture("a.json"), empty)
    watched = shown(found, opened, tmp_path)
    assert watched.page.inner_text(".verdict h1") == headline(found)
    for link in watched.page.query_selector_all("nav a"):
        watched.show(str(link.get_attribute("href"))[3:])
    assert watched.wrong == []
