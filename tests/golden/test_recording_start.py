"""What was launched before the recording began, on real captures; and times that do not belong together."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stepscope.analyse.step.summarise import summarise
from stepscope.read import read_files
from stepscope.trace.tables import Frames, lazy
from tests.conftest import WriteTrace

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}


def events_of(path: Path) -> list[dict[str, Any]]:
    found = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [event for event in found if event.get("ph") == "X" and "ts" in event]


def losses(tables: Frames) -> dict[str, int]:
    return dict(tables["losses"].select(pl.col("what").cast(pl.String), "count").rows())


def test_a_step_that_earlier_work_fills_is_marked(shared_data: Path) -> None:
    """Given 614 copies and kernels whose numbers lie below that of every call, then the first step says so."""
    path = shared_data / "kineto/hta/trace_diff/test/test.json.gz"
    events = events_of(path)
    first = min(event["args"]["correlation"] for event in events if event.get("cat") == "cuda_runtime")
    earlier = sum(event.get("cat") in DEVICE and event["args"]["correlation"] < first for event in events)
    tables = read_files([path])
    assert tables["steps"]["launched_before"].to_list() == [earlier, 0, 0, 0, 0, 0]
    assert losses(tables)["launched_before_recording"] == earlier
    assert "correlation_dangling" not in losses(tables)


def test_without_such_work_no_step_is_marked(shared_data: Path) -> None:
    tables = read_files([shared_data / "kineto/hta/trace_diff/control/control.json.gz"])
    assert set(tables["steps"]["launched_before"].to_list()) == {0}
    assert losses(tables) == {}


def test_without_a_device_nothing_is_known_of_it(shared_data: Path) -> None:
    tables = read_files([shared_data / "kineto/hta/rank_non_gpu/rank_non_gpu.json.gz"])
    assert set(tables["steps"]["launched_before"].to_list()) == {None}


def projected(step: dict[str, Any], events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the range of a step on the device, as Kineto makes it: around what was launched during the step."""
    calls = [event for event in events if event.get("cat") == "cuda_runtime"]
    inside = [event for event in calls if step["ts"] <= event["ts"] < step["ts"] + step["dur"]]
    numbers = {event["args"].get("correlation") for event in inside}
    work = [event for event in events if event.get("cat") in DEVICE and event["args"].get("correlation") in numbers]
    begin, end = min(event["ts"] for event in work), max(event["ts"] + event["dur"] for event in work)
    place = {"pid": work[0]["pid"], "tid": work[0]["tid"], "cat": "gpu_user_annotation"}
    return {"ph": "X", **place, "name": step["name"], "ts": begin, "dur": end - begin, "args": {}}


@pytest.mark.parametrize("narrow", [False, True])
def test_the_steps_are_those_of_the_device_where_it_has_them(
    narrow: bool,
    shared_data: Path,
    write_trace: WriteTrace,
) -> None:
    """Given a training whose device lags behind, recorded from its second step on, with Kineto's ranges of the steps.

    Then kernels of the first step fill the second on the host's clock; the device's ranges leave them outside. Where
    the program marks parts of a step, too, the range of the step covers only what lies in none of these (``narrow``).
    """
    (path,) = (shared_data / "kineto/hta/ns_resolution_trace").glob("*.json.gz")
    events = events_of(path)
    steps = [event for event in events if event["name"].startswith("ProfilerStep#")]
    host = sorted(steps, key=lambda event: event["ts"])
    ranges = [projected(step, events) for step in host]
    events += [{**one, "ts": one["ts"] + one["dur"] - 20, "dur": 20} for one in ranges] if narrow else ranges
    begins, left_out = host[1]["ts"], {host[0]["name"]}
    on_device = {*DEVICE, "gpu_user_annotation"}
    cut = [e for e in events if (e.get("cat") in on_device or e["ts"] >= begins) and e["name"] not in left_out]
    cut = [e for e in cut if e.get("cat") not in DEVICE or e["ts"] + e["dur"] > begins]
    tables = read_files([write_trace(cut)])
    assert losses(tables)["launched_before_recording"] > 10
    found = tables["steps"].sort("ts")
    assert found["launched_before"].to_list() == [0] * (len(host) - 1)
    expected = [round(1000 * event["ts"]) for event in ranges[1:]]
    assert found["ts"].to_list() == pytest.approx(expected, abs=1000)
    assert found["ts"].to_list()[1:] == (found["ts"] + found["dur"]).to_list()[:-1]


def test_times_of_two_clocks_are_noticed(shared_data: Path, write_trace: WriteTrace) -> None:
    """Given a capture without steps whose device's times begin at another epoch, then the error says so.

    The range of the results is that of the larger part: not 638 days.
    """
    path = shared_data / "kineto/tracelens/b200/eager_trace.json.gz"
    events = events_of(path)
    for event in events:
        if event.get("cat") in DEVICE | {"gpu_user_annotation"}:
            event["ts"] += 55_210_560 * 1e6
    work = sum(event.get("cat") in DEVICE | {"gpu_user_annotation"} for event in events)
    tables = read_files([write_trace(events)])
    assert losses(tables)["epochs_apart"] == work
    summary = summarise(lazy(tables))
    assert summary.steps.total_ns < 1e9
    assert summary.losses[0].what == "epochs_apart"


def test_recordings_of_two_years_are_noticed(shared_data: Path) -> None:
    folder = shared_data / "kineto"
    older = folder / "hta/critical_path/cuda_event_sync_multi_stream/event_sync_trace.json.gz"
    newer = folder / "tracelens/mi210/gpu_only_trace/gpu_only_trace.json.gz"
    assert "epochs_apart" in losses(read_files([older, newer]))
    assert "epochs_apart" not in losses(read_files([older]))
