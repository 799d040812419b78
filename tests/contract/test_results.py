"""Every result keeps the contract: a pure function of the tables that also answers for an empty rank."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from stepscope.analyse.results import RESULTS, compute
from stepscope.read import read_files
from stepscope.trace.tables import Tables, complete, lazy

DATA = Path(__file__).resolve().parents[1] / "data" / "kineto"


@pytest.fixture(scope="module", params=["cuda_event_sync", "alexnet_simple_add", "nothing"])
def tables(request: pytest.FixtureRequest) -> Tables:
    if request.param == "nothing":
        return lazy(complete({}))
    return lazy(read_files([DATA / f"{request.param}.json.gz"]))


@pytest.mark.parametrize("name", RESULTS)
def test_an_answer_of_the_right_sort_and_nothing_changed(name: str, tables: Tables) -> None:
    before = {table: frame.collect() for table, frame in tables.items()}
    answer = compute(name, tables)
    assert isinstance(answer, pl.DataFrame if RESULTS[name].extension == "csv" else dict)
    assert all(before[table].equals(frame.collect()) for table, frame in tables.items())


@pytest.mark.parametrize("name", RESULTS)
def test_the_same_question_has_the_same_answer(name: str, tables: Tables) -> None:
    one, other = compute(name, tables), compute(name, tables)
    if isinstance(one, pl.DataFrame):
        assert isinstance(other, pl.DataFrame)
        assert one.equals(other)
    else:
        assert json.dumps(one) == json.dumps(other)


@pytest.mark.parametrize("name", RESULTS)
def test_columns_do_not_depend_on_the_rows(name: str) -> None:
    empty = compute(name, lazy(complete({})))
    full = compute(name, lazy(read_files([DATA / "alexnet_simple_add.json.gz"])))
    if isinstance(empty, pl.DataFrame):
        assert isinstance(full, pl.DataFrame)
        assert empty.schema == full.schema


@pytest.mark.parametrize("name", RESULTS)
def test_it_is_described_in_one_line(name: str) -> None:
    result = RESULTS[name]
    assert result.name == name
    assert result.extension in ("csv", "json")
    assert result.doc
    assert "\n" not in result.doc
    assert result.function.__doc__
