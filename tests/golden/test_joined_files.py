"""Files that another tool joined or numbered: what is in them twice counts once, and what has no place is said."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stepscope.read import read_files

CAPTURES = ("kineto/hta/trace_diff/control/control.json.gz", "kineto/tracelens/mi300_bert_small.json.gz")


def edited(path: Path, folder: Path, edit: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Path:
    """Return a copy of a capture with other events."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    target = folder / path.name.removesuffix(".gz")
    target.write_text(json.dumps({**document, "traceEvents": edit(document["traceEvents"])}))
    return target


@pytest.mark.parametrize("name", CAPTURES)
def test_what_a_file_holds_twice_counts_once(shared_data: Path, tmp_path: Path, name: str) -> None:
    whole = read_files([shared_data / name])
    # Given a file that was joined with itself
    twice = read_files([edited(shared_data / name, tmp_path, lambda events: events + events)])
    # Then operators, calls and device work are those of the file, and the copies are counted
    kinds = ("operator", "runtime", "kernel", "memcpy", "memset")
    chosen = pl.col("kind").cast(pl.String).is_in(kinds) & (pl.col("dur") > 0)
    sums = [tables["spans"].filter(chosen).select(pl.len(), pl.sum("dur")).row(0) for tables in (whole, twice)]
    assert sums[0] == sums[1]
    counted = dict(twice["losses"].select(pl.col("what").cast(pl.String), "count").rows())
    assert counted["event_twice"] >= sums[0][0]
    assert "event_twice" not in whole["losses"]["what"].cast(pl.String)


def test_steps_with_numbers_that_none_can_have_are_said(shared_data: Path, tmp_path: Path) -> None:
    # Given a program that numbers its steps by a clock
    def numbered(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**e, "name": e["name"].replace("Step#", "Step#99999999999")} if "name" in e else e for e in events]

    source = shared_data / CAPTURES[0]
    marks = len(read_files([source])["steps"])
    tables = read_files([edited(source, tmp_path, numbered)])
    assert tables["steps"].height == 0
    assert dict(tables["losses"].select(pl.col("what").cast(pl.String), "count").rows())["step_number_large"] == marks
