"""Result files: their content, and that they appear whole or not at all."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from datetime import date
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import OutputError, UsageError
from stepscope.report.files.csv_results import Csv
from stepscope.report.files.json_results import Json, dumps
from stepscope.report.files.sqlite_database import Database
from stepscope.report.registry import FORMATS, select
from stepscope.report.safe_text import csv_cell, csv_cells
from stepscope.report.whole_files import replacing
from stepscope.trace.schema import TABLES
from stepscope.trace.tables import empty
from tests.unit.report.build import ORIGIN, SPANS, source


def test_csv_times_have_three_decimals_and_timestamps_all_their_digits(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "Name": ["a", None],
            "Time(us)": [-1.5, 1234567.8912],
            "Start Time(us)": [Decimal("1763000000123456.789"), None],
            "Count": [-3, 4],
            "Shapes": [[1, 2], None],
        }
    )
    [path] = Csv().write(source({"op_statistic": frame, "communication": {}}), tmp_path)
    assert path.name == "op_statistic.csv"
    assert path.read_text() == (
        'Name,Time(us),Start Time(us),Count,Shapes\na,-1.500,1763000000123456.789,-3,"[1, 2]"\n,1234567.891,,4,\n'
    )


@given(st.lists(st.one_of(st.none(), st.text()), max_size=8))
def test_csv_columns_are_escaped_like_single_cells(cells: list[str | None]) -> None:
    column = pl.Series(cells, dtype=pl.String)
    [escaped] = csv_cells([column])
    assert escaped.to_list() == [cell if cell is None else csv_cell(cell) for cell in cells]


def test_json_results_are_files_and_may_be_indented(tmp_path: Path) -> None:
    results = {"communication": {"step0": {"汉字": float("inf"), "day": date(2026, 1, 2), "few": (1, 2.5, True)}}}
    [path] = Json().write(source(results), tmp_path / "flat")
    assert path.read_text(encoding="utf-8") == (
        '{"step0": {"汉字": null, "day": "2026-01-02", "few": [1, 2.5, true]}}\n'
    )
    [path] = Json(pretty=True).write(source(results), tmp_path / "pretty")
    assert path.read_text(encoding="utf-8").count("\n") == 11


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_comes_back(value: object) -> None:
    assert json.loads(dumps(value)) == value
    assert json.loads(dumps(value, pretty=True)) == value


def test_database_holds_every_table_with_its_types(tmp_path: Path) -> None:
    frame = pl.DataFrame({"Name": ["a"], "Start Time(us)": [Decimal("1763000000123456.789")]})
    [path] = Database().write(source({"kernel_details": frame, "communication": {"a": 1}}), tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert names == {*TABLES, "kernel_details", "documents"}
        for table in TABLES:
            columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
            assert columns == list(empty(table).schema)
        rows = connection.execute("SELECT id, ts, dur, name, kind FROM spans ORDER BY id").fetchall()
        assert rows == [(i, ORIGIN + ts, dur, name, kind) for i, _, ts, dur, name, kind, _ in SPANS]
        assert connection.execute("SELECT grid FROM kernels").fetchone() == ("[4, 1, 1]",)
        # Exact, which a floating-point number would not be.
        assert connection.execute('SELECT "Start Time(us)" FROM kernel_details').fetchone() == ("1763000000123456.789",)
        assert connection.execute("SELECT json ->> '$.a' FROM documents WHERE name = 'communication'").fetchone() == (
            1,
        )
        plan = connection.execute("EXPLAIN QUERY PLAN SELECT * FROM spans WHERE ts > 5").fetchone()
        assert "spans_ts" in plan[-1]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "results" / "old.csv"
    with replacing(path) as temporary:
        temporary.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half of the n")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_full_disk_is_one_line_with_a_remedy(tmp_path: Path) -> None:
    # Given a device that is full, where the system has one
    if not os.access("/dev/full", os.W_OK):
        pytest.skip("no /dev/full here")
    with pytest.raises(OutputError, match="No space left on device"), replacing(tmp_path / "x") as temporary:
        temporary.unlink()
        temporary.symlink_to("/dev/full")
        temporary.write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for output in FORMATS.values():
        results = {"a": pl.DataFrame({"b": [1]}), "c": {}}
        with pytest.raises(OutputError, match="file"):
            output.write(source(results), tmp_path / "file")


def test_formats_are_chosen_by_name() -> None:
    names = ["csv", "json", "db", "trace", "pftrace", "speedscope", "pprof", "firefox", "collapsed", "memory_viz"]
    assert [output.name for output in select("all")] == names
    assert [output.name for output in select("json, csv")] == ["csv", "json"]
    assert select("none") == []
    assert select("json", pretty=True) == [Json(pretty=True)]
    with pytest.raises(UsageError, match=rf"'xlsx'.*{', '.join(names)}, all"):
        select("csv,xlsx")
