from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.analyse import results
from stepscope.trace import tables
from stepscope.trace.schema import TABLES
from tests.samples import DATA

EMPTY = tables.lazy(tables.complete({}))


@pytest.mark.parametrize("name", results.RESULTS)
def test_every_result_of_empty_tables_is_empty_and_has_its_columns(name: str) -> None:
    result = results.compute(name, EMPTY)
    if results.RESULTS[name].extension == "json":
        assert result == {}
    else:
        assert isinstance(result, pl.DataFrame)
        assert result.is_empty()
        assert len(result.columns) > 4


@pytest.mark.parametrize("name", results.RESULTS)
def test_the_page_of_definitions_has_every_column_of_every_result(name: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "definitions.md").read_text(encoding="utf-8")
    section = re.search(rf"^### `{name}(\.json)?`\n(.*?)(?=^##)", page, re.MULTILINE | re.DOTALL)
    assert section, name
    result = results.compute(name, EMPTY)
    if isinstance(result, pl.DataFrame):
        assert [column for column in result.columns if column not in section[2]] == []


def test_no_result_has_the_name_of_a_table() -> None:
    """Both are tables of ``stepscope.db``."""
    assert not set(results.RESULTS) & set(TABLES)


@pytest.mark.parametrize("name", [name for name, kind in results.RESULTS.items() if kind.first])
def test_the_first_rows_of_a_result_are_those_of_the_whole(name: str) -> None:
    frames = stepscope.open(DATA / "kineto" / "alexnet_simple_add.json.gz").ranks[0].shown
    whole = results.compute(name, frames)
    assert isinstance(whole, pl.DataFrame)
    rows, count = results.Results(frames).first(name, 20 * len(whole.columns))
    assert isinstance(rows, pl.DataFrame)
    assert 0 < len(rows) <= 21 < count == len(whole)
    assert rows.equals(whole[: len(rows)])
