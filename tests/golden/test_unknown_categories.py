"""Work of a device whose category stepscope does not know keeps its time, and is named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.analyse.step.step_trace_time import split
from stepscope.read import read_files
from stepscope.trace.tables import Frames, lazy
from tests.conftest import WriteTrace


def parts(tables: Frames) -> dict[str, int]:
    return {part: int(times.sum()) for part, times in split(lazy(tables)).parts.items()}


@pytest.fixture
def events(shared_data: Path) -> list[dict[str, Any]]:
    """A training on an MI300 whose kernels have a category of their own."""
    content = gzip.decompress((shared_data / "kineto/tracelens/mi300_bert_small.json.gz").read_bytes())
    found: list[dict[str, Any]] = json.loads(content)["traceEvents"]
    return [{**event, "cat": "tensor_task"} if event.get("cat") == "kernel" else event for event in found]


@pytest.mark.parametrize("ranges", [False, True])
def test_unknown_work_keeps_its_time_and_is_named(
    ranges: bool, events: list[dict[str, Any]], shared_data: Path, write_trace: WriteTrace
) -> None:
    known = parts(read_files([shared_data / "kineto/tracelens/mi300_bert_small.json.gz"]))
    work = [event for event in events if event.get("cat") == "tensor_task"]
    assert work
    if ranges:  # of an unknown category, too, around all of it
        begin, end = min(one["ts"] for one in work) - 1, max(one["ts"] + one["dur"] for one in work) + 1
        events = [*events, {**work[0], "cat": "tensor_range", "ts": begin, "dur": end - begin}]
    tables = read_files([write_trace(events)])
    assert parts(tables) == known
    advice = tables["losses"].filter(tables["losses"]["what"] == "kind_unknown").select("count", "advice").rows()
    assert [(count, "'tensor_task'" in text) for count, text in advice] == [(len(work), True)]
