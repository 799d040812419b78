"""Large tables of databases, read a column at a time: the same numbers as row by row, for any contents."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from stepscope.read.common.database import sqlite, sqlite_columns
from stepscope.read.common.database.sqlite import database
from stepscope.trace.ascend_columns import FLOAT, INT
from stepscope.trace.losses import LossLedger

COLUMNS = {"a": INT, "b": INT, "c": FLOAT}
Rows = Sequence[tuple[object, object, object]]


def made(path: Path, rows: Rows, suffix: str = "") -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE T (a, b, c{', PRIMARY KEY (a)' if suffix else ''}) {suffix}")
        connection.executemany("INSERT INTO T VALUES (?, ?, ?)", rows)
        connection.commit()
    return path


def read(path: Path) -> tuple[pl.DataFrame, dict[str, int]]:
    ledger = LossLedger("test")
    with database(path, ledger) as opened:
        found = opened.rows("T", COLUMNS)
    return found, {loss.what: loss.count for loss in ledger.rows()}


def row_by_row(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[pl.DataFrame, dict[str, int]]:
    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "columns_of", lambda *_: None)
        return read(path)


def rows_of(count: int) -> list[tuple[object, object, object]]:
    chosen = random.Random(7)
    return [
        (
            number,
            chosen.choice([None, 0, -1, (1 << 62) + number, -(1 << 40)]),
            chosen.choice([None, chosen.random(), 3]),
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("count", [1999, 2000, 5001])
def test_numbers_are_those_of_the_rows(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_columns, "ROWS_PER_TEXT", 1000)
    path = made(tmp_path / "a.db", rows_of(count))
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM T WHERE a % 7 = 3")
    found, losses = read(path)
    expected, _ = row_by_row(path, monkeypatch)
    assert_frame_equal(found, expected)
    assert losses == {}


@pytest.mark.parametrize("value", ["text", "1,2", "", 1.5, b"bytes", 2.0, "12 "])
def test_what_is_no_number_is_null_and_counted(value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(3000)
    rows[1500] = (1500, value, 0.5)
    path = made(tmp_path / "a.db", rows)
    found, losses = read(path)
    expected, expected_losses = row_by_row(path, monkeypatch)
    assert_frame_equal(found, expected)
    assert losses == expected_losses


def test_a_table_without_numbers_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path / "a.db", rows_of(3000), "WITHOUT ROWID")
    assert_frame_equal(read(path)[0], row_by_row(path, monkeypatch)[0])


def test_a_damaged_table_gives_the_rows_before_the_damage(tmp_path: Path) -> None:
    path = made(tmp_path / "a.db", rows_of(50_000))
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(content)
    found, losses = read(path)
    assert losses["database_damaged"]
    assert 0 < found.height < 50_000
    assert found["a"].to_list() == list(range(found.height))
