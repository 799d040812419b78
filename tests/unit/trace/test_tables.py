"""Frames are made, checked, written and scanned as the schema says."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from stepscope.errors import StepscopeError
from stepscope.trace import tables
from stepscope.trace.schema import TABLES

STEPS = pl.DataFrame({"number": [0, 1], "ts": [2**60, 2**60 + 7], "dur": [7, 8], "source": ["declared", "inferred"]})


@pytest.mark.parametrize("name", TABLES)
def test_an_empty_table_has_every_column(name: str) -> None:
    frame = tables.empty(name)
    assert frame.columns == [column.name for column in TABLES[name].columns]
    assert frame.schema == pl.Schema(tables.schema(name))
    assert tables.conform(name, frame).equals(frame)


def test_conform_orders_casts_and_fills() -> None:
    frame = tables.conform("steps", STEPS.select("source", "dur", "ts", "number"))
    assert frame.columns == ["number", "ts", "dur", "epoch", "source"]
    assert frame.dtypes == [pl.Int32, pl.Int64, pl.Int64, pl.Int32, tables.dtype("enum:step_source")]
    assert frame["ts"].to_list() == [2**60, 2**60 + 7]
    assert frame["epoch"].null_count() == 2


def test_conform_refuses_a_missing_column() -> None:
    with pytest.raises(StepscopeError, match="Table steps lacks the column dur"):
        tables.conform("steps", STEPS.drop("dur"))


def test_conform_refuses_an_unknown_column() -> None:
    with pytest.raises(StepscopeError, match="Table steps has no column colour, shape"):
        tables.conform("steps", STEPS.with_columns(shape=1, colour=2))


def test_conform_refuses_null_where_there_must_be_a_value() -> None:
    with pytest.raises(StepscopeError, match="Column dur of table steps holds 1 nulls"):
        tables.conform("steps", STEPS.with_columns(dur=pl.Series([None, 1])))


def test_conform_refuses_a_value_outside_the_enumeration() -> None:
    with pytest.raises(pl.exceptions.InvalidOperationError):
        tables.conform("steps", STEPS.with_columns(source=pl.lit("guessed")))


def test_complete_has_every_table() -> None:
    frames = tables.complete({"steps": STEPS})
    assert list(frames) == list(TABLES)
    assert len(frames["steps"]) == 2
    assert sum(map(len, frames.values())) == 2


def test_written_tables_are_the_same_when_scanned(tmp_path: Path) -> None:
    # Given: tables with text of every sort
    texts = ["plain", "", 'a,b\n"c"', "=1+1", "\x00\x1b[31m", "日本語", "‮"]
    metadata = pl.DataFrame({"key": [str(i) for i in range(len(texts))], "value": texts})
    frames = tables.complete({"steps": STEPS, "metadata": metadata})
    # When
    tables.write(frames, tmp_path / "tables")
    scanned = tables.scan(tmp_path / "tables")
    # Then
    assert {name: frame.collect().to_dicts() for name, frame in scanned.items()} == {
        name: frame.to_dicts() for name, frame in frames.items()
    }
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {"steps.parquet", "metadata.parquet"}


def test_a_table_that_has_lost_its_rows_has_no_file_and_is_known_to_be_empty(tmp_path: Path) -> None:
    tables.write(tables.complete({"steps": STEPS}), tmp_path)
    assert tables.has_rows(tables.scan(tmp_path), "steps")
    tables.write(tables.complete({}), tmp_path)
    assert not list(tmp_path.iterdir())
    for found in (tables.scan(tmp_path), tables.lazy(tables.complete({}))):
        assert not any(tables.has_rows(found, name) for name in TABLES)


def test_rows_of_several_frames_are_of_the_schemas_types() -> None:
    more = STEPS.with_columns(pl.col("source").cast(pl.Categorical()), extra=pl.lit(1))
    both = tables.together("steps", [tables.empty("steps"), STEPS, more])
    assert both["source"].dtype == tables.dtype("enum:step_source")
    assert both["extra"].to_list() == [None, None, 1, 1]
    assert tables.together("steps", [tables.empty("steps"), STEPS]) is STEPS
    assert tables.together("steps", [STEPS.clear(), tables.empty("steps")]) is tables.empty("steps")


def test_tables_that_are_not_there_are_empty(tmp_path: Path) -> None:
    scanned = tables.scan(tmp_path)
    assert list(scanned) == list(TABLES)
    assert all(frame.collect().is_empty() for frame in scanned.values())


def test_a_failing_write_leaves_the_old_table(tmp_path: Path) -> None:
    # Given: a table on disk, and one whose writing fails half-way
    tables.write({"steps": tables.conform("steps", STEPS)}, tmp_path)
    objects = pl.DataFrame({"value": pl.Series([object()], dtype=pl.Object)})
    with pytest.raises(BaseException, match=r"(?i)object"):
        tables.write({"steps": objects}, tmp_path)
    # Then
    assert tables.scan(tmp_path)["steps"].collect().height == 2
    assert [path.name for path in tmp_path.iterdir()] == ["steps.parquet"]
