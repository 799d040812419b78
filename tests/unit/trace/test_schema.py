"""The schema is the contract: documented, consistent, and what the frames are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepscope.trace import schema
from stepscope.trace.schema import ENUMS, TABLES

ROOT = Path(__file__).resolve().parents[3]
COLUMNS = [(table, column) for table in TABLES.values() for column in table.columns]


def test_the_reference_page_is_generated_from_the_schema() -> None:
    page = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    assert page == schema.markdown(), "Run: python -m stepscope.trace.schema > docs/tables.md"


@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=[f"{table.name}.{column.name}" for table, column in COLUMNS])
def test_every_column_is_explained(table: schema.Table, column: schema.Column) -> None:
    assert re.fullmatch(r"[a-z_]+", column.name)
    assert column.meaning.endswith((".", "…"))
    if column.dtype.startswith("enum:"):
        assert column.dtype.removeprefix("enum:") in ENUMS
    assert table.column(column.name) is column


def test_names_are_unique() -> None:
    for table in TABLES.values():
        names = [column.name for column in table.columns]
        assert len(set(names)) == len(names)


def test_unknown_column() -> None:
    with pytest.raises(KeyError, match="colour"):
        TABLES["spans"].column("colour")


def test_times_and_durations_are_integer_nanoseconds() -> None:
    for table, column in COLUMNS:
        if column.name in ("ts", "dur"):
            unknown = (table.name, column.name) == ("run_steps", "dur")  # when the first step began, nobody noted
            assert (column.dtype, column.unit, column.nullable) == ("int64", "ns", unknown), table.name
