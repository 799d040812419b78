"""The page of a run that is too large for all of it to be in one file."""

from __future__ import annotations

import base64
import gzip
import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.report.page import file_timeline
from stepscope.report.page.content import Shown
from stepscope.report.page.one_file import html

STEPS, CALLS = 8, 50


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Steps of fifty calls, of which one takes twice as long; and a limit that this exceeds."""
    monkeypatch.setattr(file_timeline, "MOST_ANALYSED", 100)
    events: list[dict[str, Any]] = []
    at = 1_000.0
    for step in range(STEPS):
        size = 2_000 if step == 2 else 1_000 + step
        common = {"ph": "X", "pid": 1, "tid": 1}
        events.append({**common, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": size})
        each = size / CALLS
        for call in range(CALLS):
            name = f"operator_{call % 5}"
            events.append({**common, "cat": "cpu_op", "name": name, "ts": at + call * each, "dur": each / 2})
        at += size
    path = tmp_path / "large.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def head(page: bytes) -> dict[str, Any]:
    [data] = re.findall(rb'id="data">([^<]+)<', page)
    stream = gzip.decompress(base64.b64decode(data))
    size = struct.unpack_from("<I", stream)[0]
    found: dict[str, Any] = json.loads(stream[4 : 4 + size])
    return found


def test_it_holds_the_median_and_the_slowest_step_and_says_what_it_left_out(capture: Path) -> None:
    found = head(html(Shown.of(stepscope.open(capture))))
    timeline = found["timeline"]
    steps = {step["number"]: [step["start"], step["start"] + step["dur"]] for step in timeline["steps"]}
    assert timeline["windows"] == [steps[2], steps[5]]
    assert (timeline["begin"], timeline["end"]) == (steps[2][0], steps[5][1])
    assert timeline["of"] == STEPS * (CALLS + 1)
    assert 2 * (CALLS + 1) <= timeline["spans"] <= 2 * (CALLS + 1) + 4  # with those that touch the ends of the steps
    [rank] = timeline["ranks"]
    assert rank["read"]["withoutOverlays"]
    # the figures of the overview are those of all steps
    assert found["steps"]["count"] == STEPS
    assert sum(entry["count"] for entry in found["operators"]) == STEPS * CALLS
    pages = {page["name"]: page for page in found["pages"]}
    assert "op_statistic" in pages["operators"]["results"]
    assert "operator_details" in pages["operators"]["leftOut"]
    assert (
        pages["waits"]["absent"]
        == f"left out of this file, for the run has {STEPS * (CALLS + 1)} spans: `stepscope view` shows it"
    )


def test_beside_the_page_files_are_written_only_where_they_are_asked_for(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["import", str(capture), "--output", "runs", "--quiet"]) == 0
    [run] = (tmp_path / "runs").iterdir()
    for path in (run / "rank0" / "results").glob("*"):
        path.unlink()
    assert main(["report", str(run), "--html", "--quiet"]) == 0
    assert [path.name for path in (run / "rank0" / "results").iterdir()] == ["report.html"]
    assert "--format csv,json" in capsys.readouterr().err
    assert main(["report", str(run), "--html", "--format", "csv", "--quiet"]) == 0
    assert (run / "rank0" / "results" / "op_statistic.csv").exists()
