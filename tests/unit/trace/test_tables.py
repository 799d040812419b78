"""Frames are made, checked, written and scanned as the schema says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stepscope.errors import StepscopeError
from stepscope.trace import tables
from stepscope.trace.schema import PHASES, TABLES

STEPS = pl.DataFrame({"number": [0, 1], "ts": [2**60, 2**60 + 7], "dur": [7, 8], "source": ["declared", "inferred"]})


@pytest.mark.parametrize("name", TABLES)
def test_an_empty_table_has_every_column(name: str) -> None:
    frame = tables.empty(name)
    assert frame.columns == [column.name for column in TABLES[name].columns]
    assert frame.schema == pl.Schema(tables.schema(name))
    assert tables.conform(name, frame).equals(frame)


def test_conform_orders_casts_and_fills() -> None:
    frame = tables.conform("steps", STEPS.select("source", "dur", "ts", "number"))
    assert frame.columns == ["number", "ts", "dur", "epoch", "source", "launched_before"]
    assert frame.dtypes == [pl.Int32, pl.Int64, pl.Int64, pl.Int32, tables.dtype("enum:step_source"), pl.Int64]
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


def test_columns_and_arrays_make_the_frame_that_polars_makes() -> None:
    arrays = {"a": np.arange(3), "b": pl.Series("of another name", ["x", None, "y"], pl.Categorical())}
    assert tables.of_arrays(arrays).equals(pl.DataFrame(arrays))
    assert tables.of_columns(STEPS.get_columns()).equals(STEPS)


def test_columns_take_the_places_of_their_names_or_stand_behind() -> None:
    frame = tables.with_series(STEPS, [pl.Series("dur", [1, 2]), pl.Series("more", [3, 4])])
    assert frame.equals(STEPS.with_columns(dur=pl.Series([1, 2]), more=pl.Series([3, 4])))
    assert STEPS["dur"].to_list() == [7, 8]


def test_codes_are_equal_where_the_texts_are_and_negative_for_null() -> None:
    texts = pl.Series("text", ["b", None, "a", "b"], pl.Categorical())
    phases = pl.Series("phase", ["backward", "other", None, "forward"], tables.dtype("enum:phase"))
    of_texts, of_phases = tables.codes(texts, phases)
    assert (of_texts[0], of_texts[1]) == (of_texts[3], -1)
    assert len(set(of_texts.tolist())) == 3
    assert of_phases.tolist() == [PHASES.index("backward"), PHASES.index("other"), -1, PHASES.index("forward")]


def test_complete_has_every_table() -> None:
    frames = tables.complete({"steps": STEPS})
    assert list(frames) == list(TABLES)
    assert len(frames["steps"]) == 2
    assert sum(map(len, frames.values())) == 2


def test_written_tables_are_the_same_when_scanned(tmp_path: Path) -> None:
    # Given: tables with text of every kind
    texts = ["plain", "", 'a,b\n"c"', "=1+1", "\x00\x1b[31m", "日本語", "‮"]
    metadata = pl.DataFrame({"key": [str(i) for i in range(len(texts))], "value": texts})
    frames = tables.complete({"steps": STEPS, "metadata": metadata})
    # When
    sums = tables.write(frames, tmp_path / "tables")
    scanned = tables.scan(tmp_path / "tables", sums)
    # Then
    assert scanned is not None
    assert {name: frame.collect().to_dicts() for name, frame in scanned.items()} == {
        name: frame.to_dicts() for name, frame in frames.items()
    }
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {"steps.parquet", "metadata.parquet"}


def test_a_table_that_has_lost_its_rows_has_no_file_and_is_known_to_be_empty(tmp_path: Path) -> None:
    scanned = tables.scan(tmp_path, tables.write(tables.complete({"steps": STEPS}), tmp_path))
    assert scanned is not None
    assert tables.has_rows(scanned, "steps")
    scanned = tables.scan(tmp_path, tables.write(tables.complete({}), tmp_path))
    assert scanned is not None
    assert not list(tmp_path.iterdir())
    for found in (scanned, tables.lazy(tables.complete({}))):
        assert not any(tables.has_rows(found, name) for name in TABLES)


def test_rows_of_several_frames_are_of_the_schemas_types() -> None:
    more = STEPS.with_columns(pl.col("source").cast(pl.Categorical()), extra=pl.lit(1))
    both = tables.together("steps", [tables.empty("steps"), STEPS, more])
    assert both["source"].dtype == tables.dtype("enum:step_source")
    assert both["extra"].to_list() == [None, None, 1, 1]
    assert tables.together("steps", [tables.empty("steps"), STEPS]) is STEPS
    assert tables.together("steps", [STEPS.clear(), tables.empty("steps")]) is tables.empty("steps")


def test_a_file_that_is_not_as_it_was_written_is_known(tmp_path: Path) -> None:
    # Given: tables on the disk
    sums = tables.write(tables.complete({"steps": STEPS}), tmp_path)
    path = tmp_path / "steps.parquet"
    content = path.read_bytes()
    assert tables.scan(tmp_path, sums) is not None
    # When one bit of a file differs, or its end, or the file is gone
    for place in range(0, len(content), 7):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
        assert tables.scan(tmp_path, sums) is None
    for other in (content[:-1], content + b"0", b""):
        path.write_bytes(other)
        assert tables.scan(tmp_path, sums) is None
    path.unlink()
    assert tables.scan(tmp_path, sums) is None


def test_a_failing_write_leaves_the_old_table(tmp_path: Path) -> None:
    # Given: a table on disk, and one whose writing fails half-way
    sums = tables.write({"steps": tables.conform("steps", STEPS)}, tmp_path)
    objects = pl.DataFrame({"value": pl.Series([object()], dtype=pl.Object)})
    with pytest.raises(BaseException, match=r"(?i)object"):
        tables.write({"steps": objects}, tmp_path)
    # Then
    scanned = tables.scan(tmp_path, sums)
    assert scanned is not None
    assert scanned["steps"].collect().height == 2
    assert [path.name for path in tmp_path.iterdir()] == ["steps.parquet"]
