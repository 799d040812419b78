"""The builder of a part: tracks are registered once, rows become tables of the schema, what is not sound is counted."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from stepscope.errors import StepscopeError
from stepscope.read.common.part_builder import (
    KIND_CODE,
    LARGEST_TIME,
    PartBuilder,
    TrackRow,
    coded,
    kinds_of,
    sound,
    sound_spans,
    whole_number,
)
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import TABLES
from stepscope.trace.tables import conform


def thread(process: int, number: int | None) -> TrackRow:
    return TrackRow("thread", "cpu", f"thread {number}", process, number)


def test_a_track_is_registered_once() -> None:
    part = PartBuilder(3, "node")
    columns = pl.Series([7, 7, 7, 7]), pl.Series([2, None, 2, 1])
    assert part.tracks.numbered(thread, *columns).to_list() == [0, 1, 0, 2]
    assert part.tracks.number(thread(7, 1)) == 2
    assert part.tracks.table().select("id", "kind", "rank", "host", "device", "process", "thread", "stream").rows() == [
        (0, "thread", 3, "node", "cpu", 7, 2, None),
        (1, "thread", 3, "node", "cpu", 7, None, None),
        (2, "thread", 3, "node", "cpu", 7, 1, None),
    ]


def test_a_key_identifies_a_track_better_than_its_values() -> None:
    tracks = PartBuilder().tracks
    assert [tracks.number(TrackRow("other", "cpu", "lane"), key) for key in "aba"] == [0, 1, 0]
    assert (tracks.known("b"), tracks.known("c")) == (1, -1)
    assert tracks.table()["name"].to_list() == ["lane", "lane"]


def test_without_rows_every_table_is_empty_and_of_the_schema() -> None:
    tables = PartBuilder().tables()
    assert set(tables) == {*TABLES, "arrows"}
    assert all(tables[name].schema == conform(name, tables[name]).schema for name in TABLES)
    assert not any(frame.height for frame in tables.values())


def test_batches_of_spans_are_numbered_in_a_row_and_details_follow_them() -> None:
    part = PartBuilder()
    spans = {"track": [0, 0], "ts": [1, 2], "dur": [1, 1], "name": coded(["a", "b"], np.array([1, 0]))}
    kind = kinds_of(np.array([KIND_CODE["kernel"], KIND_CODE["operator"]], np.uint8))
    assert part.add_spans({**spans, "kind": kind, "correlation": [5, None]}) == 0
    first = part.add_spans({**spans, "kind": kind})
    part.add("kernels", {"span": [first], "device": [0]})
    part.add("allocations", {"ts": [4], "device": ["cpu"], "bytes": [8], "track": [0]})
    tables = part.tables()
    assert (first, part.spans) == (2, 4)
    assert tables["spans"]["name"].cast(pl.String).to_list() == ["b", "a", "b", "a"]
    assert tables["spans"]["kind"].to_list() == ["kernel", "operator"] * 2
    assert tables["spans"]["correlation"].to_list() == [5, None, None, None]
    assert tables["kernels"]["span"].to_list() == [2]
    # What only the assembly knows stays behind the columns of the schema.
    assert tables["allocations"].columns[-1] == "track"
    assert conform("allocations", tables["allocations"].drop("track")).height == 1


def test_a_missing_column_is_refused() -> None:
    part = PartBuilder()
    part.add("kernels", {"device": [0]})
    with pytest.raises(StepscopeError, match="lacks the column span"):
        part.tables()


def test_steps_stacks_facts_and_losses() -> None:
    part = PartBuilder()
    part.add_steps({"number": [1], "ts": [10], "dur": [5]}, "inferred")
    part.add_stacks([[{"file": "a.py", "line": 3, "function": "f"}], []])
    part.add_facts({"seed": "1"})
    part.add_losses({"disk_full": 1, "span_not_closed": 0}, "journal")
    tables = part.tables()
    assert tables["steps"].rows() == [(1, 10, 5, None, "inferred", None)]
    assert tables["stacks"]["id"].to_list() == [0, 1]
    assert tables["stacks"]["frames"].to_list() == [[{"file": "a.py", "line": 3, "function": "f"}], []]
    assert tables["metadata"].rows() == [("seed", "1")]
    assert tables["losses"].select("what", "count", "source").rows() == [("disk_full", 1, "journal")]


@pytest.mark.parametrize("line", [1 << 31, 1 << 63, -(1 << 63), 1 << 127])
def test_a_line_that_no_file_has_is_unknown_and_counted(line: int) -> None:
    part = PartBuilder()
    part.add_stacks([[{"file": "a.py", "line": line, "function": "f"}, {"file": None, "line": None, "function": "g"}]])
    tables = part.tables()
    assert [frame["line"] for frame in tables["stacks"]["frames"][0]] == [None, None]
    assert tables["losses"].select("what", "count").rows() == [("value_unreadable", 1)]


def test_a_row_is_counted_as_the_first_condition_that_it_fails() -> None:
    ledger = LossLedger("file")
    kept = sound(
        ledger,
        event_damaged=np.array([True, False, False, True]),
        event_bad_time=pl.Series([True, False, True, None]),
    )
    assert kept.tolist() == [True, False, False, False]
    assert {loss.what: loss.count for loss in ledger.rows()} == {"event_damaged": 2, "event_bad_time": 1}


def test_spans_without_possible_times_are_counted() -> None:
    ledger = LossLedger("file")
    frame = pl.DataFrame({"ts": [1, -1, 1, 1, None], "dur": [0, 1, LARGEST_TIME, -1, 1]})
    assert sound_spans(frame, ledger).rows() == [(1, 0)]
    assert {loss.what: loss.count for loss in ledger.rows()} == {"event_bad_time": 3, "event_negative_duration": 1}


def test_codes_without_a_text_are_null() -> None:
    assert coded(["a"], np.array([-1, 0])).cast(pl.String).to_list() == [None, "a"]
    assert coded([], np.array([-1])).to_list() == [None]


def test_marks_with_a_number_that_no_step_has_are_counted() -> None:
    part = PartBuilder()
    numbers = pl.Series([7, 1 << 31, -1, None, (1 << 31) - 1], dtype=pl.Int64)
    part.add_steps(pl.DataFrame({"number": numbers, "ts": range(5), "dur": [1] * 5}), "declared")
    tables = part.tables()
    assert tables["steps"]["number"].to_list() == [7, (1 << 31) - 1]
    assert tables["losses"].select(pl.col("what").cast(pl.String), "count").rows() == [("step_number_large", 3)]


def test_digits_say_a_number_however_many_they_are() -> None:
    assert (whole_number("0012"), whole_number("9" * 5000)) == (12, LARGEST_TIME)
    assert (whole_number("0" * 40 + "12"), whole_number("0")) == (12, 0)
