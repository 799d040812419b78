from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from stepscope.read.ascend.text import csv_rows
from stepscope.trace.losses import LossLedger

TEXT = b'Step,Computing,"Name, in full"\n1,10.5,"a, ""b"""\n2,20.25,"c\nd"'


def read(path: Path) -> tuple[list[list[str]], dict[str, int]]:
    ledger = LossLedger(path.name)
    made = [[list(row) for row in rows.frame.rows()] for rows in csv_rows.read(path, ledger)]
    return [row for rows in made for row in rows], {loss.what: loss.count for loss in ledger.rows()}


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_the_last_row_is_there_with_and_without_a_line_end(end: bytes, tmp_path: Path) -> None:
    (tmp_path / "step_trace_time.csv").write_bytes(TEXT + end)
    assert read(tmp_path / "step_trace_time.csv") == ([["1", "10.5", 'a, "b"'], ["2", "20.25", "c\nd"]], {})


def test_a_last_cell_that_nothing_ends_may_be_cut(tmp_path: Path) -> None:
    (tmp_path / "l2_cache.csv").write_bytes(b"Task Id,Hit Rate\n1,0.213\n2,0.4")
    assert read(tmp_path / "l2_cache.csv") == ([["1", "0.213"], ["2", "0.4"]], {"line_end_missing": 1})


@pytest.mark.parametrize("cut", [len(b'"c\nd"') + 1, len(b'"'), len(b'20.25,"c\nd"')])
def test_a_file_that_ends_inside_a_row_is_cut(cut: int, tmp_path: Path) -> None:
    (tmp_path / "step_trace_time.csv").write_bytes(TEXT[:-cut])
    assert read(tmp_path / "step_trace_time.csv") == ([["1", "10.5", 'a, "b"']], {"file_cut": 1})


def test_the_last_row_of_a_cut_gzip_file_is_not_taken_for_whole(tmp_path: Path) -> None:
    packed = gzip.compress(TEXT)
    (tmp_path / "a.csv.gz").write_bytes(packed[:-8])
    assert read(tmp_path / "a.csv.gz") == ([["1", "10.5", 'a, "b"']], {"file_cut": 1})
