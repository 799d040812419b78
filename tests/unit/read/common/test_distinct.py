"""Columns made of columns: nulls, damage and order as plans of Polars have them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from stepscope.read.common.database import sqlite, sqlite_columns
from stepscope.read.common.database.sqlite import database
from stepscope.read.common.distinct import combinations, either, filled, found, nth, of_all, of_each, ordered, where
from stepscope.trace.ascend_columns import INT, TEXT
from stepscope.trace.losses import LossLedger

TEXTS = pl.Series("text", ["b", None, "a", "b"], dtype=pl.Categorical)
NUMBERS = pl.Series("number", [0, None, -(1 << 62), (1 << 62)], dtype=pl.Int64)


def test_each_combination_is_made_once_and_null_is_none() -> None:
    asked = []

    def make(text: str | None, truth: bool | None) -> str | None:
        asked.append((text, truth))
        return None if text is None else f"{text}{truth}"

    made = of_each(make, TEXTS, pl.Series([True, True, None, True]))
    assert made.to_list() == ["bTrue", None, "aNone", "bTrue"]
    assert asked == [("b", True), (None, True), ("a", None)]
    assert (made.name, made.dtype) == ("text", pl.Categorical())


@pytest.mark.parametrize("values", [[], [None], [None, None], [0, None], [-1, None, -1]])
def test_null_is_no_number(values: list[int | None]) -> None:
    column = pl.Series("a", values, dtype=pl.Int64)
    assert of_each(lambda one: one, column, dtype=pl.Int64()).to_list() == values
    assert [row for (row,) in combinations(column)[0]] == list(dict.fromkeys(values))


def test_columns_that_are_made_together() -> None:
    first, second = of_all(lambda one: one and one.upper(), [TEXTS, TEXTS.reverse().alias("other")])
    assert first.to_list() == ["B", None, "A", "B"]
    assert (second.to_list(), second.name) == (["B", "A", None, "B"], "other")


def test_the_first_of_several_is_found_and_null_never() -> None:
    keys = pl.Series([None, 7, 0, 7], dtype=pl.Int64)
    assert found(pl.Series([7, None, 0, 5], dtype=pl.Int64), keys).to_list() == [1, None, 2, None]
    assert found(NUMBERS, NUMBERS).to_list() == [0, None, 2, 3]
    assert found(NUMBERS, NUMBERS.clear()).to_list() == [None] * 4
    assert found(TEXTS, TEXTS.reverse()).to_list() == [0, None, 1, 0]
    assert NUMBERS[found(TEXTS, TEXTS.clear())].to_list() == [None] * 4


def test_what_stands_in_place_of_null() -> None:
    assert where(NUMBERS > 0, NUMBERS).to_list() == [None, None, None, 1 << 62]
    assert filled(TEXTS, "").to_list() == ["b", "", "a", "b"]
    assert either(NUMBERS, pl.Series([1, 2, 3, 4])).to_list() == [0, 2, -(1 << 62), 1 << 62]
    assert nth(TEXTS).to_list() == [0, 0, 0, 1]


def test_rows_of_one_value_stay_as_they_stand() -> None:
    frame = pl.DataFrame({"ts": [2, 1, None, 1], "row": [0, 1, 2, 3]})
    assert ordered(frame, "ts")["row"].to_list() == [2, 1, 3, 0]
    assert ordered(frame.sort("ts", maintain_order=True), "ts")["row"].to_list() == [2, 1, 3, 0]


def _rows(path: Path, values: list[object], sort: str) -> tuple[list[object], dict[str, int]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE T (a)")
        for value in values:
            connection.execute(
                f"INSERT INTO T VALUES ({'CAST(? AS TEXT)' if isinstance(value, bytes) else '?'})", [value]
            )
        connection.commit()
    ledger = LossLedger("test")
    with database(path, ledger) as opened:
        column = opened.rows("T", {"a": sort})["a"].to_list()
    return column, {loss.what: loss.count for loss in ledger.rows()}


@pytest.mark.parametrize("few", [0, 1000])
def test_times_that_are_texts_of_digits(few: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_columns, "SMALL_TABLE", few)
    times = [str(1_736_410_576_395_167_660 + place) for place in range(5)]
    assert _rows(tmp_path / "a.db", [*times, None], INT) == ([*map(int, times), None], {})


@pytest.mark.parametrize("few", [0, 1000])
@pytest.mark.parametrize("odd", ["9" * 19, "null", "1,2", "12 ", ""])
def test_texts_of_anything_else(odd: str, few: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_columns, "SMALL_TABLE", few)
    assert _rows(tmp_path / "a.db", ["12", odd], INT) == ([12, None], {"value_unreadable": 1})


@pytest.mark.parametrize("few", [0, 1000])
def test_a_text_that_is_no_utf8_is_counted_once(few: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "SMALL_TABLE", few)
    found_, losses = _rows(tmp_path / "a.db", ["good", b"b\xffd"], TEXT)
    assert found_ == ["good", "b\ufffdd"]
    assert losses == {"text_not_utf8": 1}


@pytest.mark.parametrize("few", [0, 1000])
def test_a_text_that_is_neither_a_number_nor_utf8(few: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_columns, "SMALL_TABLE", few)
    found_, losses = _rows(tmp_path / "a.db", ["12", b"b\xffd"], INT)
    assert found_ == [12, None]
    assert losses == {"text_not_utf8": 1, "value_unreadable": 1}
