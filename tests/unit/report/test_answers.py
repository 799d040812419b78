"""Rows of a query on the screen and in files: whole, exact, and harmless."""

from __future__ import annotations

import io
import json
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from stepscope.errors import OutputError
from stepscope.report.answers import print_answer, write_answer

HOSTILE = "\x1b[31m=cmd|' /C calc'!A0\n"
ROWS = pl.DataFrame({"name": ["add", HOSTILE, None], "n": [1, 2, None], "ms": [0.5, float("nan"), 1e-9]})


def shown(rows: pl.DataFrame, width: int = 80) -> str:
    text = io.StringIO()
    print_answer(rows, Console(file=text, width=width, highlight=False))
    return text.getvalue()


def test_a_table_shows_dashes_for_what_is_unknown_and_obeys_no_name() -> None:
    text = shown(ROWS)
    assert "–" in text
    assert "\x1b" not in text
    assert "\\x1b[31m" in text
    assert [line.split() for line in text.splitlines() if line.startswith("add")] == [["add", "1", "0.5"]]


def test_a_wide_table_becomes_blocks() -> None:
    text = shown(pl.DataFrame({f"column {i}": ["x" * 20] for i in range(10)}))
    assert text.startswith("row 1")
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("x" * 20) == 10


def test_an_empty_answer_says_so() -> None:
    assert shown(pl.DataFrame({"[n]": [], "m" * 80: []})) == "0 rows of [n], \n" + "m" * 80 + "\n"


def test_a_long_answer_says_how_long_it_is() -> None:
    assert shown(pl.DataFrame({"n": range(1000)})).endswith("50 of 1,000 rows; --format csv writes all.\n")


def test_files_hold_every_row(tmp_path: Path) -> None:
    for form in ("csv", "json", "parquet"):
        write_answer(ROWS, form, tmp_path / f"rows.{form}")
    assert pl.read_parquet(tmp_path / "rows.parquet").equals(ROWS)
    found = json.loads((tmp_path / "rows.json").read_text())
    assert found[0] == {"name": "add", "n": 1, "ms": 0.5}
    assert found[1]["ms"] is None  # strict JSON has no NaN
    assert "\x1b" not in (tmp_path / "rows.csv").read_text()
    assert len(pl.read_csv(tmp_path / "rows.csv")) == 3


def test_standard_output_takes_a_file(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write_answer(pl.DataFrame({"n": [1]}), "csv", None)
    assert capfdbinary.readouterr().out == b"n\n1\n"


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        write_answer(ROWS, "csv", tmp_path / "file" / "rows.csv")
