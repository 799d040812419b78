"""``stepscope query``: what is the run, what is the question, and where the answer goes."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from stepscope.cli.main import main

CAPTURE = Path(__file__).parents[2] / "data" / "kineto" / "alexnet_simple_add.json.gz"


@pytest.fixture
def duckdb() -> None:
    pytest.importorskip("duckdb", reason="the extra `sql` is not installed")


def test_without_a_question_it_lists_what_can_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", str(CAPTURE)]) == 0
    said = capsys.readouterr().out
    assert "spans                      an interval on a track\n" in said
    assert "\nop_statistic " in said


@pytest.mark.usefixtures("duckdb")
def test_a_question_alone_is_about_the_latest_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["query", "select 1 as one"]) == 4
    assert "stepscope-runs does not exist" in capsys.readouterr().err
    shutil.copytree(CAPTURE.parent, tmp_path / "stepscope-runs")
    (tmp_path / "stepscope-runs" / "cuda_event_sync.json.gz").unlink()
    assert main(["query", "select count(*) as n from spans where kind = 'kernel'", "--format", "csv"]) == 0
    assert capsys.readouterr().out == "n\n79\n"


@pytest.mark.usefixtures("duckdb")
def test_a_question_from_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("select count(*) as n\nfrom spans where kind = 'kernel';\n"))
    assert main(["query", str(CAPTURE), "-", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"n": 79}]


@pytest.mark.usefixtures("duckdb")
def test_the_ending_of_the_file_names_the_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.parquet", "b.csv"):
        assert main(["query", str(CAPTURE), "select name from spans", "-o", str(tmp_path / name)]) == 0
    assert pl.read_parquet(tmp_path / "a.parquet").height == pl.read_csv(tmp_path / "b.csv").height
    assert main(["query", str(CAPTURE), "select 1", "-o", str(tmp_path / "c.xlsx")]) == 2
    assert "Add --format csv, json or parquet." in capsys.readouterr().err


@pytest.mark.usefixtures("duckdb")
def test_a_wrong_question_ends_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", str(CAPTURE), "attach '/tmp/x.db'"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "ATTACH is refused" in said
