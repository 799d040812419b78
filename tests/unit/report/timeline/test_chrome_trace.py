"""``trace_view.json`` says what the tables say, in Kineto's words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stepscope.report.timeline.chrome_trace import TraceView
from stepscope.trace.schema import TABLES
from tests.unit.report.build import ORIGIN, WEEK, source


def written(directory: Path, **more: Any) -> dict[str, Any]:
    [path] = TraceView().write(source(**more), directory)
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def events(document: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] == phase]


def test_times_are_exact_decimals_from_the_base(tmp_path: Path) -> None:
    document = written(tmp_path)
    assert document["baseTimeNanoseconds"] == ORIGIN // WEEK * WEEK
    text = (tmp_path / "trace_view.json").read_text()
    relative = ORIGIN - ORIGIN // WEEK * WEEK
    micro, nano = divmod(relative + 1_000, 1000)
    assert f'"name":"aten::mm","pid":4037,"tid":4040,"ts":{micro}.{nano:03},"dur":3.001,' in text


def test_events_have_the_categories_and_arguments_of_kineto(tmp_path: Path) -> None:
    by_name = {event["name"]: event for event in events(written(tmp_path), "X")}
    assert {name: event["cat"] for name, event in by_name.items()} == {
        "ProfilerStep#4": "user_annotation",
        "ProfilerStep#5": "user_annotation",
        "aten::mm": "cpu_op",
        "cudaLaunchKernel": "cuda_runtime",
        "sgemm": "kernel",
    }
    assert by_name["aten::mm"]["args"] == {
        "span": 1,
        "External id": 77,
        "Input Dims": [[8, 3], [3, 4]],
        "Input type": ["float", "float"],
    }
    assert by_name["sgemm"]["args"] == {
        "span": 3,
        "correlation": 9,
        "External id": 77,
        "device": 0,
        "stream": 7,
        "grid": [4, 1, 1],
        "memory bandwidth (GB/s)": 1.5,
    }


def test_a_step_the_file_marked_is_not_there_twice(tmp_path: Path) -> None:
    names = [event["name"] for event in events(written(tmp_path), "X")]
    assert sorted(name for name in names if name.startswith("ProfilerStep")) == ["ProfilerStep#4", "ProfilerStep#5"]


def test_devices_have_processes_that_no_system_gives(tmp_path: Path) -> None:
    document = written(tmp_path)
    names = {event["pid"]: event["args"]["name"] for event in events(document, "M") if event["name"] == "process_name"}
    assert names == {4037: "rank 2: cpu", 10_002_001: "rank 2: cuda:0"}


def test_arrows_begin_and_end_at_their_slices(tmp_path: Path) -> None:
    document = written(tmp_path)
    by_name = {event["name"]: event for event in events(document, "X")}
    [begin], [end] = events(document, "s"), events(document, "f")
    assert begin["id"] == end["id"]
    assert (begin["cat"], end["cat"], end["bp"]) == ("ac2g", "ac2g", "e")
    for arrow, name in ((begin, "cudaLaunchKernel"), (end, "sgemm")):
        assert {key: arrow[key] for key in ("pid", "tid", "ts")} == {
            key: by_name[name][key] for key in ("pid", "tid", "ts")
        }


def test_counters_and_memory_are_curves(tmp_path: Path) -> None:
    curves = {(event["pid"], event["name"]): event["args"] for event in events(written(tmp_path), "C")}
    assert curves == {
        (4037, "host: cpu"): {"%": 12.5},
        (10_002_001, "memory allocated cuda:0"): {"bytes": 2048.0},
    }


def test_the_rank_is_ours_and_the_rest_of_the_metadata_is_kept(tmp_path: Path) -> None:
    document = written(tmp_path)
    assert document["schemaVersion"] == 1
    assert document["distributedInfo"] == {"backend": "nccl", "rank": 2}


def test_empty_tables_give_a_valid_file(tmp_path: Path) -> None:
    empty: dict[str, list[object]] = {name: [] for name in TABLES}
    assert events(written(tmp_path, **empty), "X") == []
