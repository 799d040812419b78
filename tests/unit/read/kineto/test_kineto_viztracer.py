"""A trace that viztracer itself records: functions, ranges, counters and threads, against the file as plain JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepscope
from stepscope.read import read_files
from stepscope.trace.tables import Frames

pytest.importorskip("viztracer", reason="viztracer is not installed (group test)")

PROGRAM = """
import threading
from viztracer import get_tracer
from viztracer.vizcounter import VizCounter

def inner(count):
    return sum(number * number for number in range(count))

def step(count):  # no step of the training: its name has no number
    return inner(count)

thread = threading.Thread(target=inner, args=(50,), name="loader <b>")
thread.start()
thread.join()
loss = VizCounter(get_tracer(), "loss")
for number in range(5):
    with get_tracer().log_event(f"step_{number}"):
        step(100)
        step(200)
    loss.value = 1 / (number + 1)
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("viztracer")
    (directory / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "viztracer", "--quiet", "-o", "trace.json", "program.py"]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)
    return directory / "trace.json"


@pytest.fixture(scope="module")
def events(trace: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(trace.read_text())["traceEvents"]
    return found


@pytest.fixture(scope="module")
def tables(trace: Path) -> Frames:
    return read_files([trace])


def test_every_function_and_range_keeps_its_time(events: list[dict[str, Any]], tables: Frames) -> None:
    complete = [one for one in events if one["ph"] == "X"]
    spans = tables["spans"].select(pl.col("name").cast(pl.String), "dur").rows()
    assert Counter(spans) == Counter((one["name"], round(one["dur"] * 1000)) for one in complete)
    assert len(spans) > 1000


def test_ranges_with_numbers_are_the_steps(events: list[dict[str, Any]], tables: Frames, trace: Path) -> None:
    ranges = {int(one["name"][5]): round(one["dur"] * 1000) for one in events if one["name"].startswith("step_")}
    assert dict(tables["steps"].select("number", "dur").rows()) == ranges
    assert list(ranges) == [0, 1, 2, 3, 4]
    assert stepscope.open(trace).summary.steps.count == 5


def test_threads_and_counters_have_their_names(events: list[dict[str, Any]], tables: Frames) -> None:
    names = {one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert names == {"MainThread", "loader <b>"} <= set(tables["tracks"]["name"])
    values = [one["args"]["value"] for one in events if one["ph"] == "C"]
    assert tables["counters"]["value"].to_list() == values != []
