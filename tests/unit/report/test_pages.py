"""``docs/results.md`` names every file there is, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepscope.analyse.results import RESULTS
from stepscope.cluster.job_results import JOB_RESULTS
from stepscope.report.registry import FORMATS

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "results.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("result", RESULTS.values(), ids=lambda result: result.name)
def test_every_result_has_its_line(result: object) -> None:
    assert f"[`{result.name}.{result.extension}`](definitions.md#" in PAGE  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", JOB_RESULTS)
def test_every_result_of_a_job_has_its_line_and_its_columns(name: str) -> None:
    assert f"[`{name}.csv`](definitions.md#{name})" in PAGE


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_its_line(name: str) -> None:
    assert f"| `{name}` |" in PAGE


def test_links_lead_to_headings() -> None:
    headings = re.findall(r"^#+ (.+)$", (DOCS / "definitions.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
    wanted = re.findall(r"\(definitions\.md#([\w-]+)", PAGE)
    assert len(wanted) >= len(RESULTS)
    assert set(wanted) <= anchors
